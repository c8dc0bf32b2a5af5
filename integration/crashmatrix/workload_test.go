package crashmatrix

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
)

// exitCode is the exit code of a container that is asked to end.
const exitCode = 7

// counting writes a numbered line every few milliseconds, many at once if there is a file /burst,
// and a last line at SIGTERM.
const counting = `trap 'echo last; exit 7' TERM
i=0
say() { i=$((i+1)); echo "line $i"; }
while :; do
  say
  if [ -e /burst ]; then rm /burst; j=0; while [ $j -lt 8000 ]; do j=$((j+1)); say; done; fi
  usleep 5000
done`

// workload is a pod with one container that counts.
type workload struct {
	n      *node
	pod    *cri.PodSandboxConfig
	podID  string
	conf   *cri.ContainerConfig
	id     string
	killed bool // so it has no last line
}

// newWorkload makes a workload that is not on the node yet.
func (n *node) newWorkload(changePod func(*cri.PodSandboxConfig), changeContainer func(*cri.ContainerConfig)) (*workload, error) {
	n.seq++
	name := fmt.Sprintf("pod-%d", n.seq)
	dir := filepath.Join(n.Logs, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	own := cri.NamespaceMode_CONTAINER
	w := &workload{
		n: n,
		pod: &cri.PodSandboxConfig{
			Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: "test", Uid: "uid-" + name}, Hostname: name, LogDirectory: dir,
			Linux: &cri.LinuxPodSandboxConfig{
				CgroupParent:    n.Cgroup,
				SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: &cri.NamespaceOption{Pid: own}},
			},
		},
		conf: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: "main"}, Image: &cri.ImageSpec{Image: testRef("busybox")},
			Command: []string{"sh", "-c", counting},
			Linux: &cri.LinuxContainerConfig{
				SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: &cri.NamespaceOption{Pid: own}},
			},
		},
	}
	if changePod != nil {
		changePod(w.pod)
	}
	if changeContainer != nil {
		changeContainer(w.conf)
	}
	return w, nil
}

func (w *workload) run() error {
	r, err := call(w.n.RunPodSandbox, &cri.RunPodSandboxRequest{Config: w.pod})
	if err == nil {
		w.podID = r.GetPodSandboxId()
	}
	return err
}

// create makes a new attempt each time, as the kubelet does. The remains of a failed try go with
// the pod.
func (w *workload) create() error {
	w.conf.Metadata.Attempt++
	w.conf.LogPath = fmt.Sprintf("main-%d.log", w.conf.Metadata.Attempt)
	r, err := call(w.n.CreateContainer, &cri.CreateContainerRequest{PodSandboxId: w.podID, SandboxConfig: w.pod, Config: w.conf})
	if err == nil {
		w.id = r.GetContainerId()
	}
	return err
}

// start starts the container, or another one in its place.
func (w *workload) start() error {
	if w.id == "" {
		if err := w.create(); err != nil {
			return err
		}
	}
	_, err := call(w.n.StartContainer, &cri.StartContainerRequest{ContainerId: w.id})
	if err == nil {
		return nil
	}
	// The start may have worked, and only its answer was lost.
	s, serr := w.status()
	if serr == nil && s.GetState() == cri.ContainerState_CONTAINER_RUNNING {
		return nil
	}
	if serr == nil && s.GetState() == cri.ContainerState_CONTAINER_EXITED {
		w.id = ""
	}
	return err
}

func (w *workload) status() (*cri.ContainerStatus, error) {
	r, err := call(w.n.ContainerStatus, &cri.ContainerStatusRequest{ContainerId: w.id})
	return r.GetStatus(), err
}

// pid is the container's process.
func (w *workload) pid() (int, error) {
	r, err := call(w.n.ContainerStatus, &cri.ContainerStatusRequest{ContainerId: w.id, Verbose: true})
	if err != nil {
		return 0, err
	}
	var info struct{ PID int }
	if err := json.Unmarshal([]byte(r.GetInfo()["info"]), &info); err != nil || info.PID == 0 {
		return 0, fmt.Errorf("info %q: %w", r.GetInfo()["info"], err)
	}
	return info.PID, nil
}

// exec runs a command with a known output and exit code.
func (w *workload) exec(command string, wantOut string, wantCode int32) error {
	r, err := call(w.n.ExecSync, &cri.ExecSyncRequest{
		ContainerId: w.id, Cmd: []string{"sh", "-c", command},
		Timeout: int64(callLimit.Seconds()),
	})
	if err != nil {
		return err
	}
	if string(r.GetStdout()) != wantOut || r.GetExitCode() != wantCode {
		return lost("exec %q: %q, exit code %d, want %q, %d", command, r.GetStdout(), r.GetExitCode(), wantOut, wantCode)
	}
	return nil
}

func (w *workload) stop() error {
	_, err := call(w.n.StopContainer, &cri.StopContainerRequest{ContainerId: w.id, Timeout: int64(callLimit.Seconds())})
	return err
}

func (w *workload) removeContainer() error {
	_, err := call(w.n.RemoveContainer, &cri.RemoveContainerRequest{ContainerId: w.id})
	return err
}

