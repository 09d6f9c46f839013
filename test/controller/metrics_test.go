package controller

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// scrape reads the metrics as Prometheus does and returns the status and the body.
func (m *manager) scrape(ctx context.Context, config *tls.Config, token string) (int, string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+m.metrics+"/metrics", nil)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

// token is one of a new ServiceAccount.
func (i *installation) token(name string) string {
	i.t.Helper()
	admin := administrator(i.t, i.cluster)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: i.namespace, Name: name}}
	if err := admin.Create(i.t.Context(), account); err != nil {
		i.t.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{}
	if err := admin.SubResource("token").Create(i.t.Context(), account, request); err != nil {
		i.t.Fatal(err)
	}
	return request.Status.Token
}

// Metrics are for those whom the role weir-metrics-reader is bound to, over TLS.
func TestMetricsAreServedToWhoMayReadThem(t *testing.T) {
	i, redis, w := setting(t)
	m := i.start(redis.Addr, "--metrics-secure=true", "--metrics-auth=true")
	reader, other := i.token("prometheus"), i.token("curious")
	err := w.admin.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "prometheus-" + i.namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "weir-metrics-reader-" + i.namespace},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: i.namespace, Name: "prometheus"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	trusting := &tls.Config{InsecureSkipVerify: true} // the certificate is signed by itself
	for name, c := range map[string]struct {
		token string
		want  int
	}{
		"no token":                        {"", http.StatusUnauthorized},
		"a token that is none":            {"let.me.in", http.StatusInternalServerError}, // the filter's answer to an error of the review
		"a ServiceAccount without rights": {other, http.StatusForbidden},
		"Prometheus":                      {reader, http.StatusOK},
	} {
		eventually(t, func(ctx context.Context) error { // the binding takes a moment to be known
			status, body, err := m.scrape(ctx, trusting, c.token)
			if err != nil || status != c.want {
				return fmt.Errorf("%s: status %d (%w), want %d", name, status, err, c.want)
			}
			if has := strings.Contains(body, "weir_controller_table_up"); has != (c.want == http.StatusOK) {
				return fmt.Errorf("%s: status %d with the body %q", name, status, body)
			}
			return nil
		})
	}
	_, body, err := m.scrape(t.Context(), trusting, reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, foreign := range []string{ // those of controller-runtime that alerts read
		`leader_election_master_status{name="weir-controller-manager"} 1`,
		`controller_runtime_reconcile_errors_total{controller="ratelimitpolicy"} `,
	} {
		if !strings.Contains(body, foreign) {
			t.Errorf("no series %s", foreign)
		}
	}
	if err := get(t.Context(), "http://"+m.metrics+"/metrics", nil); err == nil {
		t.Error("metrics are served without TLS")
	}
	for _, token := range []string{reader, other} {
		if strings.Contains(m.logged(), token) {
			t.Error("a token is in the log")
		}
	}
}

func TestTheCertificateForMetricsIsReadAnew(t *testing.T) {
	i, redis, _ := setting(t)
	first := newCertificates(t, t.TempDir())
	m := i.start(redis.Addr, "--metrics-secure=true", "--metrics-tls-cert-file="+first.cert, "--metrics-tls-key-file="+first.key)
	serves := func(c certificates) func(context.Context) error {
		return func(ctx context.Context) error {
			status, _, err := m.scrape(ctx, &tls.Config{RootCAs: c.pool}, "")
			if err == nil && status != http.StatusOK {
				err = errors.New(http.StatusText(status))
			}
			return err
		}
	}
	eventually(t, serves(first))
	eventually(t, serves(newCertificates(t, first.dir)))
}
