// Package cgroups keeps the cgroups above containers': one for all pods, one for each class of
// service, one per pod.
//
//	ROOT/kubepods/podUID             guaranteed pods
//	ROOT/kubepods/burstable/podUID
//	ROOT/kubepods/besteffort/podUID
//
// The runtime makes the containers' cgroups below the pod's. Where there are no cgroups, or they
// are read-only, or the runtime wants systemd to make them, nothing is made, the runtime decides
// where containers go, and one warning says so. Anything else that keeps limits from holding is an
// error. Of what is above ROOT/kubepods, only controllers are enabled (version 2), and nothing is
// moved.
package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1qos "k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
)

// mountPoint is where cgroup file systems are.
const mountPoint = "/sys/fs/cgroup"

// Manager makes and removes cgroups. It is safe for concurrent use.
type Manager struct {
	root   string // below where cgroups are mounted, "/" for the top
	layout layout
	off    bool
	// podPIDs is how many processes and threads a pod may have, 0 for any number.
	podPIDs int64

	log *slog.Logger

	mu   sync.Mutex
	pods map[types.UID]made
}

// made is a pod whose cgroup exists.
type made struct {
	class v1.PodQOSClass
	milli int64 // CPU requested
}

// Limits are bounds that do not depend on what pods ask for.
type Limits struct {
	// MilliCPU and MemoryBytes are those of all pods together: what is allocatable on the node.
	MilliCPU    int64
	MemoryBytes int64
	// PodPIDs is how many processes and threads each pod may have; 0 or less for any number.
	PodPIDs int64
}

// New returns a Manager of cgroups below root ("/" or "/coracle"), and makes those that all pods
// share. It fails if limits would not hold there.
func New(root string, all Limits, log *slog.Logger) (*Manager, error) {
	l, err := detect(mountPoint, log)
	if err != nil {
		return off(nil, err.Error(), all.PodPIDs, log), nil
	}
	return newAt(l, root, all, log)
}

// Off returns a Manager that leaves all cgroups to the runtime, and says why. The number of
// processes is then each container's, as far as that can be told to a runtime: CRI has a field for
// it with cgroup v2 only.
func Off(why string, podPIDs int64, log *slog.Logger) *Manager {
	l, err := detect(mountPoint, log)
	if err != nil {
		l = nil
	}
	return off(l, why, podPIDs, log)
}

func off(l layout, why string, podPIDs int64, log *slog.Logger) *Manager {
	log.Warn("pods' cgroups are left to the runtime: no limits per pod and class of service", "why", why)
	m := &Manager{off: true}
	if _, v2 := l.(unified); v2 {
		m.podPIDs = podPIDs
	}
	return m
}

// Container returns the limits of a container whose pod has no cgroup from here, by file of cgroup
// v2.
func (m *Manager) Container() map[string]string {
	if !m.off || m.podPIDs <= 0 {
		return nil
	}
	return map[string]string{"pids.max": strconv.FormatInt(m.podPIDs, 10)}
}

func newAt(l layout, root string, all Limits, log *slog.Logger) (*Manager, error) {
	m := &Manager{log: log, root: filepath.Join("/", root), layout: l, podPIDs: max(all.PodPIDs, 0), pods: map[types.UID]made{}}
	err := l.open(m.root)
	for _, class := range classes {
		if err == nil {
			err = l.make(m.dir(class))
		}
	}
	if errors.Is(err, unix.EROFS) || errors.Is(err, fs.ErrPermission) {
		return off(l, err.Error(), all.PodPIDs, log), nil
	}
	if err != nil {
		return nil, fmt.Errorf("make pods' cgroups below %s: %w", m.root, err)
	}
	err = l.set(m.dir(v1.PodQOSGuaranteed), figures{shares: Shares(all.MilliCPU), memory: all.MemoryBytes})
	if errors.Is(err, unix.EBUSY) { // version 1: pods from before use more, and must not end for that
		log.Warn("pods use more memory than is allocatable on the node: they are not limited together", "err", err)
		err = nil
	}
	if err != nil {
		return nil, fmt.Errorf("limit all pods together: %w", err)
	}
	if err := l.set(m.dir(v1.PodQOSBestEffort), figures{shares: leastShares}); err != nil {
		return nil, fmt.Errorf("limit best-effort pods: %w", err)
	}
	return m, nil
}

// Parent returns the cgroup of the pod, empty if the runtime is to choose.
func (m *Manager) Parent(pod *v1.Pod) string {
	if m.off {
		return ""
	}
	return m.path(v1qos.GetPodQOS(pod), pod.UID)
}

// classes are those whose pods have a directory of their own, the outer one first.
var classes = []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort}

// dir is where the pods of a class are.
func (m *Manager) dir(class v1.PodQOSClass) string {
	switch class {
	case v1.PodQOSBurstable:
		return filepath.Join(m.root, "kubepods/burstable")
	case v1.PodQOSBestEffort:
		return filepath.Join(m.root, "kubepods/besteffort")
	default:
		return filepath.Join(m.root, "kubepods")
	}
}

