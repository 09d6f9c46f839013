package main

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-dev/weir/internal/manifest"
	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/internal/simulate"
)

// simulateOptions are the flags of simulate.
type simulateOptions struct {
	policies    []string
	log         string
	workload    string
	format      string
	fields      []string
	proxies     []string
	scale       []string
	output      string
	chart       string
	suggest     []string
	top         int
	maxCounters int
}

func newSimulate(s streams) *cobra.Command {
	var o simulateOptions
	cmd := &cobra.Command{
		Use:   "simulate -f POLICY --log FILE",
		Short: "Replay an access log against policies",
		Long: `Replay an access log against policies, without a cluster: who would have been denied, when, and how that
changes with the limits.

Requests are decided as in a pod whose store answers, at the times of the log. A log in combined format has whole
seconds, so all requests of a second come at once. It has paths and no routes: rules with a route are matched by path.

FILE may be compressed with gzip; - is the standard input. Names of values that the command does not find by itself are
given with --field, for example --field remote=client.addr --field header.X-Api-Key=key. What servers append to the
combined format in quotes is called extra1, extra2 and so on.

A line that cannot be read is told with its number and counted. The exit code is 1 if no line could be read.`,
		Example: `  kubectl weir simulate -f checkout.yaml --log access.log.gz
  kubectl logs deploy/ingress | kubectl weir simulate -f checkout.yaml --log - --format json
  kubectl weir simulate -f checkout.yaml --log access.log --suggest 99,99.9 --chart admitted.svg`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), s) },
	}
	flags := cmd.Flags()
	flags.StringSliceVarP(&o.policies, "filename", "f", nil, "file or folder with the policies, or - for the standard input; can be given several times")
	flags.StringVar(&o.log, "log", "", "access log; - is the standard input")
	flags.StringVar(&o.workload, "workload", "", "namespace/name of the workload, if the policies target more than one")
	flags.StringVar(&o.format, "format", string(simulate.Auto), "format of the log: auto, combined, json or csv")
	flags.StringSliceVar(&o.fields, "field", nil, "what is read and the name that the log has for it: time, method, path, request, remote, host, route, header.NAME or attribute.NAME")
	flags.StringSliceVar(&o.proxies, "trusted-proxies", nil, "networks whose X-Forwarded-For is believed, as the application has them")
	flags.StringSliceVar(&o.scale, "scale", []string{"0.5", "2"}, "factors of the limits to compare with")
	flags.StringVarP(&o.output, "output", "o", "table", "how to tell: table or json")
	flags.StringVar(&o.chart, "chart", "", "file for a chart in SVG")
	flags.StringSliceVar(&o.suggest, "suggest", nil, "propose limits that this percentage of the identities never exceeded, such as 99")
	flags.IntVar(&o.top, "top", simulate.DefaultTop, "how many of the identities that were denied most to tell")
	flags.IntVar(&o.maxCounters, "max-counters", simulate.DefaultMaxCounters, "counters to keep for each set of limits; one takes about 250 bytes")
	return cmd
}

// maxNamed is how many wrong lines are told one by one.
const maxNamed = 10

func (o *simulateOptions) run(ctx context.Context, s streams) error {
	replay, percentiles, err := o.parse()
	if err != nil {
		return usageError{err}
	}
	found, err := readPolicies(o.policies, s.in)
	if err != nil {
		return err
	}
	if replay.Workload, replay.Policies, err = choose(found, o.workload); err != nil {
		return usageError{err}
	}
	replay.Peaks = len(percentiles) > 0
	wrong := 0
	replay.Wrong = func(number int64, err error) {
		if wrong++; wrong <= maxNamed {
			fmt.Fprintf(s.err, "%s:%d: %v\n", o.log, number, err)
		} else if wrong == maxNamed+1 {
			fmt.Fprintf(s.err, "%s: more lines that cannot be read are only counted\n", o.log)
		}
	}
	r, err := simulate.New(replay)
	if err != nil {
		return err
	}
	if o.chart != "" {
		release, err := claim(o.chart)
		if err != nil {
			return usageError{fmt.Errorf("--chart: %w: name a file where you may write", err)}
		}
		defer release()
	}
	if err := o.replay(ctx, s, r); err != nil {
		return err
	}
	result := r.Result()
	var proposed []simulate.Variant
	if len(percentiles) > 0 {
		result.Suggestions = r.Suggest(percentiles)
		if proposed, err = o.tryOut(ctx, s, replay, result.Suggestions); err != nil {
			return err
		}
		result.Limits = append(result.Limits, proposed...)
		if n := r.Unmeasured(); n > 0 {
			fmt.Fprintf(s.err, "%d requests are not in the proposals: there were more identities than --max-counters\n", n)
		}
	}
	if err := o.tell(s.out, result); err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	if o.chart != "" {
		charted := result
		charted.Limits = result.Limits[:len(result.Limits)-len(proposed)]
		if err := os.WriteFile(o.chart, []byte(charted.Chart()), 0o644); err != nil {
			return fmt.Errorf("writing the chart: %w", err)
		}
	}
	return nil
}

