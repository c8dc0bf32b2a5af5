package csi

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-project/coracle/cluster/kubelet/csi/client"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
)

// record is a vol_data.json, in upstream's format.
type record struct {
	// Spec is the PersistentVolume's name, or the name of an inline volume.
	Spec   string                        `json:"specVolID,omitempty"`
	Handle string                        `json:"volumeHandle"`
	Driver string                        `json:"driverName"`
	Node   string                        `json:"nodeName,omitempty"`
	Mode   storagev1.VolumeLifecycleMode `json:"volumeLifecycleMode,omitempty"`
	// Attachment is the name that a VolumeAttachment of the volume has.
	Attachment string `json:"attachmentID,omitempty"`
	// SELinux is the label that the volume was mounted with.
	SELinux string `json:"seLinuxMountContext,omitempty"`
	// Unattached is that the staged volume was never attached: its driver does without. Upstream
	// has no such field.
	Unattached bool `json:"unattached,omitempty,string"`
}

const (
	recordFile = "vol_data.json"
	// mostRecord bounds a record: handles have at most 128 bytes by the specification, and some
	// drivers do not keep to it.
	mostRecord = 64 << 10
	// publishedFile in a volume's State says that publishing has succeeded.
	publishedFile = "published"
)

// Directories of staged volumes.
const (
	devicesDir = client.DevicesDir
	globalName = "globalmount"
	mountName  = "mount"
	stagingDir = "staging"
	publishDir = "publish"
	dataDir    = "data"
)

// places say where volumes and their records are.
type places struct {
	// rootDir is the kubelet's directory, as an absolute path.
	rootDir string
}

// pluginDir is the directory of all staged volumes.
func (p places) pluginDir() string {
	return filepath.Join(p.rootDir, "plugins", "kubernetes.io", "csi")
}

// stageDir is the directory of a volume's record and of its globalmount.
func (p places) stageDir(driver, handle string) string {
	sum := sha256.Sum256([]byte(handle))
	return filepath.Join(p.pluginDir(), driver, hex.EncodeToString(sum[:]))
}

// attachmentName is the name of the VolumeAttachment of a volume and this node.
func attachmentName(handle, driver, node string) string {
	sum := sha256.Sum256([]byte(handle + driver + node))
	return "csi-" + hex.EncodeToString(sum[:])
}

// inlineHandle is the handle of a volume that a pod's spec describes.
func inlineHandle(pod types.UID, name string) string {
	sum := sha256.Sum256([]byte(string(pod) + name))
	return "csi-" + hex.EncodeToString(sum[:])
}

// readRecord reads the record in a directory. It waits for nothing and follows no link.
func readRecord(dir string) (*record, error) {
	path := filepath.Join(dir, recordFile)
	raw, err := layout.ReadFile(path, mostRecord)
	if err != nil {
		return nil, err
	}
	r, err := parseRecord(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: what is mounted next to it has to be unmounted by hand", path, err)
	}
	return r, nil
}

func parseRecord(raw []byte) (*record, error) {
	var r record
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, fmt.Errorf("the record is damaged: %w", err)
	}
	if r.Handle == "" {
		return nil, errors.New("the record names no volume")
	}
	return &r, client.CheckName(r.Driver)
}

