package recovery

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coracle-project/coracle/internal/keylock"
	"github.com/coracle-project/coracle/internal/transient"
	"github.com/coracle-project/coracle/network"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/failure"
	"github.com/coracle-project/coracle/pod/mounts"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/table"
	"github.com/coracle-project/coracle/shim/client"
)

// Unmanaged is a pod or container that has no usable record, but parts of it exist and may be
// running. It is in no list. Its processes, network, namespaces, root and volumes stay untouched.
// Stop, Remove, StopContainer and RemoveContainer accept its id; they stop or remove everything
// found under that id.
type Unmanaged struct {
	Kind UnmanagedKind `json:"kind"`
	ID   string        `json:"id"`
	// PodID is the pod's own id, or the id of a container's pod; empty if unknown.
	PodID string `json:"podID,omitempty"`
	// Reason says what is wrong and what can be done.
	Reason string `json:"reason"`
	// Since is when it was found.
	Since time.Time `json:"since"`
}

// unmanagedName replaces unknown names. CRI clients reject a status without names, and crictl asks
// for the status of what it removes.
const unmanagedName = "unmanaged"

// Pod returns its status.
func (u Unmanaged) Pod() state.Pod {
	return state.Pod{
		ID: u.ID, Config: podconfig.Pod{Name: unmanagedName, Namespace: unmanagedName, UID: u.ID}, State: state.NotReady,
		CreatedAt: u.Since,
	}
}

// Container returns its status.
func (u Unmanaged) Container() state.Container {
	return state.Container{
		ID: u.ID, PodID: u.PodID, Config: podconfig.Container{Name: unmanagedName, Image: unmanagedName},
		ImageID: unmanagedName, ImageRef: unmanagedName,
		State: state.Unknown, CreatedAt: u.Since, Reason: "Unmanaged", Message: u.Reason,
	}
}

// UnmanagedKind is the kind of an Unmanaged.
type UnmanagedKind string

// The kinds.
const (
	UnmanagedPod       UnmanagedKind = "pod"
	UnmanagedContainer UnmanagedKind = "container"
)

// unmanagedSet holds the unmanaged objects by id.
type unmanagedSet struct {
	busy keylock.Lock // ids that are being recovered or removed

	mu   sync.Mutex
	byID map[string]Unmanaged
}

func newUnmanagedSet() unmanagedSet { return unmanagedSet{byID: map[string]Unmanaged{}} }

func (s *unmanagedSet) put(u Unmanaged) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byID[u.ID] = u
}

// inPod sets the pod of a container.
func (s *unmanagedSet) inPod(id, podID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u, ok := s.byID[id]; ok && u.Kind == UnmanagedContainer {
		u.PodID = podID
		s.byID[id] = u
	}
}

func (s *unmanagedSet) drop(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byID, id)
}

func (s *unmanagedSet) has(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.byID[id]
	return ok
}

// all returns the objects that fit, sorted by kind and id.
func (s *unmanagedSet) all(fits func(Unmanaged) bool) []Unmanaged {
	s.mu.Lock()
	defer s.mu.Unlock()
	var us []Unmanaged
	for _, u := range s.byID {
		if fits(u) {
			us = append(us, u)
		}
	}
	slices.SortFunc(us, func(a, b Unmanaged) int {
		return cmp.Or(-cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID))
	})
	return us
}

// All returns all unmanaged pods and containers, pods first.
func (rv *Recoverer) All() []Unmanaged {
	return rv.unmanaged.all(func(Unmanaged) bool { return true })
}

// In returns the unmanaged containers of a pod.
func (rv *Recoverer) In(podID string) []Unmanaged {
	return rv.unmanaged.all(func(u Unmanaged) bool { return u.Kind == UnmanagedContainer && u.PodID == podID })
}

// Find finds an object by its id or a unique prefix.
func (rv *Recoverer) Find(kind UnmanagedKind, id string) (Unmanaged, bool) {
	us := rv.unmanaged.all(func(u Unmanaged) bool {
		return u.Kind == kind && (u.ID == id || id != "" && len(id) < table.IDLength && strings.HasPrefix(u.ID, id))
	})
	if len(us) == 1 {
		return us[0], true
	}
	for _, u := range us {
		if u.ID == id {
			return u, true
		}
	}
	return Unmanaged{}, false
}

