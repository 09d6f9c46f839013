package packaging

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/yaml"
)

// What tools make of each status that the controller writes (controllers/testdata/status), and of what is there before it
// has written one: kstatus, Argo CD by config/argocd/health.lua, Flux by the expressions of docs/howto/gitops.md.
var verdicts = map[string]struct {
	kstatus status.Status
	argo    string
	flux    string
}{
	"a-new-policy":                 {status.InProgressStatus, "Progressing", "inProgress"},
	"an-edit-that-nobody-has-seen": {status.InProgressStatus, "Progressing", "inProgress"},
	"a-pod-that-is-late-for-a-moment-takes-nothing-back":                {status.CurrentStatus, "Healthy", "current"},
	"a-row-of-a-newer-controller":                                       {status.InProgressStatus, "Degraded", "failed"},
	"a-fault-of-this-workload-alone-is-not-the-stores":                  {status.InProgressStatus, "Progressing", "inProgress"},
	"a-table-of-another-installation":                                   {status.InProgressStatus, "Degraded", "failed"},
	"a-target-that-does-not-exist-yet-written-not-accepted-not-stalled": {status.InProgressStatus, "Progressing", "inProgress"},
	"all-pods-enforce-it":                                               {status.CurrentStatus, "Healthy", "current"},
	"an-invalid-policy-is-stalled-until-it-is-edited":                   {status.FailedStatus, "Degraded", "failed"},
	"an-outage-does-not-take-back-what-was-written":                     {status.CurrentStatus, "Healthy", "current"},
	"an-outage-keeps-a-new-generation-from-being-written":               {status.InProgressStatus, "Progressing", "inProgress"},
	"no-pod-reports":                                             {status.InProgressStatus, "Degraded", "failed"},
	"pods-that-do-not-report":                                    {status.InProgressStatus, "Degraded", "failed"},
	"pods-that-have-just-started":                                {status.CurrentStatus, "Healthy", "current"},
	"pods-that-just-became-ready-are-not-expected-yet":           {status.CurrentStatus, "Healthy", "current"},
	"pods-that-stay-behind-are-named-sorted-three-at-most":       {status.InProgressStatus, "Degraded", "failed"},
	"pods-whose-library-skips-a-rule":                            {status.InProgressStatus, "Degraded", "failed"},
	"scaled-to-zero":                                             {status.CurrentStatus, "Healthy", "current"},
	"a-snapshot-has-this-generation":                             {status.CurrentStatus, "Healthy", "current"},
	"a-controller-that-makes-no-snapshots":                       {status.CurrentStatus, "Healthy", "current"},
	"an-outage-in-which-an-edit-reached-the-snapshot":            {status.InProgressStatus, "Progressing", "inProgress"},
	"no-table-and-nobody-asks-for-a-snapshot":                    {status.InProgressStatus, "Progressing", "inProgress"},
	"no-table-and-the-snapshot-is-on-its-way":                    {status.InProgressStatus, "Progressing", "inProgress"},
	"no-table-the-snapshot-is-all-there-is":                      {status.CurrentStatus, "Healthy", "current"},
	"the-API-server-refuses-the-ConfigMap":                       {status.CurrentStatus, "Healthy", "current"},
	"somebody-elses-ConfigMap":                                   {status.CurrentStatus, "Healthy", "current"},
	"a-canary-beside-the-target":                                 {status.CurrentStatus, "Healthy", "current"},
	"a-canary-whose-library-skips-a-rule":                        {status.CurrentStatus, "Healthy", "current"},
	"a-target-that-does-not-exist-while-a-Rollouts-pods-serve":   {status.InProgressStatus, "Progressing", "inProgress"},
	"a-target-that-is-scaled-to-zero-while-a-copy-of-it-serves":  {status.CurrentStatus, "Healthy", "current"},
	"pods-behind-are-told-although-others-roll":                  {status.InProgressStatus, "Degraded", "failed"},
	"pods-that-roll-all-the-time-so-that-some-have-just-started": {status.CurrentStatus, "Healthy", "current"},
	"written-but-not-yet-reported":                               {status.InProgressStatus, "Progressing", "inProgress"},
}

