package policy

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const snapshotWorkload = "shop/apps/Deployment/checkout"

func TestSnapshotComesBackAsItWas(t *testing.T) {
	row := []byte(`{"v":1,"workload":"shop/apps/Deployment/checkout","later":"<&>","rules":[{"needs":["tomorrow"]}]}`)
	for name, s := range map[string]Snapshot{
		"row and count": {Row: row, Replicas: []byte(`{"v":1,"n":3}`)},
		"a row alone":   {Row: row},
	} {
		t.Run(name, func(t *testing.T) {
			data, err := EncodeSnapshot(s)
			if err != nil {
				t.Fatal(err)
			}
			got, err := DecodeSnapshot(data, snapshotWorkload)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(s, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestSnapshotsThatAreRefused(t *testing.T) {
	const row = `{"workload":"shop/apps/Deployment/checkout"}`
	cases := map[string]struct {
		data  string
		newer bool
		says  string
	}{
		"nothing":              {data: "", says: "unexpected end"},
		"half of it":           {data: `{"v":1,"row":` + row[:20], says: "unexpected end"},
		"null":                 {data: "null", says: "version 0"},
		"no row":               {data: `{"v":1}`, says: "no row"},
		"a row that is null":   {data: `{"v":1,"row":null}`, says: "no row"},
		"a row that is none":   {data: `{"v":1,"row":[]}`, says: "array"},
		"another workload's":   {data: `{"v":1,"row":{"workload":"shop/apps/Deployment/cart"}}`, says: "shop/apps/Deployment/cart"},
		"a row without a file": {data: `{"v":1,"workload":"shop/apps/Deployment/checkout","rules":[]}`, says: "no row"},
		"a newer version":      {data: `{"v":2,"row":` + row + `}`, newer: true, says: "version 2"},
		"two megabytes":        {data: `{"v":1,"row":` + row + strings.Repeat(" ", 2<<20) + `}`, says: "more than"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := DecodeSnapshot([]byte(c.data), snapshotWorkload)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("got %v, want an error that says %q", err, c.says)
			}
			if errors.Is(err, ErrNewerVersion) != c.newer {
				t.Errorf("%v: a newer version: %t, want %t", err, !c.newer, c.newer)
			}
		})
	}
}

// A ConfigMap holds a mebibyte: the largest row and its count fit.
func TestTheLargestSnapshotFitsAConfigMap(t *testing.T) {
	row := []byte(`"` + strings.Repeat("x", MaxRowBytes-2) + `"`)
	replicas := []byte(`"` + strings.Repeat("x", maxReplicasBytes-2) + `"`)
	data, err := EncodeSnapshot(Snapshot{Row: row, Replicas: replicas})
	if err != nil {
		t.Fatal(err)
	}
	if len(data) > MaxRowBytes+5<<10 || len(data) > maxReadBytes {
		t.Errorf("%d bytes, want at most %d", len(data), MaxRowBytes+5<<10)
	}
}

// Whoever writes with whatever clock: a changed count is later than the one that it follows.
func TestLaterReplicas(t *testing.T) {
	const now = 1_000_000_000
	first, _ := CountReplicas(deployment(3, 3, 3, 0), 3, 7, nil, now)
	behind, _ := CountReplicas(deployment(5, 5, 5, 0), 5, 8, &first, now-500_000)
	if got := LaterReplicas(&first, &behind); got != &behind {
		t.Errorf("a count of a writer whose clock is behind is not later: %d, was %d", behind.At, first.At)
	}
	same, _ := CountReplicas(deployment(5, 5, 5, 0), 5, 8, &behind, now+1)
	if same.At != behind.At {
		t.Errorf("the same count is dated %d, was %d", same.At, behind.At)
	}
	if got := LaterReplicas(nil, &first); got != &first {
		t.Error("one is later than none")
	}
	if got := LaterReplicas(&first, nil); got != &first {
		t.Error("one is later than none")
	}
	if got := LaterReplicas(&behind, &same); got != &behind {
		t.Error("of equally late ones the first is taken")
	}
}

func TestSnapshotName(t *testing.T) {
	long := strings.Repeat("a", 300)
	cases := map[string]struct{ workload, want string }{
		"a usual name":                {"checkout", "weir-checkout"},
		"the longest that fits":       {long[:248], "weir-" + long[:248]},
		"one more is cut":             {long[:249], "weir-" + long[:239] + "-d2cdb8b7"},
		"the longest":                 {long[:253], "weir-" + long[:239] + "-32859a3a"},
		"what is cut ends with a dot": {long[:237] + ".-" + long[:14], ""},
		"a label is cut to nothing":   {long[:238] + "." + long[:14], ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := SnapshotName(c.workload)
			if c.want != "" && got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
			if len(got) > 253 || !nameRegexp.MatchString(got) {
				t.Errorf("%s, of %d characters, is no name of an object", got, len(got))
			}
		})
	}
}
