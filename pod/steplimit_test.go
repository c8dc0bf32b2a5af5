package pod

import (
	"context"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/table"
	"github.com/coracle-project/coracle/shim/client"
)

// A step at the end of recovery that hangs is left behind, and Ready names it meanwhile.
func TestHungStepOfRecovery(t *testing.T) {
	for call, step := range map[string]string{
		"snapshots.Recover": "recover root file systems",
		"network.Recover":   "recover networks",
		"shim.DeletePod":    "",
		"pins.Remove":       "",
	} {
		t.Run(call, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				m1, podID, id := b.lone()
				stray := table.NewID()
				b.mu.Lock()
				b.procs[stray] = &proc{podID: stray, args: []string{"run"}, state: client.StateRunning}
				b.pins[m1.dirs.NamespacesOf(stray)] = true
				b.mu.Unlock()
				ok(t, os.Mkdir(m1.dirs.NamespacesOf(stray), 0o755))
				release, reached := make(chan struct{}), make(chan error, 64)
				m, _ := b.unstarted()
				b.fault(call, func(context.Context) error {
					select {
					case reached <- m.Ready():
					default:
					}
					<-release
					return nil
				})
				ok(t, m.Start(t.Context()))
				ok(t, m.recovery.Await(t.Context()))
				err := m.Ready()
				during := <-reached
				close(release)
				if err != nil {
					t.Errorf("it is not left behind: %v", err)
				}
				if step != "" && (during == nil || !strings.Contains(during.Error(), step) || m.RecoveryErrors() != 1) {
					t.Errorf("ready says %v, %d errors", during, m.RecoveryErrors())
				}
				b.repair(call)
				ok(t, m.StopContainer(t.Context(), id, 0))
				ok(t, m.Remove(t.Context(), podID))
				idle(t, m)
			})
		})
	}
}

// A container is not started before recovery has made its root again.
func TestStartAwaitsRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		m1, h := b.manager()
		id := must[string](t)(m1.Create(t.Context(), must[string](t)(m1.Run(t.Context(), podConfig("p"))), containerConfig("run")))
		b.kill(h)
		m, _ := b.unstarted()
		b.fault("snapshots.Recover", func(context.Context) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second) // of the bubble
			defer cancel()
			if err := m.StartContainer(ctx, id); err == nil {
				t.Error("started before its root was there")
			}
			return nil
		})
		ok(t, m.Start(t.Context()))
		if b.count("snapshots.Recover") < 2 {
			t.Error("the roots were not recovered")
		}
		// The start goes on though its caller has gone; another joins it or comes too late.
		_ = m.StartContainer(t.Context(), id)
		if c := must[state.Container](t)(m.Container(id)); c.State != state.Running {
			t.Errorf("container is %s", c.State)
		}
	})
}