// tell writes the result.
func (o *simulateOptions) tell(out io.Writer, result simulate.Result) error {
	if o.output == "json" {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(result)
	}
	return printSimulation(out, o.log, result)
}

// claim makes sure that a file can be written before the work that it takes to fill it. The function that it returns
// takes the file away again if nothing came of it.
func claim(path string) (release func(), err error) {
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() && !info.Mode().IsRegular() {
		return func() {}, nil // a pipe or a device, whose reader would take that for the whole
	}
	isNew := errors.Is(err, fs.ErrNotExist)
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	_ = file.Close()
	return func() {
		if info, err := os.Stat(path); isNew && err == nil && info.Size() == 0 {
			_ = os.Remove(path)
		}
	}, nil
}

// tryOut replays the log once more, with the proposed limits. A pipe cannot be read again.
func (o *simulateOptions) tryOut(
	ctx context.Context, s streams, replay simulate.Options, suggestions []simulate.Suggestion,
) ([]simulate.Variant, error) {
	if len(suggestions) == 0 {
		return nil, nil
	}
	if info, err := os.Stat(o.log); o.log == standardInput || err == nil && !info.Mode().IsRegular() {
		fmt.Fprintln(s.err, "What the proposals would deny is not told, because only a file can be read twice: save the log in one for that.")
		return nil, nil
	}
	replay.Factors, replay.Peaks, replay.Wrong = nil, false, nil
	replay.Proposals = simulate.Proposals(suggestions, percentName)
	r, err := simulate.New(replay)
	if err != nil {
		return nil, err
	}
	if err := o.replay(ctx, s, r); err != nil {
		return nil, err
	}
	return r.Result().Limits[1:], nil
}

func percentName(p float64) string { return "p" + strconv.FormatFloat(p, 'g', -1, 64) }

// parse checks the flags.
func (o *simulateOptions) parse() (simulate.Options, []float64, error) {
	replay := simulate.Options{Format: simulate.Format(o.format), Top: o.top, MaxCounters: o.maxCounters}
	switch {
	case len(o.policies) == 0:
		return replay, nil, errors.New("--filename is missing: name the file with the policies")
	case o.log == "":
		return replay, nil, errors.New("--log is missing: name the access log, or - for the standard input")
	case o.log == standardInput && slices.Contains(o.policies, standardInput):
		return replay, nil, errors.New("--filename and --log are both the standard input: name a file for one of them")
	case o.top < 0 || o.maxCounters < 1:
		return replay, nil, fmt.Errorf("--top is %d and --max-counters %d: want at least 0 and 1", o.top, o.maxCounters)
	}
	if err := oneOf("output", o.output, "table", "json"); err != nil {
		return replay, nil, err
	}
	if err := oneOf("format", o.format, simulate.Formats()...); err != nil {
		return replay, nil, err
	}
	for _, text := range o.proxies {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return replay, nil, fmt.Errorf("--trusted-proxies %q: want a network such as 10.0.0.0/8", text)
		}
		replay.TrustedProxies = append(replay.TrustedProxies, network)
	}
	replay.Fields = make(map[simulate.Target]string)
	for _, text := range o.fields {
		name, field, ok := strings.Cut(text, "=")
		target, err := simulate.ParseTarget(name)
		if err != nil || !ok || field == "" {
			return replay, nil, fmt.Errorf("--field %q: want for example remote=client.addr or header.X-Api-Key=key", text)
		}
		replay.Fields[target] = field
	}
	var err error
	if replay.Factors, err = numbers("scale", o.scale, 1e-6, 1e6); err != nil {
		return replay, nil, err
	}
	percentiles, err := numbers("suggest", o.suggest, 1e-6, 100)
	return replay, percentiles, err
}

