package kubelet

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestPodRangesAreTold(t *testing.T) {
	dir := t.TempDir()
	uid := types.UID("1")
	node := func(ranges ...string) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{UID: uid}, Spec: v1.NodeSpec{PodCIDRs: ranges}}
	}
	var told []string
	var became int
	fails := errors.New("the runtime is down")
	var down atomic.Bool
	tell := func(_ context.Context, ranges string) error {
		if down.Load() {
			return fails
		}
		told = append(told, ranges)
		return nil
	}
	run := func(f func(p *podRanges)) {
		t.Helper()
		told = nil
		synctest.Test(t, func(t *testing.T) {
			p, err := newPodRanges(dir, tell, func() { became++ }, discard)
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); p.run(ctx) }()
			f(p)
			stop()
			<-done
		})
	}
	expect := func(p *podRanges, ready bool, want ...string) {
		t.Helper()
		synctest.Wait()
		if len(told) != len(want) || (p.err() == nil) != ready {
			t.Fatalf("told %q, %v; want %q", told, p.err(), want)
		}
		for i := range want {
			if told[i] != want[i] {
				t.Fatalf("told %q, want %q", told, want)
			}
		}
	}
	const first, second = "10.85.1.0/24,fd85:c0ac:1e00:1::/64", "10.85.2.0/24"
	run(func(p *podRanges) {
		p.nodeChanged(node())
		p.resync()
		expect(p, false)
		down.Store(true)
		p.nodeChanged(node("10.85.1.0/24", "fd85:c0ac:1e00:1::/64"))
		expect(p, false)
		if err := p.err(); !errors.Is(err, fails) {
			t.Errorf("%v, want %v", err, fails)
		}
		if became != 0 {
			t.Error("pods are tried again too early")
		}
		down.Store(false)
		time.Sleep(time.Second)
		expect(p, true, first)
		if err := p.errOf("2"); !errors.Is(err, errNoRanges) {
			t.Errorf("a Node that has yet to be registered: %v, want %v", err, errNoRanges)
		}
		p.nodeChanged(node("10.85.1.0/24", "fd85:c0ac:1e00:1::/64"))
		p.nodeChanged(node())
		expect(p, true, first)
		p.resync() // the runtime was started again
		expect(p, true, first, first)
		p.nodeChanged(node("10.85.2.0/24"))
		expect(p, true, first, first, second)
		if became != 1 {
			t.Errorf("pods are tried again %d times, want once", became)
		}
	})
	// After a reboot, the API may not answer.
	run(func(p *podRanges) { expect(p, true, second) })
	// The Node was deleted and registered again: another node may have the range by now.
	uid = "2"
	run(func(p *podRanges) {
		expect(p, true, second)
		p.nodeChanged(node())
		expect(p, false, second)
	})
	run(func(p *podRanges) {
		expect(p, false)
		p.nodeChanged(node("10.85.2.0/24"))
		expect(p, true, second)
	})
	uid = "3"
	run(func(p *podRanges) {
		expect(p, true, second)
		p.nodeChanged(node("10.85.2.0/24")) // the same by chance
		expect(p, true, second, second)
	})
	run(func(p *podRanges) { expect(p, true, second) })
	// Pods that were bound to the next Node before it had ranges are tried again then.
	uid, became = "4", 0
	run(func(p *podRanges) {
		expect(p, true, second)
		p.nodeChanged(node())
		expect(p, false, second)
		p.nodeChanged(node("10.85.3.0/24"))
		expect(p, true, second, "10.85.3.0/24")
		if became != 2 {
			t.Errorf("pods are tried again %d times, want twice", became)
		}
	})
}

// A runtime that refuses the ranges is what keeps the node from being ready, and is asked again
// after longer and longer pauses.
func TestPodRangesThatTheRuntimeRefuses(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var tries int
		p, err := newPodRanges(dir, func(context.Context, string) error {
			tries++
			return errors.New("a range of /30 is too small")
		}, func() { t.Error("pods can have addresses") }, discard)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); p.run(ctx) }()
		p.nodeChanged(&v1.Node{Spec: v1.NodeSpec{PodCIDRs: []string{"10.85.1.0/30"}}})
		time.Sleep(time.Hour)
		synctest.Wait()
		const want = "the runtime does not take the node's ranges of pods' addresses 10.85.1.0/30: a range of /30 is too small"
		if err := p.err(); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
		if tries < 60 || tries > 70 {
			t.Errorf("tried %d times in an hour", tries)
		}
		stop()
		<-done
		time.Sleep(longestPause) // the last timer
	})
}
