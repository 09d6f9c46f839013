package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
)

// machine is what a run was made on.
type machine struct {
	Processor string `json:"processor"`
	Cores     int    `json:"cores"`
	Go        string `json:"go"`
	Redis     string `json:"redis"`
	// Load averages of the last minute, "" where the system tells none. What is above 0 before the run is other work.
	LoadBefore string `json:"load_before"`
	LoadAfter  string `json:"load_after"`
}

// machineFile is beside the results.
func machineFile(results string) string { return filepath.Join(filepath.Dir(results), "machine.json") }

func machineNow(ctx context.Context) machine {
	m := machine{Cores: runtime.NumCPU(), Go: strings.TrimPrefix(runtime.Version(), "go"), LoadBefore: loadAverage()}
	m.Processor = runtime.GOARCH
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if found := regexp.MustCompile(`(?m)^model name\s*: (.*)$`).FindSubmatch(text); found != nil {
			m.Processor = string(found[1])
		}
	}
	if text, err := exec.CommandContext(ctx, "redis-server", "--version").Output(); err == nil {
		if found := regexp.MustCompile(`v=(\S+)`).FindSubmatch(text); found != nil {
			m.Redis = string(found[1])
		}
	}
	return m
}

func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(text), " ")
	return first
}

func (m machine) write(name string) error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the machine: %w", err)
	}
	if err := os.WriteFile(name, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("writing the machine: %w", err)
	}
	return nil
}

// sentence names the machine on a page.
func (m machine) sentence() string {
	s := fmt.Sprintf("%d cores (%s), Redis %s, Go %s.", m.Cores, m.Processor, m.Redis, m.Go)
	if m.LoadBefore != "" {
		s += fmt.Sprintf(" The load was %s before the run, which is other work, and %s at its end.", m.LoadBefore, m.LoadAfter)
	}
	return s
}