func numbers(flag string, texts []string, least, most float64) ([]float64, error) {
	var all []float64
	for _, text := range texts {
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || !(least <= n && n <= most) {
			return nil, fmt.Errorf("--%s %q: want a number above 0 and up to %g", flag, text, most)
		}
		all = append(all, n)
	}
	return all, nil
}

// readPolicies reads the policies of files and folders. What is wrong with them is told with file and line.
func readPolicies(args []string, stdin io.Reader) ([]policy.Policy, error) {
	return readPoliciesIn(args, stdin, manifest.DefaultNamespace)
}

// readPoliciesIn reads policies; those whose file names no namespace are of the one given.
func readPoliciesIn(args []string, stdin io.Reader, namespace string) ([]policy.Policy, error) {
	inputs, err := expand(args, stdin)
	if err != nil {
		return nil, err
	}
	var policies []policy.Policy
	var faults manifest.Faults
	for _, in := range inputs {
		if in.found {
			ours, err := in.about(policyLine)
			if err != nil {
				return nil, err
			}
			if !ours {
				continue
			}
		}
		f, err := in.parse()
		if err != nil {
			return nil, err
		}
		for _, p := range f.Policies(namespace) {
			policies = append(policies, p.Policy)
		}
		faults = append(faults, f.Faults()...)
	}
	if err := faults.Err(); err != nil {
		return nil, usageError{err}
	}
	if len(policies) == 0 {
		return nil, usageError{fmt.Errorf("there is no policy in %s", strings.Join(args, ", "))}
	}
	return policies, nil
}

// choose returns the workload that the policies target, or the one that the user named, and its policies.
func choose(policies []policy.Policy, named string) (policy.Workload, []policy.Policy, error) {
	var workloads []policy.Workload
	for _, p := range policies {
		if w := p.Workload(); !slices.Contains(workloads, w) {
			workloads = append(workloads, w)
		}
	}
	var known []string
	for _, w := range workloads {
		known = append(known, w.Namespace+"/"+w.Name)
	}
	chosen := workloads[0]
	switch {
	case named != "":
		i := slices.Index(known, named)
		if i < 0 {
			return chosen, nil, fmt.Errorf("no policy targets %q: they target %s", named, strings.Join(known, ", "))
		}
		chosen = workloads[i]
	case len(workloads) > 1:
		return chosen, nil, fmt.Errorf("the policies target %s: choose one with --workload", strings.Join(known, ", "))
	}
	return chosen, slices.DeleteFunc(policies, func(p policy.Policy) bool { return p.Workload() != chosen }), nil
}

// replay reads the log through r.
func (o *simulateOptions) replay(ctx context.Context, s streams, r *simulate.Replay) error {
	log, size := s.in, int64(0)
	if o.log != standardInput {
		file, err := os.Open(o.log)
		if err != nil {
			return usageError{fmt.Errorf("--log: %w: name the access log, or - for the standard input", err)}
		}
		defer file.Close()
		switch info, err := file.Stat(); {
		case err == nil && info.IsDir():
			return usageError{fmt.Errorf("--log: %s is a folder: name the access log, or - for the standard input", o.log)}
		case err == nil && info.Mode().IsRegular():
			size = info.Size()
		}
		log = file
	}
	bar := newProgress(s, size)
	defer bar.done()
	buffered := bufio.NewReaderSize(bar.watch(log), 64<<10)
	var from io.Reader = buffered
	if magic, err := buffered.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		if from, err = gzip.NewReader(buffered); err != nil {
			return fmt.Errorf("reading the compressed log: %w", err)
		}
	}
	err := r.Read(ctx, from)
	switch {
	case errors.Is(err, simulate.ErrEmpty):
		return fmt.Errorf("%s: %w: name a log with requests", o.log, err)
	case errors.Is(err, simulate.ErrNothing):
		return fmt.Errorf("%s: %w: say what it looks like with --format and --field", o.log, err)
	}
	return err
}

