package cluster

import (
	"context"
	"fmt"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ServiceAccountKubeconfig writes a kubeconfig with a token of the ServiceAccount, valid for 24 hours, and returns its
// path. A program that uses it has exactly the permissions that RBAC gives to the ServiceAccount, which must exist.
func (c *Cluster) ServiceAccountKubeconfig(ctx context.Context, namespace, name string) (string, error) {
	client, err := c.client()
	if err != nil {
		return "", err
	}
	seconds := int64(24 * 60 * 60)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	token, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("requesting a token of ServiceAccount %s/%s: %w", namespace, name, err)
	}
	path := filepath.Join(c.dir, fmt.Sprintf("kubeconfig.%s.%s", namespace, name))
	return path, writeKubeconfig(path, c.config.Host, c.config.CAData, token.Status.Token)
}
