package controller

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weir-dev/weir/test/env"
)

// What docs/installing.md says is left in Redis and in the cluster is left, and nothing else for ever; what it says to
// type takes it away.
func TestWhatIsLeftBehind(t *testing.T) {
	redis := env.Redis(t, env.RedisOptions{})
	i, w := snapshotSetting(t, redis.Addr)
	d := w.deploy(1)
	m := i.start(redis.Addr, "--snapshots")
	p := w.snapshotted("login", 5)
	w.waitSnapshot(holds(p.Generation, 1))
	row := w.waitRow(hasPolicies("login"))
	w.waitReplicas(1)
	e := w.enforce("checkout-a")
	eventually(t, func(context.Context) error { return acknowledged([]*enforcer{e}, row.Revision) })
	m.process.Stop(10 * time.Second) // the controller goes before the policies do, as with `kubectl delete -f`
	w.remove(p)

	text, err := os.ReadFile(filepath.Join(root, "docs", "installing.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, page, _ := strings.Cut(string(text), "## Uninstalling")
	var forEver []string
	for _, name := range regexp.MustCompile("`weir:default:([a-z]+)(?::\\*)?`").FindAllStringSubmatch(page, -1) {
		forEver = append(forEver, name[1])
	}
	slices.Sort(forEver)
	left := func() (names []string) {
		keys, err := w.redis.Keys(t.Context(), "weir:"+w.table+":*").Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			if ttl := w.redis.PTTL(t.Context(), key).Val(); ttl < 0 {
				names = append(names, strings.Split(key, ":")[2])
			}
		}
		slices.Sort(names)
		return names
	}
	if got := left(); !slices.Equal(got, forEver) {
		t.Errorf("without a time to live are %v, the page says %v", got, forEver)
	}

	// The ConfigMap is the Deployment's, and found by the label that the page names.
	selector := regexp.MustCompile(`kubectl delete configmap -A -l ([a-z./]+)=([a-z]+)`).FindStringSubmatch(page)
	if selector == nil {
		t.Fatal("the page does not say how ConfigMaps are deleted")
	}
	var found corev1.ConfigMapList
	err = w.admin.List(t.Context(), &found, client.InNamespace(w.Namespace), client.MatchingLabels{selector[1]: selector[2]})
	if err != nil || len(found.Items) != 1 || len(found.Items[0].OwnerReferences) != 1 || found.Items[0].OwnerReferences[0].UID != d.UID {
		t.Errorf("ConfigMaps by %s: %+v (%v), want one that the Deployment owns", selector[0], found.Items, err)
	}

	// A controller that comes back finds that the policy is gone: a tombstone, which expires with all that belongs to it.
	i.start(redis.Addr, "--snapshots")
	eventually(t, func(context.Context) error {
		if got := left(); !slices.Equal(got, []string{"owner", "workloads"}) {
			return errors.New("without a time to live are " + strings.Join(got, ", "))
		}
		return nil
	})
}
