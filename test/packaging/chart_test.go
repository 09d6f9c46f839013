package packaging

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// The chart renders what kustomize does, object by object.
func TestTheChartRendersWhatKustomizeDoes(t *testing.T) {
	cases := map[string]struct {
		overlay string
		folders map[string]string
		values  object
	}{
		"alone": {
			overlay: "resources: [CONFIG/default]",
			values:  object{},
		},
		"with a password, TLS and network policies": {
			overlay: `
resources: [CONFIG/default]
components: [CONFIG/components/redis-password, CONFIG/components/redis-tls, CONFIG/components/network-policy]`,
			values: object{
				"redis":         object{"existingSecret": "weir-redis", "tls": object{"enabled": true}},
				"networkPolicy": object{"enabled": true},
			},
		},
		"with snapshots": {
			overlay: "resources: [CONFIG/default]\ncomponents: [CONFIG/components/snapshot]",
			values:  object{"snapshots": object{"enabled": true}},
		},
		"without Redis": {
			overlay: "resources: [CONFIG/default]\ncomponents: [CONFIG/components/snapshot, CONFIG/components/no-redis]",
			values:  object{"redis": object{"enabled": false}, "snapshots": object{"enabled": true}},
		},
		"with mutual TLS, monitoring and network policies": {
			overlay: `
resources: [CONFIG/default]
components:
  - CONFIG/components/redis-tls
  - CONFIG/components/redis-client-certificate
  - CONFIG/components/monitoring
  - CONFIG/components/network-policy`,
			values: object{
				"redis":      object{"tls": object{"enabled": true, "clientCertificate": true}},
				"monitoring": object{"enabled": true}, "networkPolicy": object{"enabled": true},
			},
		},
		"everything": {
			overlay: `
resources: [CONFIG/default, shop]
components:
  - CONFIG/components/redis-password
  - CONFIG/components/redis-tls
  - CONFIG/components/redis-client-certificate
  - CONFIG/components/snapshot
  - CONFIG/components/namespaced
  - CONFIG/components/monitoring
  - CONFIG/components/network-policy
patches: [{patch: '{apiVersion: v1, kind: ConfigMap, metadata: {name: weir-controller, namespace: weir-system}, data: {namespaces: shop}}'}]`,
			folders: map[string]string{"shop": "namespace: shop\nresources: [CONFIG/namespaced, CONFIG/namespaced/snapshot]"},
			values: object{
				"redis":         object{"existingSecret": "weir-redis", "tls": object{"enabled": true, "clientCertificate": true}},
				"snapshots":     object{"enabled": true},
				"namespaces":    []any{"shop"},
				"monitoring":    object{"enabled": true},
				"networkPolicy": object{"enabled": true},
			},
		},
		"with snapshots in some namespaces": {
			overlay: `
resources: [CONFIG/default, shop]
components: [CONFIG/components/snapshot, CONFIG/components/namespaced]
patches: [{patch: '{apiVersion: v1, kind: ConfigMap, metadata: {name: weir-controller, namespace: weir-system}, data: {namespaces: shop}}'}]`,
			folders: map[string]string{"shop": "namespace: shop\nresources: [CONFIG/namespaced, CONFIG/namespaced/snapshot]"},
			values:  object{"namespaces": []any{"shop"}, "snapshots": object{"enabled": true}},
		},
		"with monitoring": {
			overlay: `
resources: [CONFIG/default]
components: [CONFIG/components/monitoring]`,
			values: object{"monitoring": object{"enabled": true}},
		},
		"in some namespaces": {
			overlay: `
resources: [CONFIG/default, shop, cart]
components: [CONFIG/components/namespaced]
patches: [{patch: '{apiVersion: v1, kind: ConfigMap, metadata: {name: weir-controller, namespace: weir-system}, data: {namespaces: "shop,cart"}}'}]`,
			folders: map[string]string{
				"shop": "namespace: shop\nresources: [CONFIG/namespaced]",
				"cart": "namespace: cart\nresources: [CONFIG/namespaced]",
			},
			values: object{"namespaces": []any{"shop", "cart"}},
		},
		"with another image, table and Redis": {
			overlay: `
resources: [CONFIG/default]
images: [{name: ghcr.io/weir-dev/weir-controller-manager, newName: registry.example.com/weir, newTag: v9.9.9}]
replicas: [{name: weir-controller-manager, count: 3}]
patches: [{patch: '{apiVersion: v1, kind: ConfigMap, metadata: {name: weir-controller, namespace: weir-system}, data: {redis-address: "a:1,b:2", table: blue}}'}]`,
			values: object{
				"image":    object{"repository": "registry.example.com/weir", "tag": "v9.9.9"},
				"replicas": 3, "table": "blue",
				"redis": object{"addresses": []any{"a:1", "b:2"}},
			},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			c.values["crds"] = object{"keep": false}
			want := byID(kustomize(t, c.overlay, c.folders))
			got := byID(mustChart(t, c.values))
			for id := range want {
				if strings.HasPrefix(id, "Namespace ") { // `helm install --create-namespace` makes it
					delete(want, id)
				}
			}
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("-kustomize +chart:\n%s", diff)
			}
		})
	}
}

