// Package podlogs knows where pods' logs are:
//
//	Dirs.All/NAMESPACE_POD_UID/CONTAINER/RESTARTS.log
//	Dirs.Legacy/POD_NAMESPACE_CONTAINER-ID.log → the above
//
// Every log collector expects them there.
package podlogs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
)

// Dirs are the directories of a node's logs.
type Dirs struct {
	All    string // the pods' logs
	Legacy string // links named after containers, which log collectors read; may be empty
}

// Pod returns the directory of a pod's logs.
func (d Dirs) Pod(pod *v1.Pod) string {
	return filepath.Join(d.All, fmt.Sprintf("%s_%s_%s", pod.Namespace, pod.Name, pod.UID))
}

// File is the name of a container's log in its pod's directory.
func File(container string, restarts int) string {
	return filepath.Join(container, strconv.Itoa(restarts)+".log")
}

// Path is the log of a container that the runtime has.
func (d Dirs) Path(pod *v1.Pod, s *kubecontainer.Status) string {
	return filepath.Join(d.Pod(pod), File(s.Name, s.RestartCount))
}

// Restarts returns the number after the highest that a log in dir, a container's, has; 0 if there
// is none.
func Restarts(dir string) int {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	next := 0
	for _, e := range entries {
		number, _, _ := strings.Cut(e.Name(), ".log")
		if n, err := strconv.Atoi(number); err == nil && n >= next {
			next = n + 1
		}
	}
	return next
}

func (d Dirs) link(pod, namespace, container, id string) string {
	base := fmt.Sprintf("%s_%s_%s", pod, namespace, container)
	return filepath.Join(d.Legacy, base+"-"+id+".log")
}

// dirs returns the directory of a pod's logs. Of a pod that went away while the kubelet did not
// run, only the UID may be known: then all directories are looked at.
func (d Dirs) dirs(pod *v1.Pod) (dirs []string, err error) {
	if dir := d.Pod(pod); pod.Name != "" && filepath.Dir(dir) == filepath.Clean(d.All) {
		return []string{dir}, nil
	}
	entries, err := os.ReadDir(d.All)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		parts := strings.Split(e.Name(), "_") // neither of the three has one in it
		if len(parts) == 3 && parts[2] == string(pod.UID) {
			dirs = append(dirs, filepath.Join(d.All, e.Name()))
		}
	}
	return dirs, err
}

// RemoveLog removes a container's log and what rotation made of it.
func RemoveLog(path string) {
	_ = os.Remove(path)
	rotated, _ := filepath.Glob(path + ".*")
	for _, r := range rotated {
		_ = os.Remove(r)
	}
}
