package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/test/env"
	"github.com/weir-dev/weir/test/kube"
)

// What the rendered roles allow, one line a right: role, group, resource, verb, names.
var allowed = []string{
	"weir-controller apps deployments get",
	"weir-controller apps deployments list",
	"weir-controller apps deployments watch",
	"weir-controller events.k8s.io events create",
	"weir-controller events.k8s.io events patch",
	"weir-controller ratelimit.weir.dev ratelimitpolicies get",
	"weir-controller ratelimit.weir.dev ratelimitpolicies list",
	"weir-controller ratelimit.weir.dev ratelimitpolicies watch",
	"weir-controller ratelimit.weir.dev ratelimitpolicies/status patch",
	"weir-controller-leader-election  namespaces get",
	"weir-controller-leader-election coordination.k8s.io leases create",
	"weir-controller-leader-election coordination.k8s.io leases get weir-controller-manager",
	"weir-controller-leader-election coordination.k8s.io leases update weir-controller-manager",
	"weir-metrics-auth authentication.k8s.io tokenreviews create",
	"weir-metrics-auth authorization.k8s.io subjectaccessreviews create",
	"weir-metrics-reader /metrics",
	"weir-policy-editor ratelimit.weir.dev ratelimitpolicies create",
	"weir-policy-editor ratelimit.weir.dev ratelimitpolicies delete",
	"weir-policy-editor ratelimit.weir.dev ratelimitpolicies deletecollection",
	"weir-policy-editor ratelimit.weir.dev ratelimitpolicies get",
	"weir-policy-editor ratelimit.weir.dev ratelimitpolicies list",
	"weir-policy-editor ratelimit.weir.dev ratelimitpolicies patch",
	"weir-policy-editor ratelimit.weir.dev ratelimitpolicies update",
	"weir-policy-editor ratelimit.weir.dev ratelimitpolicies watch",
	"weir-policy-viewer ratelimit.weir.dev ratelimitpolicies get",
	"weir-policy-viewer ratelimit.weir.dev ratelimitpolicies list",
	"weir-policy-viewer ratelimit.weir.dev ratelimitpolicies watch",
}

// What is left without rights in the whole cluster.
var allowedForLeading = slices.DeleteFunc(slices.Clone(allowed), func(right string) bool {
	return !strings.HasPrefix(right, "weir-controller-leader-election ")
})

// What snapshots take beside that.
var allowedForSnapshots = []string{
	"weir-controller-snapshots  configmaps create",
	"weir-controller-snapshots  configmaps delete",
	"weir-controller-snapshots  configmaps get",
	"weir-controller-snapshots  configmaps list",
	"weir-controller-snapshots  configmaps update",
	"weir-controller-snapshots  configmaps watch",
}

func TestTheRenderedRolesAllowNothingElse(t *testing.T) {
	c := kube.APIServer(t)
	for name, tc := range map[string]struct {
		resources, components string
		allowed               []string
	}{
		"alone":                         {"default", "", allowed},
		"with snapshots":                {"default", "components: [CONFIG/components/snapshot]", slices.Concat(allowed, allowedForSnapshots)},
		"with snapshots in a namespace": {"namespaced/snapshot", "", allowedForSnapshots},
		"the rest of that":              {"default", "components: [CONFIG/components/snapshot, CONFIG/components/namespaced]", allowedForLeading},
	} {
		t.Run(name, func(t *testing.T) {
			var rights []string
			for _, role := range roles(t, render(t, c, "resources: [CONFIG/"+tc.resources+"]", tc.components)) {
				rights = append(rights, rightsOf(role)...)
			}
			for _, right := range rights {
				if !slices.Contains(tc.allowed, right) {
					t.Errorf("not allowed: %s", right)
				}
			}
			for _, right := range tc.allowed {
				if !slices.Contains(rights, right) {
					t.Errorf("missing: %s", right)
				}
			}
		})
	}
}

