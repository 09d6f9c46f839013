package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weir-dev/weir/controllers"
	"github.com/weir-dev/weir/internal/manifest"
	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/internal/scenario"
)

// testOptions are the flags of test.
type testOptions struct {
	output   string
	redis    string
	postgres string
}

func newTest(s streams) *cobra.Command {
	var o testOptions
	cmd := &cobra.Command{
		Use:   "test FILE...",
		Short: "Run scenario files: unit tests for rate limits",
		Long: `Run the scenarios of files, without a cluster.

A scenario says which requests come when, what happens to the store and the replicas meanwhile, and what must be
admitted. It runs on a virtual clock, so a day passes in a moment, and by the same code as in a pod.

FILE is a file, a folder, or a whole tree: tests/...
Scenarios run on memory; those that name redis or postgres among their stores also run there if an address is given,
and are told as skipped if none is.

The exit code is 1 if a scenario failed or none was run, and 2 if a file is not valid; then nothing is run.`,
		Example: `  kubectl weir test checkout_test.yaml
  kubectl weir test tests/... --redis localhost:6379 -o junit > report.xml`,
		Args: files,
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), s, args) },
	}
	cmd.Flags().StringVarP(&o.output, "output", "o", "text", "how to tell: text, json or junit")
	cmd.Flags().StringVar(&o.redis, "redis", "", "host:port of a Redis for the scenarios that run on redis; they use keys of their own")
	cmd.Flags().StringVar(&o.postgres, "postgres", "", "URL of a PostgreSQL for the scenarios that run on postgres; they use a schema of their own")
	return cmd
}

func (o *testOptions) run(ctx context.Context, s streams, args []string) error {
	report, ok := reporters[o.output]
	if !ok {
		return usageError{fmt.Errorf("unknown output %q: must be text, json or junit", o.output)}
	}
	inputs, err := expand(args, s.in)
	if err != nil {
		return err
	}
	scenarios, faults, err := loadAll(inputs)
	if err != nil {
		return err
	}
	if len(faults) > 0 {
		for _, fault := range faults {
			fmt.Fprintln(s.err, fault.Error())
		}
		return exitError(exitInvalid)
	}
	stores, cleanUp := o.stores()
	defer cleanUp()
	runner := scenario.Runner{
		Stores: stores,
		Controller: func(w policy.Workload, owner string) scenario.Controller {
			return controllers.NewPreview(w, owner)
		},
	}
	var results []scenario.Result
	for _, loaded := range scenarios {
		for _, store := range loaded.Stores {
			result, err := runner.Run(ctx, loaded, store)
			if err != nil {
				return fmt.Errorf("running %q of %s on %s: %w", loaded.Name, loaded.File, store, err)
			}
			results = append(results, result)
		}
	}
	if err := report(s.out, results); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return verdict(results)
}

// verdict fails when a scenario failed, and when none was run: a test that tested nothing did not pass.
func verdict(results []scenario.Result) error {
	passed := 0
	for _, r := range results {
		if len(r.Failures) > 0 {
			return exitError(exitFailed)
		}
		if r.Passed() {
			passed++
		}
	}
	if passed == 0 {
		return errors.New("no scenario was run: those that there are need --redis or --postgres")
	}
	return nil
}

func loadAll(inputs []input) ([]*scenario.Scenario, manifest.Faults, error) {
	var scenarios []*scenario.Scenario
	var faults manifest.Faults
	var policies []string
	for _, in := range inputs {
		if in.name == standardInput {
			return nil, nil, errScenarioFromPipe
		}
		ours, err := in.about(scenarioLine)
		if err != nil {
			return nil, nil, err
		}
		if !ours {
			other, err := in.about(policyLine)
			if err != nil {
				return nil, nil, err
			}
			if other { // as tests/*.yaml names those that scenarios are about
				policies = append(policies, in.name)
			}
			if other || in.found {
				continue
			}
		}
		loaded, wrong, err := scenario.Load(in.name)
		if err != nil {
			return nil, nil, err
		}
		scenarios = append(scenarios, loaded...)
		faults = append(faults, wrong...)
	}
	if len(scenarios)+len(faults) == 0 && len(policies) > 0 {
		return nil, nil, usageError{fmt.Errorf("there are policies and no scenario in %s: `kubectl weir lint` checks policies", strings.Join(policies, ", "))}
	}
	return scenarios, faults, nil
}
