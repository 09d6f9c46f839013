package controllers

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
)

// The reconciler reads policies and Deployments and writes nothing but the policies' status, and events. With snapshots it
// also needs the rights of config/components/snapshot, which are not generated: most installations do without.
// +kubebuilder:rbac:groups=ratelimit.weir.dev,resources=ratelimitpolicies,verbs=get;list;watch
// +kubebuilder:rbac:groups=ratelimit.weir.dev,resources=ratelimitpolicies/status,verbs=patch
// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

const (
	// workers reconcile that many workloads at a time. A pass mostly waits for Redis and the API server.
	workers = 8
	// firstRetry and lastRetry bound the growing wait after errors.
	firstRetry, lastRetry = 100 * time.Millisecond, 30 * time.Second
	// passTimeout bounds one pass: some requests to the API server and to the table.
	passTimeout = 20 * time.Second
	// cacheSyncTimeout ends a process whose caches do not fill.
	cacheSyncTimeout = 25 * time.Second
)

// Options are what a Reconciler needs beyond the manager. Leadership is required.
type Options struct {
	// Table is where rows are published; nil: only in snapshots.
	Table      Table
	Leadership *Leadership
	// Snapshots lets policies ask for ConfigMaps. It needs the rights of config/components/snapshot, and a cache that was
	// made for it.
	Snapshots bool
	// Namespaces are those whose policies this installation looks after; none means all.
	Namespaces []string
	// Resync is how often a workload is compared with the table although nothing has happened. Default 30 s.
	Resync time.Duration
	// Registerer receives the metrics; nil: nobody.
	Registerer prometheus.Registerer
	// SkipNameValidation lets several managers of one process each have a controller of the same name.
	SkipNameValidation bool
}

// CacheOptions are what the manager's cache must be created with: only what the reconciler reads of Deployments is kept,
// and of ConfigMaps only those that are snapshots.
func CacheOptions(namespaces []string, snapshots bool) cache.Options {
	options := cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&appsv1.Deployment{}: {Transform: stripDeployment},
		},
	}
	if snapshots {
		options.ByObject[&corev1.ConfigMap{}] = cache.ByObject{
			Label: labels.SelectorFromSet(labels.Set{snapshotLabel: snapshotLabelValue}),
		}
	}
	if len(namespaces) > 0 {
		options.DefaultNamespaces = map[string]cache.Config{}
		for _, namespace := range namespaces {
			options.DefaultNamespaces[namespace] = cache.Config{}
		}
	}
	return options
}

func stripDeployment(object any) (any, error) {
	d, ok := object.(*appsv1.Deployment)
	if !ok {
		return object, nil
	}
	return &appsv1.Deployment{
		TypeMeta: d.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Namespace: d.Namespace, Name: d.Name, UID: d.UID,
			ResourceVersion: d.ResourceVersion, Generation: d.Generation,
		},
		Spec: appsv1.DeploymentSpec{Replicas: d.Spec.Replicas},
		Status: appsv1.DeploymentStatus{
			ObservedGeneration:  d.Status.ObservedGeneration,
			Replicas:            d.Status.Replicas,
			ReadyReplicas:       d.Status.ReadyReplicas,
			TerminatingReplicas: d.Status.TerminatingReplicas,
		},
	}, nil
}

// SetupWithManager adds the reconciler to a manager. The informers start with the manager, whoever leads, so that a
// missing permission shows at once and a new leader begins with full caches.
func SetupWithManager(ctx context.Context, mgr manager.Manager, options Options) error {
	m, err := newMetrics(options.Registerer, mgr.GetClient(), options.Table != nil)
	if err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	r := &Reconciler{
		client:     mgr.GetClient(),
		live:       mgr.GetAPIReader(),
		recorder:   mgr.GetEventRecorder("weir-controller-manager"),
		table:      options.Table,
		snapshots:  options.Snapshots,
		leadership: options.Leadership,
		owner: &ownership{
			table:        options.Table,
			installation: options.Leadership.Installation(),
			metrics:      m,
			log:          mgr.GetLogger().WithName("table"),
			clock:        time.Now,
		},
		metrics: m,
		listed:  &listed{},
		resync:  options.Resync,
	}
	if r.resync == 0 {
		r.resync = defaultResync
	}
	if len(options.Namespaces) > 0 {
		r.namespaces = map[string]bool{}
		for _, namespace := range options.Namespaces {
			r.namespaces[namespace] = true
		}
	}
	if err := r.startInformers(ctx, mgr); err != nil {
		return err
	}
	if err := mgr.Add(options.Leadership); err != nil {
		return err
	}
	may, err := newRights(mgr.GetConfig(), mgr.GetLogger().WithName("rights"), neededRights(options.Namespaces, options.Snapshots))
	if err != nil {
		return err
	}
	if err := mgr.Add(may); err != nil {
		return err
	}
	if err := mgr.AddReadyzCheck("rights", may.check); err != nil {
		return err
	}
	build := builder.TypedControllerManagedBy[policy.Workload](mgr)
	if options.Snapshots {
		build = build.WatchesRawSource(source.TypedKind(mgr.GetCache(), &corev1.ConfigMap{},
			handler.TypedEnqueueRequestsFromMapFunc(r.workloadsOfSnapshot)))
	}
	return build.
		Named("ratelimitpolicy").
		WatchesRawSource(source.TypedKind(mgr.GetCache(), &v1alpha1.RateLimitPolicy{},
			handler.TypedEnqueueRequestsFromMapFunc(r.workloadsOfPolicy), policyChanged())).
		WatchesRawSource(source.TypedKind(mgr.GetCache(), &appsv1.Deployment{},
			handler.TypedEnqueueRequestsFromMapFunc(r.workloadsOfDeployment), replicasChanged())).
		WatchesRawSource(source.TypedFunc[policy.Workload](r.watchTable)).
		WithOptions(controller.TypedOptions[policy.Workload]{
			MaxConcurrentReconciles: workers,
			ReconciliationTimeout:   passTimeout,
			CacheSyncTimeout:        cacheSyncTimeout,
			RateLimiter:             backoff(),
			SkipNameValidation:      &options.SkipNameValidation,
			LogConstructor: func(w *policy.Workload) logr.Logger {
				if w == nil {
					return mgr.GetLogger()
				}
				return mgr.GetLogger().WithValues("workload", w.String())
			},
		}).
		Complete(r)
}

