package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// docs/index.md leads to every page.
func TestTheIndexNamesEveryPage(t *testing.T) {
	docs := filepath.Join(root, "docs")
	index, err := os.ReadFile(filepath.Join(docs, "index.md"))
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(docs, func(path string, entry fs.DirEntry, err error) error {
		name, _ := filepath.Rel(docs, path)
		if err == nil && filepath.Ext(path) == ".md" && name != "index.md" && !strings.Contains(string(index), "("+name+")") {
			t.Errorf("docs/index.md does not name %s", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
