package scheduler_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/coracle-project/coracle/cluster/scheduler"
	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// odd is a plugin at the points after a node is chosen.
type odd struct {
	framework.Plugin
	reserved               sync.Map // names of pods
	panics                 atomic.Int32
	permit, post, prepares func()
	preBind                func(context.Context) *framework.Status
	unreserve              func()
}

func (*odd) Name() string { return "Odd" }

func (o *odd) Reserve(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo, _ string) *framework.Status {
	o.reserved.Store(pod.Pod().Name, true)
	return nil
}

func (o *odd) Unreserve(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo, _ string) {
	o.reserved.Delete(pod.Pod().Name)
	call(o.unreserve)
}

func (o *odd) Permit(context.Context, *framework.CycleState, *framework.PodInfo, string) (time.Duration, *framework.Status) {
	call(o.permit)
	return 0, nil
}

func (o *odd) Prepares(*framework.CycleState, *framework.PodInfo, string) bool {
	call(o.prepares)
	return o.preBind != nil
}

func (o *odd) PreBind(ctx context.Context, _ *framework.CycleState, _ *framework.PodInfo, _ string) *framework.Status {
	return o.preBind(ctx)
}

func (o *odd) PostBind(context.Context, *framework.CycleState, *framework.PodInfo, string) {
	call(o.post)
}

func call(f func()) {
	if f != nil {
		f()
	}
}

// has says whether something is reserved for the pod p.
func (o *odd) has() bool {
	_, ok := o.reserved.Load("p")
	return ok
}

func (o *odd) options() scheduler.Options {
	return scheduler.Options{Profiles: map[string]func(*framework.Handle) []framework.Enabled{
		v1.DefaultSchedulerName: func(h *framework.Handle) []framework.Enabled {
			return append(defaults(h), framework.Enabled{Plugin: o})
		},
	}}
}

// A plugin that panics after others have reserved something does not keep that, and does not end
// the process.
func TestPanicGivesBackWhatWasReserved(t *testing.T) {
	for name, set := range map[string]func(o *odd, f func()){
		"Permit":   func(o *odd, f func()) { o.permit = f },
		"Prepares": func(o *odd, f func()) { o.prepares = f },
		"PreBind": func(o *odd, f func()) {
			o.preBind = func(context.Context) *framework.Status {
				f()
				return nil
			}
		},
		"Unreserve, too": func(o *odd, f func()) { o.permit, o.unreserve = f, func() { panic("again") } },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &odd{}
				set(o, func() {
					if o.panics.Add(1) == 1 {
						if !o.has() {
							t.Error("nothing is reserved: this tests nothing")
						}
						panic("odd")
					}
				})
				c := start(t, o.options(), node("a", "4"))
				defer c.stop()
				c.create(pod("p", "4"))
				if n := o.panics.Load(); n != 1 || o.has() {
					t.Errorf("after %d panics something is reserved: %t", n, o.has())
				}
				pause()
				c.on("p", "a")
			})
		})
	}
}

func TestPanicInPostBind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		o := &odd{post: func() {
			asked.Add(1)
			panic("odd")
		}}
		c := start(t, o.options(), node("a", "4"))
		defer c.stop()
		c.create(pod("p", "1"), pod("q", "1"))
		c.on("p", "a")
		c.on("q", "a")
		if n := asked.Load(); n != 2 {
			t.Errorf("PostBind was asked %d times", n)
		}
	})
}

// However a pod's deletion is told, and if that is just before PreBind starts, PreBind ends.
func TestDeletionEndsPreBind(t *testing.T) {
	for _, missed := range []bool{false, true} {
		for _, early := range []bool{false, true} {
			t.Run(fmt.Sprintf("missed %t early %t", missed, early), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var c *cluster
					p := pod("p", "4")
					deleted := func() {
						if missed {
							c.s.PodDeleted(toolscache.DeletedFinalStateUnknown{Key: "default/p", Obj: p})
						} else {
							c.s.PodDeleted(p)
						}
					}
					var ended time.Duration
					var once sync.Once
					o := &odd{preBind: func(ctx context.Context) *framework.Status {
						began := time.Now()
						select {
						case <-ctx.Done():
						case <-time.After(10 * time.Minute):
						}
						ended = time.Since(began) + 1
						return framework.Errored("Odd", context.Canceled)
					}}
					if early {
						o.prepares = func() { once.Do(deleted) }
					}
					c = start(t, o.options(), node("a", "4"))
					defer c.stop()
					c.create(p)
					if !early {
						deleted()
						synctest.Wait()
					}
					if ended != 1 {
						t.Errorf("PreBind did not end at once, but after %s", ended)
					}
				})
			})
		}
	}
}
