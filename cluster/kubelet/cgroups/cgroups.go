// Package cgroups keeps the cgroups above containers': one for all pods, one for each class of
// service, one per pod.
//
//	ROOT/kubepods/podUID             guaranteed pods
//	ROOT/kubepods/burstable/podUID
//	ROOT/kubepods/besteffort/podUID
//
// The runtime makes the containers' cgroups below the pod's. Where cgroups cannot be written, or
// the runtime wants systemd to make them, nothing is made, the runtime decides where containers go,
// and one warning says so. Nothing above ROOT/kubepods is ever changed, and nothing is moved.
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

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1qos "k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
)

// mountPoint is where cgroup file systems are.
const mountPoint = "/sys/fs/cgroup"

// Manager makes and removes cgroups. It is safe for concurrent use.
type Manager struct {
	mount  string
	root   string // below mount, "/" for the top
	layout layout
	off    bool

	mu   sync.Mutex
	pods map[types.UID]made
}

// made is a pod whose cgroup stands.
type made struct {
	class v1.PodQOSClass
	milli int64 // CPU requested
}

// Limits are the bounds of all pods together: what is allocatable on the node.
type Limits struct {
	MilliCPU    int64
	MemoryBytes int64
}

// New returns a Manager of cgroups below root ("/" or "/coracle"), and makes those that all pods
// share.
func New(root string, all Limits) *Manager { return newAt(mountPoint, root, all) }

// Off returns a Manager that leaves all cgroups to the runtime, and says why.
func Off(why string) *Manager {
	slog.Warn("pods' cgroups are left to the runtime: no limits per pod and class of service", "why", why)
	return &Manager{off: true}
}

func newAt(mount, root string, all Limits) *Manager {
	l, err := detect(mount)
	if err != nil {
		return Off(err.Error())
	}
	m := &Manager{mount: mount, root: filepath.Join("/", root), layout: l, pods: map[types.UID]made{}}
	for _, dir := range []string{"kubepods", "kubepods/burstable", "kubepods/besteffort"} {
		if err := l.make(filepath.Join(m.root, dir)); err != nil {
			return Off(err.Error())
		}
	}
	top := figures{shares: Shares(all.MilliCPU), memory: all.MemoryBytes}
	if err := l.set(filepath.Join(m.root, "kubepods"), top); err != nil {
		slog.Warn("limit all pods together", "err", err)
	}
	if err := l.set(filepath.Join(m.root, "kubepods/besteffort"), figures{shares: leastShares}); err != nil {
		slog.Warn("limit best-effort pods", "err", err)
	}
	return m
}

// Parent returns the cgroup of the pod, empty if the runtime is to choose.
func (m *Manager) Parent(pod *v1.Pod) string {
	if m.off {
		return ""
	}
	return m.path(v1qos.GetPodQOS(pod), pod.UID)
}

func (m *Manager) path(class v1.PodQOSClass, uid types.UID) string {
	name := "pod" + string(uid)
	switch class {
	case v1.PodQOSBurstable:
		return filepath.Join(m.root, "kubepods/burstable", name)
	case v1.PodQOSBestEffort:
		return filepath.Join(m.root, "kubepods/besteffort", name)
	default:
		return filepath.Join(m.root, "kubepods", name)
	}
}

// Ensure makes the pod's cgroup, if it does not stand, and sets its limits.
func (m *Manager) Ensure(pod *v1.Pod) error {
	if m.off {
		return nil
	}
	class := v1qos.GetPodQOS(pod)
	path := m.path(class, pod.UID)
	if err := m.layout.make(path); err != nil {
		return err
	}
	f := podFigures(pod, class)
	if err := m.layout.set(path, f); err != nil {
		return err
	}
	m.mu.Lock()
	m.pods[pod.UID] = made{class: class, milli: milliRequested(pod)}
	m.mu.Unlock()
	return m.shareBurstable()
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
	for _, class := range []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort} {
		// Runtimes make the path in every hierarchy there is, also where no limit is set here.
		for _, hierarchy := range m.layout.all() {
			errs = append(errs, removeTree(filepath.Join(hierarchy, m.path(class, uid))))
		}
	}
	return errors.Join(append(errs, m.shareBurstable())...)
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
	return m.layout.set(filepath.Join(m.root, "kubepods/burstable"), figures{shares: Shares(sum)})
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
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove cgroup %s: %w", dir, err)
	}
	return nil
}

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