// backoff is the wait after errors. The queue's own grows to 1000 s, which would keep a workload from being looked at long
// after what failed is mended.
func backoff() workqueue.TypedRateLimiter[policy.Workload] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[policy.Workload](firstRetry, lastRetry)
}

func (r *Reconciler) startInformers(ctx context.Context, mgr manager.Manager) error {
	index := func(object client.Object) []string {
		p, ok := object.(*v1alpha1.RateLimitPolicy)
		if !ok {
			return nil
		}
		return []string{targetOf(p).String()}
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.RateLimitPolicy{}, byTarget, index); err != nil {
		return fmt.Errorf("indexing policies by target: %w", err)
	}
	policies, err := mgr.GetCache().GetInformer(ctx, &v1alpha1.RateLimitPolicy{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watching policies: %w", err)
	}
	if _, err := policies.AddEventHandler(r.listed); err != nil {
		return fmt.Errorf("watching policies: %w", err)
	}
	if _, err := mgr.GetCache().GetInformer(ctx, &appsv1.Deployment{}, cache.BlockUntilSynced(false)); err != nil {
		return fmt.Errorf("watching Deployments: %w", err)
	}
	if r.snapshots {
		if _, err := mgr.GetCache().GetInformer(ctx, &corev1.ConfigMap{}, cache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("watching snapshots: %w", err)
		}
	}
	return nil
}

func (r *Reconciler) workloadsOfPolicy(_ context.Context, p *v1alpha1.RateLimitPolicy) []policy.Workload {
	return []policy.Workload{targetOf(p)}
}

// workloadsOfDeployment leaves out Deployments that no policy targets. A policy that comes later enqueues by itself.
func (r *Reconciler) workloadsOfDeployment(ctx context.Context, d *appsv1.Deployment) []policy.Workload {
	w := workloadOf(d)
	policies, _, err := policiesOf(ctx, r.client, w, client.MatchingFields{byTarget: w.String()}, client.UnsafeDisableDeepCopy)
	if err == nil && len(policies) == 0 {
		return nil
	}
	return []policy.Workload{w}
}

// policyChanged passes over updates of metadata and status: above all our own.
func policyChanged() predicate.TypedPredicate[*v1alpha1.RateLimitPolicy] {
	return predicate.TypedFuncs[*v1alpha1.RateLimitPolicy]{
		UpdateFunc: func(e event.TypedUpdateEvent[*v1alpha1.RateLimitPolicy]) bool {
			return e.ObjectOld.UID != e.ObjectNew.UID ||
				e.ObjectOld.Generation != e.ObjectNew.Generation ||
				e.ObjectOld.DeletionTimestamp.IsZero() != e.ObjectNew.DeletionTimestamp.IsZero()
		},
	}
}

// replicasChanged passes over updates that change nothing that is counted.
func replicasChanged() predicate.TypedPredicate[*appsv1.Deployment] {
	return predicate.TypedFuncs[*appsv1.Deployment]{
		UpdateFunc: func(e event.TypedUpdateEvent[*appsv1.Deployment]) bool {
			return !sameJSON(countsOf(e.ObjectOld), countsOf(e.ObjectNew))
		},
	}
}

// listed knows how new the list of policies in the caches is. It is an event handler of their informers, which call it
// when an event is in the cache already.
type listed struct {
	newest atomic.Pointer[string]
}

var _ toolscache.ResourceEventHandler = &listed{}

// version is a resourceVersion that the cache is not older than; empty before anything was listed.
func (l *listed) version() string {
	if v := l.newest.Load(); v != nil {
		return *v
	}
	return ""
}

func (l *listed) note(object any) {
	if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	p, ok := object.(*v1alpha1.RateLimitPolicy)
	if !ok {
		return
	}
	for {
		before := l.newest.Load()
		if before != nil && newer(*before, p.ResourceVersion) == *before {
			return
		}
		if l.newest.CompareAndSwap(before, &p.ResourceVersion) {
			return
		}
	}
}

// OnAdd implements toolscache.ResourceEventHandler.
func (l *listed) OnAdd(object any, _ bool) { l.note(object) }

// OnUpdate implements toolscache.ResourceEventHandler.
func (l *listed) OnUpdate(_, object any) { l.note(object) }

// OnDelete implements toolscache.ResourceEventHandler.
func (l *listed) OnDelete(object any) { l.note(object) }

// newer is the higher of two resourceVersions, which compare as epochs do.
func newer(a, b string) string {
	if policy.CompareEpochs(a, b) >= 0 {
		return a
	}
	return b
}
