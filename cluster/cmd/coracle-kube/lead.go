package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

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
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: name}, Client: leases,
				// A process that starts again on its node goes on with its Lease.
				LockConfig: resourcelock.ResourceLockConfig{Identity: node},
			},
			LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, ReleaseOnCancel: true, Name: name,
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
			select {
			case <-ended:
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
