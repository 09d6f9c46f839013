package run

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"github.com/weir-dev/weir/hack/dev/process"
)

// ControllerOptions say which controller to start. All fields but Args are required.
type ControllerOptions struct {
	// Program is cmd/manager, built.
	Program    string
	Kubeconfig string
	Redis      string
	Table      string
	// LeaseNamespace must exist.
	LeaseNamespace string
	// Logs is the folder for its output.
	Logs string
	// Args come last and win.
	Args []string
}

// StartController starts the controller and returns when it is ready.
func StartController(ctx context.Context, o ControllerOptions) (*process.Process, error) {
	port, err := process.FreePort()
	if err != nil {
		return nil, err
	}
	probe := fmt.Sprintf("127.0.0.1:%d", port)
	started, err := process.Start(process.Command{
		Name: "controller", Path: o.Program, Log: filepath.Join(o.Logs, "controller.log"),
		Env: []string{"KUBECONFIG=" + o.Kubeconfig},
		Args: append([]string{
			"--redis-address=" + o.Redis, "--table=" + o.Table, "--leader-election-namespace=" + o.LeaseNamespace,
			"--metrics-bind-address=0", "--health-probe-bind-address=" + probe,
		}, o.Args...),
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	err = started.WaitReady(ctx, func(ctx context.Context) error {
		status, _, err := Do(ctx, probe, Request{Method: http.MethodGet, Path: "/readyz"})
		if err != nil {
			return err
		}
		if status != http.StatusOK {
			return fmt.Errorf("/readyz answers %d", status)
		}
		return nil
	})
	if err != nil {
		started.Stop(0)
		return nil, err
	}
	return started, nil
}
