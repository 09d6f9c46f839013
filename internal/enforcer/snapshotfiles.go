package enforcer

import (
	"bytes"
	"errors"

	"github.com/weir-dev/weir/internal/policy"
)

// SnapshotFiles are copies of row and count beside the table, each in the form of policy.EncodeSnapshot.
type SnapshotFiles interface {
	// ReadMounted returns what the controller's ConfigMap is mounted as, nil when there is nothing.
	ReadMounted() ([]byte, error)
	// ReadKept returns what Keep kept, also by the process before this one; nil when there is nothing.
	ReadKept() ([]byte, error)
	// Keep replaces what is kept, whole or not at all.
	Keep(data []byte) error
}

// RowSource is where the row in force came from.
type RowSource uint8

// The sources of rows.
const (
	FromTable RowSource = iota
	FromMounted
	FromKept
	rowSources
)

// RowSources lists all of them.
func RowSources() []RowSource { return []RowSource{FromTable, FromMounted, FromKept} }

func (s RowSource) String() string {
	return [...]string{FromTable: "table", FromMounted: "snapshot_file", FromKept: "snapshot_cache"}[s]
}

// SnapshotProblem is why a snapshot file was of no use.
type SnapshotProblem uint8

// The problems of snapshot files.
const (
	SnapshotUnreadable SnapshotProblem = iota
	SnapshotCorrupt
	SnapshotNewer // a version of the encoding that this library does not know
	SnapshotUnwritable
	snapshotProblems
)

// SnapshotProblems lists all kinds.
func SnapshotProblems() []SnapshotProblem {
	return []SnapshotProblem{SnapshotUnreadable, SnapshotCorrupt, SnapshotNewer, SnapshotUnwritable}
}

func (p SnapshotProblem) String() string {
	return [...]string{
		SnapshotUnreadable: "unreadable", SnapshotCorrupt: "corrupt", SnapshotNewer: "newer_version",
		SnapshotUnwritable: "unwritable",
	}[p]
}

var errNoSnapshot = errors.New("there is no snapshot file that can be used, and no policy table")

// filesView is what the last polls saw of the files.
type filesView struct {
	mounted, kept fileView
	readKept      bool
	decided       bool // without a table: somebody was served
	// row and replicas are those in force, as they were read, and dirty says that they were not kept yet.
	row, replicas []byte
	dirty         bool
}

// fileView is what was read last of one file, so that equal content is not decoded again, and what was told of it.
type fileView struct {
	data    []byte
	problem SnapshotProblem
	failing bool
}

// readFiles takes what is newer in the files than what is in force: once what was kept, and at each poll what is
// mounted. A file that is absent, bad or older changes nothing.
func (e *Enforcer) readFiles() {
	if e.options.Files == nil {
		return
	}
	if !e.files.readKept {
		e.files.readKept = true
		data, err := e.options.Files.ReadKept()
		e.takeFile(&e.files.kept, data, err, FromKept)
		e.files.dirty = false // what was kept is kept
	}
	data, err := e.options.Files.ReadMounted()
	e.takeFile(&e.files.mounted, data, err, FromMounted)
}

func (e *Enforcer) takeFile(f *fileView, data []byte, err error, source RowSource) {
	switch {
	case err != nil:
		e.fileFailed(f, source, SnapshotUnreadable, err)
		return
	case data == nil: // there is none: what is in force stays
		f.data, f.failing = nil, false
		return
	case f.data != nil && bytes.Equal(data, f.data):
		if f.failing {
			e.counts.files[source][f.problem].Add(1)
		}
		return
	}
	f.data = data
	snapshot, err := policy.DecodeSnapshot(data, e.options.Workload)
	if err == nil {
		err = e.takeSnapshot(snapshot, source)
	}
	switch {
	case errors.Is(err, policy.ErrNewerVersion):
		e.fileFailed(f, source, SnapshotNewer, err)
	case err != nil:
		e.fileFailed(f, source, SnapshotCorrupt, err)
	default:
		f.failing = false
	}
}

// takeSnapshot takes of a snapshot what is newer, all or nothing of it.
func (e *Enforcer) takeSnapshot(s policy.Snapshot, source RowSource) error {
	next, skipped, err := e.compile(s.Row)
	if err != nil {
		return err
	}
	var replicas *policy.Replicas
	if s.Replicas != nil {
		decoded, err := policy.DecodeReplicas(s.Replicas)
		if err != nil {
			return err
		}
		replicas = &decoded
	}
	if current := e.snapshot.Load(); current == nil || next.revision.Compare(current.revision) > 0 {
		e.enforce(next, skipped, s.Row, source)
	}
	if last := e.table.replicas; replicas != nil && (last == nil || replicas.At > last.At) {
		e.useReplicas(replicas, s.Replicas, true, e.clock.monotonic())
	}
	return nil
}

func (e *Enforcer) fileFailed(f *fileView, source RowSource, problem SnapshotProblem, err error) {
	e.counts.files[source][problem].Add(1)
	if !f.failing || f.problem != problem {
		e.log.Warn("Snapshot file of no use, the last good policies stay in force", "file", source.String(),
			"problem", problem.String(), "error", err)
	}
	f.failing, f.problem = true, problem
}

// keepFile keeps what is in force for a process after this one.
func (e *Enforcer) keepFile() {
	if e.options.Files == nil || !e.files.dirty || e.files.row == nil {
		return
	}
	data, err := policy.EncodeSnapshot(policy.Snapshot{Row: e.files.row, Replicas: e.files.replicas})
	if err == nil {
		err = e.options.Files.Keep(data)
	}
	if err != nil {
		e.fileFailed(&e.files.kept, FromKept, SnapshotUnwritable, err)
		return
	}
	e.files.dirty, e.files.kept.failing = false, false
}

// pollWithoutTable is a poll of a replica whose policies come from files alone. Nobody hears of it but those who count
// pods, some time after it has begun to decide.
func (e *Enforcer) pollWithoutTable() error {
	now := e.clock.monotonic()
	if e.files.mounted.data != nil && !e.files.mounted.failing {
		e.lastRead.Store(now)
		e.wasRead.Store(true)
	}
	if !e.files.decided && e.decided() {
		e.files.decided = true
		e.movePlaces(func(p *policy.Places) *policy.Places {
			return p.Counted(now + policy.SnapshotPropagation.Microseconds())
		})
	}
	if e.snapshot.Load() == nil {
		return errNoSnapshot
	}
	return nil
}

// decided says whether any decision was made.
func (e *Enforcer) decided() bool {
	for i := range e.counts.general {
		if e.counts.general[i].Load() > 0 {
			return true
		}
	}
	s := e.snapshot.Load()
	if s == nil {
		return false
	}
	for i := range s.rules {
		for o := range outcomes {
			if s.rules[i].tally.count(o) > 0 {
				return true
			}
		}
	}
	return false
}
