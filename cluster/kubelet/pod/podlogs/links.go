package podlogs

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
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
)

// Links makes and removes the links to containers' logs, and removes pods' logs. It knows the links
// of each pod, those of earlier kubelets once it has read them: a pod's end costs the same however
// many pods there are. It is safe for concurrent use.
type Links struct {
	Log *slog.Logger

	once sync.Once

	mu   sync.Mutex
	pods map[string]map[string]struct{} // by the directory of the pod's logs
}

// Link links a container's log for log collectors. A failure is logged.
func (l *Links) Link(d Dirs, pod *v1.Pod, container, id, log string) {
	if d.Legacy == "" {
		return
	}
	link := d.link(pod.Name, pod.Namespace, container, id)
	if err := os.Symlink(log, link); err != nil && !errors.Is(err, fs.ErrExist) {
		l.Log.Warn("link a container's log", "container", id, "err", err)
		return
	}
	l.add(link, log)
}

// Unlink removes the link to a container's log.
func (l *Links) Unlink(d Dirs, pod *v1.Pod, s *kubecontainer.Status) {
	if d.Legacy == "" {
		return
	}
	link := d.link(pod.Name, pod.Namespace, s.Name, s.ID.ID)
	_ = os.Remove(link)
	l.mu.Lock()
	defer l.mu.Unlock()
	dir := d.Pod(pod)
	if delete(l.pods[dir], link); len(l.pods[dir]) == 0 {
		delete(l.pods, dir)
	}
}

// Remove removes a pod's logs and the links to them. Of the pod, nothing but the UID need be known.
func (l *Links) Remove(d Dirs, pod *v1.Pod) error {
	dirs, err := d.dirs(pod)
	errs := []error{err}
	if d.Legacy != "" {
		l.once.Do(func() { l.read(d.Legacy) })
	}
	for _, dir := range dirs {
		for _, link := range l.take(dir) {
			if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
		errs = append(errs, os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}

// read finds the links in a directory.
func (l *Links) read(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.Log.Warn("links to containers' logs cannot be read: those of earlier kubelets stay", "dir", dir, "err", err)
	}
	for _, e := range entries {
		link := filepath.Join(dir, e.Name())
		if log, err := os.Readlink(link); err == nil {
			l.add(link, log)
		}
	}
}

// add notes a link to a container's log.
func (l *Links) add(link, log string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	dir := filepath.Dir(filepath.Dir(log))
	if l.pods == nil {
		l.pods = map[string]map[string]struct{}{}
	}
	if l.pods[dir] == nil {
		l.pods[dir] = map[string]struct{}{}
	}
	l.pods[dir][link] = struct{}{}
}

// take forgets the links of a pod, and returns them.
func (l *Links) take(dir string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	links := slices.Collect(maps.Keys(l.pods[dir]))
	delete(l.pods, dir)
	return links
}
