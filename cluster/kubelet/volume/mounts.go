package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/claims"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/hostpath"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/subpath"
)

// Mounts returns what CRI has to mount into the container, in the order of its volumeMounts. Sub
// paths are resolved now, with envs for subPathExpr, and bound on places of their own. Mount of the
// pod has succeeded before.
func (m *Manager) Mounts(ctx context.Context, pod *v1.Pod, container *v1.Container,
	envs []*runtimeapi.KeyValue,
) ([]*runtimeapi.Mount, error) {
	if err := layout.PlainNames(string(pod.UID), container.Name); err != nil {
		return nil, err
	}
	p, err := m.enter(ctx, pod.UID)
	if err != nil {
		return nil, err
	}
	defer p.leave()
	mounts := make([]*runtimeapi.Mount, 0, len(container.VolumeMounts))
	for i := range container.VolumeMounts {
		mount, err := m.mount(ctx, p, pod, container, i, envs)
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, mount)
	}
	return mounts, nil
}

func (m *Manager) mount(ctx context.Context, p *podVolumes, pod *v1.Pod, container *v1.Container, index int,
	envs []*runtimeapi.KeyValue,
) (*runtimeapi.Mount, error) {
	vm := &container.VolumeMounts[index]
	found := slices.IndexFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return v.Name == vm.Name })
	if found < 0 {
		return nil, fmt.Errorf("cannot find volume %q to mount into container %q", vm.Name, container.Name)
	}
	vol := &pod.Spec.Volumes[found]
	subPath, err := subPathOf(vm, envs)
	if err != nil {
		return nil, err
	}
	mount := &runtimeapi.Mount{
		ContainerPath: vm.MountPath,
		// What comes from the API is never written to by containers.
		Readonly: vm.ReadOnly || vol.ConfigMap != nil || vol.Secret != nil || vol.DownwardAPI != nil || vol.Projected != nil,
	}
	if !path.IsAbs(mount.ContainerPath) {
		mount.ContainerPath = "/" + mount.ContainerPath
	}
	if mount.Propagation, err = propagation(vm); err != nil {
		return nil, err
	}
	if mount.RecursiveReadOnly, err = recursiveReadOnly(vm, m.opts.RecursiveReadOnly != nil && m.opts.RecursiveReadOnly(pod)); err != nil {
		return nil, fmt.Errorf("failed to resolve recursive read-only mode: %w", err)
	}
	if vol.Image != nil {
		mount.Image = &runtimeapi.ImageSpec{Image: vol.Image.Reference, UserSpecifiedImage: vol.Image.Reference}
		mount.ImageSubPath = subPath
		mount.Readonly = true
		return mount, nil
	}
	if isPersistent(vol) {
		at, err := m.place(ctx, p, pod, vol.Name)
		if err != nil {
			return nil, err
		}
		mount.HostPath, mount.SelinuxRelabel = at.path, at.relabel
		mount.Readonly = mount.Readonly || claims.ReadOnly(vol)
		return mount, m.narrow(ctx, pod, vol, container, index, subPath, mount)
	}
	mount.HostPath = m.sourceDir(pod.UID, vol)
	mount.SelinuxRelabel = vol.HostPath == nil
	if mount.HostPath == "" {
		return nil, fmt.Errorf("cannot find volume %q to mount into container %q", vm.Name, container.Name)
	}
	if vol.HostPath == nil {
		// A volume that only an ephemeral container uses was not there to be made before.
		if _, err := os.Lstat(mount.HostPath); errors.Is(err, fs.ErrNotExist) {
			p.pod = pod
			if err := m.make(ctx, p, vol); err != nil {
				return nil, fmt.Errorf("MountVolume.SetUp failed for volume %q : %w", vol.Name, err)
			}
		}
	}
	return mount, m.narrow(ctx, pod, vol, container, index, subPath, mount)
}

// narrow has the mount show only subPath of the volume, if there is one.
func (m *Manager) narrow(ctx context.Context, pod *v1.Pod, vol *v1.Volume, container *v1.Container, index int, subPath string,
	mount *runtimeapi.Mount,
) error {
	if subPath == "" {
		return nil
	}
	target := filepath.Join(m.dirs.Pod(pod.UID), layout.SubPathsDir, vol.Name, container.Name, strconv.Itoa(index))
	err := subpath.Bind(ctx, mount.HostPath, subPath, target)
	mount.HostPath = target
	if err != nil {
		// The details may tell about the host what the pod's owner must not learn.
		m.opts.Log.Warn("subPath not prepared", "pod", pod.Namespace+"/"+pod.Name, "container", container.Name, "volume", vol.Name, "err", err)
		return fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q", vol.Name, container.Name)
	}
	return nil
}

// subPathOf returns the mount's sub path, expanded and checked.
func subPathOf(vm *v1.VolumeMount, envs []*runtimeapi.KeyValue) (string, error) {
	subPath := vm.SubPath
	if vm.SubPathExpr != "" {
		values := make(map[string]string, len(envs))
		for _, e := range envs {
			values[e.Key] = string(e.Value)
		}
		missing := sets.New[string]()
		subPath = expansion.Expand(vm.SubPathExpr, func(name string) string {
			if values[name] == "" {
				missing.Insert(name)
			}
			return values[name]
		})
		if missing.Len() > 0 {
			return "", fmt.Errorf("missing value for %s", strings.Join(sets.List(missing), ", "))
		}
	}
	if subPath == "" {
		return "", nil
	}
	return subPath, subpath.Check(subPath)
}

func propagation(vm *v1.VolumeMount) (runtimeapi.MountPropagation, error) {
	if vm.MountPropagation == nil {
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE, nil
	}
	switch *vm.MountPropagation {
	case v1.MountPropagationNone:
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE, nil
	case v1.MountPropagationHostToContainer:
		return runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, nil
	case v1.MountPropagationBidirectional:
		return runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL, nil
	}
	return 0, fmt.Errorf("invalid MountPropagation mode: %q", *vm.MountPropagation)
}

// recursiveReadOnly says whether the mount is read-only with all that is mounted below it. able is
// whether the pod's runtime handler can do that.
func recursiveReadOnly(vm *v1.VolumeMount, able bool) (bool, error) {
	if vm.RecursiveReadOnly == nil || *vm.RecursiveReadOnly == v1.RecursiveReadOnlyDisabled {
		return false, nil
	}
	if !vm.ReadOnly {
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not read-only", vm.Name)
	}
	if vm.MountPropagation != nil && *vm.MountPropagation != v1.MountPropagationNone {
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not compatible with propagation %q", vm.Name,
			*vm.MountPropagation)
	}
	switch *vm.RecursiveReadOnly {
	case v1.RecursiveReadOnlyIfPossible:
		return able, nil
	case v1.RecursiveReadOnlyEnabled:
		if !able {
			return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not supported by the runtime", vm.Name)
		}
		return true, nil
	}
	return false, fmt.Errorf("unknown recursive read-only mode %q", *vm.RecursiveReadOnly)
}

// sourceDir is where the volume is on this node, or "" if it has no place.
func (m *Manager) sourceDir(uid types.UID, vol *v1.Volume) string {
	if vol.HostPath != nil {
		return hostpath.Real(vol.HostPath, m.opts.Alias, m.opts.RootDir).Path
	}
	return m.dirs.Volume(uid, vol)
}
