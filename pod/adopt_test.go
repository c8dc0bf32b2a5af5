package pod

import (
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/watch"
)

// A removal that finds its container adopted meanwhile does not say that it was removed.
func TestRemovalMeetsAdoption(t *testing.T) {
	b := newBench(t)
	m1, podID, id := b.lone()
	file := m1.dirs.Containers().File(id)
	ok(t, os.Rename(file, file+".kept"))
	m, _ := b.manager()
	u, found := m.recovery.Find(UnmanagedContainer, id)
	if !found {
		t.Fatalf("unmanaged: %+v", m.Unmanaged())
	}
	ok(t, os.Rename(file+".kept", file))
	// While its pod is stopped it stays what the stop takes it for.
	ok(t, setPhase(m, podID, state.PodStopping))
	if again := m.recovery.Adopt(t.Context(), u); !again || len(m.Unmanaged()) != 1 {
		t.Errorf("adopted from under a stop: again %t, unmanaged %+v", again, m.Unmanaged())
	}
	ok(t, setPhase(m, podID, state.PodReady))
	if again := m.recovery.Adopt(t.Context(), u); again || len(m.Unmanaged()) != 0 {
		t.Errorf("not adopted: %+v", m.Unmanaged())
	}
	if err := m.recovery.DropContainer(t.Context(), u); !errors.Is(err, errdefs.ErrUnavailable) {
		t.Errorf("removal: %v", err)
	}
	ok(t, m.Remove(t.Context(), podID))
	ok(t, m.recovery.DropContainer(t.Context(), u))
	idle(t, m)
	b.nothingLeft()
}

// A container that waited for its pod's record, and cannot be read when that can, is read again.
func TestContainerReadableAfterItsPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		m1, podID, id := b.lone()
		pod, container := m1.dirs.Pods().File(podID), m1.dirs.Containers().File(id)
		podLease := unreadable(t, pod)
		m, _ := b.manager()
		events, stop := m.Watch()
		defer stop()
		lease := unreadable(t, container)
		ok(t, podLease.Close())
		deadline, kept := time.After(patience), true
		for started := map[string]bool{}; !started[id]; {
			select {
			case ev := <-events:
				started[ev.ID] = started[ev.ID] || ev.Kind == watch.EventStarted
				if ev.ID == podID && kept {
					kept = false
					// The pod has tried to adopt its container by then, and has failed.
					time.Sleep(750 * time.Millisecond) // of the bubble
					if m.containers.Exact(id) != nil {
						t.Fatal("the container was not unreadable")
					}
					ok(t, lease.Close())
				}
			case <-deadline:
				t.Fatalf("unmanaged: %+v", m.Unmanaged())
			}
		}
		ok(t, m.Remove(t.Context(), podID))
		idle(t, m)
		b.nothingLeft()
	})
}
