package policy

import "strings"

// readings is a set of the ways in which a path can be read: bit i stands for paths.each[i].
type readings uint8

const everyReading = ^readings(0)

// paths are what routers and handlers can make of one path. They differ in whether "%2F" is a slash, as in URL.Path, or
// data in a segment, as in URL.EscapedPath, and in whether they take dot segments and doubled slashes out. Nearly all
// paths have one reading only. Other escapes make none: segments are decoded when they are compared.
type paths struct {
	each [4]string
	n    int
	// clean says that no reading has dot segments or doubled slashes.
	clean bool
}

// read sets the readings of a path as it was sent.
func (p *paths) read(sent string) {
	if isPlain(sent) {
		p.each[0], p.n, p.clean = sent, 1, true
		return
	}
	p.n, p.clean = 0, true
	p.add(sent)
	if slashed, ok := unescapeSlashes(sent); ok && p.each[0] != "" {
		p.add(slashed)
	}
}

func (p *paths) add(path string) {
	cleaned, was := cleanPath(path)
	p.each[p.n] = cleaned
	p.n++
	if !was {
		p.each[p.n] = path
		p.n++
		p.clean = false
	}
}

// all are the readings that there are.
func (p *paths) all() readings { return 1<<p.n - 1 }

// isPlain says of most paths that they have one reading: nothing in them is escaped, empty or begins with a dot.
func isPlain(path string) bool {
	if path == "" || path[0] != '/' {
		return false
	}
	last := byte('/')
	for i := 1; i < len(path); i++ {
		c := path[i]
		if c == '%' || last == '/' && (c == '/' || c == '.') {
			return false
		}
		last = c
	}
	return true
}

// unescapeSlashes returns the path with a slash for each "%2F", and says whether there was one. Segments of the result,
// decoded, are those of the decoded path.
func unescapeSlashes(path string) (slashed string, ok bool) {
	if strings.IndexByte(path, '%') < 0 {
		return path, false
	}
	slashed = strings.ReplaceAll(strings.ReplaceAll(path, "%2F", "/"), "%2f", "/")
	return slashed, len(slashed) != len(path)
}

// cleanPath removes dot segments, also escaped ones, and doubled slashes, and says whether there were none. A slash at
// the end stays. It returns an empty path for what is none.
func cleanPath(path string) (clean string, was bool) {
	if path == "" {
		return "/", true
	}
	if path[0] != '/' {
		return "", true // "*", or the authority of a CONNECT: no path at all
	}
	if isClean(path) {
		return path, true
	}
	var kept []string
	slash := false
	for rest := path; rest != ""; {
		var part string
		part, rest = cutSegment(rest)
		slash = true
		switch dots(part) {
		case 1:
		case 2:
			if len(kept) > 0 {
				kept = kept[:len(kept)-1]
			}
		default:
			if part != "" {
				kept = append(kept, part)
				slash = false
			}
		}
	}
	clean = "/" + strings.Join(kept, "/")
	if slash && len(kept) > 0 {
		clean += "/"
	}
	return clean, false
}

func isClean(path string) bool {
	if path == "" || path[0] != '/' {
		return false
	}
	for rest := path; rest != ""; {
		var part string
		part, rest = cutSegment(rest)
		if part == "" && rest != "" || dots(part) > 0 {
			return false
		}
	}
	return true
}

// dots is 1 for "." and 2 for "..", escaped or not, else 0.
func dots(part string) int {
	n := 0
	for part != "" {
		switch {
		case part[0] == '.':
			part = part[1:]
		case len(part) >= 3 && part[0] == '%' && part[1] == '2' && (part[2] == 'e' || part[2] == 'E'):
			part = part[3:]
		default:
			return 0
		}
		n++
	}
	if n > 2 {
		return 0
	}
	return n
}
