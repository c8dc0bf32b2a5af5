package pod

import (
	"context"
	"errors"
	"time"

	"github.com/coracle-project/coracle/internal/transient"
	"github.com/coracle-project/coracle/pod/life"
	"github.com/coracle-project/coracle/pod/state"
)

// A record that could not be read for a reason that may pass is read again after a pause that
// doubles.
const (
	firstReread = time.Second
	lastReread  = 10 * time.Minute
)

// readAgain reads a record until that succeeds, or its object has been removed.
func (m *Manager) readAgain(ctx context.Context, u Unmanaged) {
	if m.awaitRecovery(ctx) != nil {
		return
	}
	for pause := firstReread; ; pause = min(2*pause, lastReread) {
		if life.Sleep(ctx, pause) != nil {
			return
		}
		release, err := m.unmanaged.busy.Acquire(ctx, u.ID)
		if err != nil {
			return
		}
		again := m.unmanaged.has(u.ID) && m.adopt(ctx, u)
		release()
		if !again {
			return
		}
	}
}

// adopt takes an unmanaged pod or container back if its record can be read by now. again says
// that it may be readable later. The caller holds its id.
func (m *Manager) adopt(ctx context.Context, u Unmanaged) (again bool) {
	var err error
	if u.Kind == UnmanagedPod {
		err = m.adoptPod(ctx, u.ID)
	} else {
		u.PodID, err = m.adoptContainer(ctx, u)
	}
	switch {
	case err == nil:
		m.log.Info("record is readable again, "+string(u.Kind)+" is managed", "id", u.ID)
		return false
	case transient.Is(err), errors.Is(err, errPodStops):
		return true
	}
	m.unmanaged.put(u.because(err))
	return false
}

// adoptPod shows and recovers a pod, and its containers that waited for it.
func (m *Manager) adoptPod(ctx context.Context, id string) error {
	rec, kept, err := m.dirs.Pods().Load(id)
	if err == nil {
		err = rec.Check(id)
	}
	if err != nil {
		return err
	}
	m.created.Passed(rec.CreatedAt)
	e, err := m.indexPod(id, rec, kept)
	if err != nil {
		return err
	}
	m.unmanaged.drop(id)
	m.events.PodChanged(&state.PodRecord{Phase: state.PodMaking}, &rec)
	m.attempt("recover pod", id, recoverOne(ctx, m, "pod", e, func(ctx context.Context, _ bool) error {
		return m.podLives.Recover(ctx, e, true)
	}))
	for _, u := range m.unmanagedIn(id) {
		release, err := m.unmanaged.busy.Acquire(ctx, u.ID)
		if err != nil {
			return nil // the life ends
		}
		if m.unmanaged.has(u.ID) && m.adopt(ctx, u) {
			m.life.Start(func(ctx context.Context) { m.readAgain(ctx, u) })
		}
		release()
	}
	return nil
}

// errPodStops says that a container is not adopted now: the stop or removal of its pod has it on
// its list as unmanaged.
var errPodStops = errors.New("its pod is being stopped or removed")

// adoptContainer also tells the container's pod, as far as it is known.
func (m *Manager) adoptContainer(ctx context.Context, u Unmanaged) (podID string, err error) {
	rec, kept, err := m.dirs.Containers().Load(u.ID)
	if err == nil {
		err = rec.Check(u.ID)
	}
	if err != nil {
		return u.PodID, err
	}
	if p := m.pods.Exact(rec.PodID); p != nil && (p.Get().Phase == state.PodStopping || p.Get().Phase == state.PodRemoving) {
		return rec.PodID, errPodStops
	}
	m.created.Passed(rec.CreatedAt)
	e, err := m.indexContainer(u.ID, rec, kept)
	if err != nil {
		return rec.PodID, err
	}
	m.unmanaged.drop(u.ID)
	m.events.ContainerChanged(&state.ContainerRecord{Phase: state.ContainerMaking}, &rec)
	m.attempt("recover container", u.ID, recoverOne(ctx, m, "container", e, func(ctx context.Context, _ bool) error {
		return m.containerLives.Recover(ctx, e, true)
	}))
	return rec.PodID, nil
}
