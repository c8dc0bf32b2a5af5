package nri

import (
	"cmp"
	"slices"
	"strings"

	nrigenerate "github.com/containerd/nri/pkg/runtime-tools/generate"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// editor makes single changes in a specification of ocispec.Container, in which Process, Linux and
// Linux.Resources are there. The library decides which; its usual editor, of runtime-tools, has not
// kept up with the specification.
type editor struct{ spec *specs.Spec }

var _ nrigenerate.UnderlyingGenerator = editor{}

func (e editor) Spec() *specs.Spec { return e.spec }

func (e editor) AddAnnotation(key, value string) {
	if e.spec.Annotations == nil {
		e.spec.Annotations = map[string]string{}
	}
	e.spec.Annotations[key] = value
}

func (e editor) RemoveAnnotation(key string) { delete(e.spec.Annotations, key) }

// AddDevice replaces the device of this path.
func (e editor) AddDevice(d specs.LinuxDevice) {
	e.RemoveDevice(d.Path)
	e.spec.Linux.Devices = append(e.spec.Linux.Devices, d)
}

func (e editor) RemoveDevice(path string) {
	e.spec.Linux.Devices = slices.DeleteFunc(e.spec.Linux.Devices, func(d specs.LinuxDevice) bool { return d.Path == path })
}

func (e editor) AddLinuxResourcesDevice(allow bool, kind string, major, minor *int64, access string) {
	r := e.spec.Linux.Resources
	r.Devices = append(r.Devices, specs.LinuxDeviceCgroup{Allow: allow, Type: kind, Major: major, Minor: minor, Access: access})
}

func (e editor) AddOrReplaceLinuxNamespace(kind, path string) error {
	_ = e.RemoveLinuxNamespace(kind) // always succeeds
	e.spec.Linux.Namespaces = append(e.spec.Linux.Namespaces, specs.LinuxNamespace{Type: namespaceOf(kind), Path: path})
	return nil
}

func (e editor) RemoveLinuxNamespace(kind string) error {
	e.spec.Linux.Namespaces = slices.DeleteFunc(e.spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool {
		return n.Type == namespaceOf(kind)
	})
	return nil
}

// namespaceOf takes the short names, too, that some plugins use.
func namespaceOf(kind string) specs.LinuxNamespaceType {
	switch kind {
	case "mnt":
		return specs.MountNamespace
	case "net":
		return specs.NetworkNamespace
	}
	return specs.LinuxNamespaceType(kind)
}

func (e editor) hooks() *specs.Hooks {
	if e.spec.Hooks == nil {
		e.spec.Hooks = &specs.Hooks{}
	}
	return e.spec.Hooks
}

func (e editor) AddPreStartHook(h specs.Hook) {
	//lint:ignore SA1019 prestart is deprecated, but plugins may still ask for it
	e.hooks().Prestart = append(e.hooks().Prestart, h)
}

func (e editor) AddPostStartHook(h specs.Hook) { e.hooks().Poststart = append(e.hooks().Poststart, h) }

func (e editor) AddPostStopHook(h specs.Hook) { e.hooks().Poststop = append(e.hooks().Poststop, h) }

func (e editor) SetProcessArgs(args []string) { e.spec.Process.Args = args }
func (e editor) SetProcessOOMScoreAdj(n int)  { e.spec.Process.OOMScoreAdj = &n }
func (e editor) ClearProcessEnv()             { e.spec.Process.Env = nil }

func (e editor) AddProcessEnv(name, value string) {
	entry := name + "=" + value
	for i, have := range e.spec.Process.Env {
		if strings.HasPrefix(have, name+"=") {
			e.spec.Process.Env[i] = entry
			return
		}
	}
	e.spec.Process.Env = append(e.spec.Process.Env, entry)
}

func (e editor) Mounts() []specs.Mount  { return e.spec.Mounts }
func (e editor) ClearMounts()           { e.spec.Mounts = nil }
func (e editor) AddMount(m specs.Mount) { e.spec.Mounts = append(e.spec.Mounts, m) }
func (e editor) RemoveMount(target string) {
	e.spec.Mounts = slices.DeleteFunc(e.spec.Mounts, func(m specs.Mount) bool { return m.Destination == target })
}

func (e editor) AddLinuxSysctl(key, value string) {
	if e.spec.Linux.Sysctl == nil {
		e.spec.Linux.Sysctl = map[string]string{}
	}
	e.spec.Linux.Sysctl[key] = value
}

func (e editor) RemoveLinuxSysctl(key string)    { delete(e.spec.Linux.Sysctl, key) }
func (e editor) SetLinuxCgroupsPath(path string) { e.spec.Linux.CgroupsPath = path }
func (e editor) SetLinuxRootPropagation(p string) error {
	e.spec.Linux.RootfsPropagation = p
	return nil
}

func (e editor) AddLinuxResourcesHugepageLimit(size string, limit uint64) {
	r := e.spec.Linux.Resources
	r.HugepageLimits = slices.DeleteFunc(r.HugepageLimits, func(l specs.LinuxHugepageLimit) bool { return l.Pagesize == size })
	r.HugepageLimits = append(r.HugepageLimits, specs.LinuxHugepageLimit{Pagesize: size, Limit: limit})
	slices.SortFunc(r.HugepageLimits, func(a, b specs.LinuxHugepageLimit) int { return cmp.Compare(a.Pagesize, b.Pagesize) })
}

func (e editor) AddLinuxResourcesUnified(key, value string) {
	r := e.spec.Linux.Resources
	if r.Unified == nil {
		r.Unified = map[string]string{}
	}
	r.Unified[key] = value
}

func (e editor) cpu() *specs.LinuxCPU {
	r := e.spec.Linux.Resources
	if r.CPU == nil {
		r.CPU = &specs.LinuxCPU{}
	}
	return r.CPU
}

func (e editor) SetLinuxResourcesCPUCpus(s string)           { e.cpu().Cpus = s }
func (e editor) SetLinuxResourcesCPUMems(s string)           { e.cpu().Mems = s }
func (e editor) SetLinuxResourcesCPUPeriod(n uint64)         { e.cpu().Period = &n }
func (e editor) SetLinuxResourcesCPUQuota(n int64)           { e.cpu().Quota = &n }
func (e editor) SetLinuxResourcesCPURealtimePeriod(n uint64) { e.cpu().RealtimePeriod = &n }
func (e editor) SetLinuxResourcesCPURealtimeRuntime(n int64) { e.cpu().RealtimeRuntime = &n }
func (e editor) SetLinuxResourcesCPUShares(n uint64)         { e.cpu().Shares = &n }

func (e editor) memory() *specs.LinuxMemory {
	r := e.spec.Linux.Resources
	if r.Memory == nil {
		r.Memory = &specs.LinuxMemory{}
	}
	return r.Memory
}

func (e editor) SetLinuxResourcesMemoryLimit(n int64) { e.memory().Limit = &n }
func (e editor) SetLinuxResourcesMemorySwap(n int64)  { e.memory().Swap = &n }
