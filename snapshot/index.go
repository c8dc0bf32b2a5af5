package snapshot

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"github.com/coracle-project/coracle/snapshot/driver"
	"github.com/coracle-project/coracle/snapshot/layer"
	"github.com/coracle-project/coracle/snapshot/space"
)

// index is which snapshots there are, with the layers that they hold and their projects. It is a
// copy in memory of the records.
type index struct {
	root   string
	layers *layer.Store
	quota  *space.Quotas // set by Store.Start; nil without project quotas

	mu        sync.Mutex
	snapshots map[string]*entry
	projects  space.Projects
}

// entry is one snapshot.
type entry struct {
	snap    Snapshot
	layers  layer.Held
	mounted bool
	// damaged says that its record is; points are then where it is mounted.
	damaged bool
	points  []string
}

// add enters an existing snapshot.
func (x *index) add(e *entry) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.snapshots[e.snap.ID] = e
}

// standing is what there is of a snapshot when Prepare is called.
type standing int

const (
	isNew standing = iota
	isMounted
	isUnmounted
)

// reserve enters the snapshot in the index, so that its layers stay, and returns it with
// what is decided here: its project.
func (x *index) reserve(snap Snapshot) (Snapshot, standing, error) {
	var unused layer.Held
	defer func() { unused.Release() }() // which may call back: not under the lock
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.snapshots[snap.ID]; e != nil {
		if e.damaged {
			return snap, 0, fmt.Errorf("prepare snapshot %s: %w: %w", snap.ID, ErrExists, errDamagedRecord)
		}
		if !e.snap.same(snap) {
			return snap, 0, fmt.Errorf("prepare snapshot %s: %w, with other layers, options or at another target (%s)", snap.ID, ErrExists,
				e.snap.Target)
		}
		if e.mounted {
			return e.snap, isMounted, nil
		}
		return e.snap, isUnmounted, nil
	}
	held, err := x.layers.Hold(snap.Layers)
	if err != nil {
		return snap, 0, fmt.Errorf("prepare snapshot %s: %w", snap.ID, err)
	}
	if x.quota != nil {
		taken := make(map[uint32]bool, len(x.snapshots))
		for _, e := range x.snapshots {
			taken[e.snap.Project] = true
		}
		snap.Project = x.projects.Next(taken)
	} else if snap.Limit != (Usage{}) {
		unused = held
		return snap, 0, fmt.Errorf("prepare snapshot %s: %w: a limit needs project quotas, and %s on %s has none; mount it with prjquota",
			snap.ID, ErrUnsupported, x.root, driver.FSType(x.root))
	}
	x.snapshots[snap.ID] = &entry{snap: snap, layers: held}
	return snap, isNew, nil
}

// forget takes the snapshot from the index and lets go of its layers.
func (x *index) forget(id string) {
	x.mu.Lock()
	e := x.snapshots[id]
	delete(x.snapshots, id)
	x.mu.Unlock()
	if e != nil {
		e.layers.Release()
	}
}

func (x *index) setMounted(id string, mounted bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.snapshots[id].mounted = mounted
}

// pointsOf is where a snapshot is mounted; nowhere if there is none.
func (x *index) pointsOf(id string) []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch e := x.snapshots[id]; {
	case e == nil || !e.mounted:
		return nil
	case e.damaged:
		return e.points
	default:
		return []string{e.snap.Target}
	}
}

// checkRecord returns an error for a snapshot of which nothing is known but where it is.
func (x *index) checkRecord(id string) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.snapshots[id]; e != nil && e.damaged {
		return fmt.Errorf("snapshot %s: %w", id, errDamagedRecord)
	}
	return nil
}

// Get returns a snapshot; ErrNotFound if there is none of that id.
func (x *index) Get(id string) (Snapshot, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.snapshots[id]
	if e == nil {
		return Snapshot{}, fmt.Errorf("snapshot %s: %w", id, ErrNotFound)
	}
	return e.snap, nil
}

// List returns all snapshots, sorted by id.
func (x *index) List() []Snapshot {
	x.mu.Lock()
	defer x.mu.Unlock()
	all := make([]Snapshot, 0, len(x.snapshots))
	for _, e := range x.snapshots {
		all = append(all, e.snap)
	}
	slices.SortFunc(all, func(a, b Snapshot) int { return cmp.Compare(a.ID, b.ID) })
	return all
}
