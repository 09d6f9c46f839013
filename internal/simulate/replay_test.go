package simulate

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const twoPerMinute = `
apiVersion: ratelimit.weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: p, namespace: shop}
spec:
  targetRef: {group: apps, kind: Deployment, name: checkout}
  exempt: [{pathPrefix: /healthz}]
  rules:
    - {name: items, match: [{pathPrefix: /items}], key: [{clientIP: {}}], limits: [{requests: 2, window: 1m, algorithm: FixedWindow}]}
    - {name: quiet, mode: Shadow, key: [{header: X-Api-Key}], limits: [{requests: 1, window: 1h, algorithm: FixedWindow}], whenKeyMissing: Skip}
`

// replay replays the lines against twoPerMinute.
func replay(t *testing.T, o Options, log ...string) *Replay {
	t.Helper()
	r := newReplay(t, twoPerMinute, o)
	if err := r.Read(t.Context(), strings.NewReader(strings.Join(log, "\n"))); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestFormatsReadAlike(t *testing.T) {
	logs := map[string][]string{
		"combined": {
			`203.0.113.7 - - [05/Oct/2026:08:00:01 +0000] "GET /items/1?page=2 HTTP/1.1" 200 5 "-" "a \"quoted\" agent"`,
			`203.0.113.7 - alice b [05/Oct/2026:10:00:02 +0200] "HEAD /items/2 HTTP/2.0" 200 5 "-" "x"`,
			`203.0.113.8 - - [05/Oct/2026:08:00:02 +0000] "GET /healthz HTTP/1.1" 200 5`,
			`203.0.113.7 - - [05/Oct/2026:08:00:03 +0000] "GET /items HTTP/1.1" 200 5 "-" "x"`,
		},
		"nginx JSON": {
			`{"time_iso8601":"2026-10-05T08:00:01+00:00","remote_addr":"203.0.113.7","request":"GET /items/1?page=2 HTTP/1.1","status":"200"}`,
			`{"time_iso8601":"2026-10-05T10:00:02+02:00","remote_addr":"203.0.113.7","request":"HEAD /items/2 HTTP/2.0","n":[1,{"a":"]"}]}`,
			` {"time_iso8601" : "2026-10-05T08:00:02Z", "remote_addr" : "203.0.113.8", "request" : "GET /healthz HTTP/1.1"} `,
			`{"time_iso8601":"2026-10-05T08:00:03Z","remote_addr":"203.0.113.7","request":"GET \/items HTTP/1.1","up":-1.5e3,"x":null}`,
		},
		"Caddy JSON": {
			`{"level":"info","ts":1791187201.5,"request":{"remote_ip":"203.0.113.7","method":"GET","host":"shop","uri":"/items/1","headers":{"User-Agent":["x"]}},"status":200}`,
			`{"level":"info","ts":1791187202.25,"request":{"remote_ip":"203.0.113.7","method":"HEAD","host":"shop","uri":"/items/2","headers":{}},"status":200}`,
			`{"level":"info","ts":1791187202.75,"request":{"remote_ip":"203.0.113.8","method":"GET","host":"shop","uri":"/healthz"}}`,
			`{"level":"info","ts":1791187203,"request":{"remote_ip":"203.0.113.7","method":"GET","host":"shop","uri":"/items"}}`,
		},
		"CSV": {
			`Status,timestamp,ip,method,url`,
			`200,2026-10-05 08:00:01,203.0.113.7,GET,"https://shop.example.com/items/1?a=""b"""`,
			`200,2026-10-05T08:00:02.5Z,203.0.113.7,HEAD,/items/2`,
			`200,1791187202750,203.0.113.8,GET,/healthz`,
			"200,1791187203,203.0.113.7,GET,/items\r",
		},
	}
	for name, log := range logs {
		t.Run(name, func(t *testing.T) {
			got := replay(t, Options{}, log...).Result()
			want := []Rule{
				{Policy: "p", Rule: "items", Mode: "Enforce", Requests: 3, Denied: 1, FirstDenied: new(time.Date(2026, 10, 5, 8, 0, 3, 0, time.UTC)), LastDenied: new(time.Date(2026, 10, 5, 8, 0, 3, 0, time.UTC))},
				{Policy: "p", Rule: "quiet", Mode: "Shadow"},
			}
			if diff := cmp.Diff(want, got.Rules); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(Lines{Read: 4}, got.Lines); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got.Others["Exempt"] != 1 || len(got.MostDenied) != 1 || got.MostDenied[0].Identity != "203.0.113.7" {
				t.Errorf("others %v, most denied %+v", got.Others, got.MostDenied)
			}
		})
	}
}

func TestLinesThatCannotBeRead(t *testing.T) {
	const good = `203.0.113.7 - - [05/Oct/2026:08:00:01 +0000] "GET /x HTTP/1.1" 200 5`
	wrong := []string{
		`nonsense`,
		`203.0.113.7 - - [05/Oct/2026:08:00:01 +0000] "GET /x HTTP/1.1`, // cut off
		`203.0.113.7 - - [05/Okt/2026:08:00:01 +0000] "GET /x HTTP/1.1" 200 5`,
		`203.0.113.7 - - [05/Oct/2026:08:00:01 +0000] "\x16\x03\x01" 400 5`, // TLS on a plain port
		`203.0.113.7 - - [05/Oct/1926:08:00:01 +0000] "GET /x HTTP/1.1" 200 5`,
		`{"time":1}`,
		strings.Repeat("x", maxLine+10),
	}
	var told []int64
	r := replay(t, Options{Wrong: func(n int64, _ error) { told = append(told, n) }}, append(append([]string{good, ""}, wrong...), good)...)
	if diff := cmp.Diff([]int64{3, 4, 5, 6, 7, 8, 9}, told); diff != "" {
		t.Errorf("wrong lines (-want +got):\n%s", diff)
	}
	if got := r.Result().Lines; got != (Lines{Read: 2, Wrong: 7}) {
		t.Errorf("%+v", got)
	}
	for name, line := range map[string]string{
		"not an object": `{"time":1,"method":"GET","path":"/"`, "two": `{"time":1}{}`, "a bare word": `{"time":now}`,
		"no time": `{"method":"GET","path":"/"}`, "no path": `{"time":1,"method":"GET"}`, "a bad escape": `{"time":"\q"}`,
	} {
		r := newReplay(t, twoPerMinute, Options{Format: JSON})
		if err := r.Read(t.Context(), strings.NewReader(line)); !errors.Is(err, ErrNothing) {
			t.Errorf("%s: %v, want %v", name, err, ErrNothing)
		}
	}
}

// A log without a line is another mistake than one that cannot be read.
func TestEmptyLogs(t *testing.T) {
	for text, want := range map[string]error{"": ErrEmpty, "\n\n": ErrEmpty, "x": ErrNothing, "time,path\n": ErrNothing} {
		if err := newReplay(t, twoPerMinute, Options{}).Read(t.Context(), strings.NewReader(text)); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", text, err, want)
		}
	}
}

