package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// input is a file that an argument names.
type input struct {
	name string
	// found says that the argument named a folder; a file in it may be about something else.
	found bool
}

// expand turns arguments into files: a file, the files of a folder, or with /... at the end those of a whole tree.
// Hidden folders are passed over.
func expand(args []string) ([]input, error) {
	var inputs []input
	for _, arg := range args {
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

// about says whether the text of a file that was found in a folder matches, so that templates and manifests of other
// kinds may lie beside our files.
func about(name string, patterns ...*regexp.Regexp) (bool, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return false, fmt.Errorf("reading file: %w", err)
	}
	return slices.ContainsFunc(patterns, func(p *regexp.Regexp) bool { return p.Match(data) }), nil
}
