package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"k8s.io/client-go/kubernetes"

	"github.com/weir-dev/weir/hack/dev/cluster"
	"github.com/weir-dev/weir/hack/dev/process"
	dev "github.com/weir-dev/weir/hack/dev/run"
	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/internal/redisstore"
	"github.com/weir-dev/weir/test/env"
	"github.com/weir-dev/weir/test/kube"
)

const (
	controlTable  = "chaos"
	controlWindow = 2 * time.Second
)

// plane is a real Kubernetes with the real Deployment controller, Weir's controller, and a replica for each ready pod.
type plane struct {
	t          *testing.T
	namespace  string // of the application
	cluster    *cluster.Cluster
	redis      *env.RedisServer
	apiServer  *proxy // between controller and API server
	kubeconfig string // by way of it
	leader     *process.Process
	fleet      *fleet
	requests   int64 // of the limit
	recovered  float64
}

// controllerFault is what happens to the controller: play returns when it is over, and calls edit once.
type controllerFault struct {
	name string
	play func(p *plane, edit func())
}

var controllerFaults = []controllerFault{
	{"controller killed", func(p *plane, edit func()) {
		p.leader.Stop(0)
		edit()
		p.pause(2 * controlWindow)
		p.leader = p.controller()
	}},
	{"API server down", func(p *plane, edit func()) {
		p.apiServer.set(conduct{refuse: true})
		p.pause(4 * controlWindow) // shorter than what a leader needs to give up
		p.apiServer.set(conduct{})
		edit()
	}},
	// B57
	{"leader paused for 40 s", func(p *plane, edit func()) {
		asleep := p.leader
		p.leader = p.controller()
		if err := asleep.Signal(syscall.SIGSTOP); err != nil {
			p.t.Fatal(err)
		}
		began := time.Now()
		edit()
		p.pause(40*time.Second - time.Since(began))
		written := p.row()
		if err := asleep.Signal(syscall.SIGCONT); err != nil {
			p.t.Fatal(err)
		}
		select {
		case <-asleep.Done():
		case <-time.After(patience):
			p.t.Error("the leader that was paused goes on")
		}
		if now := p.row(); now.Revision.Compare(written.Revision) < 0 || now.Rules[0].Limits[0].Requests != p.requests {
			p.t.Errorf("the row went from %v back to %v, with %d requests", written.Revision, now.Revision, now.Rules[0].Limits[0].Requests)
		}
	}},
}

// controllerRows lets each fault happen to the controller, one after the other, while the replicas work.
func controllerRows(t *testing.T, namespace string, seed uint64, add func(result)) {
	t.Helper()
	p := newPlane(t, namespace, seed)
	for i := range replicas {
		p.fleet.send(keyEven, i)
	}
	for _, f := range controllerFaults {
		row := p.play(&f).judge()
		row.Fault, row.Recovered = f.name, p.recovered
		check(t, &row, takeOver)
		add(row)
	}
}