// The format is that of the first lines that can be read; what comes before them is counted.
func TestTheFormatIsToldByGoodLines(t *testing.T) {
	const (
		combined = `203.0.113.7 - - [05/Oct/2026:08:00:01 +0000] "GET /x HTTP/1.1" 200 5`
		object   = `{"time":"2026-10-05T08:00:01Z","remote_addr":"203.0.113.7","method":"GET","path":"/x"}`
		names    = `time,remote_addr,method,path`
		values   = `2026-10-05T08:00:01Z,203.0.113.7,GET,/x`
	)
	for name, tc := range map[string]struct {
		log   []string
		wrong []int64
		read  int64
	}{
		"combined, cut at its start": {[]string{`.7 - - [05/Oct/2026:08`, combined, combined}, []int64{1}, 2},
		"combined behind nonsense":   {[]string{"nonsense", "", "more, of it", combined}, []int64{1, 3}, 1},
		"JSON, cut at its start":     {[]string{`_addr":"203.0.113.7","method":"GET"}`, object}, []int64{1}, 1},
		"JSON behind half an object": {[]string{`{"time":`, object}, []int64{1}, 1},
		"CSV behind nonsense":        {[]string{"nonsense", names, values, values}, []int64{1}, 2},
		"CSV with a bad first value": {[]string{names, "now,203.0.113.7,GET,/x", values}, []int64{2}, 1},
		"CSV with names once more":   {[]string{names, names, values}, []int64{1}, 1},
		"JSON behind a bare name":    {[]string{"time", object}, []int64{1}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var told []int64
			r := replay(t, Options{Wrong: func(n int64, _ error) { told = append(told, n) }}, tc.log...)
			if diff := cmp.Diff(tc.wrong, told); diff != "" {
				t.Errorf("wrong lines (-want +got):\n%s", diff)
			}
			if got, want := r.Result().Lines, (Lines{Read: tc.read, Wrong: int64(len(tc.wrong))}); got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
		})
	}
	r := newReplay(t, twoPerMinute, Options{})
	err := r.Read(t.Context(), strings.NewReader(strings.Repeat("nonsense\n", maxUnknown+1)))
	if err == nil || !strings.Contains(err.Error(), "name it with --format") {
		t.Errorf("nothing but nonsense: %v", err)
	}
}

