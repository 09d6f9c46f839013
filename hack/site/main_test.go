package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

// The file of our own pages needs no network, and each of its links within leads somewhere.
func TestThePagesCanBeReadOffline(t *testing.T) {
	rendered, err := render(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	page := string(rendered)
	for _, loads := range regexp.MustCompile(`(?:src|srcset)="([^"]*)"|<(?:link|script|iframe)[ >]|@import|url\(`).FindAllStringSubmatch(page, -1) {
		if !strings.HasPrefix(loads[1], "data:") {
			t.Errorf("it loads %.80s", loads[0])
		}
	}
	ids := map[string]int{}
	for _, id := range regexp.MustCompile(` id="([^"]+)"`).FindAllStringSubmatch(page, -1) {
		ids[id[1]]++
	}
	links := regexp.MustCompile(`href="#([^"]*)"`).FindAllStringSubmatch(page, -1)
	for _, link := range links {
		if ids[link[1]] == 0 {
			t.Errorf("nothing is named %q", link[1])
		}
	}
	for id, n := range ids {
		if n > 1 {
			t.Errorf("%d things are named %q", n, id)
		}
	}
	if len(links) < 100 || strings.Count(page, "<section") < 20 || strings.Count(page, "data:image/svg+xml") < 5 {
		t.Errorf("%d links, %d pages, %d pictures", len(links), strings.Count(page, "<section"), strings.Count(page, "data:image/svg+xml"))
	}
}

func TestLinksThatLeadNowhere(t *testing.T) {
	tree := fstest.MapFS{}
	for _, name := range append([]string{"CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"}, first...) {
		tree[name] = &fstest.MapFile{Data: []byte("# A page\n")}
	}
	if _, err := render(tree); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"a page": "[x](gone.md)", "a picture": "![x](gone.svg)", "a photograph": "![x](../README.md)",
	} {
		tree["docs/other.md"] = &fstest.MapFile{Data: []byte(text)}
		if _, err := render(tree); err == nil || !strings.Contains(err.Error(), "docs/other.md") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
