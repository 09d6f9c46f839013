package process

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"
)

// Lock takes an exclusive lock on a file, which the kernel releases at the latest when this process ends. If another
// process holds it, Lock calls busy once and waits.
func Lock(ctx context.Context, path string, busy func()) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening a lock: %w", err)
	}
	waiting := false
	err = Poll(ctx, 100*time.Millisecond, func(context.Context) error {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err != nil && !waiting {
			waiting = true
			busy()
		}
		return err
	})
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("waiting for the lock %s: %w", path, err)
	}
	return func() { _ = file.Close() }, nil
}
