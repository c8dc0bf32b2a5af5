package csi

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/coracle-project/coracle/cluster/kubelet/node"
)

// damagedReason is the reason of events of records that cannot be read.
const damagedReason = "DamagedVolumeRecord"

// damaged are the records of stages that cannot be read. Their volumes may be mounted, so they must
// stay in the node's volumesInUse. What the API has there tells which volumes they are: that of a
// file system by its directory, which is named by its handle; a block volume by being none that
// this process knows. The record goes when the volume is unstaged or staged again, or by hand.
type damaged struct {
	// dirs are the directories of the records, with the reason. The records of block volumes are
	// in dataDir.
	dirs map[string]error
	// settled are the volumes that this process has unstaged: it was not one of these.
	settled map[v1.UniqueVolumeName]struct{}
	// users are those whose own records cannot be read either. Each may have each volume.
	users map[user]struct{}
}

func (d *damaged) add(dir string, why error) {
	if d.dirs == nil {
		d.dirs = map[string]error{}
	}
	d.dirs[dir] = why
}

func (d *damaged) addUser(u user) {
	if d.users == nil {
		d.users = map[user]struct{}{}
	}
	d.users[u] = struct{}{}
}

// settle notes that a volume is not staged any more.
func (d *damaged) settle(name v1.UniqueVolumeName) {
	if len(d.dirs) == 0 {
		return
	}
	if d.settled == nil {
		d.settled = map[v1.UniqueVolumeName]struct{}{}
	}
	d.settled[name] = struct{}{}
}

// isBlockRecord says whether dir is that of a block volume's record.
func isBlockRecord(dir string) bool {
	return filepath.Base(dir) == dataDir && filepath.Base(filepath.Dir(filepath.Dir(dir))) == devicesDir
}

// tellDamaged says in events which records cannot be read.
func (x *stages) tellDamaged() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for dir, why := range x.unread.dirs {
		x.recorder.Event(node.Ref(x.nodeName), v1.EventTypeWarning, damagedReason, fmt.Sprintf(
			"the record of a volume that is staged on this node cannot be read: %v. If the node's status.volumesInUse names the volume, it "+
				"stays there until it is unstaged. If it is not by itself, have its driver unstage it, and remove the directory %s", why, dir))
	}
}

// forgetRemoved drops the damaged records that were removed by hand.
func (x *stages) forgetRemoved() {
	x.mu.Lock()
	var dirs []string
	for dir := range x.unread.dirs {
		dirs = append(dirs, dir)
	}
	x.mu.Unlock()
	for _, dir := range dirs {
		if _, err := os.Lstat(filepath.Join(dir, recordFile)); os.IsNotExist(err) {
			x.mu.Lock()
			delete(x.unread.dirs, dir)
			x.mu.Unlock()
		}
	}
}

// matchLocked finds the volumes of damaged records among those that the API has as in use. One that
// is found is staged like others, so that its driver unstages it when no pod has it.
func (x *stages) matchLocked(known []v1.UniqueVolumeName) {
	for _, name := range known {
		driver, handle, ok := strings.Cut(strings.TrimPrefix(string(name), uniquePrefix), "^")
		if !ok || len(x.unread.dirs) == 0 {
			continue
		}
		dir := x.places.stageDir(driver, handle)
		if x.unread.dirs[dir] == nil {
			continue
		}
		x.log.Warn("csi: the node's status names the volume of a damaged record", "dir", dir, "driver", driver, "volume", handle)
		s := x.foundLocked(dir, "", false, &record{Driver: driver, Handle: handle})
		for u := range x.unread.users {
			s.users[u] = struct{}{}
		}
		x.unstageLocked(s)
	}
}

// perhapsLocked returns the volumes of known that a damaged record of a block volume may be of.
func (x *stages) perhapsLocked(known []v1.UniqueVolumeName) (all []v1.UniqueVolumeName) {
	blocks := false
	for dir := range x.unread.dirs {
		blocks = blocks || isBlockRecord(dir)
	}
	if !blocks {
		return nil
	}
	have := map[v1.UniqueVolumeName]bool{}
	for _, s := range x.volumes {
		have[s.name()] = true
	}
	return slices.DeleteFunc(slices.Clone(known), func(name v1.UniqueVolumeName) bool {
		_, settled := x.unread.settled[name]
		return have[name] || settled || !strings.HasPrefix(string(name), uniquePrefix)
	})
}
