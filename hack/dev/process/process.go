// Package process starts the programs that a local Kubernetes, the demo and the tests need, and ends exactly those.
//
// A child normally dies with the Go program that started it, however that program ends (see janitor.go). A detached
// child survives it, and is found again by its Identity.
package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Command says what to start. Name and Path are required.
type Command struct {
	// Name stands in error messages.
	Name string
	// Path of the program.
	Path string
	// Args without the program's name.
	Args []string
	// Env is added to this process's own environment.
	Env []string
	// Dir is the working directory; empty means this process's own.
	Dir string
	// Log is the file that receives stdout and stderr (appended); empty discards them.
	Log string
	// Detached children survive this process; others are killed when it ends.
	Detached bool
	// Credential runs the child as another user (root only); nil means this process's own user.
	Credential *syscall.Credential
}

// Process is a started child. It is safe for concurrent use.
type Process struct {
	name     string
	log      string
	cmd      *exec.Cmd
	identity Identity
	done     chan struct{}
	err      error // how it ended; read only after done is closed
}

// Start starts the command in a process group of its own, so that a Ctrl-C meant for the parent reaches it only
// through the parent.
func Start(c Command) (*Process, error) {
	cmd := exec.Command(c.Path, c.Args...)
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.Dir = c.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: c.Credential}
	if c.Detached {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: c.Credential}
	}
	if c.Log != "" {
		log, err := os.OpenFile(c.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return nil, fmt.Errorf("opening the log of %s: %w", c.Name, err)
		}
		defer log.Close()
		cmd.Stdout, cmd.Stderr = log, log
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", c.Name, err)
	}
	p := &Process{name: c.Name, log: c.Log, cmd: cmd, done: make(chan struct{})}
	if !c.Detached {
		if err := guard.watch(cmd.Process.Pid); err != nil {
			return nil, errors.Join(fmt.Errorf("tying %s to this process: %w", c.Name, err), cmd.Process.Kill(), cmd.Wait())
		}
	}
	// Read before Wait can reap the child: until then its pid cannot belong to another process.
	p.identity = identify(c.Name, cmd.Process.Pid)
	go func() {
		p.err = cmd.Wait()
		if !c.Detached {
			guard.forget(cmd.Process.Pid)
		}
		close(p.done)
	}()
	return p, nil
}

// Identity finds the process again from another process.
func (p *Process) Identity() Identity { return p.identity }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err is how the process ended: nil for exit code 0, and nil as long as it runs.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// Signal sends a signal to the process alone. It is an error if the process has ended.
func (p *Process) Signal(signal syscall.Signal) error {
	if err := p.cmd.Process.Signal(signal); err != nil {
		return fmt.Errorf("sending %q to %s: %w", signal, p.name, err)
	}
	return nil
}

// Stop asks the process to end (SIGTERM), kills it after the grace period, and returns when it is gone. A stopped
// process is not an error, whatever its exit code. A grace of zero kills at once.
func (p *Process) Stop(grace time.Duration) {
	if grace > 0 {
		_ = p.cmd.Process.Signal(syscall.SIGCONT) // a paused process hears SIGTERM only once it runs again
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-p.done:
		case <-timer.C:
		}
	}
	select {
	case <-p.done:
	default:
		_ = syscall.Kill(-p.identity.PID, syscall.SIGKILL) // with the children it may have
		<-p.done
	}
}

// WaitReady calls the probe every 20 ms until it returns nil, and gives up when the context ends or the process does.
func (p *Process) WaitReady(ctx context.Context, probe func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-p.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	err := Poll(ctx, 20*time.Millisecond, probe)
	if err == nil {
		return nil
	}
	select {
	case <-p.done:
		return fmt.Errorf("%s ended before it was ready: %w\n%s", p.name, p.err, p.LogTail())
	default:
		return fmt.Errorf("waiting for %s: %w\n%s", p.name, err, p.LogTail())
	}
}

// LogTail is the end of the process's log, for error messages.
func (p *Process) LogTail() string {
	const tail = 2048 // bytes: about 20 lines, enough for the last error
	if p.log == "" {
		return ""
	}
	file, err := os.Open(p.log)
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > tail {
		if _, err := file.Seek(-tail, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("end of %s:\n%s", p.log, strings.TrimSpace(string(text)))
}

// Poll calls the condition at once and then at every interval until it returns nil. When the context ends first it
// returns the condition's last error together with the context's.
func Poll(ctx context.Context, interval time.Duration, condition func(context.Context) error) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		err := condition(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-ticker.C:
		}
	}
}
