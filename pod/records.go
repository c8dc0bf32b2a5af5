package pod

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/coracle-project/coracle/internal/recordfile"
	"github.com/coracle-project/coracle/pod/record"
	"github.com/coracle-project/coracle/pod/table"
)

// Records are the records of a state directory.
type Records struct {
	pods       record.Loaded[podRecord]
	containers record.Loaded[containerRecord]
}

// ReadRecords reads all records and changes nothing. A record of a newer daemon is an error
// (*recordfile.NewerError): this daemon does not understand it, and could destroy what it
// describes.
func ReadRecords(stateDir string) (*Records, error) {
	pods, err := podsIn(stateDir).LoadAll()
	if err != nil {
		return nil, err
	}
	containers, err := containersIn(stateDir).LoadAll()
	if err != nil {
		return nil, err
	}
	for id, rec := range pods.Records {
		if err := rec.check(id); err != nil {
			delete(pods.Records, id)
			pods.Unread[id] = err
		}
	}
	for id, rec := range containers.Records {
		if err := rec.check(id); err != nil {
			delete(containers.Records, id)
			containers.Unread[id] = err
		}
	}
	for _, unread := range []map[string]error{pods.Unread, containers.Unread} {
		for _, err := range unread {
			if recordfile.Newer(err) != nil {
				return nil, err
			}
		}
	}
	return &Records{pods, containers}, nil
}

func podsIn(stateDir string) record.Dir[podRecord] {
	return record.Dir[podRecord]{Path: filepath.Join(stateDir, "pods"), Name: "pod.json", Version: recordVersion}
}

func containersIn(stateDir string) record.Dir[containerRecord] {
	return record.Dir[containerRecord]{Path: filepath.Join(stateDir, "containers"), Name: "container.json", Version: recordVersion}
}

// check validates a parsed record.
func (r *podRecord) check(id string) error {
	switch r.Phase {
	case podMaking, podReady, podBroken, podStopping, podStopped, podRemoving:
	default:
		return fmt.Errorf("pod.json: unknown phase %q", r.Phase)
	}
	if r.ID != id {
		return fmt.Errorf("pod.json: belongs to pod %q", r.ID)
	}
	return nil
}

func (r *containerRecord) check(id string) error {
	switch r.Phase {
	case containerMaking, containerCreated, containerStarting, containerRunning, containerExited, containerRemoving:
	default:
		return fmt.Errorf("container.json: unknown phase %q", r.Phase)
	}
	if r.ID != id {
		return fmt.Errorf("container.json: belongs to container %q", r.ID)
	}
	return nil
}

// bare are directories without a record.
type bare struct{ pods, containers []string }

// index adds the records' objects, with all turns taken. Objects with an unreadable record become
// unmanaged.
func (m *Manager) index(r *Records) (b bare) {
	for id, rec := range r.pods.Records {
		m.created.passed(rec.CreatedAt)
		if _, err := m.indexPod(id, rec, r.pods.Kept[id]); err != nil {
			m.leave(Unmanaged{Kind: UnmanagedPod, ID: id, PodID: id}, err)
		}
	}
	for id, err := range r.pods.Unread {
		if errors.Is(err, fs.ErrNotExist) {
			b.pods = append(b.pods, id)
			continue
		}
		m.leave(Unmanaged{Kind: UnmanagedPod, ID: id, PodID: id}, err)
	}
	for id, rec := range r.containers.Records {
		m.created.passed(rec.CreatedAt)
		if _, err := m.indexContainer(id, rec, r.containers.Kept[id]); err != nil {
			m.leave(Unmanaged{Kind: UnmanagedContainer, ID: id, PodID: rec.PodID}, err)
		}
	}
	for id, err := range r.containers.Unread {
		if errors.Is(err, fs.ErrNotExist) {
			b.containers = append(b.containers, id)
			continue
		}
		m.leave(Unmanaged{Kind: UnmanagedContainer, ID: id, PodID: m.podInBundle(id)}, err)
	}
	return b
}

// indexPod adds a pod with its turn taken.
func (m *Manager) indexPod(id string, rec podRecord, kept *recordfile.Kept) (*table.Entry[podRecord], error) {
	e := table.NewEntry(id, m.podDir(), m.reserve, rec, m.podChanged)
	e.Kept = kept
	_ = e.Turn.Take(m.life.Context()) // the turn is free: the entry is new
	identity := rec.Config.Identity()
	if rec.Phase == podRemoving || rec.Phase == podMaking {
		identity += "\x00" + id // its name is already in use
	}
	if holder, ok := m.pods.Add(identity, e); !ok {
		return nil, fmt.Errorf("pod %s has the same name %s", holder, rec.Config.String())
	}
	m.selinux.Hold(rec.Labels)
	return e, nil
}

// indexContainer adds a container with its turn taken.
func (m *Manager) indexContainer(id string, rec containerRecord, kept *recordfile.Kept) (*table.Entry[containerRecord], error) {
	e := table.NewEntry(id, m.containerDir(), m.reserve, rec, m.containerChanged)
	e.Kept = kept
	_ = e.Turn.Take(m.life.Context()) // the turn is free: the entry is new
	identity := rec.Config.Identity(rec.PodID)
	if rec.Phase == containerRemoving || rec.Phase == containerMaking {
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
