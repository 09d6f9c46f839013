package process

import (
	"fmt"
	"io"
	"os/exec"
	"sync"
	"syscall"
)

// guard is this process's janitor: a shell that holds the list of our children and the read end of a pipe. When this
// process ends, in whatever way (a panic, a test's time limit, kill -9), the kernel closes the pipe, and the janitor
// kills what is left and removes the folders it was told of.
var guard janitor

type janitor struct {
	mu   sync.Mutex
	pipe io.WriteCloser
}

// A paused process takes SIGKILL too. The wait before rm is bounded, because nobody may be there to reap the dead.
const janitorScript = `
groups= dirs=
while read -r verb value; do
  case $verb in
  watch) groups="$groups $value" ;;
  forget) rest=; for g in $groups; do [ "$g" = "$value" ] || rest="$rest $g"; done; groups=$rest ;;
  remove) dirs="$dirs
$value" ;;
  esac
done
for g in $groups; do kill -KILL "-$g"; done
for g in $groups; do
  n=0; while [ $n -lt 20 ] && kill -0 "-$g"; do n=$((n+1)); sleep 0.1; done
done
printf '%s' "$dirs" | while read -r dir || [ -n "$dir" ]; do [ -n "$dir" ] && rm -rf -- "$dir"; done
`

func (j *janitor) watch(pid int) error     { return j.tell("watch", pid) }
func (j *janitor) forget(pid int)          { _ = j.tell("forget", pid) } // cannot fail: it was told to watch before
func (j *janitor) remove(dir string) error { return j.tell("remove", dir) }

func (j *janitor) tell(verb string, value any) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.pipe == nil {
		cmd := exec.Command("/bin/sh", "-c", janitorScript)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // out of reach of a Ctrl-C
		cmd.Dir = "/"
		pipe, err := cmd.StdinPipe()
		if err != nil {
			return fmt.Errorf("opening the janitor's pipe: %w", err)
		}
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("starting the janitor: %w", err)
		}
		j.pipe = pipe
	}
	if _, err := fmt.Fprintf(j.pipe, "%s %v\n", verb, value); err != nil {
		return fmt.Errorf("telling the janitor: %w", err)
	}
	return nil
}

// RemoveAtExit removes the folder once this process and its children have ended.
func RemoveAtExit(dir string) error { return guard.remove(dir) }
