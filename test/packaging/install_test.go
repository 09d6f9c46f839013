package packaging

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/loader"
	"helm.sh/helm/v4/pkg/cli"
	"helm.sh/helm/v4/pkg/kube"
	"k8s.io/client-go/kubernetes"

	"github.com/weir-dev/weir/hack/dev/cluster"
	"github.com/weir-dev/weir/hack/dev/run"
	"github.com/weir-dev/weir/test/env"
	testkube "github.com/weir-dev/weir/test/kube"
)

const (
	password = "only-for-this-test"
	crd      = "crd/ratelimitpolicies.ratelimit.weir.dev"
)

// Installed by kustomize and by Helm, the samples become Ready, with the controller under exactly the permissions of its
// rendered ServiceAccount; uninstalled, only what the page says is left.
func TestInstallations(t *testing.T) {
	c := testkube.Cluster(t)
	tools := map[string]struct {
		install, uninstall func(*testing.T, *cluster.Cluster)
		left               []string
	}{
		"kubectl apply -k": {
			install: func(t *testing.T, c *cluster.Cluster) {
				kubectl(t, c, "apply", "-k", filepath.Join(root, "config", "default"))
			},
			uninstall: func(t *testing.T, c *cluster.Cluster) {
				kubectl(t, c, "delete", "-k", filepath.Join(root, "config", "default"), "--timeout=60s")
			},
		},
		"helm install": {
			install: helmInstall, uninstall: helmUninstall,
			left: []string{crd},
		},
	}
	programs := t.TempDir()
	runIn(t, root, "go", "build", "-o", programs+"/", "./cmd/manager", "./examples/checkout")
	for name, tool := range tools {
		t.Run(name, func(t *testing.T) {
			tool.install(t, c)
			kubectl(t, c, "wait", "--for=condition=Established", crd, "--timeout=60s")
			startWeir(t, c, programs)
			kubectl(t, c, "wait", "--for=condition=Ready", "ratelimitpolicies.ratelimit.weir.dev", "--all", "-n", "shop", "--timeout=60s")
			kubectl(t, c, "wait", "--for=condition=Enforced", "ratelimitpolicies.ratelimit.weir.dev", "--all", "-n", "shop", "--timeout=60s")

			kubectl(t, c, "delete", "-k", filepath.Join(root, "config", "samples"), "--timeout=60s")
			tool.uninstall(t, c)
			left := kubectl(t, c, "get", "crd,clusterrole,clusterrolebinding", "-l", "app.kubernetes.io/part-of=weir", "-o", "name")
			got := strings.Fields(left)
			for i, name := range got {
				got[i] = strings.Replace(name, "customresourcedefinition.apiextensions.k8s.io/", "crd/", 1)
			}
			if strings.Join(got, " ") != strings.Join(tool.left, " ") {
				t.Errorf("left behind: %q, want %q", got, tool.left)
			}
			for _, name := range got {
				kubectl(t, c, "delete", name)
			}
			kubectl(t, c, "delete", "namespace", namespace, "--ignore-not-found", "--timeout=60s")
		})
	}
}

// startWeir starts Redis with the two users of config/redis, the controller, the samples and their replicas.
func startWeir(t *testing.T, c *cluster.Cluster, programs string) {
	t.Helper()
	users := "user default off\n" + readFile(t, "config/redis/controller.acl") + readFile(t, "config/redis/application.acl")
	redis := env.Redis(t, env.RedisOptions{
		ACL: strings.NewReplacer("TABLE", "default", "NAMESPACE", "shop", "PASSWORD", password).Replace(users),
	})
	secret := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(secret, []byte(password), 0o600); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := c.ServiceAccountKubeconfig(t.Context(), namespace, "weir-controller")
	if err != nil {
		t.Fatal(err)
	}
	logs := t.TempDir()
	controller, err := run.StartController(t.Context(), run.ControllerOptions{
		Program: filepath.Join(programs, "manager"), Kubeconfig: kubeconfig, Redis: redis.Addr, Table: "default",
		LeaseNamespace: namespace, Logs: logs,
		Args: []string{"--redis-username=weir-controller", "--redis-password-file=" + secret},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		controller.Stop(10 * time.Second)
		if t.Failed() {
			t.Log(controller.LogTail())
		}
	})
	pods, err := kubernetes.NewForConfig(c.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	kubectl(t, c, "apply", "-k", filepath.Join(root, "config", "samples"))
	fleet := run.StartFleet(run.FleetOptions{
		Pods: pods, Namespace: "shop", Selector: "app=checkout", Program: filepath.Join(programs, "checkout"), Logs: logs,
		Env: []string{
			"REDIS=" + redis.Addr, "REDIS_USER=weir-shop", "REDIS_PASSWORD=" + password, "STORE_TIMEOUT=1s",
			"WEIR_TABLE=default", "WEIR_NAMESPACE=shop", "WEIR_WORKLOAD=checkout",
		},
	})
	t.Cleanup(fleet.Stop)
	if _, err := fleet.Addresses(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
}

func kubectl(t *testing.T, c *cluster.Cluster, args ...string) string {
	t.Helper()
	return runIn(t, ".", c.Kubectl, append([]string{"--kubeconfig", c.Kubeconfig}, args...)...)
}

func helm(t *testing.T, c *cluster.Cluster) *action.Configuration {
	t.Helper()
	settings := cli.New()
	settings.KubeConfig = c.Kubeconfig
	settings.SetNamespace(namespace)
	configuration := action.NewConfiguration(action.ConfigurationSetLogger(slog.NewTextHandler(testWriter{t}, nil)))
	if err := configuration.Init(settings.RESTClientGetter(), namespace, "secret"); err != nil {
		t.Fatal(err)
	}
	return configuration
}

func helmInstall(t *testing.T, c *cluster.Cluster) {
	loaded, err := loader.Load(filepath.Join(root, "charts", "weir"))
	if err != nil {
		t.Fatal(err)
	}
	install := action.NewInstall(helm(t, c))
	install.ReleaseName, install.Namespace, install.CreateNamespace = "weir", namespace, true
	install.WaitStrategy = kube.HookOnlyStrategy
	install.Timeout = time.Minute
	if _, err := install.RunWithContext(t.Context(), loaded, object{}); err != nil {
		t.Fatal(err)
	}
}

func helmUninstall(t *testing.T, c *cluster.Cluster) {
	uninstall := action.NewUninstall(helm(t, c))
	uninstall.WaitStrategy = kube.StatusWatcherStrategy
	uninstall.Timeout = time.Minute
	if _, err := uninstall.Run("weir"); err != nil {
		t.Fatal(err)
	}
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(text []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(text)))
	return len(text), nil
}
