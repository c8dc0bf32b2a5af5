package container

import (
	"context"
	"math"
	"syscall"
	"testing"
	"time"

	"github.com/coracle-project/coracle/internal/fault"
	"github.com/coracle-project/coracle/pod/exits"
	"github.com/coracle-project/coracle/pod/plugins"
	"github.com/coracle-project/coracle/pod/podtest"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/shim/client"
)

// obedient is a shim whose container ends at the first signal.
type obedient struct {
	Shim
	cs      *Containers
	e       *state.ContainerEntry
	signals []syscall.Signal
}

func (s *obedient) Kill(_ context.Context, r client.KillRequest) error {
	s.signals = append(s.signals, r.Signal)
	s.cs.Exited(s.e, 128+int32(r.Signal), time.Now(), false)
	return nil
}

func (*obedient) Delete(context.Context, string, string) error { return nil }

// Regression: the longest grace that there is, which a pod may have, and the time for the kill
// after it were together less than nothing. Such a container could not be stopped.
func TestLongestGrace(t *testing.T) {
	for _, grace := range []time.Duration{math.MaxInt64, math.MaxInt64 / time.Second * time.Second, time.Hour} {
		n := podtest.NewNode(t)
		s := &obedient{}
		s.cs = New(Config{
			Pods: n.Pods, Containers: n.Containers, Dirs: n.Dirs, Life: n.Life, Log: n.Log, Shim: s, Exits: exits.New(s, n.Life),
			Notify: &plugins.Notifier{}, FaultAt: func(context.Context, fault.Point) error { return nil },
		})
		s.e = n.Container(n.Pod(), func(r *state.ContainerRecord) { r.StopSignal = int(syscall.SIGTERM) })
		if err := s.cs.Stop(t.Context(), s.e, grace); err != nil {
			t.Errorf("grace of %s: %v", grace, err)
		}
		if r := s.e.Get(); r.Phase != state.ContainerExited || r.ExitCode != 128+int32(syscall.SIGTERM) {
			t.Errorf("grace of %s: it is %s, code %d; signals %v", grace, r.Phase, r.ExitCode, s.signals)
		}
	}
}
