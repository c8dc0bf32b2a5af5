package integration

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Of several clients one leads, and another one when it resigns or falls silent.
func TestLeaderElection(t *testing.T) {
	t.Parallel()
	ctx, ns := namespace(t)
	leads := make(chan string, 3)
	candidate := func(name string, resigns bool) (stop func()) {
		own, err := kubernetes.NewForConfig(boat.config)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(ctx)
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Name: name,
			Lock: &resourcelock.LeaseLock{
				LeaseMeta: metav1.ObjectMeta{Name: "helm", Namespace: ns}, Client: own.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: name},
			},
			// Short, as the third waits for the end of a lease, but longer than the server takes
			// to answer on a busy machine: one that does not renew in time has ended.
			LeaseDuration: 15 * time.Second, RenewDeadline: 12 * time.Second, RetryPeriod: 100 * time.Millisecond,
			ReleaseOnCancel: resigns,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) { leads <- name },
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { defer close(ended); elector.Run(ctx) }()
		t.Cleanup(cancel)
		return func() { cancel(); <-ended }
	}
	leader := func() string {
		t.Helper()
		select {
		case name := <-leads:
			lease, err := boat.kube.CoordinationV1().Leases(ns).Get(ctx, "helm", metav1.GetOptions{})
			if err != nil || lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity != name {
				t.Errorf("%s leads, and the lease says %v, %v", name, lease.Spec.HolderIdentity, err)
			}
			return name
		case <-ctx.Done():
			t.Fatal("no one leads")
		}
		return ""
	}
	first := candidate("first", true)
	if name := leader(); name != "first" {
		t.Errorf("%s leads, alone", name)
	}
	second := candidate("second", false)
	first() // resigns
	if name := leader(); name != "second" {
		t.Errorf("%s leads after the first resigned", name)
	}
	candidate("third", true)
	second() // says nothing
	if name := leader(); name != "third" {
		t.Errorf("%s leads after the second fell silent", name)
	}
	lease, err := boat.kube.CoordinationV1().Leases(ns).Get(ctx, "helm", metav1.GetOptions{})
	if err != nil || lease.Spec.LeaseTransitions == nil || *lease.Spec.LeaseTransitions != 2 {
		t.Errorf("the lease has changed hands %v times, %v", lease.Spec.LeaseTransitions, err)
	}
}
