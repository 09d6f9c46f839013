package main

import (
	"runtime/debug"
	"slices"
	"testing"
	"time"
)

func TestEveryLinkedModuleIsNamedOnce(t *testing.T) {
	info := &debug.BuildInfo{
		GoVersion: "go1.26.8",
		Main:      debug.Module{Path: "github.com/weir-dev/weir", Version: "v0.1.0"},
		Deps: []*debug.Module{
			{Path: "example.com/a", Version: "v1.2.3", Sum: "h1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="},
			{Path: "example.com/b", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/fork", Version: "v1.0.1"}},
		},
	}
	d := documentOf("manager", info, time.Unix(0, 0))
	var purls []string
	for _, p := range d.Packages {
		purls = append(purls, p.ExternalRefs[0].Locator)
	}
	want := []string{
		"pkg:golang/github.com/weir-dev/weir@v0.1.0", "pkg:golang/std@1.26.8",
		"pkg:golang/example.com/a@v1.2.3", "pkg:golang/example.com/fork@v1.0.1",
	}
	if !slices.Equal(purls, want) {
		t.Errorf("packages %v, want %v", purls, want)
	}
	ids := map[string]bool{"SPDXRef-DOCUMENT": true}
	for _, p := range d.Packages {
		if ids[p.SPDXID] {
			t.Errorf("two packages are %s", p.SPDXID)
		}
		ids[p.SPDXID] = true
	}
	for _, r := range d.Relationships {
		if !ids[r.Element] || !ids[r.Related] {
			t.Errorf("%v is between what is not there", r)
		}
	}
	if len(d.Relationships) != len(d.Packages) {
		t.Errorf("%d relationships, want one for each of %d packages", len(d.Relationships), len(d.Packages))
	}
}
