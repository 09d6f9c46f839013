package chaos

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-dev/weir/hack/dev/process"
	"github.com/weir-dev/weir/test/env"
)

// patience bounds every wait for something that takes a part of it.
const patience = 60 * time.Second

// fleet is the replicas: real processes that are told over HTTP what to do.
type fleet struct {
	t         *testing.T
	addresses []string
}

// startFleet starts so many replicas and waits until policies are in force in all of them. environment is what each is
// given beside its name and address.
func startFleet(t *testing.T, n int, environment func(i int) []string) *fleet {
	t.Helper()
	f := &fleet{t: t}
	var started []*process.Process
	var logs []string
	for i := range n {
		pod := "checkout-" + strconv.Itoa(i)
		log := filepath.Join(t.TempDir(), pod+".log")
		p, err := process.Start(process.Command{
			Name: pod, Path: env.Build(t, "test/chaos/enforcer"), Log: log,
			Env: append([]string{"POD_NAME=" + pod, "LISTEN=127.0.0.1:0"}, environment(i)...),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			p.Stop(3 * time.Second)
			if t.Failed() {
				t.Log(p.LogTail())
			}
		})
		started, logs = append(started, p), append(logs, log)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for i, p := range started {
		if err := p.WaitReady(ctx, func(context.Context) error {
			address, err := listensOn(logs[i])
			if err == nil {
				f.addresses = append(f.addresses, address)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// listensOn is the address of which a replica tells once policies are in force.
func listensOn(log string) (string, error) {
	text, err := os.ReadFile(log)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if address, found := strings.CutPrefix(line, "listening on "); found && strings.HasSuffix(line, "\n") {
			return strings.TrimSpace(address), nil
		}
	}
	return "", errors.New("it does not say that it listens")
}

// ask sends a request to one replica and returns what it answers.
func (f *fleet) ask(ctx context.Context, method string, i int, path string, form url.Values) ([]byte, error) {
	q, err := http.NewRequestWithContext(ctx, method, "http://"+f.addresses[i]+path, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, err
	}
	q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s of replica %d: %s: %s", path, i, answer.Status, body)
	}
	return body, err
}

func (f *fleet) tell(i int, path string, form url.Values) []byte {
	f.t.Helper()
	body, err := f.ask(f.t.Context(), http.MethodPost, i, path, form)
	if err != nil {
		f.t.Fatal(err)
	}
	return body
}

const (
	// senders ask for a key at each replica, each once in pace: 250 requests a second, of the 20 that it gets in a window.
	senders = 2
	pace    = 8 * time.Millisecond
)

// send has replicas send requests with a key until the end.
func (f *fleet) send(key string, replicas ...int) {
	f.t.Helper()
	for _, i := range replicas {
		for range senders {
			f.tell(i, "/send", url.Values{"key": {key}, "every": {pace.String()}})
		}
	}
}

// pulse has every replica send requests with a key of its own, so few that they are always admitted: they tell who
// decides, also when all other keys are spent.
func (f *fleet) pulse(every time.Duration) {
	f.t.Helper()
	for i := range f.addresses {
		f.tell(i, "/send", url.Values{"key": {fmt.Sprint(keyPulse, i)}, "every": {every.String()}})
	}
}

// hurry has a replica decide without a pause, and returns how long a decision took.
func (f *fleet) hurry(i int) time.Duration {
	f.t.Helper()
	ns, err := strconv.Atoi(string(f.tell(i, "/hurry", url.Values{"key": {"hurry"}, "batches": {"51"}})))
	if err != nil {
		f.t.Fatal(err)
	}
	return time.Duration(ns)
}

// stepClock moves the clock of a replica that has one of its own.
func (f *fleet) stepClock(i int, by time.Duration) {
	f.t.Helper()
	f.tell(i, "/clock", url.Values{"by": {by.String()}})
}

// until waits until every replica's state satisfies a condition, and fails the test if that takes too long.
func (f *fleet) until(what string, limit time.Duration, holds func(State) bool) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), limit)
	defer cancel()
	err := process.Poll(ctx, 20*time.Millisecond, func(ctx context.Context) error {
		for i := range f.addresses {
			var state State
			if err := f.read(ctx, i, "/state", &state); err != nil {
				return err
			}
			if !holds(state) {
				return fmt.Errorf("replica %d: %+v", i, state)
			}
		}
		return nil
	})
	if err != nil {
		f.t.Fatalf("%s: %v", what, err)
	}
}

// goroutines is the highest number of them in any replica.
func (f *fleet) goroutines() (most int) {
	f.t.Helper()
	f.until("telling of goroutines", patience, func(s State) bool {
		most = max(most, s.Goroutines)
		return true
	})
	return most
}

// records are the decisions of each replica so far.
func (f *fleet) records() [][]Record {
	f.t.Helper()
	all := make([][]Record, len(f.addresses))
	var failed error
	for i := range f.addresses {
		failed = errors.Join(failed, f.read(f.t.Context(), i, "/records", &all[i]))
	}
	if failed != nil {
		f.t.Fatal(failed)
	}
	return all
}

func (f *fleet) read(ctx context.Context, i int, path string, into any) error {
	body, err := f.ask(ctx, http.MethodGet, i, path, nil)
	if err != nil {
		return err
	}
	return gob.NewDecoder(strings.NewReader(string(body))).Decode(into)
}
