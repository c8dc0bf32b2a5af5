package csi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-project/coracle/cluster/kubelet/csi/client"
)

// user is a pod that has a volume, by the name of the PersistentVolume or of the inline volume.
type user struct {
	pod    types.UID
	volume string
}

// staged is a volume that is staged on this node, or is about to be.
type staged struct {
	// These do not change. id is the directory of the record.
	id, driver, handle, spec string
	block                    bool
	// turn holds one token. Its owner stages or unstages the volume, and may use the next three.
	turn chan struct{}
	// done says that this process has staged the volume.
	done bool
	// found says that an earlier process may have staged it.
	found bool
	// label is the SELinux label that it is staged with.
	label string

	// Node.mu guards what follows.
	users     map[user]struct{}
	unstaging bool
	// recorded says that there may be a record: the driver may know of the volume.
	recorded bool
	// attached says that the volume is attached, or is to be, and must not be detached. It does not
	// change with the driver's object while the volume is staged.
	attached bool
}

func newStaged(id, driver, handle, spec string, block bool) *staged {
	return &staged{id: id, driver: driver, handle: handle, spec: spec, block: block, turn: make(chan struct{}, 1), users: map[user]struct{}{}}
}

func (s *staged) enter(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *staged) leave() { <-s.turn }

// name is how the node's status calls the volume.
func (s *staged) name() v1.UniqueVolumeName { return uniqueName(s.driver, s.handle) }

// uniquePrefix begins the names of CSI volumes.
const uniquePrefix = "kubernetes.io/csi/"

func uniqueName(driver, handle string) v1.UniqueVolumeName {
	return v1.UniqueVolumeName(uniquePrefix + driver + "^" + handle)
}

// stagePath is where the driver stages the volume.
func (n *Node) stagePath(s *staged) string {
	if s.block {
		return filepath.Join(n.pluginDir(), devicesDir, stagingDir, s.spec)
	}
	return filepath.Join(s.id, globalName)
}

// stageKey is of a directory that another volume's record is in.
func stageKey(id string) string { return "stage/" + id }

