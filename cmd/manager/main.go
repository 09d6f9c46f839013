// Command manager runs the controller: flags become options, options become a manager, and the manager runs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/controllers"
	"github.com/weir-dev/weir/internal/redisstore"
)

const (
	leaseName = "weir-controller-manager"
	// startTimeout bounds what must succeed before the manager starts: finding or creating the Lease.
	startTimeout = 20 * time.Second
)

// Exit codes: 2 means that the command line is wrong, and that starting again is useless.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	o, err := parse(os.Args[1:], os.Getenv, os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintf(os.Stderr, "manager: %v\n", err)
		os.Exit(exitUsage)
	}
	logger := zap.New(zap.UseFlagOptions(&o.log))
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
	redis.SetLogger(quietRedis{logger})
	if err := run(ctrl.SetupSignalHandler(), o); err != nil {
		logger.Error(err, "Manager ended")
		os.Exit(exitFailed)
	}
}

func run(ctx context.Context, o options) error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("finding the API server: %w", err)
	}
	config.UserAgent = "weir-controller-manager"
	// The API server's priority and fairness limit the rate; what is in flight, the number of workers. A limit here would
	// only hold up a start with thousands of policies.
	config.QPS = -1

	leadership, err := newLeadership(ctx, config, o)
	if err != nil {
		return err
	}
	var table controllers.Table
	var rotation *sentinelRotation
	if len(o.redis.addresses) > 0 {
		client, err := o.redis.client()
		if err != nil {
			return err
		}
		defer client.Close()
		held := redisstore.NewTable(client, o.table, leadership.Installation())
		table = held
		if o.redis.sentinelPasswordFile != "" {
			if rotation, err = newSentinelRotation(&o.redis, client, held.Use, ctrl.Log.WithName("redis")); err != nil {
				return err
			}
		}
	}

	metricsServer, certificates, err := o.metrics.server()
	if err != nil {
		return err
	}

	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		v1alpha1.AddToScheme, appsv1.AddToScheme, corev1.AddToScheme, eventsv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return fmt.Errorf("building the scheme: %w", err)
		}
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                              scheme,
		Cache:                               controllers.CacheOptions(o.namespaces, o.snapshots),
		Metrics:                             metricsServer,
		HealthProbeBindAddress:              o.probeAddress,
		LeaderElection:                      o.leaderElect,
		LeaderElectionID:                    leaseName, // what the metric of leadership calls it
		LeaderElectionResourceLockInterface: leadership.Lock(),
		LeaderElectionReleaseOnCancel:       true, // main ends right after
	})
	if err != nil {
		return fmt.Errorf("building the manager: %w", err)
	}
	if certificates != nil {
		if err := mgr.Add(certificates); err != nil {
			return err
		}
	}
	if rotation != nil {
		if err := mgr.Add(rotation); err != nil {
			return err
		}
	}
	if err := addProbes(mgr); err != nil {
		return err
	}
	err = controllers.SetupWithManager(ctx, mgr, controllers.Options{
		Table:      table,
		Leadership: leadership,
		Snapshots:  o.snapshots,
		Namespaces: o.namespaces,
		Resync:     o.resync,
		Registerer: metrics.Registry,
	})
	if err != nil {
		return err
	}
	return mgr.Start(ctx)
}

func newLeadership(ctx context.Context, config *rest.Config, o options) (*controllers.Leadership, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("finding this host's name: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return controllers.NewLeadership(ctx, config, controllers.LeadershipOptions{
		Namespace: o.leaseNamespace,
		Name:      leaseName,
		Identity:  host + "_" + uuid.NewString(),
		Elect:     o.leaderElect,
	})
}

// addProbes makes the process alive once it serves, and ready once its caches have synced: it is not ready while a
// permission is missing.
func addProbes(mgr manager.Manager) error {
	var synced atomic.Bool
	markSynced := everywhere(func(ctx context.Context) error {
		synced.Store(true)
		return nil
	})
	if err := mgr.Add(markSynced); err != nil {
		return err
	}
	ready := func(*http.Request) error {
		if !synced.Load() {
			return errors.New("the caches have not synced")
		}
		return nil
	}
	return errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("caches", ready))
}

// everywhere runs when the caches have synced, whether or not this process leads.
type everywhere func(context.Context) error

func (f everywhere) Start(ctx context.Context) error { return f(ctx) }
func (f everywhere) NeedLeaderElection() bool        { return false }
