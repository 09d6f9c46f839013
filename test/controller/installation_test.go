// Package controller tests the built controller against a real API server and a real Redis, under exactly the
// permissions that config/rbac renders.
package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/hack/dev/cluster"
	"github.com/weir-dev/weir/hack/dev/process"
	"github.com/weir-dev/weir/test/env"
)

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// patience bounds every wait for something that takes a fraction of it.
const patience = 60 * time.Second

var shared struct {
	mu        sync.Mutex
	installed map[*cluster.Cluster]bool // those that have the CRD
}

// root is the repository's.
const root = "../.."

// administrator is a client that may do everything.
func administrator(t *testing.T, c *cluster.Cluster) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	config := c.RESTConfig()
	config.QPS = -1
	admin, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return admin
}

// render gives what `kubectl apply -k` would send, with an overlay's own lines.
func render(t *testing.T, c *cluster.Cluster, lines ...string) string {
	t.Helper()
	overlay := t.TempDir()
	base, err := filepath.Abs(filepath.Join(root, "config"))
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(overlay, base)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(strings.Join(lines, "\n"), "CONFIG", relative)
	if err := os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return kubectl(t, c, "", "kustomize", overlay)
}

func kubectl(t *testing.T, c *cluster.Cluster, stdin string, args ...string) string {
	t.Helper()
	command := exec.Command(c.Kubectl, append([]string{"--kubeconfig", c.Kubeconfig}, args...)...)
	command.Stdin = strings.NewReader(stdin)
	var stderr strings.Builder
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}

// installation is one installation of Weir: a namespace with the rendered ServiceAccount, Roles and bindings.
type installation struct {
	t          *testing.T
	cluster    *cluster.Cluster
	namespace  string
	kubeconfig string
	// looksAfter are the only namespaces that it looks after; none means all. Tests that run at the same time look
	// after their own: the API server is shared.
	looksAfter []string
}

// install renders config/rbac into a namespace of the test's own, with components of config/components. The CRD is shared.
func install(t *testing.T, c *cluster.Cluster, components ...string) *installation {
	t.Helper()
	installCRD(t, c)
	i := &installation{t: t, cluster: c, namespace: createNamespace(t, c, "weir")}
	for i, component := range components {
		components[i] = "CONFIG/components/" + component
	}
	manifests := render(t, c,
		"resources: [CONFIG/rbac]",
		"components: ["+strings.Join(components, ", ")+"]",
		"namespace: "+i.namespace,
		"nameSuffix: -"+i.namespace)
	kubectl(t, c, manifests, "apply", "-f", "-")
	var err error
	i.kubeconfig, err = c.ServiceAccountKubeconfig(t.Context(), i.namespace, "weir-controller-"+i.namespace)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func installCRD(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.installed[c] {
		return
	}
	kubectl(t, c, render(t, c, "resources: [CONFIG/crd]"), "apply", "--server-side", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Established", "crd/ratelimitpolicies.ratelimit.weir.dev", "--timeout=60s")
	if shared.installed == nil {
		shared.installed = map[*cluster.Cluster]bool{}
	}
	shared.installed[c] = true
}

// createNamespace makes a namespace with a name of its own.
func createNamespace(t *testing.T, c *cluster.Cluster, prefix string) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix + "-"}}
	if err := administrator(t, c).Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	return namespace.Name
}

// manager is a running controller.
type manager struct {
	t       *testing.T
	process *process.Process
	log     string
	metrics string
	probes  string
}

// start starts a controller and waits until it is ready. It ends with the test; its log is shown when the test fails.
func (i *installation) start(redisAddress string, args ...string) *manager {
	i.t.Helper()
	m := i.launch(redisAddress, args...)
	ctx, cancel := context.WithTimeout(i.t.Context(), patience)
	defer cancel()
	if err := m.process.WaitReady(ctx, m.ready); err != nil {
		i.t.Fatal(err)
	}
	return m
}

// launch starts a controller without waiting; without an address of Redis it has none.
func (i *installation) launch(redisAddress string, args ...string) *manager {
	i.t.Helper()
	port, err := process.FreePort(0, 1)
	if err != nil {
		i.t.Fatal(err)
	}
	m := &manager{
		t:       i.t,
		log:     filepath.Join(i.t.TempDir(), "manager.log"),
		metrics: fmt.Sprintf("127.0.0.1:%d", port),
		probes:  fmt.Sprintf("127.0.0.1:%d", port+1),
	}
	if redisAddress != "" {
		args = append([]string{"--redis-address=" + redisAddress}, args...)
	}
	if len(i.looksAfter) > 0 {
		args = append([]string{"--namespaces=" + strings.Join(i.looksAfter, ",")}, args...)
	}
	m.process, err = process.Start(process.Command{
		Name: "manager",
		Path: env.Build(i.t, "cmd/manager", buildFlags...),
		Args: append([]string{
			"--kubeconfig=" + i.kubeconfig,
			"--table=" + i.namespace,
			"--leader-election-namespace=" + i.namespace,
			"--metrics-bind-address=" + m.metrics, "--metrics-auth=false", "--metrics-secure=false",
			"--health-probe-bind-address=" + m.probes,
		}, args...),
		Dir: i.t.TempDir(),
		Log: m.log,
	})
	if err != nil {
		i.t.Fatal(err)
	}
	i.t.Cleanup(func() {
		m.process.Stop(10 * time.Second)
		if i.t.Failed() {
			i.t.Log(m.tail())
		}
	})
	return m
}

func (m *manager) ready(ctx context.Context) error {
	return get(ctx, "http://"+m.probes+"/readyz", nil)
}

// metric reads one series, such as `weir_controller_table_writes_total{kind="row"}`.
func (m *manager) metric(series string) float64 {
	m.t.Helper()
	var text strings.Builder
	if err := get(m.t.Context(), "http://"+m.metrics+"/metrics", &text); err != nil {
		m.t.Fatal(err)
	}
	for line := range strings.Lines(text.String()) {
		if value, found := strings.CutPrefix(line, series+" "); found {
			var number float64
			if _, err := fmt.Sscan(value, &number); err != nil {
				m.t.Fatal(err)
			}
			return number
		}
	}
	m.t.Fatalf("no series %s", series)
	return 0
}

func (m *manager) signal(signal syscall.Signal) {
	m.t.Helper()
	if err := m.process.Signal(signal); err != nil {
		m.t.Fatal(err)
	}
}

func (m *manager) logged() string {
	text, err := os.ReadFile(m.log)
	if err != nil {
		m.t.Fatal(err)
	}
	return string(text)
}

// tail is the end of the log.
func (m *manager) tail() string {
	const most = 16 << 10
	text := m.logged()
	return text[max(0, len(text)-most):]
}

func get(ctx context.Context, url string, into io.Writer) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, response.Status)
	}
	if into == nil {
		return nil
	}
	_, err = io.Copy(into, response.Body)
	return err
}

// eventually waits until condition is satisfied, and fails with its last error.
func eventually(t *testing.T, condition func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := process.Poll(ctx, 20*time.Millisecond, condition); err != nil {
		t.Fatal(err)
	}
}