// Every component of the controller is in a case above, so that the chart can do what kustomize can.
func TestEveryComponentHasACase(t *testing.T) {
	components, err := os.ReadDir(filepath.Join(root, "config", "components"))
	if err != nil {
		t.Fatal(err)
	}
	cases := readFile(t, "test/packaging/chart_test.go")
	for _, component := range components {
		forApplications := component.Name() == "snapshot-mount"
		if !forApplications && !strings.Contains(cases, "CONFIG/components/"+component.Name()) {
			t.Errorf("no case has the component %s", component.Name())
		}
	}
}

func TestTheDefinitionIsKept(t *testing.T) {
	kept := find(t, mustChart(t, nil), "CustomResourceDefinition", "")
	if kept.GetAnnotations()["helm.sh/resource-policy"] != "keep" {
		t.Errorf("annotations %v", kept.GetAnnotations())
	}
	for _, o := range mustChart(t, object{"crds": object{"install": false}}) {
		if o.GetKind() == "CustomResourceDefinition" {
			t.Error("crds.install=false installs it")
		}
	}
}

// What kustomize users write as patches, chart users write as values.
func TestValuesBecomeFlags(t *testing.T) {
	cases := map[string]struct {
		values object
		want   []string
	}{
		"Sentinel with a password": {
			object{"redis": object{
				"addresses": []any{"s1:26379", "s2:26379"},
				"sentinel":  object{"master": "main", "existingSecret": "sentinel"},
			}},
			[]string{
				"--redis-sentinel-master=main", "--redis-sentinel-username=$(SENTINEL_USERNAME)",
				"--redis-sentinel-password-file=/etc/weir/sentinel/password",
			},
		},
		"mutual TLS": {
			object{"redis": object{"tls": object{"enabled": true, "clientCertificate": true, "serverName": "redis.example.com"}}},
			[]string{
				"--redis-tls", "--redis-tls-ca-file=/etc/weir/redis-tls/ca.crt", "--redis-tls-cert-file=/etc/weir/redis-tls/tls.crt",
				"--redis-tls-key-file=/etc/weir/redis-tls/tls.key", "--redis-tls-server-name=redis.example.com",
			},
		},
		"another database":          {object{"redis": object{"database": 3}}, []string{"--redis-db=3"}},
		"a certificate for metrics": {object{"metrics": object{"existingSecret": "m"}}, []string{"--metrics-tls-cert-file=/etc/weir/metrics/tls.crt", "--metrics-tls-key-file=/etc/weir/metrics/tls.key"}},
		"more flags":                {object{"extraArgs": []any{"--resync=1m"}}, []string{"--resync=1m"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			container := containerOf(t, mustChart(t, c.values))
			args, _, err := unstructured.NestedStringSlice(container, "args")
			if err != nil {
				t.Fatal(err)
			}
			want := append([]string{"--redis-address=$(REDIS_ADDRESS)", "--table=$(TABLE)"}, c.want...)
			if diff := gocmp.Diff(want, args); diff != "" {
				t.Errorf("flags (-want +got):\n%s", diff)
			}
			mounts, _, _ := unstructured.NestedSlice(container, "volumeMounts")
			for _, arg := range args {
				_, file, isFile := strings.Cut(arg, "=/")
				if isFile && !slices.ContainsFunc(mounts, func(m any) bool {
					return strings.HasPrefix("/"+file, m.(object)["mountPath"].(string)+"/")
				}) {
					t.Errorf("nothing is mounted for %s", arg)
				}
			}
		})
	}
}

