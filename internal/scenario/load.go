package scenario

import (
	"cmp"
	"errors"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/weir-dev/weir/internal/manifest"
	"github.com/weir-dev/weir/internal/policy"
)

// Load reads the scenarios of a file and the policy files that they name. It returns the scenarios or what is wrong
// with them, never both: nothing of a file with a fault is run. An error says that the file cannot be opened.
func Load(name string) ([]*Scenario, manifest.Faults, error) {
	f, err := manifest.ReadFile(name)
	if err != nil {
		return nil, nil, err
	}
	scenarios, faults := load(f, manifest.ReadFile)
	return scenarios, faults, nil
}

// IsScenario says whether a document is meant to be a scenario.
func IsScenario(document manifest.Node) bool {
	_, named := document.Get("scenario")
	_, steps := document.Get("steps")
	_, kind := document.Get("kind")
	return named || steps && !kind
}

// load reads the scenarios of a file, and the files that they name by read.
func load(f *manifest.File, read func(string) (*manifest.File, error)) ([]*Scenario, manifest.Faults) {
	l := loader{file: f, read: read, others: make(map[string]*manifest.File)}
	names := make(map[string]int)
	var scenarios []*Scenario
	for _, document := range f.Documents {
		s := &Scenario{File: f.Name, node: document}
		if !document.Decode(s) {
			continue
		}
		if first, ok := names[s.Name]; ok {
			document.FaultAt("scenario", "the scenario of line "+itoa(first)+" has the same name")
		}
		names[s.Name] = document.Line()
		known := l.policies(s)
		s.applyDefaults()
		newChecker(s, known).check()
		scenarios = append(scenarios, s)
	}
	if len(f.Documents) == 0 && len(f.Faults()) == 0 {
		return nil, manifest.Faults{{File: f.Name, Message: "holds no scenario"}}
	}
	if faults := append(f.Faults(), l.faults...); len(faults) > 0 {
		return nil, faults
	}
	return scenarios, nil
}

// loader reads the policies that scenarios name.
type loader struct {
	file   *manifest.File
	read   func(string) (*manifest.File, error)
	others map[string]*manifest.File
	faults manifest.Faults // of the others
}

// policies reads the policies of a scenario and says whether all could be.
func (l *loader) policies(s *Scenario) bool {
	before := len(l.faults) + len(l.file.Faults())
	namespace := cmp.Or(s.Workload.Namespace, manifest.DefaultNamespace)
	for i := range s.Policies {
		p := &s.Policies[i]
		if p.path == "" {
			p.object(namespace)
			continue
		}
		p.Policies = l.fromFile(p, namespace)
	}
	for i := range s.Steps {
		if event := s.Steps[i].Event; event != nil && event.Policy != nil {
			if event.Policy.path != "" {
				event.Policy.node.Fault("must be an object")
				continue
			}
			event.Policy.object(namespace)
		}
	}
	return len(l.faults)+len(l.file.Faults()) == before
}

func (p *PolicySource) object(namespace string) {
	if !p.node.IsObject() {
		return
	}
	if read, ok := p.node.Policy(namespace); ok {
		p.Policies = []policy.Policy{read.Policy}
	}
}

func (l *loader) fromFile(p *PolicySource, namespace string) []policy.Policy {
	path := filepath.Join(filepath.Dir(l.file.Name), filepath.FromSlash(p.path))
	if filepath.IsAbs(p.path) {
		path = p.path
	}
	f, known := l.others[path]
	if !known {
		var err error
		if f, err = l.read(path); err != nil {
			reason := err.Error()
			if errors.Is(err, fs.ErrNotExist) {
				reason = "there is no file " + path
			}
			p.node.Fault("%s", reason)
			return nil
		}
		l.others[path] = f
	}
	var policies []policy.Policy
	for _, found := range f.Policies(namespace) {
		policies = append(policies, found.Policy)
	}
	switch {
	case known: // its faults are told
	case len(f.Faults()) > 0:
		l.faults = append(l.faults, f.Faults()...)
	case len(policies) == 0:
		p.node.Fault("%s holds no policy", path)
	}
	return policies
}

func (s *Scenario) applyDefaults() {
	if s.Workload.Name == "" && len(s.Policies) > 0 && len(s.Policies[0].Policies) > 0 {
		target := s.Policies[0].Policies[0].Workload()
		s.Workload.Namespace, s.Workload.Group, s.Workload.Kind, s.Workload.Name = target.Namespace, target.Group, target.Kind, target.Name
	}
	s.Workload.Namespace = cmp.Or(s.Workload.Namespace, manifest.DefaultNamespace)
	s.Workload.Group = cmp.Or(s.Workload.Group, "apps")
	s.Workload.Kind = cmp.Or(s.Workload.Kind, "Deployment")
	if s.Workload.Replicas == nil {
		s.Workload.Replicas = new(1)
	}
	if s.Stores == nil {
		s.Stores = []StoreName{Memory}
	}
	if s.Start.IsZero() {
		s.Start = time.Unix(0, 0).UTC()
	}
	if s.Options.StoreTimeout == 0 {
		s.Options.StoreTimeout = Duration(defaultStoreTimeout)
	}
	s.Options.WhenNoPolicy = cmp.Or(s.Options.WhenNoPolicy, Open)
	s.Propagation = cmp.Or(s.Propagation, Settled)
	for i := range s.Steps {
		if send := s.Steps[i].Send; send != nil {
			if send.Count == nil {
				send.Count = new(1)
			}
			send.Method = cmp.Or(send.Method, "GET")
		}
	}
}

// target is the workload as policies name it.
func (s *Scenario) target() policy.Workload {
	return policy.Workload{
		Namespace: s.Workload.Namespace, Group: s.Workload.Group, Kind: s.Workload.Kind, Name: s.Workload.Name,
	}
}
