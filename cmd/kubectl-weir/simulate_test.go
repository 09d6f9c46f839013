package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-dev/weir/internal/simulate"
)

// accessLog has five requests in each of three minutes, where policyText admits two, and a line that is none.
func accessLog() string {
	var b strings.Builder
	for minute := range 3 {
		for second := range 5 {
			fmt.Fprintf(&b, "203.0.113.%d - - [05/Oct/2026:08:%02d:%02d +0000] \"GET /items HTTP/1.1\" 200 5\n", second, minute, 10*second)
		}
	}
	return b.String() + "what is this\n"
}

func TestSimulateTellsWhoWouldBeDenied(t *testing.T) {
	dir := write(t, map[string]string{
		"policy.yaml": strings.Replace(policyText, "window: 1m", "window: 1m, algorithm: FixedWindow", 1), "access.log": accessLog(),
	})
	log := filepath.Join(dir, "access.log")
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := io.WriteString(z, accessLog()); errors.Join(err, z.Close()) != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(log+".gz", packed.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	const want = `15 requests of LOG from 2026-10-05 08:00:00 to 2026-10-05 08:02:40 against shop/checkout

RULE           REQUESTS   DENIED            FIRST DENIED          LAST DENIED
checkout/all   15         9        60.00%   2026-10-05 08:00:20   2026-10-05 08:02:40

LIMITS   ADMITTED   DENIED
policy   6          9    60.00%
×0.5     3          12   80.00%
×2       12         3    20.00%

1 identity denied; those denied most:
IDENTITY   RULE           DENIED   FIRST DENIED          LAST DENIED
(all)      checkout/all   9        2026-10-05 08:00:20   2026-10-05 08:02:40

1 line could not be read.
`
	for _, name := range []string{log, log + ".gz", "-"} {
		var out, complaints bytes.Buffer
		code := execute(t.Context(), []string{"simulate", "-f", dir, "--log", name},
			streams{in: strings.NewReader(accessLog()), out: &out, err: &complaints})
		if code != exitOK {
			t.Errorf("%s: exit code %d: %s", name, code, &complaints)
		}
		if diff := cmp.Diff(strings.Replace(want, "LOG", name, 1), out.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if got := complaints.String(); !strings.HasPrefix(got, name+":16: not in combined log format") || strings.Count(got, "\n") != 1 {
			t.Errorf("complaints: %q", got)
		}
	}
}

func TestSimulateForMachinesAndPictures(t *testing.T) {
	dir := write(t, map[string]string{"policy.yaml": policyText, "access.log": accessLog()})
	picture := filepath.Join(dir, "chart.svg")
	code, stdout, stderr := call(t, "simulate", "-f", dir+"/policy.yaml", "--log", dir+"/access.log", "-o", "json",
		"--suggest", "50,100", "--chart", picture)
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	var result simulate.Result
	if err := json.Unmarshal([]byte(stdout), &result); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, v := range result.Limits {
		names = append(names, v.Name)
	}
	if diff := cmp.Diff([]string{"policy", "×0.5", "×2", "p50", "p100"}, names); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
	if last := result.Limits[4]; last.Denied != 0 {
		t.Errorf("what nobody exceeded denies %d", last.Denied)
	}
	data, err := os.ReadFile(picture)
	if err != nil {
		t.Fatal(err)
	}
	if err := xml.Unmarshal(data, new(struct{})); err != nil || !bytes.Contains(data, []byte("admitted by the policy")) {
		t.Errorf("the chart: %v\n%s", err, data)
	}
}

// A log that comes through a pipe has proposals, and no word on what they would deny.
func TestSimulateProposesForAPipe(t *testing.T) {
	dir := write(t, map[string]string{"policy.yaml": policyText})
	var out, complaints bytes.Buffer
	code := execute(t.Context(), []string{"simulate", "-f", dir, "--log", "-", "--suggest", "90"},
		streams{in: strings.NewReader(accessLog()), out: &out, err: &complaints})
	if code != exitOK || !strings.Contains(out.String(), "PERCENTILE") || strings.Contains(out.String(), "\np90 ") {
		t.Errorf("exit code %d:\n%s", code, &out)
	}
	if !strings.HasSuffix(complaints.String(), "\nWhat the proposals would deny is not told, because only a file can be read twice: save the log in one for that.\n") {
		t.Errorf("complaints: %q", &complaints)
	}
}

// Whoever waited for the result gets it, also where the chart cannot be written after all.
func TestSimulateTellsTheResultBeforeTheChart(t *testing.T) {
	dir := write(t, map[string]string{"policy.yaml": policyText, "access.log": accessLog()})
	code, stdout, stderr := call(t, "simulate", "-f", dir, "--log", filepath.Join(dir, "access.log"), "--chart", "/dev/full")
	if code != exitFailed || !strings.Contains(stdout, "15 requests of ") || !strings.Contains(stderr, "Error: writing the chart: ") {
		t.Errorf("exit code %d:\n%s%s", code, stdout, stderr)
	}
}

// A chart that cannot be drawn costs nothing but itself: what was there stays, and nothing is left where nothing was.
func TestSimulateLeavesNoEmptyChart(t *testing.T) {
	dir := write(t, map[string]string{"policy.yaml": policyText, "none.log": "nonsense\n", "old.svg": "<svg/>"})
	for _, name := range []string{"new.svg", "old.svg"} {
		if code, _, _ := call(t, "simulate", "-f", dir, "--log", filepath.Join(dir, "none.log"), "--chart", filepath.Join(dir, name)); code != exitFailed {
			t.Errorf("exit code %d", code)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "new.svg")); !os.IsNotExist(err) {
		t.Errorf("a new file is left: %v", err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "old.svg")); err != nil || string(data) != "<svg/>" {
		t.Errorf("the old file is %q, %v", data, err)
	}
}

func TestSimulateRefuses(t *testing.T) {
	dir := write(t, map[string]string{
		"policy.yaml": policyText, "access.log": accessLog(), "other.log": "a,b\n1,2\n", "none.log": "{}\n", "empty.log": "\n", "text.yaml": "apiVersion: v1\nkind: ConfigMap\n",
		"two/a.yaml": policyText, "two/b.yaml": strings.ReplaceAll(policyText, "checkout", "basket"),
		"wrong.yaml": strings.Replace(policyText, "requests", "reqests", 1),
	}) + "/"
	good := []string{"-f", dir + "policy.yaml", "--log", dir + "access.log"}
	tests := map[string]struct {
		args []string
		code int
		want string
	}{
		"no policy":            {[]string{"--log", "x"}, 2, "--filename is missing: name the file"},
		"no log":               {[]string{"-f", "x"}, 2, "--log is missing: name the access log"},
		"an unknown output":    {append(good, "-o", "yaml"), 2, "must be table or json"},
		"an unknown format":    {append(good, "--format", "xml"), 2, "must be auto, combined, json or csv"},
		"a scale of nothing":   {append(good, "--scale", "0"), 2, "want a number above 0"},
		"a percentile above":   {append(good, "--suggest", "101"), 2, "up to 100"},
		"an unknown field":     {append(good, "--field", "color=x"), 2, "want for example remote=client.addr"},
		"no network":           {append(good, "--trusted-proxies", "proxy"), 2, "want a network such as"},
		"an argument":          {append(good, "more.log"), 2, "takes no arguments"},
		"no such policy":       {[]string{"-f", dir + "gone", "--log", "x"}, 2, "no such file"},
		"no policy in it":      {[]string{"-f", dir + "text.yaml", "--log", "x"}, 2, "there is no policy in"},
		"a wrong policy":       {[]string{"-f", dir + "wrong.yaml", "--log", "x"}, 2, "did you mean requests?"},
		"two workloads":        {[]string{"-f", dir + "two", "--log", "x"}, 2, "choose one with --workload"},
		"another workload":     {append(good, "--workload", "shop/basket"), 2, "no policy targets"},
		"no such log":          {[]string{"-f", dir + "policy.yaml", "--log", dir + "gone.log"}, 2, "no such file"},
		"a table without time": {[]string{"-f", dir + "policy.yaml", "--log", dir + "other.log"}, 1, "name the column with --field time=NAME"},
		"a folder of logs":     {[]string{"-f", dir + "policy.yaml", "--log", dir}, 2, "is a folder: name the access log"},
		"an empty log":         {[]string{"-f", dir + "policy.yaml", "--log", dir + "empty.log"}, 1, "empty.log: there is no line in it: name a log with requests"},
		"no place for a chart": {append(good, "--chart", dir+"nope/chart.svg"), 2, "name a file where you may write"},
		"a chart for a folder": {append(good, "--chart", dir), 2, "name a file where you may write"},
		"nothing to be read":   {[]string{"-f", dir + "policy.yaml", "--log", dir + "none.log"}, 1, "say what it looks like with --format and --field"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := call(t, append([]string{"simulate"}, tc.args...)...)
			if code != tc.code || !strings.Contains(stderr, tc.want) || stdout != "" {
				t.Errorf("exit code %d, want %d, with %q:\n%s%s", code, tc.code, tc.want, stdout, stderr)
			}
		})
	}
}
