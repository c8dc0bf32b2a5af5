package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/utils/ptr"
)

// candidate is a node that may lead.
type candidate struct {
	leads chan struct{} // closed when it does
	stop  context.CancelFunc
	ended chan error
}

// elect starts a candidate of that node.
func elect(ctx context.Context, kube *fake.Clientset, node string) *candidate {
	ctx, stop := context.WithCancel(ctx)
	c := &candidate{leads: make(chan struct{}), stop: stop, ended: make(chan error, 1)}
	run := leading("kube-scheduler", node, kube.CoordinationV1(), discard, func(ctx context.Context) error {
		close(c.leads)
		<-ctx.Done()
		return nil
	})
	go func() { c.ended <- run(ctx) }()
	return c
}

func TestOneLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour) // nothing else would end a test whose clock is not real
		defer cancel()
		began := time.Now()
		one := elect(ctx, kube, "one")
		<-one.leads
		if took := time.Since(began); took > 0 {
			t.Errorf("the only node leads after %v", took)
		}
		two := elect(ctx, kube, "two")
		select {
		case <-two.leads:
			t.Fatal("both lead")
		case <-time.After(2 * leaseDuration):
		}
		// Its process starts again, and goes on at once.
		one.stop()
		if err := <-one.ended; err != nil {
			t.Error(err)
		}
		ended := time.Now()
		select {
		case <-two.leads:
		case <-ctx.Done():
			t.Fatal("no one leads")
		}
		// Each look is a period after the one before, and up to JitterFactor of one more.
		if took := time.Since(ended); took.Seconds() > (1+leaderelection.JitterFactor)*retryPeriod.Seconds() {
			t.Errorf("the lease was let go, and the other node leads after %v", took)
		}
		two.stop()
		if err := <-two.ended; err != nil {
			t.Error(err)
		}
	})
}

// Regression: a node without a quorum of etcd waited for an answer about its lease when it stopped.
func TestAStopDoesNotWaitForALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		var silent atomic.Bool
		answer := make(chan struct{})
		kube.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			if silent.Load() {
				<-answer
			}
			return false, nil, nil
		})
		one := elect(t.Context(), kube, "one")
		<-one.leads
		silent.Store(true)
		stopped := time.Now()
		one.stop()
		if err := <-one.ended; err != nil {
			t.Error(err)
		}
		if took := time.Since(stopped); took > releaseLimit {
			t.Errorf("it stopped after %v", took)
		}
		close(answer)
	})
}

func TestALostLeaseEndsThePart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour) // nothing else would end a test whose clock is not real
		defer cancel()
		// Another will hold it. An API server refuses updates of what has changed, which the fake
		// does not.
		var others atomic.Pointer[coordinationv1.Lease]
		kube.PrependReactor("update", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
			return others.Load() != nil, nil, apierrors.NewConflict(a.GetResource().GroupResource(), "kube-scheduler", nil)
		})
		kube.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			l := others.Load()
			return l != nil, l, nil
		})
		one := elect(ctx, kube, "one")
		<-one.leads
		now := metav1.NewMicroTime(time.Now())
		others.Store(&coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To("two"), LeaseDurationSeconds: ptr.To(int32(3600)), RenewTime: &now, AcquireTime: &now,
		}})
		lost := time.Now()
		if err := <-one.ended; !errors.Is(err, errLedBefore) {
			t.Errorf("the part ended with %v", err)
		}
		if took := time.Since(lost); took >= leaseDuration {
			t.Errorf("it ended %v later, when another may lead", took)
		}
		one.stop()
	})
}

// slowLeases are Leases whose calls fail only when they have taken as long as ours may, from some
// time on.
type slowLeases struct {
	coordination.LeasesGetter
	coordination.LeaseInterface
	slow *atomic.Bool
	// renewed is the time of the last update with success.
	renewed *atomic.Pointer[time.Time]
}

func (s slowLeases) Leases(namespace string) coordination.LeaseInterface {
	s.LeaseInterface = s.LeasesGetter.Leases(namespace)
	return s
}

func (s slowLeases) wait(ctx context.Context) error {
	if !s.slow.Load() {
		return nil
	}
	select {
	case <-time.After(renewDeadline / 2):
		return context.DeadlineExceeded
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s slowLeases) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error) {
	if err := s.wait(ctx); err != nil {
		return nil, err
	}
	return s.LeaseInterface.Get(ctx, name, o)
}

func (s slowLeases) Update(ctx context.Context, l *coordinationv1.Lease, o metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	if err := s.wait(ctx); err != nil {
		return nil, err
	}
	s.renewed.Store(ptr.To(time.Now()))
	return s.LeaseInterface.Update(ctx, l, o)
}

// Regression: a leader whose calls took long tried to let its lease go before it stopped leading,
// and went on until after the lease had ended.
func TestALeaderThatCannotRenewStopsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour) // nothing else would end a test whose clock is not real
		defer cancel()
		leases := slowLeases{
			LeasesGetter: fake.NewClientset().CoordinationV1(), slow: &atomic.Bool{}, renewed: &atomic.Pointer[time.Time]{},
		}
		var ended time.Time
		run := leading("kube-scheduler", "one", leases, discard, func(ctx context.Context) error {
			time.Sleep(leaseDuration)
			leases.slow.Store(true)
			<-ctx.Done()
			ended = time.Now()
			return nil
		})
		if err := run(ctx); !errors.Is(err, errLedBefore) {
			t.Errorf("the part ended with %v", err)
		}
		if took := ended.Sub(*leases.renewed.Load()); took >= leaseDuration {
			t.Errorf("it ended %v after the last renewal, when another may lead", took)
		}
	})
}
