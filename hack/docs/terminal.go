package main

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// Sizes of a terminal's picture, in pixels.
const (
	charWidth  = 8.43 // of 14 px in the fonts that are named
	lineHeight = 20
	margin     = 20
)

// terminals draws what commands said, NAME.txt, as pictures, NAME.svg. A test keeps the texts true.
func terminals(from string) (map[string]string, error) {
	names, err := filepath.Glob(filepath.Join(from, "*.txt"))
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("there are no captures in %s", from)
	}
	pictures := make(map[string]string)
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("reading a capture: %w", err)
		}
		picture, err := terminal(string(text))
		if err != nil {
			return nil, fmt.Errorf("drawing %s: %w", name, err)
		}
		pictures[strings.TrimSuffix(filepath.Base(name), ".txt")+".svg"] = picture
	}
	return pictures, nil
}

// terminal draws a text in a window. Lines that begin with $ are what was typed.
func terminal(text string) (string, error) {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	longest := 0
	for _, line := range lines {
		longest = max(longest, utf8.RuneCountInString(line))
	}
	width := int(float64(longest)*charWidth) + 2*margin
	height := len(lines)*lineHeight + 2*margin
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img" aria-label="`, width, height, width, height)
	if err := xml.EscapeText(&b, []byte(lines[0])); err != nil {
		return "", err
	}
	b.WriteString("\">\n")
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="8" fill="#0f172a"/>`+"\n", width, height)
	b.WriteString(`<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="14" xml:space="preserve">` + "\n")
	for i, line := range lines {
		if line == "" {
			continue
		}
		color := "#e2e8f0"
		switch {
		case strings.HasPrefix(line, "$ "):
			color = "#86efac"
		case strings.ToUpper(line) == line && strings.ContainsFunc(line, isLetter): // the heads of columns
			color = "#93c5fd"
		}
		fmt.Fprintf(&b, `<text x="%d" y="%d" fill="%s">`, margin, margin+i*lineHeight+15, color)
		// Blanks that follow each other stay only where they are no plain blanks.
		if err := xml.EscapeText(&b, []byte(strings.ReplaceAll(line, " ", "\u00a0"))); err != nil {
			return "", err
		}
		b.WriteString("</text>\n")
	}
	b.WriteString("</g>\n</svg>\n")
	return b.String(), nil
}

func isLetter(r rune) bool { return 'A' <= r && r <= 'Z' }
