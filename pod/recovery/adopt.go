package recovery

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
func (rv *Recoverer) readAgain(ctx context.Context, u Unmanaged) {
	if rv.Await(ctx) != nil {
		return
	}
	for pause := firstReread; ; pause = min(2*pause, lastReread) {
		if life.Sleep(ctx, pause) != nil {
			return
		}
		release, err := rv.unmanaged.busy.Acquire(ctx, u.ID)
		if err != nil {
			return
		}
		again := rv.unmanaged.has(u.ID) && rv.Adopt(ctx, u)
		release()
		if !again {
			return
		}
	}
}

// Adopt takes an unmanaged pod or container back if its record can be read by now. again says
// that it may be readable later. The caller holds its id.
func (rv *Recoverer) Adopt(ctx context.Context, u Unmanaged) (again bool) {
	var err error
	if u.Kind == UnmanagedPod {
		err = rv.adoptPod(ctx, u.ID)
	} else {
		u.PodID, err = rv.adoptContainer(ctx, u)
	}
	switch {
	case err == nil:
		rv.Log.Info("record is readable again, "+string(u.Kind)+" is managed", "id", u.ID)
		return false
	case transient.Is(err), errors.Is(err, errPodStops):
		return true
	}
	rv.unmanaged.put(u.because(err))
	return false
}

// adoptPod shows and recovers a pod, and its containers that waited for it.
func (rv *Recoverer) adoptPod(ctx context.Context, id string) error {
	rec, kept, err := rv.Dirs.Pods().Load(id)
	if err == nil {
		err = rec.Check(id)
	}
	if err != nil {
		return err
	}
	rv.Created.Passed(rec.CreatedAt)
	e, err := rv.indexPod(id, rec, kept)
	if err != nil {
		return err
	}
	rv.unmanaged.drop(id)
	rv.Events.PodChanged(&state.PodRecord{Phase: state.PodMaking}, &rec)
	rv.attempt("recover pod", id, recoverOne(ctx, rv, "pod", e, func(ctx context.Context, _ bool) error {
		return rv.PodLives.Recover(ctx, e, true)
	}))
	for _, u := range rv.In(id) {
		release, err := rv.unmanaged.busy.Acquire(ctx, u.ID)
		if err != nil {
			return nil // the life ends
		}
		if rv.unmanaged.has(u.ID) && rv.Adopt(ctx, u) {
			rv.Life.Start(func(ctx context.Context) { rv.readAgain(ctx, u) })
		}
		release()
	}
	return nil
}

// errPodStops says that a container is not adopted now: the stop or removal of its pod has it on
// its list as unmanaged.
var errPodStops = errors.New("its pod is being stopped or removed")

// adoptContainer also tells the container's pod, as far as it is known.
func (rv *Recoverer) adoptContainer(ctx context.Context, u Unmanaged) (podID string, err error) {
	rec, kept, err := rv.Dirs.Containers().Load(u.ID)
	if err == nil {
		err = rec.Check(u.ID)
	}
	if err != nil {
		return u.PodID, err
	}
	if p := rv.Pods.Exact(rec.PodID); p != nil && (p.Get().Phase == state.PodStopping || p.Get().Phase == state.PodRemoving) {
		return rec.PodID, errPodStops
	}
	rv.Created.Passed(rec.CreatedAt)
	e, err := rv.indexContainer(u.ID, rec, kept)
	if err != nil {
		return rec.PodID, err
	}
	rv.unmanaged.drop(u.ID)
	rv.Events.ContainerChanged(&state.ContainerRecord{Phase: state.ContainerMaking}, &rec)
	rv.attempt("recover container", u.ID, recoverOne(ctx, rv, "container", e, func(ctx context.Context, _ bool) error {
		return rv.ContainerLives.Recover(ctx, e, true)
	}))
	return rec.PodID, nil
}
