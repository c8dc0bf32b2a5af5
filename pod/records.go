package pod

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
func (m *Manager) index(r *state.Records) (b bare) {
	for id, rec := range r.Pods.Records {
		m.created.Passed(rec.CreatedAt)
		if _, err := m.indexPod(id, rec, r.Pods.Kept[id]); err != nil {
			m.leave(Unmanaged{Kind: UnmanagedPod, ID: id, PodID: id}, err)
		}
	}
	for id, err := range r.Pods.Unread {
		if errors.Is(err, fs.ErrNotExist) {
			b.pods = append(b.pods, id)
			continue
		}
		m.leave(Unmanaged{Kind: UnmanagedPod, ID: id, PodID: id}, err)
	}
	for id, rec := range r.Containers.Records {
		m.created.Passed(rec.CreatedAt)
		if _, err := m.indexContainer(id, rec, r.Containers.Kept[id]); err != nil {
			m.leave(Unmanaged{Kind: UnmanagedContainer, ID: id, PodID: rec.PodID}, err)
		}
	}
	for id, err := range r.Containers.Unread {
		if errors.Is(err, fs.ErrNotExist) {
			b.containers = append(b.containers, id)
			continue
		}
		m.leave(Unmanaged{Kind: UnmanagedContainer, ID: id, PodID: m.podInBundle(id)}, err)
	}
	return b
}

// indexPod adds a pod with its turn taken.
func (m *Manager) indexPod(id string, rec state.PodRecord, kept *recordfile.Kept) (*state.PodEntry, error) {
	e := table.NewEntry(id, m.dirs.Pods(), m.reserve, rec, m.events.PodChanged)
	e.Kept = kept
	_ = e.Turn.Take(m.life.Context()) // the turn is free: the entry is new
	identity := rec.Config.Identity()
	if rec.Phase == state.PodRemoving || rec.Phase == state.PodMaking {
		identity += "\x00" + id // its name is already in use
	}
	if holder, ok := m.pods.Add(identity, e); !ok {
		return nil, fmt.Errorf("pod %s has the same name %s", holder, rec.Config.String())
	}
	m.selinux.Hold(rec.Labels)
	return e, nil
}

// indexContainer adds a container with its turn taken.
func (m *Manager) indexContainer(id string, rec state.ContainerRecord, kept *recordfile.Kept) (*state.ContainerEntry, error) {
	e := table.NewEntry(id, m.dirs.Containers(), m.reserve, rec, m.events.ContainerChanged)
	e.Kept = kept
	_ = e.Turn.Take(m.life.Context()) // the turn is free: the entry is new
	identity := rec.Config.Identity(rec.PodID)
	if rec.Phase == state.ContainerRemoving || rec.Phase == state.ContainerMaking {
		identity += "\x00" + id
	} else if m.pods.Exact(rec.PodID) == nil {
		return nil, fmt.Errorf("the record of its pod %s is missing or unreadable", rec.PodID)
	}
	if holder, ok := m.containers.Add(identity, e); !ok {
		return nil, fmt.Errorf("container %s has the same name %s", holder, rec.Config.Name)
	}
	m.selinux.Hold(rec.Labels)
	return e, nil
}
