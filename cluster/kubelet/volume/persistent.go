package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/claims"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/source"
)

// placed is a volume that was mounted by a Source.
type placed struct {
	spec   *source.Spec
	source source.Source
	path   string
	// relabel is that files get the SELinux label of the pod's containers. A path of the host's own
	// never does.
	relabel bool
}

// sourceOf returns what mounts the volume.
func sourceOf(sources []source.Source, s *source.Spec) (source.Source, error) {
	for _, src := range sources {
		if src.Serves(s) {
			return src, nil
		}
	}
	if s.PV != nil {
		return nil, fmt.Errorf("persistentvolume %q is of a kind that this kubelet cannot mount (%s): use local, hostPath or nfs", s.Name,
			kindOf(&s.PV.Spec.PersistentVolumeSource))
	}
	return nil, errNotServed(s.Inline)
}

// kindOf is how the API calls the source of a PersistentVolume that is not served.
func kindOf(s *v1.PersistentVolumeSource) string {
	switch {
	case s.CSI != nil:
		return fmt.Sprintf("csi, driver %q", s.CSI.Driver)
	case s.ISCSI != nil:
		return "iscsi"
	case s.FC != nil:
		return "fc"
	}
	return "another source"
}

// isPersistent says whether the volume is mounted by a Source.
func isPersistent(vol *v1.Volume) bool {
	return vol.PersistentVolumeClaim != nil || vol.Ephemeral != nil || vol.NFS != nil || vol.CSI != nil || vol.ISCSI != nil
}

// makePersistent mounts a volume by its Source.
func (m *Manager) makePersistent(ctx context.Context, p *podVolumes, vol *v1.Volume) error {
	s, err := m.claims.Spec(ctx, p.pod, vol)
	if err != nil {
		return err
	}
	src, err := sourceOf(m.sources, s)
	if err != nil {
		return err
	}
	pod := m.dirs.Pod(p.uid)
	s.Dir = filepath.Join(pod, layout.VolumesDir, src.Plugin(), s.Name)
	s.State = filepath.Join(pod, layout.PluginsDir, src.Plugin(), s.Name)
	if s.PV != nil {
		m.waiting.Add(claims.HeldKey(s.Name), p.uid) // first: who lets go of it after the answer wakes the pod
	}
	if err := m.holders.Take(p.pod, s); err != nil {
		return err
	}
	if s.PV != nil {
		m.waiting.Remove(claims.HeldKey(s.Name), p.uid)
	}
	if err := os.MkdirAll(filepath.Dir(s.Dir), 0o750); err != nil {
		return err
	}
	mount := src.Mount
	if k := p.kept.Of(src, s); k != nil {
		if s.PV != nil {
			m.waiting.Follow(s, p.uid) // first: what changes while it is mounted must not be missed
		}
		mount = func(ctx context.Context, s *source.Spec) (string, error) { return k.Mount(ctx, src, s) }
	}
	path, err := mount(ctx, s)
	if err != nil {
		return err
	}
	relabel := (path == s.Dir || filepath.Dir(path) == s.Dir) && src.Relabels(s)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.placed == nil {
		p.placed = map[string]placed{}
	}
	p.placed[vol.Name] = placed{spec: s, source: src, path: path, relabel: relabel}
	return nil
}

// Stopped is told that no container of the pod runs any more, though some of its volumes may stay
// for long. A pod of the same name may have them now; ReadWriteOncePod still refuses others.
func (m *Manager) Stopped(uid types.UID) {
	m.wakeForVolumes(m.holders.Stop(uid))
}

// released is told that the pod has no volumes any more.
func (m *Manager) released(uid types.UID) {
	m.wakeForVolumes(m.holders.Remove(uid))
}

// wakeForVolumes wakes the pods that wait until others let go of these volumes.
func (m *Manager) wakeForVolumes(volumes []string) {
	for _, name := range volumes {
		m.opts.Log.Debug("a pod has let go of a volume", "volume", name)
		m.waiting.Changed(claims.HeldKey(name))
	}
}

// unmountPersistent has Sources undo what they did for the pod, for all volumes at the same time: a
// driver that hangs holds up no other volume.
func (m *Manager) unmountPersistent(ctx context.Context, uid types.UID) error {
	var group errgroup.Group
	group.SetLimit(mostMounting)
	var mu sync.Mutex
	var errs []error
	failed := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, err)
	}
	for _, src := range m.sources {
		states := filepath.Join(m.dirs.Pod(uid), layout.PluginsDir, src.Plugin())
		names, err := os.ReadDir(states)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed(err)
		}
		for _, name := range names {
			mounted := source.Mounted{
				Dir:   filepath.Join(m.dirs.Pod(uid), layout.VolumesDir, src.Plugin(), name.Name()),
				State: filepath.Join(states, name.Name()),
			}
			group.Go(func() error {
				if err := src.Unmount(ctx, mounted); err != nil {
					failed(fmt.Errorf("UnmountVolume.TearDown failed for volume %q : %w", name.Name(), err))
				}
				return nil
			})
		}
	}
	_ = group.Wait()
	return errors.Join(errs...)
}

// placedOf returns where the named volume is that a Source has mounted for the pod.
func (p *podVolumes) placedOf(name string) (placed, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, ok := p.placed[name]
	return at, ok
}

// Devices returns the container's block volumes. Mount of the pod has succeeded before.
func (m *Manager) Devices(ctx context.Context, pod *v1.Pod, container *v1.Container) ([]*runtimeapi.Device, error) {
	if len(container.VolumeDevices) == 0 {
		return nil, nil
	}
	p, err := m.enter(ctx, pod.UID)
	if err != nil {
		return nil, err
	}
	defer p.leave()
	var devices []*runtimeapi.Device
	for _, d := range container.VolumeDevices {
		at, err := m.place(ctx, p, pod, d.Name)
		if err != nil {
			return nil, err
		}
		permissions := "mrw"
		if claims.ReadOnly(at.spec.Inline) {
			permissions = "r"
		}
		devices = append(devices, &runtimeapi.Device{ContainerPath: d.DevicePath, HostPath: at.path, Permissions: permissions})
	}
	return devices, nil
}

// place returns where a volume is that a Source mounts. One that only an ephemeral container uses
// was not there to be mounted before.
func (m *Manager) place(ctx context.Context, p *podVolumes, pod *v1.Pod, name string) (placed, error) {
	if at, ok := p.placedOf(name); ok {
		return at, nil
	}
	i := slices.IndexFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return v.Name == name })
	if i < 0 || !isPersistent(&pod.Spec.Volumes[i]) {
		return placed{}, fmt.Errorf("cannot find volume %q", name)
	}
	p.pod = pod
	if err := m.make(ctx, p, &pod.Spec.Volumes[i]); err != nil {
		return placed{}, fmt.Errorf("MountVolume.SetUp failed for volume %q : %w", name, err)
	}
	at, _ := p.placedOf(name)
	return at, nil
}
