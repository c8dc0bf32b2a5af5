package container

import (
	"context"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coracle-project/coracle/internal/fault"
	"github.com/coracle-project/coracle/pod/exits"
	"github.com/coracle-project/coracle/pod/plugins"
	"github.com/coracle-project/coracle/pod/podtest"
	"github.com/coracle-project/coracle/pod/state"
)

// forgetful counts the containers that the shim is to forget.
type forgetful struct {
	Shim
	forgot int
}

func (s *forgetful) Delete(context.Context, string, string) error { s.forgot++; return nil }

// The shim keeps an exit that could not be recorded: the next daemon asks it.
func TestExitThatIsNotRecordedIsKept(t *testing.T) {
	for name, recorded := range map[string]bool{"recorded": true, "not recorded": false} {
		synctest.Test(t, func(t *testing.T) {
			n := podtest.NewNode(t)
			s := &forgetful{}
			cs := New(Config{
				Pods: n.Pods, Containers: n.Containers, Dirs: n.Dirs, Life: n.Life, Log: n.Log, Shim: s, Exits: exits.New(s, n.Life),
				Notify: &plugins.Notifier{Pods: n.Pods}, FaultAt: func(context.Context, fault.Point) error { return nil },
			})
			e := n.Container(n.Pod(), podtest.In(state.ContainerRunning))
			want := 1
			if !recorded {
				dir := n.Dirs.Containers().Of(e.ID)
				podtest.OK(t, os.RemoveAll(dir))
				podtest.OK(t, os.WriteFile(dir, nil, 0o600))
				want = 0
			}
			cs.Exited(e, 3, time.Now(), false)
			synctest.Wait()
			if s.forgot != want || e.Get().Phase != state.ContainerExited {
				t.Errorf("%s: forgotten %d times, want %d; it is %s", name, s.forgot, want, e.Get().Phase)
			}
		})
	}
}