func (m *Manager) path(class v1.PodQOSClass, uid types.UID) string {
	return filepath.Join(m.dir(class), podPrefix+string(uid))
}

const podPrefix = "pod"

// Ensure makes the pod's cgroup, if it does not exist, and sets its limits. Those of a cgroup with
// containers are only raised: the containers have to shrink before it does. Unless all limits are
// exact then, Lower is to follow when the containers have shrunk.
func (m *Manager) Ensure(pod *v1.Pod) (exact bool, err error) {
	if m.off {
		return true, nil
	}
	class := v1qos.GetPodQOS(pod)
	path := m.path(class, pod.UID)
	if err := m.layout.make(path); err != nil {
		return false, err
	}
	f := podFigures(pod, class)
	f.pids = m.podPIDs
	raised, err := m.raised(path, f)
	if err != nil {
		return false, err
	}
	if err := m.layout.set(path, raised); err != nil {
		return false, err
	}
	m.mu.Lock()
	m.pods[pod.UID] = made{class: class, milli: milliRequested(pod)}
	m.mu.Unlock()
	return raised == f, m.shareBurstable()
}

// raised returns f without what would lower a limit of a cgroup that has containers.
func (m *Manager) raised(path string, f figures) (figures, error) {
	if f.quota == 0 && f.memory == 0 {
		return f, nil
	}
	have, err := m.layout.limits(path)
	if err != nil {
		return figures{}, err
	}
	raised := f
	if lowers(have.quota, f.quota) {
		raised.quota = 0
	}
	if lowers(have.memory, f.memory) {
		raised.memory = 0
	}
	if raised == f {
		return f, nil
	}
	if empty, err := m.layout.empty(path); empty || err != nil {
		return f, err
	}
	return raised, nil
}

// lowers says whether a limit becomes less, or is the first one.
func lowers(have, want int64) bool { return want != 0 && (have == 0 || want < have) }

// Lower sets the limits of the pod's cgroup, whose containers have theirs already. It is an error
// if the pod uses more memory than it may have then: the kernel would kill a process of it.
func (m *Manager) Lower(pod *v1.Pod) error {
	if m.off {
		return nil
	}
	class := v1qos.GetPodQOS(pod)
	path, f := m.path(class, pod.UID), podFigures(pod, class)
	have, err := m.layout.limits(path)
	if err != nil {
		return err
	}
	if lowers(have.memory, f.memory) {
		used, err := m.layout.memoryUsed(path)
		if err != nil {
			return err
		}
		if used >= f.memory {
			return fmt.Errorf("cannot decrease memory limits: attempting to set pod memory limit (%d) below current usage (%d)",
				f.memory, used)
		}
	}
	return m.layout.set(path, figures{quota: f.quota, memory: f.memory})
}

// Remove removes the pod's cgroup and what a runtime left below it.
func (m *Manager) Remove(uid types.UID) error {
	if m.off {
		return nil
	}
	m.mu.Lock()
	delete(m.pods, uid)
	m.mu.Unlock()
	var errs []error
	for _, class := range classes {
		// Runtimes make the path in every hierarchy there is, also where no limit is set here.
		for _, hierarchy := range m.layout.all() {
			errs = append(errs, removeTree(filepath.Join(hierarchy, m.path(class, uid))))
		}
	}
	if err := m.shareBurstable(); err != nil { // not what keeps the pod from having ended
		m.log.Warn("share CPU among burstable pods", "err", err)
	}
	return errors.Join(errs...)
}

// shareBurstable gives burstable pods together the CPU shares that they asked for.
func (m *Manager) shareBurstable() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	sum := int64(0)
	for _, p := range m.pods {
		if p.class == v1.PodQOSBurstable {
			sum += p.milli
		}
	}
	return m.layout.set(m.dir(v1.PodQOSBurstable), figures{shares: Shares(sum)})
}

// removeTree removes a cgroup and those below it, deepest first. Cgroups have no files to remove.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	// A process that was killed is in its cgroup until it has been waited for.
	for wait := busyFirst; ; wait *= 2 {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || wait > busyMost {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
		time.Sleep(wait)
	}
}

// How long removing a cgroup waits at first and at most for the end of the processes in it.
const (
	busyFirst = 5 * time.Millisecond
	busyMost  = 80 * time.Millisecond
)

// HugePageSizes returns the sizes of huge pages that the kernel has, as cgroup files name them:
// 2MB, 1GB.
var HugePageSizes = sync.OnceValue(func() []string {
	entries, err := os.ReadDir("/sys/kernel/mm/hugepages")
	if err != nil {
		return nil
	}
	var sizes []string
	for _, e := range entries { // hugepages-2048kB
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(e.Name(), "hugepages-"), "kB"), 10, 64)
		switch {
		case err != nil:
		case kb >= 1<<20:
			sizes = append(sizes, fmt.Sprintf("%dGB", kb>>20))
		case kb >= 1<<10:
			sizes = append(sizes, fmt.Sprintf("%dMB", kb>>10))
		default:
			sizes = append(sizes, fmt.Sprintf("%dKB", kb))
		}
	}
	return sizes
})
