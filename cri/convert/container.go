package convert

import (
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cri/field"
	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/pod/podconfig"
)

// Container converts and checks a container's config.
func Container(c *runtimeapi.ContainerConfig) (podconfig.Container, error) {
	none := podconfig.Container{}
	if c == nil {
		return none, field.Invalid("config", "is required")
	}
	if c.GetWindows() != nil {
		return none, field.Invalid("config.windows", "this node runs Linux")
	}
	if err := field.Required("config.metadata.name", c.GetMetadata().GetName()); err != nil {
		return none, err
	}
	if err := field.Required("config.image.image", c.GetImage().GetImage()); err != nil {
		return none, err
	}
	out := podconfig.Container{
		Name: c.GetMetadata().GetName(), Attempt: c.GetMetadata().GetAttempt(),
		Image: c.GetImage().GetImage(), UserImage: c.GetImage().GetUserSpecifiedImage(),
		Command: c.GetCommand(), Args: c.GetArgs(),
		WorkingDir: c.GetWorkingDir(),
		Labels:     c.GetLabels(), Annotations: c.GetAnnotations(),
		LogPath: c.GetLogPath(),
		Stdin:   c.GetStdin(), StdinOnce: c.GetStdinOnce(), TTY: c.GetTty(),
		Resources: Resources(c.GetLinux().GetResources()),
	}
	var err error
	if out.Env, err = env(c.GetEnvs()); err != nil {
		return none, err
	}
	if out.Mounts, err = mounts(c.GetMounts()); err != nil {
		return none, err
	}
	if out.Devices, err = devices(c.GetDevices()); err != nil {
		return none, err
	}
	if out.StopSignal, err = signalName(c.GetStopSignal()); err != nil {
		return none, err
	}
	if out.Security, err = security(c.GetLinux().GetSecurityContext()); err != nil {
		return none, err
	}
	for _, d := range c.GetCDIDevices() {
		out.CDIDevices = append(out.CDIDevices, d.GetName())
	}
	return out, nil
}

func env(in []*runtimeapi.KeyValue) ([][2]string, error) {
	var out [][2]string
	for _, kv := range in {
		key, val := kv.GetKey(), string(kv.GetValue())
		if key == "" || strings.ContainsAny(key, "=\x00") || strings.Contains(val, "\x00") {
			return nil, field.Invalid("config.envs", "%q is not a variable", key)
		}
		// The OCI configuration is JSON, which cannot hold other bytes: they would be replaced
		// without a word.
		if !utf8.ValidString(val) {
			return nil, field.Invalid("config.envs", "the value of %s is not UTF-8; encode it (base64), or mount it as a file", key)
		}
		out = append(out, [2]string{key, val})
	}
	return out, nil
}

var propagations = map[runtimeapi.MountPropagation]podconfig.Propagation{
	runtimeapi.MountPropagation_PROPAGATION_PRIVATE:           podconfig.PropagationPrivate,
	runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER: podconfig.PropagationHostToContainer,
	runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL:     podconfig.PropagationBidirectional,
}

func mounts(in []*runtimeapi.Mount) ([]podconfig.Mount, error) {
	var out []podconfig.Mount
	for i, m := range in {
		where := fmt.Sprintf("config.mounts[%d]", i)
		if err := field.Required(where+".container_path", m.GetContainerPath()); err != nil {
			return nil, err
		}
		propagation, ok := propagations[m.GetPropagation()]
		if !ok {
			return nil, field.Invalid(where, "unknown propagation %d", m.GetPropagation())
		}
		image := m.GetImage().GetImage()
		switch host := m.GetHostPath(); {
		case host == "" && image == "":
			return nil, field.Invalid(where, "needs host_path or image")
		case host != "" && image != "":
			return nil, field.Invalid(where, "has both host_path %q and image %q", host, image)
		case host != "" && !filepath.IsAbs(host):
			return nil, field.Invalid(where+".host_path", "%q is not absolute", host)
		}
		// CRI: recursive_read_only needs readonly and private propagation.
		if m.GetRecursiveReadOnly() && (!m.GetReadonly() || propagation != podconfig.PropagationPrivate) {
			return nil, field.Invalid(where, "recursive_read_only needs readonly and PROPAGATION_PRIVATE")
		}
		sub := m.GetImageSubPath()
		if image == "" {
			sub = "" // the kubelet sets it for each mount with a subPath, whatever the volume is (1.36)
		}
		out = append(out, podconfig.Mount{
			ContainerPath:     m.GetContainerPath(),
			HostPath:          m.GetHostPath(),
			Readonly:          m.GetReadonly(),
			RecursiveReadonly: m.GetRecursiveReadOnly(),
			SELinuxRelabel:    m.GetSelinuxRelabel(),
			Propagation:       propagation,
			Users:             idMaps(m.GetUidMappings(), m.GetGidMappings()),
			Options:           m.GetMountOptions(),
			Image:             image,
			ImageSubPath:      sub,
		})
	}
	return out, nil
}

