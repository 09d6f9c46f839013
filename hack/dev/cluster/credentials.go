package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	api "k8s.io/client-go/tools/clientcmd/api"
)

// credentials are files that every cluster makes anew, and the token of its administrator.
type credentials struct {
	authority          string // PEM certificate
	servingCertificate string
	servingKey         string
	serviceAccountKey  string
	tokenFile          string
	token              string
}

func createCredentials(dir string) (credentials, error) {
	c := credentials{
		authority:          filepath.Join(dir, "ca.crt"),
		servingCertificate: filepath.Join(dir, "apiserver.crt"),
		servingKey:         filepath.Join(dir, "apiserver.key"),
		serviceAccountKey:  filepath.Join(dir, "serviceaccounts.key"),
		tokenFile:          filepath.Join(dir, "tokens.csv"),
		token:              rand.Text(),
	}
	if err := c.createCertificates(time.Now()); err != nil {
		return c, fmt.Errorf("creating certificates: %w", err)
	}
	if _, err := createKey(c.serviceAccountKey); err != nil {
		return c, fmt.Errorf("creating the key of service accounts: %w", err)
	}
	line := c.token + `,admin,admin,"system:masters"` + "\n"
	if err := os.WriteFile(c.tokenFile, []byte(line), 0o600); err != nil {
		return c, fmt.Errorf("writing the token file: %w", err)
	}
	return c, nil
}

// createCertificates makes an authority and the API server's certificate. The authority's key is not kept.
func (c credentials) createCertificates(now time.Time) error {
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	authority := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "weir local cluster"},
		NotBefore:             now.Add(-time.Hour), // clocks that are set back
		NotAfter:              now.AddDate(1, 0, 0),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	if err := createCertificate(c.authority, authority, authority, &authorityKey.PublicKey, authorityKey); err != nil {
		return err
	}
	key, err := createKey(c.servingKey)
	if err != nil {
		return err
	}
	return createCertificate(c.servingCertificate, &x509.Certificate{
		SerialNumber: big.NewInt(2),
		Subject:      pkix.Name{CommonName: "kube-apiserver"},
		NotBefore:    authority.NotBefore,
		NotAfter:     authority.NotAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:     []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}, authority, &key.PublicKey, authorityKey)
}

func createCertificate(path string, certificate, parent *x509.Certificate, public *ecdsa.PublicKey, signer *ecdsa.PrivateKey) error {
	der, err := x509.CreateCertificate(rand.Reader, certificate, parent, public, signer)
	if err != nil {
		return err
	}
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600)
}

func createKey(path string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}

// writeKubeconfig writes a kubeconfig that carries the authority itself, so that the file may be copied anywhere.
func (c credentials) writeKubeconfig(path, server, token string) error {
	authority, err := os.ReadFile(c.authority)
	if err != nil {
		return fmt.Errorf("writing a kubeconfig: %w", err)
	}
	return writeKubeconfig(path, server, authority, token)
}

func writeKubeconfig(path, server string, authority []byte, token string) error {
	const name = "weir"
	config := api.NewConfig()
	config.Clusters[name] = &api.Cluster{Server: server, CertificateAuthorityData: authority}
	config.AuthInfos[name] = &api.AuthInfo{Token: token}
	config.Contexts[name] = &api.Context{Cluster: name, AuthInfo: name, Namespace: "default"}
	config.CurrentContext = name
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("writing a kubeconfig: %w", err)
	}
	return nil
}
