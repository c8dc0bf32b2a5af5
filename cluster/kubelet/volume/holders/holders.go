// Package holders knows which pods on this node have which PersistentVolumes. Directories of
// the pods are the only record: it is written before a volume is mounted, and read once at the
// first question.
package holders

import (
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/source"
)

// Volumes that a Source mounts are recorded before that, so that a kubelet that starts after a
// crash knows of each:
//
//	pods/UID/plugins/PLUGIN/NAME/claimed   the pod has the PersistentVolume NAME, or is about to
//	pods/UID/plugins/PLUGIN/NAME/inline    likewise of a volume that is none
//
// Where they are says which; in the file claimed is the pod's name.
const (
	claimedFile = "claimed"
	inlineFile  = "inline"
)

// Table has the holders of all volumes on this node. It is safe for concurrent use.
type Table struct {
	rootDir string
	log     *slog.Logger

	// mu is held while a pod takes a volume. volumes are read from disk once, and nil before that.
	mu      sync.Mutex
	volumes holders
}

// New returns the table of a node; rootDir is the kubelet's directory. It touches nothing.
func New(rootDir string, log *slog.Logger) *Table { return &Table{rootDir: rootDir, log: log} }

// Take records that the pod has the volume, unless another pod on this node has it that must have
// ended before.
func (t *Table) Take(pod *v1.Pod, s *source.Spec) error {
	file, content := inlineFile, ""
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.PV != nil {
		file, content = claimedFile, layout.FullName(pod)
		if err := t.findLocked(); err != nil {
			return err
		}
		if err := t.volumes.refuse(pod, s.PV); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(s.State, 0o750); err != nil {
		return err
	}
	// The only record is not written again: a crash on the way, or a full disk, would empty it.
	if s.PV != nil && t.volumes[s.PV.Name][pod.UID] == content {
		return nil
	}
	if err := os.WriteFile(filepath.Join(s.State, file), []byte(content), 0o640); err != nil {
		return err
	}
	if s.PV != nil {
		t.volumes.add(s.PV.Name, pod.UID, content)
	}
	return nil
}

// findLocked reads the holders once.
func (t *Table) findLocked() error {
	if t.volumes != nil {
		return nil
	}
	found, err := readHolders(t.rootDir, t.log)
	if found == nil {
		return err
	}
	if err != nil {
		t.log.Warn("some pods' directories cannot be read: what volumes these pods have is not known", "err", err)
	}
	t.volumes = found
	return nil
}

// Stop is told that no container of the pod runs any more, and returns the volumes where that
// changes something.
func (t *Table) Stop(pod types.UID) (volumes []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.findLocked(); err != nil {
		t.log.Warn("which pods have volumes cannot be read", "err", err)
	}
	return t.volumes.stop(pod)
}

// Remove is told that the pod has no volumes any more, and returns those that it had.
func (t *Table) Remove(pod types.UID) (volumes []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.volumes.remove(pod)
}

// Volumes lists the volumes that pods have, for tests.
func (t *Table) Volumes() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Sorted(maps.Keys(t.volumes))
}

// Users returns the pods on this node that have a PersistentVolume, or had it when their kubelet
// ended. rootDir is the kubelet's directory.
func Users(rootDir, volume string, log *slog.Logger) ([]types.UID, error) {
	if err := layout.PlainNames(volume); err != nil {
		return nil, err
	}
	found, err := readHolders(rootDir, log)
	if err != nil { // who is not seen may have it, too
		return nil, err
	}
	return slices.Sorted(maps.Keys(found[volume])), nil
}

// holders maps each PersistentVolume's name to the pods on this node that have it: UID to
// namespace/name. The name is empty if nothing of the pod runs any more, if its file cannot be
// read, or if an older version wrote that.
type holders map[string]map[types.UID]string

// longestName is more than a namespace and a pod's name can have together.
const longestName = 1024

// readHolders finds them on disk; rootDir is the kubelet's directory. What is damaged in one pod's
// directory hides no other pod: the error then says what could not be read, and the holders are not
// nil. They are nil if the pods themselves cannot be listed.
func readHolders(rootDir string, log *slog.Logger) (holders, error) {
	pods, err := layout.Directories(filepath.Join(rootDir, "pods"))
	if err != nil {
		return nil, err
	}
	all := holders{}
	var errs []error
	for _, pod := range pods {
		errs = append(errs, all.readPod(types.UID(pod), filepath.Join(rootDir, "pods", pod, layout.PluginsDir), log))
	}
	return all, errors.Join(errs...)
}

// readPod adds what a pod has; dir is its plugins' directory.
func (h holders) readPod(pod types.UID, dir string, log *slog.Logger) error {
	plugins, err := layout.Directories(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, plugin := range plugins {
		volumes, err := layout.Directories(filepath.Join(dir, plugin))
		if err != nil {
			errs = append(errs, err)
		}
		for _, volume := range volumes {
			file := filepath.Join(dir, plugin, volume, claimedFile)
			name, err := layout.ReadFile(file, longestName)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				continue
			case err != nil:
				log.Warn("which pod has a volume cannot be read", "file", file, "err", err)
			}
			h.add(volume, pod, string(name))
		}
	}
	return errors.Join(errs...)
}

func (h holders) add(volume string, pod types.UID, name string) {
	if h[volume] == nil {
		h[volume] = map[types.UID]string{}
	}
	h[volume][pod] = name
}

// remove forgets a pod, and returns the volumes that it had.
func (h holders) remove(pod types.UID) (volumes []string) {
	for volume, pods := range h {
		if _, ok := pods[pod]; !ok {
			continue
		}
		volumes = append(volumes, volume)
		if delete(pods, pod); len(pods) == 0 {
			delete(h, volume)
		}
	}
	return volumes
}

// stop forgets the name of a pod of which nothing runs any more, and returns the volumes where that
// changes something.
func (h holders) stop(pod types.UID) (volumes []string) {
	for volume, pods := range h {
		if pods[pod] != "" {
			pods[pod] = ""
			volumes = append(volumes, volume)
		}
	}
	return volumes
}

// refuse says why a pod must not have a volume yet. A StatefulSet promises that there is one pod of
// each name. But one that was deleted by force runs on for its grace, when there is another
// already: without a wait, both would write the same files. A pod that has the volume keeps it.
func (h holders) refuse(pod *v1.Pod, pv *v1.PersistentVolume) error {
	if _, has := h[pv.Name][pod.UID]; has {
		return nil
	}
	single := slices.Contains(pv.Spec.AccessModes, v1.ReadWriteOncePod)
	owner := metav1.GetControllerOf(pod)
	stateful := owner != nil && owner.Kind == "StatefulSet"
	for _, name := range h[pv.Name] {
		switch {
		case single:
			return errors.New("volume uses the ReadWriteOncePod access mode and is already in use by another pod")
		case stateful && name == layout.FullName(pod):
			return errors.New("volume is still in use by an earlier pod of the same StatefulSet and name, which is ending")
		}
	}
	return nil
}