func TestShadowRulesAndNamedFields(t *testing.T) {
	r := replay(t, Options{Fields: map[Target]string{"header.X-Api-Key": "key", Remote: "client.addr"}},
		`{"time":1,"client":{"addr":"203.0.113.7:4711"},"method":"GET","path":"/other","key":"acme"}`,
		`{"time":2,"client":{"addr":"203.0.113.7:4712"},"method":"GET","path":"/other","key":"acme"}`,
		`{"time":3,"client":{"addr":"203.0.113.7"},"method":"GET","path":"/items","key":"other"}`,
	)
	got := r.Result()
	if quiet := got.Rules[1]; quiet.Requests != 3 || quiet.Denied != 1 {
		t.Errorf("the shadow rule: %+v", quiet)
	}
	if got.Limits[0].Denied != 0 {
		t.Errorf("a shadow rule denied: %+v", got.Limits)
	}
	if d := got.MostDenied; len(d) != 1 || d[0].Identity != "acme" || len(got.Unseen) != 0 {
		t.Errorf("most denied %+v, unseen %v", d, got.Unseen)
	}
	if got := replay(t, Options{}, `{"time":1,"method":"GET","path":"/"}`).Result().Unseen; len(got) != 1 {
		t.Errorf("unseen %v, want the header", got)
	}
}

func TestTimeNeverGoesBack(t *testing.T) {
	line := func(second int) string {
		return fmt.Sprintf(`{"time":%d,"remote":"203.0.113.7","method":"GET","path":"/items"}`, second)
	}
	// 59 belongs to the window before, but comes when that is over.
	got := replay(t, Options{}, line(50), line(55), line(60), line(59), line(61)).Result()
	if got.Lines.Late != 1 || got.Limits[0].Denied != 1 {
		t.Errorf("%+v, %+v; want one late line, and one denied", got.Lines, got.Limits[0])
	}
}

// Each variant must decide as a replay against a policy with those numbers does.
func TestVariantsAreReplaysOfOtherLimits(t *testing.T) {
	log := combinedLog(20_000)
	read := func(text string, o Options) Result {
		r := newReplay(t, text, o)
		if err := r.Read(t.Context(), bytes.NewReader(log)); err != nil {
			t.Fatal(err)
		}
		return r.Result()
	}
	doubled := strings.NewReplacer("requests: 5,", "requests: 10,", "requests: 10,", "requests: 20,", "requests: 60,", "requests: 120,").Replace(checkout)
	got := read(checkout, Options{Factors: []float64{2}}).Limits
	once, twice := read(checkout, Options{}).Limits[0], read(doubled, Options{}).Limits[0]
	if got[0].Denied != once.Denied || got[1].Denied != twice.Denied || once.Denied <= twice.Denied || twice.Denied == 0 {
		t.Errorf("denied %d and %d by variants, %d and %d by policies", got[0].Denied, got[1].Denied, once.Denied, twice.Denied)
	}
}

