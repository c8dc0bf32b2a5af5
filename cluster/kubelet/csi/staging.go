package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	recording "k8s.io/client-go/tools/record"

	"github.com/coracle-project/coracle/cluster/kubelet/csi/background"
	"github.com/coracle-project/coracle/cluster/kubelet/csi/client"
	"github.com/coracle-project/coracle/cluster/kubelet/csi/registration"
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

	// stages.mu guards what follows.
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
func (p places) stagePath(s *staged) string {
	if s.block {
		return filepath.Join(p.pluginDir(), devicesDir, stagingDir, s.spec)
	}
	return filepath.Join(s.id, globalName)
}

// stages are the volumes that are staged on this node. They are safe for concurrent use. The locks
// of registry, waiting and work may be taken while mu is held, never the other way round.
type stages struct {
	nodeName string
	log      *slog.Logger
	recorder recording.EventRecorder
	places   places
	mounts   *mountTable
	work     *background.Group
	registry *registration.Registry
	waiting  *waiting
	requests *requests
	// report has the node's status written soon.
	report func()

	mu      sync.Mutex
	volumes map[string]*staged // by the directory of the record
	// unread are the records of stages that cannot be read.
	unread damaged
}

// stageKey is of a directory that another volume's record is in.
func stageKey(id string) string { return "stage/" + id }

