// Command site makes one HTML file of the pages in docs, with everything in it, to be read without a network.
package main

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"html"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	renderer "github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/text"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: site ROOT FILE.html")
		os.Exit(2)
	}
	page, err := render(os.DirFS(os.Args[1]))
	if err == nil {
		err = os.MkdirAll(filepath.Dir(os.Args[2]), 0o755)
	}
	if err == nil {
		err = os.WriteFile(os.Args[2], page, 0o644)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "site: %v\n", err)
		os.Exit(1)
	}
}

// first are the pages in front; the others follow by name.
var first = []string{"README.md", "docs/index.md", "docs/getting-started.md"}

// site is what pages are put into.
type site struct {
	root     fs.FS
	markdown goldmark.Markdown
	pages    []string
	problems []error
}

// render makes the file of the tree's pages. A link to a page, or a picture, that there is not is an error.
func render(root fs.FS) ([]byte, error) {
	s := &site{root: root, markdown: goldmark.New(
		goldmark.WithExtensions(extension.GFM),
		goldmark.WithParserOptions(parser.WithAutoHeadingID()),
		goldmark.WithRendererOptions(renderer.WithUnsafe()), // the pages are ours; without it no SVG may stand in a link
	)}
	if err := s.find(); err != nil {
		return nil, err
	}
	var body, contents bytes.Buffer
	for _, name := range s.pages {
		source, err := fs.ReadFile(root, name)
		if err != nil {
			return nil, err
		}
		document := s.markdown.Parser().Parse(text.NewReader(source))
		s.adapt(name, document)
		fmt.Fprintf(&contents, "<li><a href=\"#%s\">%s</a></li>\n", anchor(name, ""), html.EscapeString(title(document, source, name)))
		fmt.Fprintf(&body, "<section id=\"%s\">\n", anchor(name, ""))
		if err := s.markdown.Renderer().Render(&body, source, document); err != nil {
			return nil, fmt.Errorf("rendering %s: %w", name, err)
		}
		body.WriteString("</section>\n")
	}
	if err := errors.Join(s.problems...); err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, frame, style, &contents, &body), nil
}

// find lists the pages.
func (s *site) find() error {
	var others []string
	err := fs.WalkDir(s.root, "docs", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && path.Ext(name) == ".md" && !slices.Contains(first, name) {
			others = append(others, name)
		}
		return err
	})
	s.pages = slices.Concat(first, []string{"CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"}, others)
	return err
}

// adapt makes the links of a page lead into this file, its pictures part of it, and its headings' names its own.
func (s *site) adapt(page string, document ast.Node) {
	_ = ast.Walk(document, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			if id, ok := n.AttributeString("id"); ok {
				n.SetAttributeString("id", []byte(anchor(page, string(id.([]byte)))))
			}
		case *ast.Link:
			n.Destination = []byte(s.link(page, string(n.Destination)))
		case *ast.Image:
			n.Destination = []byte(s.picture(page, string(n.Destination)))
		}
		return ast.WalkContinue, nil
	})
}

// repository is where files are that are no pages.
const repository = "https://github.com/weir-dev/weir/blob/main/"

func (s *site) link(page, to string) string {
	if strings.Contains(to, "://") || strings.HasPrefix(to, "mailto:") {
		return to
	}
	file, heading, _ := strings.Cut(to, "#")
	target := page
	if file != "" {
		target = path.Join(path.Dir(page), file)
	}
	if slices.Contains(s.pages, target) {
		return "#" + anchor(target, heading)
	}
	if _, err := fs.Stat(s.root, strings.TrimSuffix(target, "/")); err != nil {
		s.problems = append(s.problems, fmt.Errorf("%s leads to %s: %w", page, to, err))
	}
	return repository + target
}

func (s *site) picture(page, to string) string {
	data, err := fs.ReadFile(s.root, path.Join(path.Dir(page), to))
	if err != nil {
		s.problems = append(s.problems, fmt.Errorf("%s shows %s: %w", page, to, err))
	}
	if path.Ext(to) != ".svg" {
		s.problems = append(s.problems, fmt.Errorf("%s shows %s: only SVG is known", page, to))
	}
	return "data:image/svg+xml;base64," + base64.StdEncoding.EncodeToString(data)
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// anchor names a page, or a heading of it.
func anchor(page, heading string) string {
	name := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(strings.TrimSuffix(page, ".md")), "-"), "-")
	if heading != "" {
		name += "--" + heading
	}
	return name
}

// title is a page's first heading.
func title(document ast.Node, source []byte, name string) string {
	for n := document.FirstChild(); n != nil; n = n.NextSibling() {
		if h, ok := n.(*ast.Heading); ok {
			return string(h.Lines().Value(source))
		}
	}
	return name
}

const style = `body{font:16px/1.5 system-ui,sans-serif;color:#1e293b;margin:0;display:flex}
nav{position:sticky;top:0;height:100vh;overflow:auto;padding:1rem;min-width:16rem;background:#f1f5f9;box-sizing:border-box}
nav ul{list-style:none;padding:0}main{padding:1rem 2rem;max-width:60rem;min-width:0}
section{border-bottom:2px solid #cbd5e1;padding-bottom:2rem}pre{background:#f1f5f9;padding:.75rem;overflow:auto}
code{font:14px ui-monospace,Menlo,Consolas,monospace}table{border-collapse:collapse}td,th{border:1px solid #cbd5e1;padding:.25rem .5rem;text-align:left;vertical-align:top}
img{max-width:100%}a{color:#1d4ed8}@media(max-width:50rem){body{display:block}nav{position:static;height:auto}}`

const frame = `<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Weir</title><style>%s</style></head>
<body>
<nav><ul>
%s</ul></nav>
<main>
%s</main>
</body>
</html>
`