func TestSuggestionsAreEnoughForTheirPart(t *testing.T) {
	var log []string
	for i := range 100 { // client i asks i+1 times in one window
		for range i + 1 {
			log = append(log, fmt.Sprintf(`{"time":%d,"remote":"203.0.113.%d","method":"GET","path":"/items"}`, 60*i, i))
		}
	}
	r := replay(t, Options{Peaks: true}, log...)
	got := r.Suggest([]float64{50, 99, 100})
	want := []SuggestedRequests{{50, 50, 50}, {99, 99, 1}, {100, 100, 0}}
	if len(got) != 1 || got[0].Identities != 100 {
		t.Fatalf("%+v", got)
	}
	if diff := cmp.Diff(want, got[0].At); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	tried := replay(t, Options{Proposals: Proposals(got, func(p float64) string { return fmt.Sprint(p) })}, log...).Result().Limits[1:]
	if diff := cmp.Diff([]Variant{{"50", 50 + 50*49/2 + 50*50 - 0, 5050 - 3775}, {"99", 5049, 1}, {"100", 5050, 0}}, tried); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestSeriesKeepsItsSums(t *testing.T) {
	s := series{lanes: 1}
	now := int64(1_791_187_203) * second
	for i := range 10_000 {
		b := s.at(now)
		b.requests++
		b.admitted[0]++
		now += int64(i) * second / 3 // six months in all
	}
	var requests, admitted int64
	for _, b := range s.buckets {
		requests, admitted = requests+b.requests, admitted+b.admitted[0]
	}
	if requests != 10_000 || admitted != 10_000 || len(s.buckets) > maxBuckets || len(s.buckets) < maxBuckets/8 {
		t.Errorf("%d requests, %d admitted in %d buckets", requests, admitted, len(s.buckets))
	}
}

func TestTimes(t *testing.T) {
	want := time.Date(2026, 2, 28, 23, 59, 58, 250_000_000, time.UTC)
	for _, text := range []string{
		"2026-02-28T23:59:58.25Z", "2026-03-01T05:29:58.250000+05:30", "2026-02-28 23:59:58,250", "1772323198.25",
		"1772323198250", "1772323198250000", "1772323198250000000",
	} {
		if got, err := parseTime(text); err != nil || got != want.UnixMicro() {
			t.Errorf("%s: %v, %v", text, time.UnixMicro(got).UTC(), err)
		}
	}
	for _, text := range []string{"", "-", "now", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00+99:00", "-5", "1e300", "NaN"} {
		if got, err := parseTime(text); err == nil {
			t.Errorf("%q is read as %v", text, time.UnixMicro(got).UTC())
		}
	}
	random := rand.New(rand.NewPCG(3, 4))
	for range 10_000 {
		at := time.Unix(random.Int64N(8e9), random.Int64N(1e9)).UTC().Truncate(time.Microsecond)
		if got, err := parseTime(at.Format(time.RFC3339Nano)); err != nil || got != at.UnixMicro() {
			t.Fatalf("%v: %v, %v", at, time.UnixMicro(got).UTC(), err)
		}
	}
}

// A million identities must not take more memory than the bound allows.
func TestMemoryIsBounded(t *testing.T) {
	var b bytes.Buffer
	for i := range 300_000 {
		fmt.Fprintf(&b, `{"time":%d,"remote":"10.%d.%d.%d","method":"GET","path":"/items"}`+"\n", 1_000_000+i/100_000, i>>16, i>>8&255, i&255)
	}
	r := newReplay(t, twoPerMinute, Options{MaxCounters: 10_000})
	before := inUse()
	if err := r.Read(t.Context(), bytes.NewReader(b.Bytes())); err != nil {
		t.Fatal(err)
	}
	if grown := int64(inUse() - before); grown > 20<<20 {
		t.Errorf("the replay holds %d bytes", grown)
	}
	if !r.Result().Full {
		t.Error("nothing says that counters were forgotten")
	}
}

func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A tenth of the least that is wanted, so that a busy machine does not fail it: 30,000 lines a second of a processor. The
// race detector makes it ten times slower.
func TestReadIsFast(t *testing.T) {
	const count = 50_000
	log := combinedLog(count)
	r := newReplay(t, checkout, Options{Factors: []float64{0.5, 2}})
	start := processorTime(t)
	if err := r.Read(t.Context(), bytes.NewReader(log)); err != nil {
		t.Fatal(err)
	}
	wanted := 30_000.0
	if raceEnabled {
		wanted /= 10
	}
	if rate := count / (processorTime(t) - start).Seconds(); rate < wanted {
		t.Errorf("%.0f lines by the second of a processor", rate)
	}
}

func FuzzJSON(f *testing.F) {
	f.Add(`{"time":1,"request":{"uri":"/a","headers":{"X-Api-Key":["k"]}}}`)
	f.Add(`{"a":[{"b":"]\\\""}],"time":"x"}`)
	s := newSlots([]Target{"header.X-Api-Key"}, nil)
	f.Fuzz(func(_ *testing.T, line string) {
		v := newValues(s)
		v.reset()
		_ = jsonLines{}.parse(line, v)
		_ = newCombined(s).parse(line, v)
		_, _ = new(csvLines).split(line)
	})
}
