package skew

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/manifest"
	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/internal/redisstore"
	"github.com/weir-dev/weir/ratelimit"
)

var record = flag.String("record", "", "write testdata/`VERSION`, which must not exist yet, with the code of today")

// TestRecord writes the folder of a version. Without its flag it holds that one is complete.
func TestRecord(t *testing.T) {
	if *record == "" {
		for _, c := range versions(t) {
			if len(c.steps) < 100 || len(c.requests) < 5 || len(c.table) < 6 {
				t.Errorf("%s has %d steps, %d requests and %d calls", c.name, len(c.steps), len(c.requests), len(c.table))
			}
		}
		return
	}
	folder := filepath.Join("testdata", *record)
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatalf("what a version left behind does not change: %v", err)
	}
	scripts := map[string]string{}
	recordTable(t, folder, scripts)
	recordRequests(t, folder)
	recordCounters(t, folder, scripts)
	if err := os.Mkdir(filepath.Join(folder, "scripts"), 0o755); err != nil {
		t.Fatal(err)
	}
	for sha, source := range scripts {
		write(t, filepath.Join(folder, "scripts"), sha+".lua", []byte(source))
	}
}

func write(t *testing.T, folder, file string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(folder, file), data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// writeJSON writes one item a line.
func writeJSON[T any](t *testing.T, folder, file string, items []T) {
	t.Helper()
	var lines []string
	for _, item := range items {
		line, err := json.Marshal(item)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, string(line))
	}
	write(t, folder, file, []byte("[\n"+strings.Join(lines, ",\n")+"\n]\n"))
}