// use returns the entry of the request's volume, with one more user: from now on the volume is in
// use. Block volumes share a directory if their PersistentVolumes have the same name, one after the
// other. Then the pod waits until the earlier volume is unstaged.
func (x *stages) use(r *request) (*staged, error) {
	id := x.places.stageDir(r.driverName, r.handle)
	if r.spec.Block {
		id = x.places.blockDir(r.spec.Name)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.volumes[id]
	if s != nil && (s.driver != r.driverName || s.handle != r.handle) {
		x.waiting.add(stageKey(id), r.user)
		return nil,
			fmt.Errorf("volume %q of driver %s is still staged on this node for an earlier persistentvolume %q: wait until its pods have ended "+
				"and driver %s has unstaged it",
				s.handle, s.driver, r.spec.Name, s.driver)
	}
	if s == nil {
		if _, unknown := x.unread.dirs[id]; unknown { // it may be staged
			s = x.foundLocked(id, r.spec.Name, r.spec.Block, &record{Driver: r.driverName, Handle: r.handle, Unattached: !r.attachable()})
			for u := range x.unread.users {
				if u.volume == r.spec.Name {
					s.users[u] = struct{}{}
				}
			}
		} else {
			s = newStaged(id, r.driverName, r.handle, r.spec.Name, r.spec.Block)
			x.volumes[id] = s
		}
	}
	s.users[r.user] = struct{}{}
	s.attached = r.attachable() || s.attached && s.recorded
	return s, nil
}

// dropLocked forgets a volume, unless another one has its place, and wakes the pods that wait for
// the place.
func (x *stages) dropLocked(s *staged) {
	if x.volumes[s.id] != s {
		return
	}
	delete(x.volumes, s.id)
	x.unread.settle(s.name())
	if x.waiting.has(stageKey(s.id)) {
		x.work.Start(func(context.Context) { x.waiting.wake(stageKey(s.id)) })
	}
}

// release takes a user away. A volume without users is unstaged in the background.
func (x *stages) release(u user) {
	x.mu.Lock()
	delete(x.unread.users, u)
	for _, s := range x.volumes {
		if _, has := s.users[u]; has {
			delete(s.users, u)
			x.unstageLocked(s)
		}
	}
	x.mu.Unlock()
	x.report()
}

// sweep unstages the volumes that no pod has, of one driver or of all.
func (x *stages) sweep(driver string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range x.volumes {
		if driver == "" || s.driver == driver {
			x.unstageLocked(s)
		}
	}
}

// unstageLocked begins to unstage a volume that has no users. Without its driver there is nothing
// to do: the driver's registration leads to another sweep.
func (x *stages) unstageLocked(s *staged) {
	if len(s.users) > 0 || s.unstaging {
		return
	}
	if !s.recorded {
		x.dropLocked(s)
		return
	}
	if !x.registry.Has(s.driver) {
		return
	}
	s.unstaging = x.work.Start(func(ctx context.Context) { x.unstage(ctx, s) })
}

const (
	firstRetry = time.Second
	lastRetry  = 2 * time.Minute
)

// unstage unstages a volume, until that succeeds, it has users, or its driver has gone.
func (x *stages) unstage(ctx context.Context, s *staged) {
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		err := x.tryUnstage(ctx, s)
		if x.unstaged(s, err) {
			return
		}
		x.log.Warn("csi: a volume is not unstaged yet", "driver", s.driver, "volume", s.handle, "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// unstaged says whether unstage has nothing left to do.
func (x *stages) unstaged(s *staged, err error) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err != nil && len(s.users) == 0 && x.registry.Has(s.driver) {
		return false
	}
	s.unstaging = false
	x.unstageLocked(s) // its last user may have gone when this was about to end
	return true
}

// tryUnstage unstages a volume unless it has users again.
func (x *stages) tryUnstage(ctx context.Context, s *staged) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	x.mu.Lock()
	used := len(s.users) > 0
	x.mu.Unlock()
	if used {
		return nil
	}
	d, err := x.registry.Driver(s.driver)
	if err != nil {
		return err
	}
	session, err := d.Open(ctx)
	if err != nil {
		return err
	}
	defer session.Close()
	if err := x.undoStage(ctx, session, s); err != nil {
		return err
	}
	if err := x.unrecord(s); err != nil {
		return err
	}
	x.mu.Lock()
	if len(s.users) == 0 { // a pod that came meanwhile waits for its turn with this entry
		x.dropLocked(s)
	}
	x.mu.Unlock()
	x.log.Info("csi: volume unstaged", "driver", s.driver, "volume", s.handle)
	x.report()
	return nil
}

// undoStage has the driver unstage a volume. The record stays.
func (x *stages) undoStage(ctx context.Context, session *client.Session, s *staged) error {
	s.done = false
	path := x.places.stagePath(s)
	var unknown error
	if session.Can[csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		err := session.Call(ctx, "NodeUnstageVolume", func(ctx context.Context) error {
			_, err := session.Node.NodeUnstageVolume(ctx,
				&csipb.NodeUnstageVolumeRequest{VolumeId: s.handle, StagingTargetPath: session.Seen(path)})
			return err
		})
		// A driver that does not know the volume would say so for good: the volume was deleted, or the
		// driver has lost what it knew. That is no failure if nothing is mounted.
		if !s.block && client.CodeOf(err) == codes.NotFound {
			err, unknown = nil, err
		}
		if err != nil {
			return err
		}
	}
	if err := x.mounts.removePlace(path); err != nil {
		return errors.Join(unknown, err)
	}
	if unknown != nil {
		x.log.Info("csi: a volume counts as unstaged, as its driver does not know it and it is not mounted", "driver", s.driver,
			"volume", s.handle, "err", unknown)
	}
	s.found = false
	return nil
}

// unrecord removes the record of a volume that is not staged.
func (x *stages) unrecord(s *staged) error {
	if err := removeRecord(s.id); err != nil {
		return err
	}
	if s.block {
		_ = os.Remove(filepath.Dir(s.id))
		_ = os.Remove(filepath.Join(x.places.pluginDir(), devicesDir, publishDir, s.spec))
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	s.recorded = false
	return nil
}

// changeLabel unstages a volume that has another SELinux label than the request's, so that it can
// be staged with that one. Pods with different labels cannot share a volume.
func (x *stages) changeLabel(ctx context.Context, session *client.Session, s *staged, r *request) error {
	x.mu.Lock()
	recorded, users := s.recorded, len(s.users)
	x.mu.Unlock()
	switch {
	case !recorded || s.label == r.label:
		return nil
	case users > 1:
		return fmt.Errorf("volume %q is mounted with the SELinux label %q for another pod, and this pod needs %q: wait until that pod has ended",
			r.spec.Name, s.label, r.label)
	}
	return x.undoStage(ctx, session, s)
}

// stage stages the request's volume, if the driver does that and this process has not done it. The
// record is written in any case: it says that the volume is in use. As upstream's, it goes when the
// driver ends the call with an error and nothing is left: then there is nothing to unstage.
func (x *stages) stage(ctx context.Context, session *client.Session, s *staged, r *request) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	if err := x.changeLabel(ctx, session, s, r); err != nil {
		return err
	}
	if s.done {
		return nil
	}
	stages := session.Can[csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME]
	var secrets map[string]string
	if stages {
		var err error
		if secrets, err = x.requests.secrets(ctx, r.pv().NodeStageSecretRef); err != nil {
			return err
		}
	}
	x.mu.Lock()
	s.recorded = true
	unattached := !s.attached
	x.mu.Unlock()
	s.label = r.label
	rec := record{Spec: s.spec, Handle: s.handle, Driver: s.driver, SELinux: r.label, Unattached: unattached}
	if err := writeRecord(s.id, rec); err != nil {
		return err
	}
	if !stages {
		s.done = true
		return nil
	}
	path := x.places.stagePath(s)
	if err := x.mounts.makePlace(path); err != nil {
		x.notStaged(s, path)
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
		x.notStaged(s, path)
	}
	return err
}

// notStaged removes the record of a volume that the driver has not staged now. An earlier process
// may have staged it: then it has to be unstaged.
func (x *stages) notStaged(s *staged, path string) {
	if s.found {
		return
	}
	err := x.mounts.removePlace(path)
	if err == nil {
		err = x.unrecord(s)
	}
	if err != nil {
		x.log.Warn("csi: a volume that was not staged is unstaged later", "driver", s.driver, "volume", s.handle, "err", err)
	}
}

// inUse lists what must not be detached from this node: as upstream has it, the volumes that
// are attached, or are to be. known is what the API has of that, or had when this process wrote it
// last.
func (x *stages) inUse(known []v1.UniqueVolumeName) []v1.UniqueVolumeName {
	x.forgetRemoved()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.matchLocked(known)
	all := x.perhapsLocked(known)
	for _, s := range x.volumes {
		if s.attached {
			all = append(all, s.name())
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
