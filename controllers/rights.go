package controllers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authorizationv1client "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/weir-dev/weir/api/v1alpha1"
)

// askRightsEvery is how often a process that lacks a right asks for it again.
const askRightsEvery = 5 * time.Second

// rights keeps the process from being ready until it may do what passes ask of the API server itself. What only the caches
// need shows by itself: they do not sync. Everybody who is authenticated may ask what they may do.
type rights struct {
	reviews authorizationv1client.SelfSubjectAccessReviewsGetter
	log     logr.Logger
	needed  []authorizationv1.ResourceAttributes
	told    map[authorizationv1.ResourceAttributes]bool // those that are missing
	granted atomic.Bool
}

func newRights(config *rest.Config, log logr.Logger, needed []authorizationv1.ResourceAttributes) (*rights, error) {
	reviews, err := authorizationv1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("building the client for access reviews: %w", err)
	}
	return &rights{
		reviews: reviews, log: log, needed: needed, told: map[authorizationv1.ResourceAttributes]bool{},
	}, nil
}

// neededRights are those of a pass, in each namespace; no namespace means all of them.
func neededRights(namespaces []string, snapshots bool) []authorizationv1.ResourceAttributes {
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	var needed []authorizationv1.ResourceAttributes
	for _, namespace := range namespaces {
		need := func(group, resource, subresource string, verbs ...string) {
			for _, verb := range verbs {
				needed = append(needed, authorizationv1.ResourceAttributes{
					Namespace: namespace, Group: group, Resource: resource, Subresource: subresource, Verb: verb,
				})
			}
		}
		need(v1alpha1.GroupVersion.Group, "ratelimitpolicies", "", "list")
		need(v1alpha1.GroupVersion.Group, "ratelimitpolicies", "status", "patch")
		need("events.k8s.io", "events", "", "create", "patch")
		if snapshots {
			need("", "configmaps", "", "get", "create", "update", "delete")
		}
	}
	return needed
}

// Start asks until every right is there.
func (r *rights) Start(ctx context.Context) error {
	for ctx.Err() == nil {
		if r.ask(ctx); r.granted.Load() {
			break
		}
		pause(ctx, askRightsEvery)
	}
	return nil
}

// ask asks for every right, and logs each that is missing when it is first missed.
func (r *rights) ask(ctx context.Context) {
	granted := true
	for _, need := range r.needed {
		allowed, err := r.allowed(ctx, need)
		switch {
		case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
			r.log.Info("This cluster does not say what the controller may do; a missing right shows when it is used")
			r.granted.Store(true)
			return
		case err != nil:
			granted = false
			r.log.V(1).Info("Asking for a right failed", "error", err.Error())
		case !allowed:
			granted = false
			if !r.told[need] {
				r.told[need] = true
				r.log.Error(errMissingRight, "The controller is not ready", "verb", need.Verb, "group", need.Group,
					"resource", resourceOf(need), "namespace", scopeOf(need))
			}
		}
	}
	if granted {
		r.granted.Store(true)
	}
}

var errMissingRight = errors.New("a right is missing")

// NeedLeaderElection is false: a process that waits to lead shows what it lacks.
func (r *rights) NeedLeaderElection() bool { return false }

func (r *rights) allowed(ctx context.Context, need authorizationv1.ResourceAttributes) (bool, error) {
	review, err := r.reviews.SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &need},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("asking for the right to %s %s: %w", need.Verb, resourceOf(need), err)
	}
	return review.Status.Allowed, nil
}

// check is the readiness.
func (r *rights) check(*http.Request) error {
	if !r.granted.Load() {
		return errMissingRight
	}
	return nil
}

func resourceOf(need authorizationv1.ResourceAttributes) string {
	if need.Subresource == "" {
		return need.Resource
	}
	return need.Resource + "/" + need.Subresource
}

func scopeOf(need authorizationv1.ResourceAttributes) string {
	if need.Namespace == metav1.NamespaceAll {
		return "all"
	}
	return need.Namespace
}
