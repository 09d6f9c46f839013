package process

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// Identity names one process for good: a pid alone is given to another process sooner or later, a pid with its start
// time is not. The zero Identity names no process.
type Identity struct {
	Name string `json:"name"`
	PID  int    `json:"pid"`
	// Start is when the process started, in the system's own words; only equality means anything.
	Start string `json:"start"`
}

func identify(name string, pid int) Identity {
	return Identity{Name: name, PID: pid, Start: startTime(pid)}
}

// Alive reports whether this very process still runs. A zombie does not.
func (id Identity) Alive() bool {
	return id.PID > 0 && id.Start != "" && startTime(id.PID) == id.Start
}

// Kill ends the process and its group if it is still the same one, and does nothing otherwise.
func (id Identity) Kill() error {
	if !id.Alive() {
		return nil
	}
	if err := syscall.Kill(-id.PID, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
		return fmt.Errorf("killing %s (pid %d): %w", id.Name, id.PID, err)
	}
	return nil
}

// startTime is empty when there is no such process or only its zombie.
func startTime(pid int) string {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err == nil {
		return startTimeOfStat(string(stat))
	}
	if _, err := os.Stat("/proc/self/stat"); err == nil {
		return "" // a system with /proc on which this process is not
	}
	line, err := exec.Command("ps", "-o", "state=,lstart=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return ""
	}
	state, start, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
	if strings.HasPrefix(state, "Z") {
		return ""
	}
	return strings.TrimSpace(start)
}

// startTimeOfStat reads field 22 (start time in clock ticks since boot) of a line of /proc/PID/stat. Field 2 is the
// program's name in parentheses and may itself hold spaces and parentheses, so fields are counted from its end.
func startTimeOfStat(stat string) string {
	_, rest, found := cutLast(stat, ") ")
	fields := strings.Fields(rest)
	const state, start = 0, 22 - 3 // field 3 is the first of the rest
	if !found || len(fields) <= start || fields[state] == "Z" || fields[state] == "X" {
		return ""
	}
	return fields[start]
}

func cutLast(s, separator string) (before, after string, found bool) {
	i := strings.LastIndex(s, separator)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(separator):], true
}
