package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
)

// cluster is how commands reach the API server: by the flags of kubectl.
type cluster struct {
	flags *genericclioptions.ConfigFlags
}

func newCluster(cmd *cobra.Command) *cluster {
	c := &cluster{flags: genericclioptions.NewConfigFlags(true)}
	c.flags.AddFlags(cmd.Flags())
	return c
}

func (c *cluster) namespace() (string, error) {
	namespace, _, err := c.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return "", adviseConfig(err)
	}
	return namespace, nil
}

// adviseConfig says what to do about an error of the kubeconfig.
func adviseConfig(err error) error {
	err = fmt.Errorf("reading the kubeconfig: %w", err)
	if clientcmd.IsContextNotFound(err) {
		return fmt.Errorf("%w: `kubectl config get-contexts` lists those that there are", err)
	}
	return err
}

func (c *cluster) client() (client.Client, error) {
	log.SetLogger(logr.Discard())
	config, err := c.flags.ToRESTConfig()
	if err != nil {
		return nil, adviseConfig(err)
	}
	config.WarningHandler = nil
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		v1alpha1.AddToScheme, appsv1.AddToScheme, corev1.AddToScheme, eventsv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	made, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, advise(err)
	}
	return made, nil
}

// advise says what to do about an error of the API server.
func advise(err error) error {
	switch {
	case err == nil:
		return nil
	case meta.IsNoMatchError(err):
		return fmt.Errorf("the cluster knows no RateLimitPolicy: install Weir, or choose another --context (%w)", err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: %s", err, roleFor(err))
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w: log in to the cluster again", err)
	case apierrors.ReasonForError(err) == metav1.StatusReasonUnknown && strings.Contains(err.Error(), "connect"):
		return fmt.Errorf("the API server does not answer: is it the right --context? (%w)", err)
	}
	return err
}

// lookOnly is what the API server says of a request that changes nothing.
var lookOnly = regexp.MustCompile(`cannot (get|list|watch) resource`)

// roleFor says which of the built-in roles allows what was forbidden.
func roleFor(err error) string {
	switch text := err.Error(); {
	case strings.Contains(text, "at the cluster scope"):
		return "the role view in all namespaces, by a ClusterRoleBinding, allows that"
	case lookOnly.MatchString(text):
		return "the role view of the namespace allows that"
	}
	return "the role edit of the namespace allows that"
}

// target reads the name of a workload, checkout, deployment/checkout or deploy/checkout, in the namespace that the flags
// or the kubeconfig say.
func (c *cluster) target(name string) (policy.Workload, error) {
	namespace, err := c.namespace()
	if err != nil {
		return policy.Workload{}, err
	}
	kind, rest, found := strings.Cut(name, "/")
	if found {
		kinds := []string{"deployment", "deployments", "deploy", "deployment.apps", "deployments.apps"}
		if !slices.Contains(kinds, strings.ToLower(kind)) || strings.Contains(rest, "/") {
			return policy.Workload{}, usageError{fmt.Errorf("%q: want the name of a Deployment, such as checkout or deployment/checkout; its namespace is told with -n", name)}
		}
		name = rest
	}
	if name == "" {
		return policy.Workload{}, usageError{errors.New("the name of the workload is empty")}
	}
	return policy.Workload{Namespace: namespace, Group: "apps", Kind: "Deployment", Name: name}, nil
}

// listPolicies returns the policies of a namespace, all if empty, ordered by workload and name.
func listPolicies(ctx context.Context, api client.Client, namespace string) ([]v1alpha1.RateLimitPolicy, error) {
	var list v1alpha1.RateLimitPolicyList
	if err := api.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, advise(fmt.Errorf("listing policies: %w", err))
	}
	slices.SortFunc(list.Items, func(a, b v1alpha1.RateLimitPolicy) int {
		return strings.Compare(workloadOf(&a).String()+" "+a.Name, workloadOf(&b).String()+" "+b.Name)
	})
	return list.Items, nil
}

func workloadOf(p *v1alpha1.RateLimitPolicy) policy.Workload {
	ref := p.Spec.TargetRef
	return policy.Workload{Namespace: p.Namespace, Group: ref.Group, Kind: ref.Kind, Name: ref.Name}
}

// policiesOf returns the policies of a workload. That there are none is an error.
func policiesOf(ctx context.Context, api client.Client, w policy.Workload) ([]v1alpha1.RateLimitPolicy, error) {
	all, err := listPolicies(ctx, api, w.Namespace)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(p v1alpha1.RateLimitPolicy) bool { return workloadOf(&p) != w })
	if len(all) == 0 {
		return nil, fmt.Errorf("no policy targets %s/%s: `kubectl weir status -n %s` lists those that there are", w.Namespace, w.Name, w.Namespace)
	}
	return all, nil
}

// plain is a policy in the form that everything but the API server uses.
func plain(p *v1alpha1.RateLimitPolicy) (policy.Policy, error) {
	var out policy.Policy
	data, err := json.Marshal(p)
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err != nil {
		return out, fmt.Errorf("reading policy %s/%s: %w", p.Namespace, p.Name, err)
	}
	return out, nil
}

// compileObjects is the row that the controller makes of policies, without a revision.
func compileObjects(w policy.Workload, objects []v1alpha1.RateLimitPolicy) (policy.Row, error) {
	var policies []policy.Policy
	for i := range objects {
		p, err := plain(&objects[i])
		if err != nil {
			return policy.Row{}, err
		}
		policies = append(policies, p)
	}
	row, _ := policy.Compile(w, "", policies)
	return row, nil
}

// completeWorkloads offers the workloads that policies target.
func (c *cluster) completeWorkloads(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	const nothing = cobra.ShellCompDirectiveNoFileComp
	if len(args) > 0 {
		return nil, nothing
	}
	namespace, err := c.namespace()
	if err != nil {
		return nil, nothing
	}
	api, err := c.client()
	if err != nil {
		return nil, nothing
	}
	policies, err := listPolicies(cmd.Context(), api, namespace)
	if err != nil {
		return nil, nothing
	}
	var names []string
	for i := range policies {
		names = append(names, policies[i].Spec.TargetRef.Name)
	}
	slices.Sort(names)
	return slices.Compact(names), nothing
}