func newPlane(t *testing.T, namespace string, seed uint64) *plane {
	t.Helper()
	p := &plane{t: t, namespace: namespace, cluster: kube.Cluster(t), redis: env.Redis(t, env.RedisOptions{}), requests: requests}
	p.kubectl("", "apply", "--server-side", "-k", filepath.Join("..", "..", "config", "default"))
	p.kubeconfig = p.behindProxy(seed)
	p.leader = p.controller()

	pods, err := kubernetes.NewForConfig(p.cluster.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	started := dev.StartFleet(dev.FleetOptions{
		Pods: pods, Namespace: namespace, Selector: "app=checkout", Program: env.Build(t, "test/chaos/enforcer"), Logs: t.TempDir(),
		Env: []string{
			"REDIS=" + p.redis.Addr, "STORE_TIMEOUT=" + timeoutFlag.String(), "WEIR_TABLE=" + controlTable,
			"WEIR_NAMESPACE=" + namespace, "WEIR_WORKLOAD=checkout",
		},
	})
	t.Cleanup(started.Stop)
	p.kubectl("", "create", "namespace", namespace)
	t.Cleanup(func() {
		remove := exec.Command(p.cluster.Kubectl, "delete", "namespace", namespace, "--wait=false", "--kubeconfig="+p.cluster.Kubeconfig)
		if out, err := remove.CombinedOutput(); err != nil {
			t.Logf("removing the namespace: %v\n%s", err, out)
		}
	})
	p.apply()
	p.kubectl(fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: checkout, namespace: %s}
spec:
  replicas: %d
  selector: {matchLabels: {app: checkout}}
  template:
    metadata: {labels: {app: checkout}}
    spec: {containers: [{name: checkout, image: none}]}
`, namespace, replicas), "apply", "-f", "-")
	addresses, err := started.Addresses(t.Context(), replicas)
	if err != nil {
		t.Fatal(err)
	}
	p.fleet = &fleet{t: t, addresses: addresses}
	return p
}

// behindProxy writes a kubeconfig with the controller's permissions, whose server is a proxy.
func (p *plane) behindProxy(seed uint64) string {
	p.t.Helper()
	file, err := p.cluster.ServiceAccountKubeconfig(p.t.Context(), "weir-system", "weir-controller")
	if err != nil {
		p.t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		p.t.Fatal(err)
	}
	host := p.cluster.RESTConfig().Host
	server, err := url.Parse(host)
	if err != nil {
		p.t.Fatal(err)
	}
	p.apiServer = newProxy(p.t, server.Host, seed)
	changed := filepath.Join(p.t.TempDir(), "kubeconfig")
	if err := os.WriteFile(changed, bytes.ReplaceAll(text, []byte(host), []byte("https://"+p.apiServer.addr)), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return changed
}

// controller starts one, which leads when no other does.
func (p *plane) controller() *process.Process {
	p.t.Helper()
	started, err := dev.StartController(p.t.Context(), dev.ControllerOptions{
		Program: env.Build(p.t, "cmd/manager"), Kubeconfig: p.kubeconfig, Redis: p.redis.Addr, Table: controlTable,
		LeaseNamespace: "weir-system", Logs: p.t.TempDir(), Args: []string{"--namespaces=" + p.namespace},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		_ = started.Signal(syscall.SIGCONT)
		started.Stop(5 * time.Second)
		if p.t.Failed() {
			p.t.Log(started.LogTail())
		}
	})
	return started
}

// apply writes the policy with the present number of requests.
func (p *plane) apply() {
	p.t.Helper()
	p.kubectl(fmt.Sprintf(`
apiVersion: ratelimit.weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: only, namespace: %s}
spec:
  targetRef: {group: apps, kind: Deployment, name: checkout}
  rules:
    - name: all
      key: [{header: X-Api-Key}]
      limits: [{requests: %d, window: %s, algorithm: FixedWindow}]
`, p.namespace, p.requests, controlWindow), "apply", "-f", "-")
}

func (p *plane) kubectl(input string, args ...string) {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), p.cluster.Kubectl, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+p.cluster.Kubeconfig)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		p.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// row is what the table holds.
func (p *plane) row() policy.Row {
	p.t.Helper()
	client := redisstore.NewClient(&redis.UniversalOptions{Addrs: []string{p.redis.Addr}})
	defer client.Close()
	w := policy.Workload{Namespace: p.namespace, Group: "apps", Kind: "Deployment", Name: "checkout"}
	state, err := redisstore.NewMember(client, controlTable, w).Read(p.t.Context())
	if err == nil && state.Row == nil {
		err = errors.New("there is no row")
	}
	if err != nil {
		p.t.Fatal(err)
	}
	row, _, err := policy.DecodeRow(state.Row)
	if err != nil {
		p.t.Fatal(err)
	}
	return row
}

func (p *plane) pause(d time.Duration) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), d)
	defer cancel()
	<-ctx.Done()
	if p.t.Context().Err() != nil {
		p.t.Fatal(context.Cause(p.t.Context()))
	}
}

// play lets a fault happen. The limit goes from 100 to 60, or back, by an edit of the policy during the fault, or at its
// end if it is the API server that is away.
func (p *plane) play(f *controllerFault) *run {
	p.t.Helper()
	before := p.requests
	p.inForce()
	window := controlWindow.Microseconds()
	began := time.Now().Truncate(controlWindow).Add(controlWindow)
	p.pause(time.Until(began.Add(controlWindow + controlWindow/2)))
	injected := time.Now()
	var edited int64
	f.play(p, func() {
		p.requests = 160 - before
		edited = time.Now().UnixMicro()
		p.apply()
	})
	healed := time.Now()
	p.inForce()
	ended := time.Now().Truncate(controlWindow).Add(2 * controlWindow)
	p.pause(time.Until(ended.Add(100 * time.Millisecond)))

	r := &run{
		mode: policy.OnStoreFailureLocalShare, window: window, bound: cutOff,
		began: began.UnixMicro(), injected: injected.UnixMicro(), healed: healed.UnixMicro(), ended: ended.UnixMicro(),
		records: p.fleet.records(),
	}
	known := knownEverywhere(r.records, p.requests, edited)
	r.healed = max(r.healed, known)
	r.limit = func(w int64) int64 {
		switch {
		case (w+1)*window <= edited:
			return before
		case w > r.at(known):
			return p.requests
		}
		return max(before, p.requests)
	}
	p.recovered = float64(known-edited) / 1e6
	return r
}

// inForce waits until every replica decides by the present limit.
func (p *plane) inForce() {
	p.t.Helper()
	p.fleet.until("going by the policy", patience, func(s State) bool { return s.Limit == p.requests })
}

// knownEverywhere is when the last replica decided by a limit for the first time after it was edited.
func knownEverywhere(all [][]Record, limit, edited int64) (known int64) {
	for _, records := range all {
		i := slices.IndexFunc(records, func(d Record) bool { return d.Limit == limit && d.Began >= edited })
		if i >= 0 {
			known = max(known, records[i].Ended())
		}
	}
	return known
}