// leave makes an object unmanaged. If its record may become readable, leave schedules retries.
func (rv *Recoverer) leave(u Unmanaged, cause error) {
	rv.unmanaged.put(u.because(cause))
	if transient.Is(cause) {
		rv.Life.Start(func(ctx context.Context) { rv.readAgain(ctx, u) })
	}
}

// because sets the reason, with the command that removes the object.
func (u Unmanaged) because(cause error) Unmanaged {
	remove := "crictl rm "
	if u.Kind == UnmanagedPod {
		remove = "crictl rmp "
	}
	if u.Since.IsZero() {
		u.Since = time.Now()
	}
	u.Reason = cause.Error() + "; it stays untouched until you remove it by its id: " + remove + u.ID
	return u
}

// logUnmanaged logs once what recovery has left alone.
func (rv *Recoverer) logUnmanaged() {
	for _, u := range rv.All() {
		rv.Log.Error("leaving unmanaged "+string(u.Kind)+" alone", "id", u.ID, "pod", u.PodID, "reason", u.Reason)
	}
}

// podInBundle is the pod that a container's bundle names, empty if it cannot be known.
func (rv *Recoverer) podInBundle(id string) string {
	b, err := os.ReadFile(filepath.Join(rv.Dirs.Containers().Of(id), "config.json"))
	if err != nil {
		return ""
	}
	var spec struct {
		Annotations map[string]string `json:"annotations"`
	}
	if json.Unmarshal(b, &spec) != nil {
		return ""
	}
	return spec.Annotations[sandboxAnnotation]
}

// sandboxAnnotation holds the pod's id in each container's specification.
const sandboxAnnotation = "io.kubernetes.cri.sandbox-id"