// roles are the Roles and ClusterRoles of a manifest.
func roles(t *testing.T, manifest string) []rbacv1.ClusterRole {
	t.Helper()
	var found []rbacv1.ClusterRole
	for document := range strings.SplitSeq(manifest, "\n---\n") {
		var role rbacv1.ClusterRole // a Role has the same form
		if err := yaml.Unmarshal([]byte(document), &role); err != nil {
			t.Fatal(err)
		}
		if role.Kind == "Role" || role.Kind == "ClusterRole" {
			found = append(found, role)
		}
	}
	return found
}

func rightsOf(role rbacv1.ClusterRole) []string {
	var rights []string
	for _, rule := range role.Rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					right := fmt.Sprintf("%s %s %s %s", role.Name, group, resource, verb)
					rights = append(rights, strings.Join(append([]string{right}, rule.ResourceNames...), " "))
				}
			}
		}
		for _, url := range rule.NonResourceURLs {
			rights = append(rights, role.Name+" "+url)
		}
	}
	return rights
}

// B59: a right that is missing keeps the controller from being ready, and within 30 s it says which one: verb, resource and
// namespace.
func TestAMissingRightIsNamed(t *testing.T) {
	const most = 30 * time.Second
	for name, c := range map[string]struct {
		resource   string
		verbs      []string
		namespaced bool
		named      []string
	}{
		"list and watch of Deployments": {
			resource: "deployments", verbs: []string{"list", "watch"},
			named: []string{`cannot list resource \"deployments\"`, `API group \"apps\"`, "at the cluster scope"},
		},
		"watch of Deployments": {
			resource: "deployments", verbs: []string{"watch"},
			named: []string{`cannot watch resource \"deployments\"`, `API group \"apps\"`, "at the cluster scope"},
		},
		"list and watch of Deployments in its namespace": {
			resource: "deployments", verbs: []string{"list", "watch"}, namespaced: true,
			named: []string{`cannot list resource \"deployments\"`, `API group \"apps\"`, `in the namespace \"NAMESPACE\"`},
		},
		"list of policies": { // which a cache does without, but not who is about to take limits away
			resource: "ratelimitpolicies", verbs: []string{"list"},
			named: []string{`"verb":"list","group":"ratelimit.weir.dev","resource":"ratelimitpolicies","namespace":"all"`},
		},
		"status of policies": {
			resource: "ratelimitpolicies/status", verbs: []string{"patch"},
			named: []string{`"verb":"patch","group":"ratelimit.weir.dev","resource":"ratelimitpolicies/status","namespace":"all"`},
		},
		"status of policies in its namespace": {
			resource: "ratelimitpolicies/status", verbs: []string{"patch"}, namespaced: true,
			named: []string{`"verb":"patch","group":"ratelimit.weir.dev","resource":"ratelimitpolicies/status","namespace":"NAMESPACE"`},
		},
		"events": {
			resource: "events", verbs: []string{"create"},
			named: []string{`"verb":"create","group":"events.k8s.io","resource":"events","namespace":"all"`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			i, redis, w := setting(t)
			if !c.namespaced {
				i.looksAfter = nil
			}
			var role rbacv1.ClusterRole
			if err := w.admin.Get(t.Context(), client.ObjectKey{Name: "weir-controller-" + i.namespace}, &role); err != nil {
				t.Fatal(err)
			}
			complete := role.DeepCopy()
			for n, rule := range role.Rules {
				if slices.Contains(rule.Resources, c.resource) {
					role.Rules[n].Verbs = slices.DeleteFunc(rule.Verbs, func(verb string) bool { return slices.Contains(c.verbs, verb) })
				}
			}
			role.Rules = slices.DeleteFunc(role.Rules, func(rule rbacv1.PolicyRule) bool { return len(rule.Verbs) == 0 })
			if len(role.Rules) == 0 || equality.Semantic.DeepEqual(role.Rules, complete.Rules) {
				t.Fatalf("the role does not have this right: %v", role.Rules)
			}
			if err := w.admin.Update(t.Context(), &role); err != nil {
				t.Fatal(err)
			}
			for _, verb := range c.verbs {
				w.isTaken(i, c.resource, verb)
			}
			m := i.launch(redis.Addr)
			waitFor(t, most, func(context.Context) error {
				log := m.logged()
				for _, part := range c.named {
					if part = strings.ReplaceAll(part, "NAMESPACE", w.Namespace); !strings.Contains(log, part) {
						return fmt.Errorf("the log does not say %s", part)
					}
				}
				return nil
			})
			if err := m.ready(t.Context()); err == nil {
				t.Error("it is ready although a right is missing")
			}

			complete.ResourceVersion = ""
			if err := w.admin.Update(t.Context(), complete); err != nil {
				t.Fatal(err)
			}
			eventually(t, m.ready)
		})
	}
}

