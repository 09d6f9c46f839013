// Command kubectl-weir is the tool beside the controller: it tests policies by scenarios and checks policy files. As
// kubectl plugin it is called as `kubectl weir`.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(execute(ctx, os.Args[1:], streams{in: os.Stdin, out: os.Stdout, err: os.Stderr}))
}

// Exit codes.
const (
	exitOK      = 0
	exitFailed  = 1 // a scenario failed, or something could not be done
	exitInvalid = 2 // a file, or the call, is not valid
)

// exitError ends the command with a code; what there is to say has been said.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// execute runs one call and returns its exit code.
func execute(ctx context.Context, args []string, s streams) int {
	out := &checkedWriter{Writer: s.out}
	s.out = out
	root := newRoot(s)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var code exitError
	if out.err != nil && (err == nil || errors.As(err, &code)) { // nobody has told of it
		err = fmt.Errorf("writing the output: %w", out.err)
	}
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &code):
		return int(code)
	}
	fmt.Fprintf(s.err, "Error: %v\n", err)
	if errors.As(err, new(usageError)) {
		return exitInvalid
	}
	return exitFailed
}

// checkedWriter remembers the first write that failed, because tables are written line by line without looking.
type checkedWriter struct {
	io.Writer
	err error
}

// Write writes to the writer inside.
func (w *checkedWriter) Write(b []byte) (int, error) {
	n, err := w.Writer.Write(b)
	if w.err == nil {
		w.err = err
	}
	return n, err
}
