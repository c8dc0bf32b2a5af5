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

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
)

// Logs are where every log collector expects them:
//
//	LogDir/NAMESPACE_POD_UID/CONTAINER/RESTARTS.log
//	LegacyLogDir/POD_NAMESPACE_CONTAINER-ID.log → the above

func (w *worker) logDir(pod *v1.Pod) string { return w.r.podLogDir(pod) }

func (r *Runner) podLogDir(pod *v1.Pod) string {
	return filepath.Join(r.LogDir, fmt.Sprintf("%s_%s_%s", pod.Namespace, pod.Name, pod.UID))
}

// logName is a container's log in its pod's log directory.
func logName(c *v1.Container, restarts int) string {
	return filepath.Join(c.Name, strconv.Itoa(restarts)+".log")
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

// removeDir removes a pod's directory, unless something is still mounted in it: then it would be
// the volume's content that is removed.
func removeDir(dir string) error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(unescape(fields[4]), dir+"/") {
			return fmt.Errorf("remove %s: %s is still mounted: %w", dir, fields[4], unix.EBUSY)
		}
	}
	return os.RemoveAll(dir)
}

// unescape undoes mountinfo's octal escapes of blanks and backslashes.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