// unmanagedSnapshots returns the ids of the snapshots of a container without a record: of its root,
// and of the mount points in its directory (see volumes). If it fails, there may be more.
func (rv *Recoverer) unmanagedSnapshots(id string) ([]string, error) {
	ids := []string{id}
	if len(id) < table.IDLength {
		return ids, nil // not an id of ours
	}
	dir := rv.Dirs.Containers().Of(id)
	mounts, err := os.ReadDir(filepath.Join(dir, "volumes"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, mount := range mounts {
		ids = append(ids, state.VolumePrefix(id)+mount.Name())
	}
	switch _, err := os.Stat(filepath.Join(dir, "checkpoint")); {
	case err == nil:
		ids = append(ids, state.CheckpointImageID(id))
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	return ids, nil
}

// Stop kills all processes of an unmanaged pod or container.
func (rv *Recoverer) Stop(ctx context.Context, u Unmanaged) error {
	return rv.ops.Do(ctx, "stop-unmanaged/"+u.ID, stopLimit, func(ctx context.Context) error {
		if err := rv.Await(ctx); err != nil {
			return err
		}
		if u.Kind == UnmanagedContainer {
			return rv.endUnmanaged(ctx, u)
		}
		ids, err := rv.shimHas(ctx, u.ID)
		if err != nil {
			return err
		}
		for _, id := range ids {
			if err := rv.Exits.End(ctx, u.ID, id); err != nil {
				return failure.During("container", id, err)
			}
		}
		return nil
	})
}

// endUnmanaged ends a container. If its pod is not known, any shim may have it.
func (rv *Recoverer) endUnmanaged(ctx context.Context, u Unmanaged) error {
	if u.PodID != "" {
		return rv.Exits.End(ctx, u.PodID, u.ID)
	}
	a, err := rv.listShims(ctx)
	if err != nil {
		return err
	}
	for podID, ids := range a.known {
		if slices.Contains(ids, u.ID) {
			return rv.Exits.End(ctx, podID, u.ID)
		}
	}
	if len(a.silent) > 0 {
		return &client.UnansweredError{Pods: a.silent}
	}
	return nil
}

// shimHas are the containers of an unmanaged pod, with its init.
func (rv *Recoverer) shimHas(ctx context.Context, podID string) ([]string, error) {
	a, err := rv.listShims(ctx)
	if err != nil {
		return nil, err
	}
	return a.known[podID], a.silent[podID]
}

// Remove removes everything found under the id of an unmanaged pod or container.
func (rv *Recoverer) Remove(ctx context.Context, u Unmanaged) error {
	return rv.ops.Do(ctx, "remove-unmanaged/"+u.ID, removeLimit, func(ctx context.Context) error {
		if err := rv.Await(ctx); err != nil {
			return err
		}
		rv.Log.Warn("removing an unmanaged "+string(u.Kind)+" by request", "id", u.ID, "pod", u.PodID)
		if u.Kind == UnmanagedContainer {
			return rv.DropContainer(ctx, u)
		}
		return rv.dropUnmanagedPod(ctx, u.ID)
	})
}

func (rv *Recoverer) dropUnmanagedPod(ctx context.Context, podID string) error {
	release, err := rv.unmanaged.busy.Acquire(ctx, podID)
	if err != nil {
		return err
	}
	defer release()
	if !rv.unmanaged.has(podID) {
		return errdefs.Errorf(errdefs.ErrUnavailable, "its record has become readable; try again")
	}
	for _, u := range rv.In(podID) {
		if err := rv.DropContainer(ctx, u); err != nil {
			return failure.During("container", u.ID, err)
		}
	}
	ids, err := rv.shimHas(ctx, podID) // the init
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := rv.Exits.End(ctx, podID, id); err != nil {
			return failure.During("container", id, err)
		}
	}
	if err := rv.FaultAt(ctx, faultUnmanagedEnded); err != nil {
		return err
	}
	if err := rv.Network.Teardown(ctx, network.Pod{ID: podID, NetNS: filepath.Join(rv.Dirs.NamespacesOf(podID), "net")}); err != nil {
		return err
	}
	if err := rv.FaultAt(ctx, faultUnmanagedNetwork); err != nil {
		return err
	}
	if err := rv.Namespaces.Remove(ctx, rv.Dirs.NamespacesOf(podID)); err != nil {
		return err
	}
	if err := rv.Shim.DeletePod(ctx, podID); err != nil {
		return err
	}
	if err := mounts.Detach(rv.Dirs.PodFiles(podID)); err != nil {
		return err
	}
	if err := rv.Dirs.Pods().Remove(podID); err != nil {
		return err
	}
	rv.unmanaged.drop(podID)
	return nil
}

// DropContainer ends an unmanaged container and removes everything found under its id.
func (rv *Recoverer) DropContainer(ctx context.Context, u Unmanaged) error {
	release, err := rv.unmanaged.busy.Acquire(ctx, u.ID)
	if err != nil {
		return err
	}
	defer release()
	if !rv.unmanaged.has(u.ID) {
		if rv.Containers.Exact(u.ID) == nil {
			return nil // another call removed it
		}
		return errdefs.Errorf(errdefs.ErrUnavailable, "its record has been read meanwhile, try again")
	}
	if err := rv.endUnmanaged(ctx, u); err != nil {
		return err
	}
	if err := rv.FaultAt(ctx, faultUnmanagedKilled); err != nil {
		return err
	}
	snapshots, err := rv.unmanagedSnapshots(u.ID)
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range snapshots {
		errs = append(errs, rv.Snapshots.Remove(ctx, id))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := rv.FaultAt(ctx, faultUnmanagedSnapshots); err != nil {
		return err
	}
	if err := rv.removeContainerDir(u.ID); err != nil {
		return err
	}
	rv.unmanaged.drop(u.ID)
	return nil
}

// removeContainerDir removes a directory without an entry. It unmounts first: deletion must not
// reach into mounts.
func (rv *Recoverer) removeContainerDir(id string) error {
	dir := rv.Dirs.Containers().Of(id)
	points, err := mountPoints(dir)
	if err != nil {
		return err
	}
	for _, at := range points {
		if err := mounts.Detach(at); err != nil {
			return err
		}
	}
	return rv.Dirs.Containers().Remove(id)
}

// mountPoints are the places in a container's directory where something may be mounted.
func mountPoints(dir string) ([]string, error) {
	at := []string{filepath.Join(dir, "rootfs"), filepath.Join(dir, "checkpoint")}
	volumes, err := os.ReadDir(filepath.Join(dir, "volumes"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, v := range volumes {
		at = append(at, filepath.Join(dir, "volumes", v.Name()))
	}
	return at, nil
}