// idMaps converts id mappings; which are possible is checked by pod/.
func idMaps(uids, gids []*runtimeapi.IDMapping) podconfig.IDMaps {
	convert := func(in []*runtimeapi.IDMapping) (out []podconfig.IDMap) {
		for _, m := range in {
			out = append(out, podconfig.IDMap{Container: m.GetContainerId(), Host: m.GetHostId(), Length: m.GetLength()})
		}
		return out
	}
	return podconfig.IDMaps{UIDs: convert(uids), GIDs: convert(gids)}
}

// idMapsBack converts back.
func idMapsBack(maps []podconfig.IDMap) (out []*runtimeapi.IDMapping) {
	for _, m := range maps {
		out = append(out, &runtimeapi.IDMapping{ContainerId: m.Container, HostId: m.Host, Length: m.Length})
	}
	return out
}

// devices converts devices; a missing container path is the host's, missing
// permissions are all.
func devices(in []*runtimeapi.Device) ([]podconfig.Device, error) {
	var out []podconfig.Device
	for i, d := range in {
		where := fmt.Sprintf("config.devices[%d]", i)
		if err := field.Required(where+".host_path", d.GetHostPath()); err != nil {
			return nil, err
		}
		if strings.Trim(d.GetPermissions(), "rwm") != "" {
			return nil, field.Invalid(where+".permissions", "%q has letters other than r, w and m", d.GetPermissions())
		}
		dev := podconfig.Device{ContainerPath: d.GetContainerPath(), HostPath: d.GetHostPath(), Permissions: d.GetPermissions()}
		if dev.ContainerPath == "" {
			dev.ContainerPath = dev.HostPath
		}
		if dev.Permissions == "" {
			dev.Permissions = "rwm"
		}
		out = append(out, dev)
	}
	return out, nil
}

// Resources converts limits; those that CRI leaves out are zero.
func Resources(r *runtimeapi.LinuxContainerResources) podconfig.Resources {
	out := podconfig.Resources{
		CPUPeriod: r.GetCpuPeriod(), CPUQuota: r.GetCpuQuota(), CPUShares: r.GetCpuShares(),
		MemoryLimit: r.GetMemoryLimitInBytes(), MemorySwapLimit: r.GetMemorySwapLimitInBytes(),
		OOMScoreAdj: r.GetOomScoreAdj(),
		CpusetCPUs:  r.GetCpusetCpus(), CpusetMems: r.GetCpusetMems(),
		Unified: r.GetUnified(),
	}
	for _, h := range r.GetHugepageLimits() {
		if out.Hugepages == nil {
			out.Hugepages = make(map[string]uint64, len(r.GetHugepageLimits()))
		}
		out.Hugepages[h.GetPageSize()] = h.GetLimit()
	}
	return out
}

// OptionalResources is Resources, and nil for nil.
func OptionalResources(r *runtimeapi.LinuxContainerResources) *podconfig.Resources {
	if r == nil {
		return nil
	}
	out := Resources(r)
	return &out
}

// ContainerFilter converts the filter of a list; nil chooses all.
func ContainerFilter(f *runtimeapi.ContainerFilter) pod.ContainerFilter {
	out := pod.ContainerFilter{ID: f.GetId(), PodID: f.GetPodSandboxId(), Labels: f.GetLabelSelector()}
	if f.GetState() != nil {
		out.State = pod.Unknown
		for s, wire := range states {
			if wire == f.GetState().GetState() {
				out.State = s
			}
		}
	}
	return out
}