// isTaken waits until the API server goes by a role without a right: it reads roles from a cache.
func (w *workload) isTaken(i *installation, resource, verb string) {
	w.t.Helper()
	group := map[string]string{"deployments": "apps", "events": "events.k8s.io"}[resource]
	if group == "" {
		group = v1alpha1.GroupVersion.Group
	}
	resource, subresource, _ := strings.Cut(resource, "/")
	eventually(w.t, func(ctx context.Context) error {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "system:serviceaccount:" + i.namespace + ":weir-controller-" + i.namespace,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: w.Namespace, Group: group, Resource: resource, Subresource: subresource, Verb: verb,
			},
		}}
		if err := w.admin.Create(ctx, review); err != nil {
			return err
		}
		if review.Status.Allowed {
			return fmt.Errorf("to %s %s is still allowed", verb, resource)
		}
		return nil
	})
}

// What is needed before anything can be served ends the process, with a line that says so.
func TestAMissingRightInItsOwnNamespaceEndsTheStart(t *testing.T) {
	i, redis, w := setting(t)
	var role rbacv1.Role
	key := client.ObjectKey{Namespace: i.namespace, Name: "weir-controller-leader-election-" + i.namespace}
	if err := w.admin.Get(t.Context(), key, &role); err != nil {
		t.Fatal(err)
	}
	role.Rules = slices.DeleteFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "namespaces") })
	if err := w.admin.Update(t.Context(), &role); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error { // the API server takes a moment to know
		m := i.launch(redis.Addr)
		select {
		case <-m.process.Done():
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(30 * time.Second):
			return errors.New("it runs")
		}
		if log := m.logged(); !strings.Contains(log, `cannot get resource \"namespaces\"`) {
			return fmt.Errorf("the log does not name the right:\n%s", log)
		}
		return nil
	})
}

// With Roles in its namespaces alone, nothing is asked of the whole cluster (B59).
func TestRolesInOneNamespaceAreEnough(t *testing.T) {
	i, redis, w := setting(t)
	cluster := "weir-controller-" + i.namespace
	var role rbacv1.ClusterRole
	if err := w.admin.Get(t.Context(), client.ObjectKey{Name: cluster}, &role); err != nil {
		t.Fatal(err)
	}
	here := metav1.ObjectMeta{Namespace: w.Namespace, Name: "weir-controller"}
	for _, object := range []client.Object{
		&rbacv1.Role{ObjectMeta: here, Rules: role.Rules},
		&rbacv1.RoleBinding{
			ObjectMeta: here,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: here.Name},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: i.namespace, Name: cluster}},
		},
	} {
		if err := w.admin.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	w.remove(&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: cluster}})

	w.deploy(1)
	m := i.start(redis.Addr)
	p := w.limit("login", 5)
	w.waitCondition("login", v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed)
	w.remove(p)
	w.waitRow(tombstone)
	if log := m.logged(); strings.Contains(log, "forbidden") {
		t.Errorf("something was forbidden:\n%s", log)
	}
}

// Without --namespaces all are looked after. This test is not parallel: nobody else's policies are about.
func TestAllNamespacesAreLookedAfter(t *testing.T) {
	c := kube.APIServer(t)
	redis := env.Redis(t, env.RedisOptions{})
	i := install(t, c)
	i.start(redis.Addr)
	for range 2 {
		w := newWorkload(t, c, createNamespace(t, c, "shop"), redis.Addr, i.namespace)
		w.deploy(1)
		p := w.limit("login", 5)
		w.waitCondition("login", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
		w.remove(p)
		w.waitRow(tombstone)
	}
}
