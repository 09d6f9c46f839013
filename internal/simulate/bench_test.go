package simulate

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/weir-dev/weir/internal/manifest"
	"github.com/weir-dev/weir/internal/policy"
)

// checkout is a policy as in config/samples: three rules, keys of headers and addresses.
const checkout = `
apiVersion: ratelimit.weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: checkout, namespace: shop}
spec:
  targetRef: {group: apps, kind: Deployment, name: checkout}
  evaluation: FirstMatch
  exempt: [{pathPrefix: /healthz}]
  rules:
    - name: exports
      match: [{methods: [POST], route: /exports}]
      key: [{clientIP: {}}]
      limits: [{requests: 5, window: 1m}]
    - name: login
      match: [{methods: [POST], route: /login}]
      key: [{clientIP: {}}]
      limits: [{requests: 10, window: 1m, algorithm: SlidingWindowLog}]
    - name: default
      key: [{clientIP: {}}]
      limits: [{requests: 60, window: 1m, algorithm: SlidingWindowCounter}]
`

func policies(t testing.TB, text string) []policy.Policy {
	t.Helper()
	f := manifest.Parse("policy.yaml", []byte(text))
	var all []policy.Policy
	for _, p := range f.Policies("shop") {
		all = append(all, p.Policy)
	}
	if err := f.Faults().Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

func newReplay(t testing.TB, text string, o Options) *Replay {
	t.Helper()
	o.Policies = policies(t, text)
	o.Workload = o.Policies[0].Workload()
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// access writes lines of a busy shop: 200 requests a second of 20,000 clients, few of which make most of them.
func access(lines int, write func(at time.Time, remote, method, path string)) {
	random := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(random, 1.2, 10, 20_000)
	at := time.Date(2026, 10, 5, 8, 0, 0, 0, time.UTC)
	for range lines {
		at = at.Add(time.Duration(random.Int64N(int64(10 * time.Millisecond))))
		client := zipf.Uint64()
		remote := fmt.Sprintf("203.%d.%d.%d", client>>16, client>>8&255, client&255)
		method, path := "GET", fmt.Sprintf("/items/%d", random.IntN(1000))
		switch random.IntN(50) {
		case 0:
			method, path = "POST", "/exports"
		case 1:
			method, path = "POST", "/login"
		case 2:
			path = "/healthz"
		}
		write(at, remote, method, path)
	}
}

const agent = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/141.0.0.0 Safari/537.36"

func combinedLog(lines int) []byte {
	var b bytes.Buffer
	access(lines, func(at time.Time, remote, method, path string) {
		fmt.Fprintf(&b, "%s - - [%s] \"%s %s HTTP/1.1\" 200 5120 \"https://shop.example.com/\" \"%s\"\n",
			remote, at.Format("02/Jan/2006:15:04:05 -0700"), method, path, agent)
	})
	return b.Bytes()
}

func jsonLog(lines int) []byte {
	var b bytes.Buffer
	access(lines, func(at time.Time, remote, method, path string) {
		fmt.Fprintf(&b, `{"time":"%s","remote_addr":"%s","method":"%s","uri":"%s","status":200,"bytes":5120,"user_agent":"%s"}`+"\n",
			at.Format(time.RFC3339Nano), remote, method, path, agent)
	})
	return b.Bytes()
}

func csvLog(lines int) []byte {
	b := bytes.NewBufferString("time,remote_addr,method,path,status,user_agent\n")
	access(lines, func(at time.Time, remote, method, path string) {
		fmt.Fprintf(b, "%s,%s,%s,%s,200,\"%s\"\n", at.Format(time.RFC3339Nano), remote, method, path, agent)
	})
	return b.Bytes()
}

// processorTime is what this process has used of all processors. A busy machine makes clocks on the wall useless.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// BenchmarkRead tells lines by the second of one processor, garbage collection included.
func BenchmarkRead(b *testing.B) {
	const count = 200_000
	logs := map[string][]byte{"combined": combinedLog(count), "json": jsonLog(count), "csv": csvLog(count)}
	for _, format := range []string{"combined", "json", "csv"} {
		for _, factors := range [][]float64{nil, {0.5, 2}, {0.25, 0.5, 2, 4}} {
			b.Run(fmt.Sprintf("%s/variants=%d", format, 1+len(factors)), func(b *testing.B) {
				log := logs[format]
				b.SetBytes(int64(len(log)))
				b.ReportAllocs()
				start := processorTime(b)
				for b.Loop() {
					r := newReplay(b, checkout, Options{Factors: factors})
					if err := r.Read(b.Context(), bytes.NewReader(log)); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(count*b.N)/(processorTime(b)-start).Seconds(), "lines/cpu-s")
			})
		}
	}
}
