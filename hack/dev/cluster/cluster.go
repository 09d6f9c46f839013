// Package cluster runs a local Kubernetes on 127.0.0.1: etcd, API server, controller manager and scheduler as they are
// everywhere, and one fake node whose pods have everything but containers. Deployments roll out, scale, surge and
// terminate for real; what would run in a pod is for the caller to start in its place.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/weir-dev/weir/hack/dev/process"
)

// startTimeout bounds a start, without a build. Six seconds are usual; a busy machine needs more.
const startTimeout = 2 * time.Minute

// Options say which cluster to start. Dir is required.
type Options struct {
	// Dir receives everything the cluster writes: certificates, kubeconfig, data, logs, and the record of its
	// processes. Start refuses a Dir whose cluster runs, and empties any other.
	Dir string
	// APIServerOnly leaves out controllers, scheduler and node: objects are stored and validated, and nothing else
	// happens to them. Status can then be written as a test likes.
	APIServerOnly bool
	// Detached clusters survive this process; they end with Down. Others end with Stop, or at the latest with this
	// process.
	Detached bool
	// Log hears about everything that takes more than a moment; nil discards it.
	Log io.Writer
}

// Cluster is a running cluster.
type Cluster struct {
	// Kubeconfig is a file with the address and the credentials of an administrator.
	Kubeconfig string
	// Kubectl is the path of a kubectl of the cluster's version.
	Kubectl string

	dir       string
	config    *rest.Config
	processes []*process.Process
	record    record
}

// Start starts a cluster and returns when it is ready: a Deployment's pod becomes available, or with APIServerOnly the
// API server says so. On failure nothing of it is left running.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	log := options.Log
	if log == nil {
		log = io.Discard
	}
	assets, err := FindAssets(ctx, options.APIServerOnly, log)
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(options.Dir)
	if err != nil {
		return nil, err
	}
	if running, err := readRecord(dir); err == nil && len(running.alive()) > 0 {
		return nil, fmt.Errorf("a cluster runs in %s already", dir)
	}
	if err := os.RemoveAll(dir); err != nil {
		return nil, fmt.Errorf("emptying the cluster's folder: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	c := &Cluster{dir: dir, Kubectl: filepath.Join(assets.ControlPlane, "kubectl")}
	if err := c.start(ctx, assets, options); err != nil {
		c.kill()
		return nil, fmt.Errorf("starting the cluster: %w", err)
	}
	c.record.Ready = true
	if err := c.record.write(c.dir); err != nil {
		c.kill()
		return nil, err
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, assets Assets, options Options) error {
	began := time.Now()
	settings, err := prepare(c.dir, assets)
	if err != nil {
		return err
	}
	c.Kubeconfig = settings.kubeconfig
	c.record.Kubeconfig, c.record.Kubectl = c.Kubeconfig, c.Kubectl
	if c.config, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig); err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	c.config.QPS = -1 // the API server's own fairness is limit enough for one machine

	if _, err := c.run(settings.etcd(), options.Detached); err != nil {
		return err
	}
	apiServer, err := c.run(settings.apiServer(options.APIServerOnly), options.Detached)
	if err != nil {
		return err
	}
	if err := apiServer.WaitReady(ctx, c.apiServerReady); err != nil {
		return err
	}
	if options.APIServerOnly {
		return nil
	}
	if options.Log != nil {
		fmt.Fprintf(options.Log, "API server ready after %.1fs\n", time.Since(began).Seconds())
	}
	if err := c.createNode(ctx); err != nil {
		return err
	}
	var last *process.Process
	for _, command := range []process.Command{settings.controllerManager(), settings.scheduler(), settings.kwok()} {
		if last, err = c.run(command, options.Detached); err != nil {
			return err
		}
	}
	if err := last.WaitReady(ctx, c.nodeReady); err != nil {
		return err
	}
	if err := c.tryDeployment(ctx); err != nil {
		return errors.Join(err, c.ended())
	}
	if options.Log != nil {
		fmt.Fprintf(options.Log, "Cluster ready after %.1fs\n", time.Since(began).Seconds())
	}
	return nil
}

// run starts one program and records it before anything else can go wrong.
func (c *Cluster) run(command process.Command, detached bool) (*process.Process, error) {
	command.Detached = detached
	started, err := process.Start(command)
	if err != nil {
		return nil, err
	}
	c.processes = append(c.processes, started)
	c.record.Processes = append(c.record.Processes, started.Identity())
	return started, c.record.write(c.dir)
}

// ended reports every program that has ended although nobody stopped it.
func (c *Cluster) ended() error {
	var errs []error
	for _, p := range c.processes {
		select {
		case <-p.Done():
			errs = append(errs, fmt.Errorf("%s has ended: %w\n%s", p.Identity().Name, p.Err(), p.LogTail()))
		default:
		}
	}
	return errors.Join(errs...)
}

// RESTConfig is an administrator's client configuration, the caller's to change.
func (c *Cluster) RESTConfig() *rest.Config { return rest.CopyConfig(c.config) }

// Stop ends a cluster that this process started and removes its folder.
func (c *Cluster) Stop() error {
	c.kill()
	if err := os.RemoveAll(c.dir); err != nil {
		return fmt.Errorf("removing the cluster's folder: %w", err)
	}
	return nil
}

// kill needs no good order: the data goes with the cluster.
func (c *Cluster) kill() {
	for _, p := range c.processes {
		p.Stop(0)
	}
}
