// Command sbom prints the bill of materials of a Go program, as SPDX 2.3 in JSON, from what the Go linker wrote into it:
// the modules that are really linked, with their checksums.
//
//	go run ./hack/sbom bin/manager > manager.spdx.json
package main

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "sbom: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return errors.New("want the path of one program")
	}
	info, err := buildinfo.ReadFile(args[0])
	if err != nil {
		return fmt.Errorf("reading what %s was built from: %w", args[0], err)
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	return out.Encode(documentOf(filepath.Base(args[0]), info, time.Now()))
}

// document is the part of SPDX 2.3 that says what a program consists of.
type document struct {
	SPDXVersion       string         `json:"spdxVersion"`
	DataLicense       string         `json:"dataLicense"`
	SPDXID            string         `json:"SPDXID"`
	Name              string         `json:"name"`
	DocumentNamespace string         `json:"documentNamespace"`
	CreationInfo      creationInfo   `json:"creationInfo"`
	Packages          []pkg          `json:"packages"`
	Relationships     []relationship `json:"relationships"`
}

type creationInfo struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type pkg struct {
	SPDXID           string        `json:"SPDXID"`
	Name             string        `json:"name"`
	VersionInfo      string        `json:"versionInfo"`
	DownloadLocation string        `json:"downloadLocation"`
	FilesAnalyzed    bool          `json:"filesAnalyzed"`
	Comment          string        `json:"comment,omitempty"`
	ExternalRefs     []externalRef `json:"externalRefs"`
}

type externalRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

func documentOf(name string, info *debug.BuildInfo, now time.Time) document {
	main := packageOf(&info.Main)
	d := document{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT", Name: name,
		DocumentNamespace: fmt.Sprintf("https://%s/sbom/%s/%s", info.Main.Path, name, main.VersionInfo),
		CreationInfo: creationInfo{
			Created: now.UTC().Format(time.RFC3339), Creators: []string{"Tool: weir-sbom", "Organization: weir-dev"},
		},
		Packages:      []pkg{main},
		Relationships: []relationship{{"SPDXRef-DOCUMENT", "DESCRIBES", main.SPDXID}},
	}
	linked := append([]*debug.Module{{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")}}, info.Deps...)
	for _, module := range linked {
		if module.Replace != nil {
			module = module.Replace
		}
		p := packageOf(module)
		d.Packages = append(d.Packages, p)
		d.Relationships = append(d.Relationships, relationship{main.SPDXID, "DEPENDS_ON", p.SPDXID})
	}
	return d
}

var noID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

func packageOf(module *debug.Module) pkg {
	p := pkg{
		SPDXID:           "SPDXRef-" + noID.ReplaceAllString(module.Path+"-"+module.Version, "-"),
		Name:             module.Path,
		VersionInfo:      module.Version,
		DownloadLocation: "NOASSERTION",
		ExternalRefs:     []externalRef{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + module.Path + "@" + module.Version}},
	}
	// The sum is of the names and sums of the module's files, and so no checksum in the sense of SPDX.
	if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(module.Sum, "h1:")); err == nil && len(sum) > 0 {
		p.Comment = "go.sum h1 in hexadecimal: " + hex.EncodeToString(sum)
	}
	return p
}
