package recovery

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/coracle-project/coracle/internal/recordfile"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/table"
)

// bare are directories without a record.
type bare struct{ pods, containers []string }

// index adds the records' objects, with all turns taken. Objects with an unreadable record become
// unmanaged.
func (rv *Recoverer) index(r *state.Records) (b bare) {
	for id, rec := range r.Pods.Records {
		rv.Created.Passed(rec.CreatedAt)
		if _, err := rv.indexPod(id, rec, r.Pods.Kept[id]); err != nil {
			rv.leave(Unmanaged{Kind: UnmanagedPod, ID: id, PodID: id}, err)
		}
	}
	for id, err := range r.Pods.Unread {
		if errors.Is(err, fs.ErrNotExist) {
			b.pods = append(b.pods, id)
			continue
		}
		rv.leave(Unmanaged{Kind: UnmanagedPod, ID: id, PodID: id}, err)
	}
	for id, rec := range r.Containers.Records {
		rv.Created.Passed(rec.CreatedAt)
		if _, err := rv.indexContainer(id, rec, r.Containers.Kept[id]); err != nil {
			rv.leave(Unmanaged{Kind: UnmanagedContainer, ID: id, PodID: rec.PodID}, err)
		}
	}
	for id, err := range r.Containers.Unread {
		if errors.Is(err, fs.ErrNotExist) {
			b.containers = append(b.containers, id)
			continue
		}
		rv.leave(Unmanaged{Kind: UnmanagedContainer, ID: id, PodID: rv.podInBundle(id)}, err)
	}
	return b
}

// indexPod adds a pod with its turn taken.
func (rv *Recoverer) indexPod(id string, rec state.PodRecord, kept *recordfile.Kept) (*state.PodEntry, error) {
	e := table.NewEntry(id, rv.Dirs.Pods(), rv.Reserve, rec, rv.Events.PodChanged)
	e.Kept = kept
	_ = e.Turn.Take(rv.Life.Context()) // the turn is free: the entry is new
	identity := rec.Config.Identity()
	if rec.Phase == state.PodRemoving || rec.Phase == state.PodMaking {
		identity += "\x00" + id // its name is already in use
	}
	if holder, ok := rv.Pods.Add(identity, e); !ok {
		return nil, fmt.Errorf("pod %s has the same name %s", holder, rec.Config.String())
	}
	rv.SELinux.Hold(rec.Labels)
	return e, nil
}

// indexContainer adds a container with its turn taken.
func (rv *Recoverer) indexContainer(id string, rec state.ContainerRecord, kept *recordfile.Kept) (*state.ContainerEntry, error) {
	e := table.NewEntry(id, rv.Dirs.Containers(), rv.Reserve, rec, rv.Events.ContainerChanged)
	e.Kept = kept
	_ = e.Turn.Take(rv.Life.Context()) // the turn is free: the entry is new
	identity := rec.Config.Identity(rec.PodID)
	if rec.Phase == state.ContainerRemoving || rec.Phase == state.ContainerMaking {
		identity += "\x00" + id
	} else if rv.Pods.Exact(rec.PodID) == nil {
		return nil, fmt.Errorf("the record of its pod %s is missing or unreadable", rec.PodID)
	}
	if holder, ok := rv.Containers.Add(identity, e); !ok {
		return nil, fmt.Errorf("container %s has the same name %s", holder, rec.Config.Name)
	}
	rv.SELinux.Hold(rec.Labels)
	return e, nil
}
