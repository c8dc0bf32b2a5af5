package pod

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
)

// Logs are where every log collector expects them:
//
//	LogDir/NAMESPACE_POD_UID/CONTAINER/RESTARTS.log
//	LegacyLogDir/POD_NAMESPACE_CONTAINER-ID.log → the above

// LogDir returns the directory of a pod's logs below that of all pods' logs.
func LogDir(all string, pod *v1.Pod) string {
	return filepath.Join(all, fmt.Sprintf("%s_%s_%s", pod.Namespace, pod.Name, pod.UID))
}

func (w *worker) logDir(pod *v1.Pod) string { return LogDir(w.r.LogDir, pod) }

// logName is a container's log in its pod's log directory.
func logName(c *v1.Container, restarts int) string {
	return filepath.Join(c.Name, strconv.Itoa(restarts)+".log")
}

// LogPath is the log of a container that the runtime has, below the directory of all pods' logs.
func LogPath(all string, pod *v1.Pod, s *kubecontainer.Status) string {
	return filepath.Join(LogDir(all, pod), logName(&v1.Container{Name: s.Name}, s.RestartCount))
}

// restartsByLogs returns the number after the highest that a log in dir has, 0 if there is none.
func restartsByLogs(dir string) int {
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

func (w *worker) legacyLog(pod, namespace, container, id string) string {
	base := fmt.Sprintf("%s_%s_%s", pod, namespace, container)
	return filepath.Join(w.r.LegacyLogDir, base+"-"+id+".log")
}

func (w *worker) linkLog(pod *v1.Pod, c *v1.Container, id, log string) {
	if w.r.LegacyLogDir == "" {
		return
	}
	if err := os.Symlink(log, w.legacyLog(pod.Name, pod.Namespace, c.Name, id)); err != nil && !errors.Is(err, fs.ErrExist) {
		slog.Warn("link a container's log", "container", id, "err", err)
	}
}

func (w *worker) unlinkLog(s *kubecontainer.Status) {
	if w.r.LegacyLogDir != "" {
		pod, _ := w.object()
		_ = os.Remove(w.legacyLog(pod.Name, pod.Namespace, s.Name, s.ID.ID))
	}
}

// removePodLogs removes a pod's logs and the links to them. They are found by the UID: of a pod
// that went away while the kubelet did not run, nothing else may be known.
func (r *Runner) removePodLogs(uid types.UID) error {
	entries, err := os.ReadDir(r.LogDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		parts := strings.Split(e.Name(), "_") // neither of the three has one in it
		if len(parts) != 3 || parts[2] != string(uid) {
			continue
		}
		dir := filepath.Join(r.LogDir, e.Name())
		errs = append(errs, r.removeLinks(parts[1]+"_"+parts[0]+"_", dir), os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}

// removeLinks removes the links into a directory whose names begin with prefix.
func (r *Runner) removeLinks(prefix, dir string) error {
	if r.LegacyLogDir == "" {
		return nil
	}
	entries, err := os.ReadDir(r.LegacyLogDir)
	errs := []error{err}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), prefix) { // links of other pods are not read
			continue
		}
		link := filepath.Join(r.LegacyLogDir, e.Name())
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, dir+"/") {
			errs = append(errs, os.Remove(link))
		}
	}
	return errors.Join(errs...)
}

// removeDir removes a pod's directory, unless something is still mounted in it: then it would be
// the volume's content that is removed.
func removeDir(dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if m.Mountpoint != dir {
			return fmt.Errorf("remove %s: %s is still mounted: %w", dir, m.Mountpoint, unix.EBUSY)
		}
	}
	return os.RemoveAll(dir)
}