func (w *workload) stopPod() error {
	_, err := call(w.n.StopPodSandbox, &cri.StopPodSandboxRequest{PodSandboxId: w.podID})
	return err
}

func (w *workload) removePod() error {
	_, err := call(w.n.RemovePodSandbox, &cri.RemovePodSandboxRequest{PodSandboxId: w.podID})
	return err
}

// lost reports something that a fault has cost.
func lost(format string, args ...any) error { return lostError(fmt.Sprintf(format, args...)) }

type lostError string

func (e lostError) Error() string { return string(e) }

// upTo takes the workload on until it runs and counts.
func (w *workload) upTo(s stage) error {
	steps := []func() error{w.run, w.create, w.start, w.counts, w.stop}
	for i, step := range steps[:s] {
		if err := through(fmt.Sprint("step ", i), step); err != nil {
			return err
		}
	}
	return nil
}

// counts waits for new lines.
func (w *workload) counts() error {
	before, err := w.lines()
	if err != nil {
		return err
	}
	return until("the container counts", func() bool {
		now, err := w.lines()
		return err == nil && len(now) > len(before)+2
	})
}

// logs returns the files of the container's log, oldest first.
func (w *workload) logs() ([]string, error) {
	path := filepath.Join(w.pod.LogDirectory, w.conf.LogPath)
	aside, err := filepath.Glob(path + ".*")
	slices.Sort(aside)
	if _, serr := os.Stat(path); serr == nil {
		aside = append(aside, path)
	}
	return aside, err
}

// lines returns what the container wrote, without the shim's own lines. A line may be in several
// records, and these in two files. The last line of the current file may be incomplete.
func (w *workload) lines() ([]string, error) {
	files, err := w.logs()
	if err != nil {
		return nil, err
	}
	var all []string
	begun := "" // of a line
	for _, f := range files {
		lines, err := testkit.ReadLog(f)
		if err != nil && f != files[len(files)-1] {
			return nil, err
		}
		for _, l := range lines {
			if l.Stream == "stderr" && strings.HasPrefix(l.Text, "[coracle: the log was full") {
				continue
			}
			if begun += l.Text; !l.Partial {
				all, begun = append(all, begun), ""
			}
		}
	}
	if begun != "" {
		all = append(all, begun)
	}
	return all, nil
}

// logWhole reports what is missing, duplicated or torn in the log.
func (w *workload) logWhole() error {
	lines, err := w.lines()
	if err != nil {
		return err
	}
	if len(lines) == 0 {
		return lost("the log is empty")
	}
	if !w.killed {
		if got := lines[len(lines)-1]; got != "last" {
			return lost("the log ends with %q", got)
		}
		lines = lines[:len(lines)-1]
	}
	next, said := 1, false
	for i, got := range lines {
		if strings.HasPrefix(got, "[coracle: ") && strings.HasSuffix(got, " bytes of output could not be written here]") {
			said = true
			if _, err := fmt.Sscanf(lines[min(i+1, len(lines)-1)], "line %d", &next); err != nil {
				return lost("after %q the log has %q", got, lines[i+1:])
			}
			continue
		}
		if want := fmt.Sprint("line ", next); got != want {
			return lost("the log has %q where %q should be, of %d lines", got, want, len(lines))
		}
		next++
	}
	if said {
		return lostNoted
	}
	return nil
}

// lostNoted is a missing piece of a log that the log itself reports.
const lostNoted lostError = "a piece of the log, which says so"

// end stops the workload in any stage, checks it, and removes it.
func (w *workload) end() error {
	if w.podID == "" {
		return nil
	}
	var s *cri.ContainerStatus
	steps := []struct {
		name string
		f    func() error
	}{
		{"start", func() (err error) {
			if w.id == "" {
				return w.start()
			}
			s, err = w.status()
			if status.Code(err) == codes.NotFound {
				return nil
			}
			if err == nil && s.GetState() == cri.ContainerState_CONTAINER_CREATED {
				return w.start()
			}
			return err
		}},
		{"stop", func() (err error) {
			s, err = w.status()
			if status.Code(err) == codes.NotFound {
				s = nil
				return nil
			}
			if err != nil || s.GetState() == cri.ContainerState_CONTAINER_EXITED {
				return err
			}
			if err := w.counts(); err != nil {
				return lost("the container does not write any more: %v", err)
			}
			if err := w.stop(); err != nil {
				return err
			}
			s, err = w.status()
			return err
		}},
	}
	for _, step := range steps {
		if err := through(step.name, step.f); err != nil {
			return err
		}
	}
	var found []error
	want := int32(exitCode)
	if w.killed {
		want = 128 + 9
	}
	if s != nil && s.GetExitCode() != want {
		found = append(found, lost("exit code %d, want %d (%s: %s)", s.GetExitCode(), want, s.GetReason(), s.GetMessage()))
	}
	found = append(found, w.logWhole(), through("StopPodSandbox", w.stopPod), through("RemovePodSandbox", w.removePod))
	return errors.Join(found...)
}
