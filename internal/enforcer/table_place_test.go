package enforcer

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-dev/weir/internal/policy"
)

func TestPlaceOf(t *testing.T) {
	counted := &policy.Replicas{N: 3, MembersVersion: 7}
	tests := map[string]struct {
		replicas *policy.Replicas
		standing *Standing
		stood    bool
		want     policy.Replica
	}{
		"nothing known is one replica": {nil, nil, false, policy.Replica{N: 1}},
		"a count without a place":      {counted, nil, true, policy.Replica{N: 3}},
		"a place without a count":      {nil, &Standing{Rank: 1, Count: 2, Version: 7}, true, policy.Replica{Rank: 1, N: 2}},
		"counted with these members":   {counted, &Standing{Rank: 1, Count: 3, Version: 7}, true, policy.Replica{Rank: 1, N: 3, Exact: true}},
		"not yet for long":             {counted, &Standing{Rank: 1, Count: 3, Version: 7}, false, policy.Replica{Rank: 1, N: 3}},
		"counted with other members":   {counted, &Standing{Rank: 1, Count: 3, Version: 8}, true, policy.Replica{Rank: 1, N: 3}},
		"fewer members than replicas":  {counted, &Standing{Rank: 1, Count: 2, Version: 7}, true, policy.Replica{Rank: 1, N: 3, Exact: true}},
		"more members than counted":    {counted, &Standing{Rank: 3, Count: 4, Version: 7}, true, policy.Replica{Rank: 3, N: 4}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, placeOf(tc.replicas, tc.standing, 0, tc.stood)); diff != "" {
				t.Errorf("place (-want +got):\n%s", diff)
			}
		})
	}
}