// recordedPolicies use every part of the language.
func recordedPolicies(t *testing.T) []policy.Policy {
	t.Helper()
	file, err := manifest.ReadFile(filepath.Join("testdata", "policies.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var all []policy.Policy
	for i, p := range file.Policies("") {
		p.Metadata.UID, p.Metadata.Generation = "uid-"+strconv.Itoa(i), int64(i+1)
		all = append(all, p.Policy)
	}
	if faults := file.Faults(); len(faults) > 0 || len(all) != 2 {
		t.Fatal(faults, len(all))
	}
	return all
}

func recordTable(t *testing.T, folder string, scripts map[string]string) {
	t.Helper()
	row, verdicts := policy.Compile(checkout, installation, recordedPolicies(t))
	for _, v := range verdicts {
		if !v.Accepted() {
			t.Fatal(v.Message)
		}
	}
	row.PolicyList, row.Revision = "4822", policy.Revision{Epoch: epoch, N: 7}
	replicas := policy.Replicas{
		Version: policy.RowVersion, N: 3, Ready: 3, Desired: 3, Wanted: 3, Serving: 3, At: 1_790_000_000_000_000,
		MembersVersion: 1_790_000_000_000_000, UID: "0b6e", Falls: []policy.Fall{{From: 4, At: 1_789_999_990_000_000}},
	}
	report := policy.Report{
		Member: oldMember, Pod: strings.Split(oldMember, "/")[0], Revision: row.Revision, Library: *record,
		Features: policy.Features(), Started: 1_790_000_000_000_000,
	}

	_, client := server(t)
	r := &recorder{sources: scripts}
	client.AddHook(r)
	tab := redisstore.NewTable(client, table, installation)
	member := redisstore.NewMember(client, table, checkout)
	ctx := t.Context()
	calls := map[string]call{}
	for _, c := range []struct {
		name string
		do   func() error
	}{
		{"claim", func() error { _, err := tab.Claim(ctx, epoch); return err }},
		{"publish", func() error { _, err := tab.Publish(ctx, checkout, row); return err }},
		{"replicas", func() error { _, err := tab.PublishReplicas(ctx, checkout, epoch, replicas); return err }},
		{"heartbeat", func() error { _, err := member.Heartbeat(ctx, report, 5*time.Second); return err }},
		{"observe", func() error { _, _, err := tab.Read(ctx, checkout); return err }},
		{"leave", func() error { return member.Leave(ctx, oldMember) }},
	} {
		if err := c.do(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		calls[c.name] = r.last(t)
	}
	for name, c := range calls {
		c.Reply = nil
		calls[name] = c
	}
	data, err := json.MarshalIndent(calls, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	write(t, folder, "table.json", append(data, '\n'))

	held, err := policy.EncodeRow(row)
	if err != nil {
		t.Fatal(err)
	}
	counted, err := policy.EncodeReplicas(replicas)
	if err != nil {
		t.Fatal(err)
	}
	snapshot, err := policy.EncodeSnapshot(policy.Snapshot{Row: held, Replicas: counted})
	if err != nil {
		t.Fatal(err)
	}
	said, err := policy.EncodeReport(report)
	if err != nil {
		t.Fatal(err)
	}
	for file, data := range map[string][]byte{
		"row.json": held, "replicas.json": counted, "snapshot.json": snapshot, "report.json": said,
	} {
		write(t, folder, file, append(data, '\n'))
	}
}

func recordRequests(t *testing.T, folder string) {
	t.Helper()
	requests := []request{
		{Method: "POST", Route: "/exports", Header: map[string]string{"X-Api-Key": "acme"}, Remote: "203.0.113.7:1"},
		{Method: "POST", Route: "/login", Remote: "203.0.113.7:1"},
		{Method: "POST", Route: "/login", Remote: "[2001:db8:1:2::7]:1"},
		{Method: "GET", Route: "/users/{id}", Attributes: map[string]string{"user": "17"}, Remote: "203.0.113.7:1"},
		{Method: "GET", Route: "/users/{id}", Remote: "203.0.113.9:1"},
		{Method: "POST", Route: "/reports/{id}", Attributes: map[string]string{"tenant": "t1", "plan": "scale", "rows": "12"}, Remote: "203.0.113.7:1"},
	}
	for i := range requests {
		requests[i].Keys = keysOf(t, read(t, folder, "row.json"), &requests[i])
	}
	writeJSON(t, folder, "requests.json", requests)
}

// keysOf makes a request with a limiter that reads a row from Redis, and returns the keys of its counters.
func keysOf(t *testing.T, row []byte, r *request) []string {
	t.Helper()
	addr, client := server(t)
	put(t, client, row)
	l := limiter(t, addr, nil)
	if d := r.decide(t, l); d.Source != ratelimit.SourceStore {
		t.Fatalf("decided by %+v", d)
	}
	keys, err := client.Keys(t.Context(), "weir:"+table+":c:*").Result()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(keys)
	return keys
}

func recordCounters(t *testing.T, folder string, scripts map[string]string) {
	t.Helper()
	_, client := server(t)
	r := &recorder{sources: scripts}
	client.AddHook(r)
	random := rand.New(rand.NewPCG(1, 2))
	at := int64(1_790_000_000_123_456)
	var steps []step
	taken := map[string]int64{}
	for len(steps) < 240 {
		at += random.Int64N(1_500_000)
		if random.IntN(20) == 0 {
			at += 25_000_000 // whole windows
		}
		if random.IntN(25) == 0 {
			at -= 700_000 // the clock goes back
		}
		s := step{At: at}
		one := someCounter(random)
		switch pick := random.IntN(20); {
		case pick < 10:
			s.Take = []entry{{Counters: []counter{one}, Enforced: 1, Callers: random.Int64N(4)}}
		case pick < 15:
			for range 1 + random.IntN(3) {
				other := someCounter(random)
				e := entry{Counters: []counter{someCounter(random)}, Enforced: 1, Callers: 1 + random.Int64N(3)}
				if other.ID != e.Counters[0].ID {
					e.Counters = append(e.Counters, other)
					if e.Enforced = 2; random.IntN(2) == 0 {
						e.Enforced, e.Shadow = 1, []int{2}
					}
				}
				s.Take = append(s.Take, e)
			}
		case pick < 17:
			if taken[one.ID+one.Identity] == 0 {
				continue
			}
			s.Refund = []refund{{Counters: []counter{one}, Callers: 1, Taken: taken[one.ID+one.Identity]}}
		case pick < 19:
			s.Push = []push{somePush(random, one, at, int64(len(steps)))}
		default:
			s.Reset = []counter{one}
		}
		s.Answers, s.Pushed = s.run(t, client)
		s.Call = r.last(t)
		if s.Take != nil && s.Answers[0].Granted > 0 {
			taken[one.ID+one.Identity] = s.Answers[0].Results[0].At
		}
		steps = append(steps, s)
	}
	writeJSON(t, folder, "counters.json", steps)
}

// someCounter is one of eight: each algorithm for two identities.
func someCounter(random *rand.Rand) counter {
	kinds := []counter{
		{ID: "bucket", Algorithm: "TokenBucket", Requests: 7, Window: 10_000_000, Burst: 9, Cost: 1},
		{ID: "fixed", Algorithm: "FixedWindow", Requests: 6, Window: 10_000_000, Cost: 2},
		{ID: "sliding", Algorithm: "SlidingWindowCounter", Requests: 9, Window: 10_000_000, Cost: 1},
		{ID: "log", Algorithm: "SlidingWindowLog", Requests: 8, Window: 10_000_000, Cost: 1},
	}
	c := kinds[random.IntN(len(kinds))]
	identity := enforcer.Identity{15: byte(random.IntN(2))}
	c.Identity = hex.EncodeToString(identity[:])
	return c
}

func somePush(random *rand.Rand, c counter, at, seq int64) push {
	used := 1 + random.Int64N(3)
	p := push{
		Counter: c, Member: oldMember, Seq: seq, Since: at - 2_000_000, Suspect: random.IntN(2) == 0,
		Untold: state{At: at, Used: used}, Used: state{At: at, Used: used},
	}
	switch c.Algorithm {
	case algorithm.FixedWindow.String(), algorithm.SlidingWindowCounter.String():
		p.Untold.At, p.Used.At = at/c.Window, at/c.Window
	case algorithm.SlidingWindowLog.String():
		p.Untold = state{Log: [][2]int64{{at - 500_000, used}}}
		p.Used = p.Untold
	}
	return p
}

// put writes a row, its count and an owner into an empty table, past all scripts.
func put(t *testing.T, client redis.UniversalClient, row []byte) {
	t.Helper()
	owner := []byte(`{"installation":"` + installation + `","epoch":"` + epoch + `","term":"1","seen":"1"}`)
	for key, value := range map[string][]byte{key("row"): row, "weir:" + table + ":owner": owner} {
		if err := client.Set(t.Context(), key, bytes.Clone(value), 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
}