// writeRecord writes the record of a directory, made if there is none, at once and whole, also if
// the machine loses its power.
func writeRecord(dir string, r record) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if len(raw) > mostRecord {
		return fmt.Errorf("volume handle of %d bytes is too long", len(r.Handle))
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "."+recordFile+"-")
	if err != nil {
		return err
	}
	if _, err = f.Write(raw); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, recordFile))
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// removeRecord removes the record of a directory, and the directory if nothing else is in it.
func removeRecord(dir string) error {
	if err := os.Remove(filepath.Join(dir, recordFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	entries, _ := filepath.Glob(filepath.Join(globQuote(dir), "."+recordFile+"-*")) // of a kubelet that was killed
	for _, e := range entries {
		_ = os.Remove(e)
	}
	_ = os.Remove(dir) // fails if drivers have left something there
	return nil
}

// load finds the volumes that are staged, and the pods that have them.
func (x *stages) load() error {
	records, err := recordDirs(x.places.pluginDir())
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, dir := range records {
		block := isBlockRecord(dir)
		r, err := readRecord(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			x.log.Error("csi: a volume's record cannot be read", "dir", dir, "err", err)
			x.unread.add(dir, err)
			continue
		}
		spec := r.Spec
		if block {
			spec = filepath.Base(filepath.Dir(dir))
		}
		x.foundLocked(dir, spec, block, r)
	}
	return x.readUsersLocked()
}

// foundLocked adds a volume that an earlier kubelet has staged.
func (x *stages) foundLocked(dir, spec string, block bool, r *record) *staged {
	s := newStaged(dir, r.Driver, r.Handle, spec, block)
	s.recorded, s.found, s.label, s.attached = true, true, r.SELinux, !r.Unattached
	x.volumes[dir] = s
	delete(x.unread.dirs, dir)
	return s
}

// userOfLocked adds a pod whose own record cannot be read to the users of the volume of that name,
// so that the volume is not unstaged while the pod has it.
func (x *stages) userOfLocked(u user, block bool) {
	known := false
	for _, s := range x.volumes {
		if s.spec == u.volume && s.block == block {
			s.users[u], known = struct{}{}, true
		}
	}
	if !known {
		x.unread.addUser(u)
	}
}

// recordOf makes the record of a pod's volume from that of the staged volume, nil if there is none.
func (x *stages) recordOf(u user, block bool) *record {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range x.volumes {
		if _, has := s.users[u]; has && s.block == block && s.spec != "" { // else it may be another volume
			return &record{Spec: s.spec, Handle: s.handle, Driver: s.driver, SELinux: s.label}
		}
	}
	return nil
}

// readUsersLocked finds the pods that have volumes.
func (x *stages) readUsersLocked() error {
	pods := filepath.Join(x.places.rootDir, "pods")
	uids, err := layout.Directories(pods)
	if err != nil {
		return err
	}
	for _, uid := range uids {
		for _, place := range []string{"volumes", "plugins"} {
			dir := filepath.Join(pods, uid, place, pluginName)
			specs, err := layout.Directories(dir)
			if err != nil {
				x.log.Error("csi: a pod's volumes cannot be listed", "dir", dir, "err", err)
				continue
			}
			for _, spec := range specs {
				r, err := readRecord(filepath.Join(dir, spec))
				if errors.Is(err, fs.ErrNotExist) {
					continue
				}
				if err != nil {
					x.log.Error("csi: a volume's record cannot be read", "dir", filepath.Join(dir, spec), "err", err)
					x.userOfLocked(user{pod: types.UID(uid), volume: spec}, place == "plugins")
					continue
				}
				id := x.places.stageDir(r.Driver, r.Handle)
				if place == "plugins" {
					id = x.places.blockDir(spec)
				}
				s := x.volumes[id]
				if s == nil && r.Mode == storagev1.VolumeLifecyclePersistent { // the record of its stage cannot be read, and is written again
					if s = x.foundLocked(id, spec, place == "plugins", r); writeRecord(id,
						record{Spec: spec, Handle: r.Handle, Driver: r.Driver, SELinux: r.SELinux}) != nil {
						x.log.Error("csi: a staged volume's record cannot be written again", "dir", id)
					}
				}
				if s != nil && s.driver == r.Driver && s.handle == r.Handle {
					s.users[user{pod: types.UID(uid), volume: spec}] = struct{}{}
				}
			}
		}
	}
	return nil
}

// recordDirs lists the directories that have, or had, the record of a staged volume.
func recordDirs(plugin string) (dirs []string, err error) {
	drivers, err := layout.Directories(plugin)
	if err != nil {
		return nil, err
	}
	for _, d := range drivers {
		all, err := layout.Directories(filepath.Join(plugin, d))
		if err != nil {
			return nil, err
		}
		for _, v := range all {
			dir := filepath.Join(plugin, d, v)
			if d == devicesDir {
				if v == stagingDir || v == publishDir {
					continue
				}
				dir = filepath.Join(dir, dataDir)
			}
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}
