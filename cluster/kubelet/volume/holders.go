package volume

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// holders are the pods on this node that have a PersistentVolume: by the volume's name, and the pod's
// UID, the pod's own name. That is empty for a pod of an older version.
type holders map[string]map[types.UID]string

// readHolders finds them on disk; rootDir is the kubelet's directory.
func readHolders(rootDir string) (holders, error) {
	all := holders{}
	pods, err := directories(filepath.Join(rootDir, "pods"))
	if err != nil {
		return nil, err
	}
	for _, pod := range pods {
		plugins, err := directories(filepath.Join(rootDir, "pods", pod, pluginsDir))
		if err != nil {
			return nil, err
		}
		for _, plugin := range plugins {
			dir := filepath.Join(rootDir, "pods", pod, pluginsDir, plugin)
			volumes, err := directories(dir)
			if err != nil {
				return nil, err
			}
			for _, volume := range volumes {
				name, err := os.ReadFile(filepath.Join(dir, volume, claimedFile))
				if err == nil {
					all.add(volume, types.UID(pod), string(name))
				} else if !errors.Is(err, fs.ErrNotExist) {
					return nil, err
				}
			}
		}
	}
	return all, nil
}

// directories are the names of those in dir, which need not be there.
func directories(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
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

// refuse says why a pod must not have a volume yet. A StatefulSet promises that there is one pod of
// each name. But one that was deleted by force runs on for its grace, when there is another already:
// without a wait, both would write the same files.
func (h holders) refuse(pod *v1.Pod, pv *v1.PersistentVolume) error {
	single := slices.Contains(pv.Spec.AccessModes, v1.ReadWriteOncePod)
	owner := metav1.GetControllerOf(pod)
	again := owner != nil && owner.Kind == "StatefulSet"
	for other, name := range h[pv.Name] {
		switch {
		case other == pod.UID:
		case single:
			return errors.New("volume uses the ReadWriteOncePod access mode and is already in use by another pod")
		case again && name == fullName(pod):
			return errors.New("volume is still in use by an earlier pod of the same StatefulSet and name, which is ending")
		}
	}
	return nil
}

func fullName(pod *v1.Pod) string { return pod.Namespace + "/" + pod.Name }