func containerOf(t *testing.T, objects []*unstructured.Unstructured) object {
	t.Helper()
	containers, _, err := unstructured.NestedSlice(find(t, objects, "Deployment", "").Object, "spec", "template", "spec", "containers")
	if err != nil || len(containers) != 1 {
		t.Fatalf("containers %v (%v)", containers, err)
	}
	return containers[0].(object)
}

func TestWrongValuesAreRefused(t *testing.T) {
	cases := map[string]object{
		"a value that does not exist":     {"replicaCount": 2},
		"an address without a port":       {"redis": object{"addresses": []any{"redis"}}},
		"no Redis and no snapshots":       {"redis": object{"enabled": false}},
		"no Redis and its password":       {"redis": object{"enabled": false, "existingSecret": "s"}, "snapshots": object{"enabled": true}},
		"no Redis and TLS to it":          {"redis": object{"enabled": false, "tls": object{"enabled": true}}, "snapshots": object{"enabled": true}},
		"no address":                      {"redis": object{"addresses": []any{}}},
		"a table's name":                  {"table": "a:b"},
		"a namespace's name":              {"namespaces": []any{"Shop"}},
		"Sentinel's password, no master":  {"redis": object{"sentinel": object{"existingSecret": "s"}}},
		"a digest that is none":           {"image": object{"digest": "latest"}},
		"negative replicas":               {"replicas": -1},
		"a flag that does not look so":    {"extraArgs": []any{"resync=1m"}},
		"a pull policy that is misspelt":  {"image": object{"pullPolicy": "always"}},
		"monitoring that is not a switch": {"monitoring": object{"enabled": "yes"}},
	}
	for name, values := range cases {
		t.Run(name, func(t *testing.T) {
			if _, err := chart(values); err == nil || !strings.Contains(err.Error(), "values don't meet the specifications of the schema") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// dist/install.yaml is config/default, rendered.
func TestInstallYAMLIsUpToDate(t *testing.T) {
	want := kustomize(t, "resources: [CONFIG/default]", nil)
	got := documents(t, readFile(t, "dist/install.yaml"))
	if diff := gocmp.Diff(byID(want), byID(got)); diff != "" {
		t.Errorf("run make generate (-config/default +dist/install.yaml):\n%s", diff)
	}
}

var configName = regexp.MustCompile(`weir-(controller|dashboard)-[0-9a-z]{10}$`)

// byID gives objects by kind, namespace and name, without what the two tools must do in their own way: Helm's labels, and
// the ending of a generated ConfigMap's name. Lists of named things are sorted by name.
func byID(objects []*unstructured.Unstructured) map[string]object {
	found := map[string]object{}
	for _, o := range objects {
		labels := o.GetLabels()
		delete(labels, "helm.sh/chart")
		delete(labels, "app.kubernetes.io/managed-by")
		o.SetLabels(labels)
		normal := normalize(o.Object).(object)
		metadata := normal["metadata"].(object)
		namespace, _ := metadata["namespace"].(string)
		found[o.GetKind()+" "+namespace+" "+metadata["name"].(string)] = normal
	}
	return found
}

func normalize(value any) any {
	switch v := value.(type) {
	case object:
		for key, inner := range v {
			v[key] = normalize(inner)
		}
	case []any:
		for i, inner := range v {
			v[i] = normalize(inner)
		}
		slices.SortStableFunc(v, func(a, b any) int { return cmp.Compare(nameOf(a), nameOf(b)) })
	case string:
		return configName.ReplaceAllString(v, "weir-$1")
	case int64:
		return float64(v)
	}
	return value
}

func nameOf(value any) string {
	o, _ := value.(object)
	name, _ := o["name"].(string)
	return name
}