// policies are the objects of the verdicts, by name.
func policies(t *testing.T) map[string]object {
	t.Helper()
	found := map[string]object{}
	files, err := filepath.Glob(filepath.Join(root, "controllers", "testdata", "status", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no statuses (%v)", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found[strings.TrimSuffix(filepath.Base(file), ".yaml")] = decode(t, string(text))
	}
	edited := decode(t, readFile(t, "controllers/testdata/status/all-pods-enforce-it.yaml"))
	edited["metadata"].(object)["generation"] = int64(3)
	found["an-edit-that-nobody-has-seen"] = edited
	found["a-new-policy"] = decode(t, `
apiVersion: ratelimit.weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: checkout, namespace: shop, generation: 1}
status: {observedGeneration: -1}`)
	return found
}

// decode reads YAML with whole numbers as int64, as Kubernetes clients do.
func decode(t *testing.T, text string) object {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var u unstructured.Unstructured
	if err := u.UnmarshalJSON(data); err != nil {
		t.Fatal(err)
	}
	return u.Object
}

func TestVerdictsOfTools(t *testing.T) {
	argo := readFile(t, "config/argocd/health.lua")
	flux := fluxExpressions(t)
	objects := policies(t)
	for name := range verdicts {
		if objects[name] == nil {
			t.Errorf("no policy %s", name)
		}
	}
	for name, policy := range objects {
		t.Run(name, func(t *testing.T) {
			want, ok := verdicts[name]
			if !ok {
				t.Fatal("no verdict")
			}
			result, err := status.Compute(&unstructured.Unstructured{Object: policy})
			if err != nil || result.Status != want.kstatus {
				t.Errorf("kstatus: %v (%v), want %v", result, err, want.kstatus)
			}
			if got := argoHealth(t, argo, policy); got != want.argo {
				t.Errorf("Argo CD: %s, want %s", got, want.argo)
			}
			if got := fluxStatus(t, flux, policy); got != want.flux {
				t.Errorf("Flux: %s, want %s", got, want.flux)
			}
		})
	}
}

// argoHealth runs a health script as Argo CD does, with the object in the global obj.
func argoHealth(t *testing.T, script string, policy object) string {
	t.Helper()
	l := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer l.Close()
	l.Push(l.NewFunction(lua.OpenBase))
	l.Call(0, 0)
	l.SetGlobal("obj", luaValue(l, policy))
	if err := l.DoString(script); err != nil {
		t.Fatal(err)
	}
	health, ok := l.Get(-1).(*lua.LTable)
	if !ok || health.RawGetString("message").String() == "" {
		t.Fatalf("the script returns %v", l.Get(-1))
	}
	return health.RawGetString("status").String()
}

func luaValue(l *lua.LState, value any) lua.LValue {
	switch v := value.(type) {
	case object:
		table := l.NewTable()
		for key, inner := range v {
			table.RawSetString(key, luaValue(l, inner))
		}
		return table
	case []any:
		table := l.NewTable()
		for _, inner := range v {
			table.Append(luaValue(l, inner))
		}
		return table
	case string:
		return lua.LString(v)
	case int64:
		return lua.LNumber(v)
	case bool:
		return lua.LBool(v)
	}
	return lua.LNil
}

// fluxExpressions are those of docs/howto/gitops.md.
func fluxExpressions(t *testing.T) map[string]string {
	t.Helper()
	block := regexp.MustCompile("(?s)```yaml\n(healthCheckExprs:.*?)```").FindStringSubmatch(readFile(t, "docs/howto/gitops.md"))
	if block == nil {
		t.Fatal("docs/howto/gitops.md has no healthCheckExprs")
	}
	var spec struct {
		HealthCheckExprs []map[string]string `json:"healthCheckExprs"`
	}
	if err := yaml.Unmarshal([]byte(block[1]), &spec); err != nil || len(spec.HealthCheckExprs) != 1 {
		t.Fatalf("%v, %v", spec, err)
	}
	return spec.HealthCheckExprs[0]
}

// fluxStatus evaluates them in the order of Flux: in progress, failed, current.
func fluxStatus(t *testing.T, expressions map[string]string, policy object) string {
	t.Helper()
	environment, err := cel.NewEnv(
		cel.Variable("metadata", cel.DynType), cel.Variable("spec", cel.DynType), cel.Variable("status", cel.DynType))
	if err != nil {
		t.Fatal(err)
	}
	variables := object{"metadata": policy["metadata"], "spec": policy["spec"], "status": policy["status"]}
	for _, name := range []string{"inProgress", "failed", "current"} {
		ast, issues := environment.Compile(expressions[name])
		if issues.Err() != nil {
			t.Fatalf("%s: %v", name, issues.Err())
		}
		program, err := environment.Program(ast)
		if err != nil {
			t.Fatal(err)
		}
		out, _, err := program.Eval(variables)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if out.Value() == true {
			return name
		}
	}
	return "unknown"
}
