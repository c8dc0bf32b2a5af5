package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Upstream's defaults: another node takes over so long after the last renewal of a leader that
// died, and a leader that cannot renew stops before that.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// releaseLimit is how long a node that stops tries to let go of a lease. Without a quorum of etcd
// it cannot.
const releaseLimit = 2 * time.Second

// errLedBefore ends a process whose part led and does not any more. It starts again, as upstream's
// components do: what they have in memory is of a time when they led.
var errLedBefore = fmt.Errorf("%w: another control-plane node may lead now", errAgain)

// leading returns a part that runs while this node holds the Lease of a name in kube-system. The
// Lease is let go after the part has ended, so that another node goes on at once.
func leading(name, node string, leases coordination.LeasesGetter, log *slog.Logger,
	part func(context.Context) error,
) func(context.Context) error {
	return func(ctx context.Context) error {
		started := make(chan struct{})
		lock := &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: name}, Client: leases,
			// A process that starts again on its node goes on with its Lease.
			LockConfig: resourcelock.ResourceLockConfig{Identity: node},
		}
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			// With ReleaseOnCancel, a leader that cannot renew would learn of that only after it has
			// tried to let the lease go: when another may lead.
			Lock: lock, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, Name: name,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) { close(started) },
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			return err
		}
		electing, letGo := context.WithCancel(context.WithoutCancel(ctx))
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			elector.Run(electing)
		}()
		defer func() {
			letGo()
			released := make(chan struct{})
			go func() {
				defer close(released)
				<-ended
				if err := release(lock); err != nil {
					log.Warn("cannot let a lease go: another node leads only after it has expired", "lease", name, "err", err)
				}
			}()
			select {
			case <-released:
			case <-time.After(releaseLimit):
				log.Warn("etcd has not answered: another node leads only after the lease has expired", "lease", name, "waited", releaseLimit)
			}
		}()
		select {
		case <-started:
		case <-ctx.Done():
			return nil
		}
		log.Info("this node leads", "lease", name)
		term, stop := context.WithCancel(ctx)
		defer stop()
		go func() {
			<-ended
			stop()
		}()
		err = part(term)
		select {
		case <-ended:
			return errors.Join(err, fmt.Errorf("lease %s: %w", name, errLedBefore))
		default:
			return err
		}
	}
}

// release lets a lease go if its candidate still holds it.
func release(lock *resourcelock.LeaseLock) error {
	ctx, cancel := context.WithTimeout(context.Background(), releaseLimit)
	defer cancel()
	record, _, err := lock.Get(ctx)
	if apierrors.IsNotFound(err) || err == nil && record.HolderIdentity != lock.Identity() {
		return nil
	}
	if err != nil {
		return err
	}
	now := metav1.Now()
	return lock.Update(ctx, resourcelock.LeaderElectionRecord{
		LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now, LeaderTransitions: record.LeaderTransitions,
	})
}

// leases is a client for Leases whose calls end before the Lease does.
func leases(config *rest.Config) (coordination.LeasesGetter, error) {
	config = rest.CopyConfig(config)
	config.Timeout = renewDeadline / 2
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return kube.CoordinationV1(), nil
}