// use returns the entry of the request's volume, with one more user: from now on the volume is in
// use. Block volumes share a directory if their PersistentVolumes have the same name, one after the
// other. Then the pod waits until the earlier volume is unstaged.
func (n *Node) use(r *request) (*staged, error) {
	id := n.stageDir(r.driverName, r.handle)
	if r.spec.Block {
		id = n.blockDir(r.spec.Name)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.volumes[id]
	if s != nil && (s.driver != r.driverName || s.handle != r.handle) {
		n.waitLocked(stageKey(id), r.user)
		return nil,
			fmt.Errorf("volume %q of driver %s is still staged on this node for an earlier persistentvolume %q: wait until its pods have ended "+
				"and driver %s has unstaged it",
				s.handle, s.driver, r.spec.Name, s.driver)
	}
	if s == nil {
		if _, unknown := n.unread.dirs[id]; unknown { // it may be staged
			s = n.foundLocked(id, r.spec.Name, r.spec.Block, &record{Driver: r.driverName, Handle: r.handle, Unattached: !r.attachable()})
			for u := range n.unread.users {
				if u.volume == r.spec.Name {
					s.users[u] = struct{}{}
				}
			}
		} else {
			s = newStaged(id, r.driverName, r.handle, r.spec.Name, r.spec.Block)
			n.volumes[id] = s
		}
	}
	s.users[r.user] = struct{}{}
	s.attached = r.attachable() || s.attached && s.recorded
	return s, nil
}

// dropLocked forgets a volume, unless another one has its place, and wakes the pods that wait for
// the place.
func (n *Node) dropLocked(s *staged) {
	if n.volumes[s.id] != s {
		return
	}
	delete(n.volumes, s.id)
	n.unread.settle(s.name())
	if len(n.waiting[stageKey(s.id)]) > 0 {
		n.work.Start(func(context.Context) { n.wake(stageKey(s.id)) })
	}
}

// release takes a user away. A volume without users is unstaged in the background.
func (n *Node) release(u user) {
	n.mu.Lock()
	delete(n.unread.users, u)
	for _, s := range n.volumes {
		if _, has := s.users[u]; has {
			delete(s.users, u)
			n.unstageLocked(s)
		}
	}
	n.mu.Unlock()
	n.inUseChanged()
}

// sweep unstages the volumes that no pod has, of one driver or of all.
func (n *Node) sweep(driver string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.volumes {
		if driver == "" || s.driver == driver {
			n.unstageLocked(s)
		}
	}
}

// unstageLocked begins to unstage a volume that has no users. Without its driver there is nothing
// to do: the driver's registration leads to another sweep.
func (n *Node) unstageLocked(s *staged) {
	if len(s.users) > 0 || s.unstaging {
		return
	}
	if !s.recorded {
		n.dropLocked(s)
		return
	}
	if !n.registry.Has(s.driver) {
		return
	}
	s.unstaging = n.work.Start(func(ctx context.Context) { n.unstage(ctx, s) })
}

const (
	firstRetry = time.Second
	lastRetry  = 2 * time.Minute
)

// unstage unstages a volume, until that succeeds, it has users, or its driver has gone.
func (n *Node) unstage(ctx context.Context, s *staged) {
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		err := n.tryUnstage(ctx, s)
		if n.unstaged(s, err) {
			return
		}
		n.opts.Log.Warn("csi: a volume is not unstaged yet", "driver", s.driver, "volume", s.handle, "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// unstaged says whether unstage has nothing left to do.
func (n *Node) unstaged(s *staged, err error) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err != nil && len(s.users) == 0 && n.registry.Has(s.driver) {
		return false
	}
	s.unstaging = false
	n.unstageLocked(s) // its last user may have gone when this was about to end
	return true
}

// tryUnstage unstages a volume unless it has users again.
func (n *Node) tryUnstage(ctx context.Context, s *staged) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	n.mu.Lock()
	used := len(s.users) > 0
	n.mu.Unlock()
	if used {
		return nil
	}
	d, err := n.registry.Driver(s.driver)
	if err != nil {
		return err
	}
	session, err := d.Open(ctx)
	if err != nil {
		return err
	}
	defer session.Close()
	if err := n.undoStage(ctx, session, s); err != nil {
		return err
	}
	if err := n.unrecord(s); err != nil {
		return err
	}
	n.mu.Lock()
	if len(s.users) == 0 { // a pod that came meanwhile waits for its turn with this entry
		n.dropLocked(s)
	}
	n.mu.Unlock()
	n.opts.Log.Info("csi: volume unstaged", "driver", s.driver, "volume", s.handle)
	n.inUseChanged()
	return nil
}

// undoStage has the driver unstage a volume. The record stays.
func (n *Node) undoStage(ctx context.Context, session *client.Session, s *staged) error {
	s.done = false
	path := n.stagePath(s)
	if session.Can[csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		err := session.Call(ctx, "NodeUnstageVolume", func(ctx context.Context) error {
			_, err := session.Node.NodeUnstageVolume(ctx,
				&csipb.NodeUnstageVolumeRequest{VolumeId: s.handle, StagingTargetPath: session.Seen(path)})
			return err
		})
		if err != nil {
			return err
		}
	}
	if err := n.removePlace(path); err != nil {
		return err
	}
	s.found = false
	return nil
}

// unrecord removes the record of a volume that is not staged.
func (n *Node) unrecord(s *staged) error {
	if err := removeRecord(s.id); err != nil {
		return err
	}
	if s.block {
		_ = os.Remove(filepath.Dir(s.id))
		_ = os.Remove(filepath.Join(n.pluginDir(), devicesDir, publishDir, s.spec))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s.recorded = false
	return nil
}

// changeLabel unstages a volume that has another SELinux label than the request's, so that it can
// be staged with that one. Pods with different labels cannot share a volume.
func (n *Node) changeLabel(ctx context.Context, session *client.Session, s *staged, r *request) error {
	n.mu.Lock()
	recorded, users := s.recorded, len(s.users)
	n.mu.Unlock()
	switch {
	case !recorded || s.label == r.label:
		return nil
	case users > 1:
		return fmt.Errorf("volume %q is mounted with the SELinux label %q for another pod, and this pod needs %q: wait until that pod has ended",
			r.spec.Name, s.label, r.label)
	}
	return n.undoStage(ctx, session, s)
}

// stage stages the request's volume, if the driver does that and this process has not done it. The
// record is written in any case: it says that the volume is in use. As upstream's, it goes when the
// driver ends the call with an error and nothing is left: then there is nothing to unstage.
func (n *Node) stage(ctx context.Context, session *client.Session, s *staged, r *request) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	if err := n.changeLabel(ctx, session, s, r); err != nil {
		return err
	}
	if s.done {
		return nil
	}
	stages := session.Can[csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME]
	var secrets map[string]string
	if stages {
		var err error
		if secrets, err = n.secrets(ctx, r.pv().NodeStageSecretRef); err != nil {
			return err
		}
	}
	n.mu.Lock()
	s.recorded = true
	unattached := !s.attached
	n.mu.Unlock()
	s.label = r.label
	rec := record{Spec: s.spec, Handle: s.handle, Driver: s.driver, SELinux: r.label, Unattached: unattached}
	if err := writeRecord(s.id, rec); err != nil {
		return err
	}
	if !stages {
		s.done = true
		return nil
	}
	path := n.stagePath(s)
	if err := n.makePlace(path); err != nil {
		n.notStaged(s, path)
		return err
	}
	err := session.Call(ctx, "NodeStageVolume", func(ctx context.Context) error {
		_, err := session.Node.NodeStageVolume(ctx, &csipb.NodeStageVolumeRequest{
			VolumeId: s.handle, PublishContext: r.publishContext, StagingTargetPath: session.Seen(path),
			VolumeCapability: r.capability(session), Secrets: secrets, VolumeContext: r.pv().VolumeAttributes,
		})
		return err
	})
	s.done = err == nil
	if err != nil && client.Final(client.CodeOf(err)) {
		n.notStaged(s, path)
	}
	return err
}

// notStaged removes the record of a volume that the driver has not staged now. An earlier process
// may have staged it: then it has to be unstaged.
func (n *Node) notStaged(s *staged, path string) {
	if s.found {
		return
	}
	err := n.removePlace(path)
	if err == nil {
		err = n.unrecord(s)
	}
	if err != nil {
		n.opts.Log.Warn("csi: a volume that was not staged is unstaged later", "driver", s.driver, "volume", s.handle, "err", err)
	}
}

// makePlace makes the directory that a driver stages a volume at. Where something is mounted, it
// exists, and is not looked at: the file system may hang.
func (n *Node) makePlace(path string) error {
	if mounted, err := n.isMounted(path); mounted || err != nil {
		return err
	}
	err := os.MkdirAll(path, 0o750)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	return err
}

// VolumesInUse lists what must not be detached from this node: as upstream has it, the volumes that
// are attached, or are to be. known is what the API has of that, or had when this process wrote it
// last.
func (n *Node) VolumesInUse(known []v1.UniqueVolumeName) []v1.UniqueVolumeName {
	n.forgetRemoved()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.matchLocked(known)
	all := n.perhapsLocked(known)
	for _, s := range n.volumes {
		if s.attached {
			all = append(all, s.name())
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
