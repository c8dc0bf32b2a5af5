package scheduler_test

import (
	"context"
	"fmt"
	"sync"
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
	reserved               map[string]bool
	permit, post, prepares func()
	preBind                func(context.Context) *framework.Status
	unreserve              func()
}

func (*odd) Name() string { return "Odd" }

func (o *odd) Reserve(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo, _ string) *framework.Status {
	o.reserved[pod.Pod().Name] = true
	return nil
}

func (o *odd) Unreserve(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo, _ string) {
	delete(o.reserved, pod.Pod().Name)
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

func (o *odd) options() scheduler.Options {
	o.reserved = make(map[string]bool)
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
				o, panics := &odd{}, 0
				set(o, func() {
					if panics++; panics == 1 {
						if !o.reserved["p"] {
							t.Error("nothing is reserved: this tests nothing")
						}
						panic("odd")
					}
				})
				c := start(t, o.options(), node("a", "4"))
				defer c.stop()
				c.create(pod("p", "4"))
				if panics != 1 || len(o.reserved) != 0 {
					t.Errorf("after %d panics %v is reserved", panics, o.reserved)
				}
				pause()
				c.on("p", "a")
			})
		})
	}
}

func TestPanicInPostBind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		o := &odd{post: func() {
			asked++
			panic("odd")
		}}
		c := start(t, o.options(), node("a", "4"))
		defer c.stop()
		c.create(pod("p", "1"), pod("q", "1"))
		c.on("p", "a")
		c.on("q", "a")
		if asked != 2 {
			t.Errorf("PostBind was asked %d times", asked)
		}
	})
}

// However a pod's deletion is told, and if that is just before PreBind begins, PreBind ends.
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
