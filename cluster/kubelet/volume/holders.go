package volume

import (
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
)

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
		case stateful && name == fullName(pod):
			return errors.New("volume is still in use by an earlier pod of the same StatefulSet and name, which is ending")
		}
	}
	return nil
}

func fullName(pod *v1.Pod) string { return pod.Namespace + "/" + pod.Name }
