package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weir-dev/weir/internal/lint"
	"github.com/weir-dev/weir/internal/manifest"
	"github.com/weir-dev/weir/internal/scenario"
)

// lintOptions are the flags of lint.
type lintOptions struct {
	output string
	strict bool
}

func newLint(s streams) *cobra.Command {
	var o lintOptions
	cmd := &cobra.Command{
		Use:   "lint FILE...",
		Short: "Check policy and scenario files without a cluster",
		Long: `Check the files of policies and scenarios.

What the API server would refuse is told with file, line and path; so are unknown fields, which it would drop.
Warnings tell of what is valid and probably not meant, such as a rule that is never reached.

FILE is a file, a folder, or a whole tree: policies/... For policies it may also be -, the standard input.`,
		Example: `  kubectl weir lint config/samples
  helm template chart | kubectl weir lint -
  kubectl weir lint policies/... --strict`,
		Args: files,
		RunE: func(_ *cobra.Command, args []string) error { return o.run(s, args) },
	}
	cmd.Flags().StringVarP(&o.output, "output", "o", "text", "how to tell: text or json")
	cmd.Flags().BoolVar(&o.strict, "strict", false, "fail on warnings too")
	return cmd
}

func (o *lintOptions) run(s streams, args []string) error {
	if err := oneOf("output", o.output, "text", "json"); err != nil {
		return err
	}
	inputs, err := expand(args, s.in)
	if err != nil {
		return err
	}
	found, err := check(inputs)
	if err != nil {
		return err
	}
	if err := found.print(s, o.output); err != nil {
		return err
	}
	switch {
	case len(found.Errors) > 0:
		return exitError(exitInvalid)
	case o.strict && len(found.Warnings) > 0:
		return exitError(exitFailed)
	}
	return nil
}

// findings are what lint has to tell.
type findings struct {
	Files    int             `json:"files"`
	Errors   manifest.Faults `json:"errors"`
	Warnings manifest.Faults `json:"warnings"`
}

func check(inputs []input) (findings, error) {
	found := findings{Errors: manifest.Faults{}, Warnings: manifest.Faults{}} // lists in JSON, not null
	var policies []manifest.Policy
	var others manifest.Faults // files that hold something else
	scenarios := 0
	for _, in := range inputs {
		if in.found {
			ours, err := in.about(scenarioLine, policyLine)
			if err != nil {
				return findings{}, err
			}
			if !ours {
				continue
			}
		}
		found.Files++
		isScenario, err := in.about(scenarioLine)
		if err != nil {
			return findings{}, err
		}
		if isScenario {
			if in.name == standardInput {
				return findings{}, errScenarioFromPipe
			}
			scenarios++
			_, faults, err := scenario.Load(in.name)
			if err != nil {
				return findings{}, err
			}
			found.Errors = append(found.Errors, faults...)
			continue
		}
		f, err := in.parse()
		if err != nil {
			return findings{}, err
		}
		read := f.Policies(manifest.DefaultNamespace)
		if len(read) == 0 && len(f.Faults()) == 0 && !in.found {
			others = append(others, manifest.Fault{File: in.name, Message: "holds neither a policy nor a scenario"})
		}
		found.Errors = append(found.Errors, f.Faults()...)
		policies = append(policies, read...)
	}
	if len(policies)+scenarios > 0 {
		found.Warnings = append(found.Warnings, others...)
	} else {
		found.Errors = append(found.Errors, others...)
	}
	errors, warnings := lint.Policies(policies)
	found.Errors = append(found.Errors, errors...)
	found.Warnings = append(found.Warnings, warnings...)
	return found, nil
}

func (f findings) print(s streams, output string) error {
	if output == "json" {
		encoder := json.NewEncoder(s.out)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(f); err != nil {
			return fmt.Errorf("writing findings: %w", err)
		}
		return nil
	}
	for _, fault := range f.Errors {
		fmt.Fprintln(s.out, fault.Error())
	}
	for _, fault := range f.Warnings {
		fault.Message = "warning: " + fault.Message
		fmt.Fprintln(s.out, fault.Error())
	}
	if len(f.Errors)+len(f.Warnings) == 0 {
		fmt.Fprintf(s.out, "%s: nothing to complain about\n", plural(f.Files, "file"))
	} else {
		fmt.Fprintf(s.out, "%s: %s, %s\n", plural(f.Files, "file"), plural(len(f.Errors), "error"), plural(len(f.Warnings), "warning"))
	}
	return nil
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if base, ok := strings.CutSuffix(noun, "y"); ok {
		return fmt.Sprintf("%d %sies", n, base)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