func printSimulation(w io.Writer, log string, r simulate.Result) error {
	workload, err := policy.ParseWorkload(r.Workload)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s requests of %s from %s to %s against %s/%s\n\n",
		thousands(r.Lines.Read), log, clockTime(r.From), clockTime(r.To), workload.Namespace, workload.Name)
	t := newTable(w, "RULE", "REQUESTS", "DENIED", "", "FIRST DENIED", "LAST DENIED")
	for _, rule := range r.Rules {
		name := rule.Policy + "/" + rule.Rule
		if rule.Mode == policy.ModeShadow {
			name += " (shadow)"
		}
		t.row(name, thousands(rule.Requests), thousands(rule.Denied), percent(rule.Denied, rule.Requests),
			optionalTime(rule.FirstDenied), optionalTime(rule.LastDenied))
	}
	others := map[string]string{"NoRule": "(no rule)", "Exempt": "(exempt)"}
	for _, source := range []string{"NoRule", "Exempt"} {
		if n := r.Others[source]; n > 0 {
			t.row(others[source], thousands(n), "0", percent(0, n), "", "")
		}
	}
	t.flush()
	fmt.Fprintln(w)
	t = newTable(w, "LIMITS", "ADMITTED", "DENIED", "")
	for _, v := range r.Limits {
		t.row(v.Name, thousands(v.Admitted), thousands(v.Denied), percent(v.Denied, r.Lines.Read))
	}
	t.flush()
	if len(r.MostDenied) > 0 {
		more := ""
		if r.MoreIdentities {
			more = "more than "
		}
		each := "" // who is denied by two rules is two of them
		if slices.ContainsFunc(r.MostDenied, func(d simulate.Denied) bool {
			return d.Policy != r.MostDenied[0].Policy || d.Rule != r.MostDenied[0].Rule
		}) {
			each = ", counted rule by rule"
		}
		fmt.Fprintf(w, "\n%s%s denied%s; those denied most:\n", more, plural(r.Identities, "identity"), each)
		t = newTable(w, "IDENTITY", "RULE", "DENIED", "FIRST DENIED", "LAST DENIED")
		for _, d := range r.MostDenied {
			count := thousands(d.Denied)
			if d.Over > 0 {
				count = thousands(d.Denied-d.Over) + "–" + count
			}
			t.row(d.Identity, d.Policy+"/"+d.Rule, count, clockTime(d.First), clockTime(d.Last))
		}
		t.flush()
	}
	printSuggestions(w, r.Suggestions)
	printRemarks(w, r)
	return nil
}

func printSuggestions(w io.Writer, suggestions []simulate.Suggestion) {
	if len(suggestions) == 0 {
		return
	}
	fmt.Fprintf(w, "\nLimits that a part of the identities never exceeded:\n")
	t := newTable(w, "RULE", "WINDOW", "NOW", "PERCENTILE", "REQUESTS", "IDENTITIES ABOVE")
	for _, s := range suggestions {
		window := time.Duration(s.WindowSeconds * float64(time.Second))
		for _, at := range s.At {
			t.row(s.Policy+"/"+s.Rule, shortDuration(window), thousands(s.Requests), percentName(at.Percentile),
				thousands(at.Requests), fmt.Sprintf("%d of %d", at.Above, s.Identities))
		}
	}
	t.flush()
}

func printRemarks(w io.Writer, r simulate.Result) {
	if r.Lines.Wrong > 0 || r.Lines.Late > 0 || r.Full || len(r.Unseen) > 0 {
		fmt.Fprintln(w)
	}
	for _, t := range r.Unseen {
		fmt.Fprintf(w, "No line has %s, which a rule reads: if the log has it, name it with --field %s=NAME.\n", t, t)
	}
	if r.Lines.Wrong > 0 {
		fmt.Fprintf(w, "%s could not be read.\n", plural(int(r.Lines.Wrong), "line"))
	}
	if r.Lines.Late > 0 {
		fmt.Fprintf(w, "%s earlier than one before and decided at that one's time.\n", were(r.Lines.Late))
	}
	if r.Full {
		fmt.Fprintf(w, "There were more counters than fit, so too much may have been admitted: raise --max-counters, which is %d.\n",
			r.MaxCounters)
	}
}

func were(n int64) string {
	if n == 1 {
		return "1 line was"
	}
	return thousands(n) + " lines were"
}

func clockTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") }

func optionalTime(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return clockTime(*t)
}

func percent(part, whole int64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f%%", 100*float64(part)/float64(whole))
}
