package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/weir-dev/weir/internal/manifest"
)

// input is a file that an argument names.
type input struct {
	name string
	// found says that the argument named a folder; a file in it may be about something else.
	found bool
	// data is what was read, if it is the standard input.
	data []byte
}

// standardInput is what stands for it among files.
const standardInput = "-"

var errScenarioFromPipe = usageError{errors.New("a scenario names files beside it, so it cannot come from the standard input: name its file")}

// expand turns arguments into files: a file, the files of a folder, or with /... at the end those of a whole tree; and -
// into what there is on stdin. Hidden folders are passed over.
func expand(args []string, stdin io.Reader) ([]input, error) {
	var inputs []input
	for _, arg := range args {
		if arg == standardInput {
			data, err := io.ReadAll(stdin)
			if err != nil {
				return nil, fmt.Errorf("reading the standard input: %w", err)
			}
			inputs = append(inputs, input{name: arg, data: data})
			continue
		}
		root, tree := strings.CutSuffix(filepath.ToSlash(arg), "/...")
		root = filepath.FromSlash(root)
		info, err := os.Stat(root)
		if err != nil {
			return nil, usageError{fmt.Errorf("%w: name a file, a folder, or a tree, as policies/... is", err)}
		}
		if !info.IsDir() {
			inputs = append(inputs, input{name: root})
			continue
		}
		names, err := walk(root, tree)
		if err != nil {
			return nil, fmt.Errorf("finding files in %s: %w", root, err)
		}
		if len(names) == 0 {
			return nil, usageError{fmt.Errorf("there are no YAML files in %s: name another folder, or with /... at its end a whole tree", arg)}
		}
		for _, name := range names {
			inputs = append(inputs, input{name: name, found: true})
		}
	}
	return slices.CompactFunc(inputs, func(a, b input) bool { return a.name == b.name }), nil
}

func walk(root string, tree bool) ([]string, error) {
	var names []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path == root:
			return nil
		case entry.IsDir():
			if !tree || strings.HasPrefix(entry.Name(), ".") {
				return fs.SkipDir
			}
			return nil
		}
		if extension := filepath.Ext(path); extension == ".yaml" || extension == ".yml" {
			names = append(names, path)
		}
		return nil
	})
	return names, err
}

var (
	scenarioLine = regexp.MustCompile(`(?m)^["']?scenario["']?[ \t]*:`)
	policyLine   = regexp.MustCompile(`ratelimit\.weir\.dev/`)
)

// about says whether the text of a file matches, so that templates and manifests of other kinds may lie beside our files.
func (in input) about(patterns ...*regexp.Regexp) (bool, error) {
	data := in.data
	if in.name != standardInput {
		var err error
		if data, err = os.ReadFile(in.name); err != nil {
			return false, fmt.Errorf("reading file: %w", err)
		}
	}
	return slices.ContainsFunc(patterns, func(p *regexp.Regexp) bool { return p.Match(data) }), nil
}

// parse reads the documents of the file.
func (in input) parse() (*manifest.File, error) {
	if in.name == standardInput {
		return manifest.Parse(in.name, in.data), nil
	}
	return manifest.ReadFile(in.name)
}
