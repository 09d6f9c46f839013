package controllers

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"
)

// answerReviews is an API server that allows what allow says, or refuses to be asked.
func answerReviews(t *testing.T, refuses bool, allow func(authorizationv1.ResourceAttributes) bool) *rest.Config {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refuses {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		var review authorizationv1.SelfSubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		review.Status.Allowed = allow(*review.Spec.ResourceAttributes)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	// JSON, as the answers are.
	return &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
}

func TestRights(t *testing.T) {
	cases := map[string]struct {
		refuses bool
		lacks   string // a resource
		ready   bool
	}{
		"all of them":                         {ready: true},
		"not the status":                      {lacks: "ratelimitpolicies/status"},
		"not the live list":                   {lacks: "ratelimitpolicies"},
		"a cluster that does not let one ask": {refuses: true, lacks: "events", ready: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			config := answerReviews(t, c.refuses, func(need authorizationv1.ResourceAttributes) bool {
				return resourceOf(need) != c.lacks
			})
			r, err := newRights(config, logr.Discard(), neededRights([]string{"shop", "cart"}, true))
			if err != nil {
				t.Fatal(err)
			}
			if err := r.check(nil); err == nil {
				t.Error("it is ready before it asked")
			}
			r.ask(t.Context())
			if got := r.check(nil) == nil; got != c.ready {
				t.Errorf("ready: %v, want %v", got, c.ready)
			}
		})
	}
}

func TestRightsAreAskedForWhereTheyAreNeeded(t *testing.T) {
	for _, need := range neededRights(nil, false) {
		if need.Namespace != "" || need.Resource == "configmaps" {
			t.Errorf("without namespaces and snapshots: %+v", need)
		}
	}
	where := map[string]int{}
	for _, need := range neededRights([]string{"shop", "cart"}, true) {
		where[need.Namespace+"/"+need.Resource]++
	}
	for _, want := range []string{"shop/configmaps", "cart/events", "shop/ratelimitpolicies"} {
		if where[want] == 0 {
			t.Errorf("nothing is asked of %s: %v", want, where)
		}
	}
}
