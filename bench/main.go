// Command bench compares this library with its peers in one run, on one machine and one Redis: the whole decision
// through the public API, against what applications use in its place.
//
//	go run . [-quick] [-only redis,memory] [-cpuprofile file]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/pprof"
	"strings"
	"time"
)

func main() {
	var o options
	flag.BoolVar(&o.quick, "quick", false, "only the main cases, in under three minutes")
	flag.StringVar(&o.only, "only", "", "cases to run, with commas between: their names, and their keys behind a slash (default all)")
	flag.StringVar(&o.subjects, "subjects", "", "only subjects whose names begin so, to profile them (default all)")
	flag.IntVar(&o.runs, "runs", 5, "runs of each subject, taking turns")
	flag.DurationVar(&o.duration, "time", 0, "length of a run (default 400ms)")
	flag.StringVar(&o.out, "out", "results.json", "file for the results")
	flag.StringVar(&o.plot, "plot", "results.svg", "file for the plot; none if quick")
	page := flag.String("page", "", "only write the results of -out into the tables of this page")
	flag.StringVar(&o.profile, "cpuprofile", "", "file for a profile of this process")
	flag.Parse()
	if *page != "" {
		if err := writePage(*page, o.out); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := execute(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

type options struct {
	quick     bool
	only      string
	subjects  string
	runs      int
	duration  time.Duration
	out, plot string
	profile   string
}

func execute(ctx context.Context, o options, w io.Writer) error {
	if o.duration <= 0 {
		o.duration = 400 * time.Millisecond
	}
	ran := machineNow(ctx)
	server, err := startRedis(ctx)
	if err != nil {
		return err
	}
	defer server.stop()
	b := &bench{redis: server, duration: o.duration, runs: max(1, o.runs), quick: o.quick, subjects: o.subjects, log: w}
	if o.wants("postgres", "") {
		if b.postgres, err = startPostgres(ctx); err != nil {
			return err
		}
		defer b.postgres.stop()
	}
	if o.profile != "" {
		file, err := os.Create(o.profile)
		if err != nil {
			return fmt.Errorf("creating the profile: %w", err)
		}
		defer file.Close()
		if err := pprof.StartCPUProfile(file); err != nil {
			return fmt.Errorf("profiling: %w", err)
		}
		defer pprof.StopCPUProfile()
	}

	var all figures
	var failures []error // a case that cannot be measured does not keep the others from being
	for _, p := range b.plans() {
		if !o.wants(p.name, p.keys.name) {
			continue
		}
		results, err := b.do(ctx, p)
		failures = append(failures, err)
		all = append(all, results...)
	}
	if !o.quick && o.wants("footprint", "") {
		failures = append(failures, b.footprints(ctx))
	}
	fmt.Fprintln(w)
	printTable(w, all)
	fmt.Fprintln(w)
	printTargets(w, all)
	failures = append(failures, writeResults(o.out, all))
	if !o.quick && o.plot != "" {
		ran.LoadAfter = loadAverage()
		failures = append(failures, writePlot(o.plot, all), ran.write(machineFile(o.out)))
	}
	return errors.Join(failures...)
}

// wants says whether a case was asked for, by "name" or "name/keys".
func (o *options) wants(name, keys string) bool {
	if o.only == "" {
		return true
	}
	for wanted := range strings.SplitSeq(o.only, ",") {
		wantedName, wantedKeys, both := strings.Cut(wanted, "/")
		if wantedName == name && (!both || keys == "" || wantedKeys == keys) {
			return true
		}
	}
	return false
}
