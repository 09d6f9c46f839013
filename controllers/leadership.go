package controllers

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/weir-dev/weir/internal/policy"
)

// LeadershipOptions name the Lease that decides who writes.
type LeadershipOptions struct {
	Namespace string
	Name      string
	// Identity tells this process from every other one.
	Identity string
	// Elect takes part in a leader election. Without it the process takes the Lease at once from whoever has it; the one
	// it was taken from ends at its next refused write.
	Elect bool
}

// Leadership is this process's right to write rows: a Lease that it holds. Its resourceVersion, read live while the Lease
// is ours, is the epoch of what is written: the API server gives every later holder a higher one, whatever the clocks say,
// and so it does to the holder of a Lease that was deleted and created again.
//
// The identity of the installation is the UID of the Lease's namespace. It outlives the Lease.
//
// Its methods may be called concurrently.
type Leadership struct {
	leases  coordinationv1client.LeasesGetter
	options LeadershipOptions
	lost    chan error

	installation string

	mu    sync.Mutex
	epoch string // empty until it was read
}

// errNotLeader ends the process: somebody else leads.
var errNotLeader = errors.New("the Lease is held by another process")

// NewLeadership learns the installation's identity, and finds the Lease or creates it with nobody holding it.
func NewLeadership(ctx context.Context, config *rest.Config, options LeadershipOptions) (*Leadership, error) {
	client, err := coordinationv1client.NewForConfig(rest.AddUserAgent(config, "leader-election"))
	if err != nil {
		return nil, fmt.Errorf("building the client for Leases: %w", err)
	}
	namespaces, err := corev1client.NewForConfig(rest.AddUserAgent(config, "leader-election"))
	if err != nil {
		return nil, fmt.Errorf("building the client for namespaces: %w", err)
	}
	namespace, err := namespaces.Namespaces().Get(ctx, options.Namespace, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading namespace %s: %w", options.Namespace, err)
	}
	l := &Leadership{
		leases: client, options: options, lost: make(chan error, 1), installation: string(namespace.UID),
	}
	return l, l.ensureLease(ctx)
}

func (l *Leadership) ensureLease(ctx context.Context) error {
	leases := l.leases.Leases(l.options.Namespace)
	_, err := leases.Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: l.options.Namespace, Name: l.options.Name},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating Lease %s/%s: %w", l.options.Namespace, l.options.Name, err)
	}
	lease, err := l.read(ctx)
	if err != nil || l.options.Elect {
		return err
	}
	lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: &l.options.Identity}
	if _, err := leases.Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("taking Lease %s/%s: %w", l.options.Namespace, l.options.Name, err)
	}
	return nil
}

func (l *Leadership) read(ctx context.Context) (*coordinationv1.Lease, error) {
	lease, err := l.leases.Leases(l.options.Namespace).Get(ctx, l.options.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading Lease %s/%s: %w", l.options.Namespace, l.options.Name, err)
	}
	return lease, nil
}

// Lock is what the leader election competes for; nil without one.
func (l *Leadership) Lock() resourcelock.Interface {
	if !l.options.Elect {
		return nil
	}
	return &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: l.options.Namespace, Name: l.options.Name},
		Client:     l.leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: l.options.Identity},
	}
}

// Installation is the identity of this installation: the UID of its namespace.
func (l *Leadership) Installation() string { return l.installation }

// Epoch is the epoch to write with. It is read live once, when this process has begun to lead.
func (l *Leadership) Epoch(ctx context.Context) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.epoch != "" {
		return l.epoch, nil
	}
	lease, err := l.readHeld(ctx)
	if err != nil {
		return "", err
	}
	l.epoch = lease.ResourceVersion
	return l.epoch, nil
}

// Raise is the answer to a refused write: it reads the Lease live. Who no longer holds it ends; who does goes on with
// an epoch above highest, the highest that anybody was seen to use.
func (l *Leadership) Raise(ctx context.Context, highest string) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lease, err := l.readHeld(ctx)
	if err != nil {
		return "", err
	}
	for _, epoch := range []string{lease.ResourceVersion, above(highest)} {
		if policy.CompareEpochs(epoch, l.epoch) > 0 {
			l.epoch = epoch
		}
	}
	return l.epoch, nil
}

func (l *Leadership) readHeld(ctx context.Context) (*coordinationv1.Lease, error) {
	lease, err := l.read(ctx)
	if err != nil {
		return nil, err
	}
	holder := ""
	if lease.Spec.HolderIdentity != nil {
		holder = *lease.Spec.HolderIdentity
	}
	if holder != l.options.Identity {
		err := fmt.Errorf("%w: Lease %s/%s, holder %q", errNotLeader, l.options.Namespace, l.options.Name, holder)
		select {
		case l.lost <- err:
		default:
		}
		return nil, err
	}
	return lease, nil
}

// Start ends with an error, and so ends the manager, when this process finds that somebody else leads.
func (l *Leadership) Start(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-l.lost:
		return err
	}
}

// above is the epoch that follows; epochs are decimal numbers of any length.
func above(epoch string) string {
	n, ok := new(big.Int).SetString(epoch, 10)
	if !ok {
		return ""
	}
	return n.Add(n, big.NewInt(1)).String()
}
