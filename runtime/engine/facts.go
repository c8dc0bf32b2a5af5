package engine

import (
	"bytes"
	"fmt"
	"strconv"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/safepath"
	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/plan"
)

// planOptions are what plans of a container and of its processes have in common.
func (e *Engine) planOptions(id string, spec *specs.Spec, stdio *runtime.Stdio) (plan.Options, error) {
	z, err := e.zygote()
	if err != nil {
		return plan.Options{}, err
	}
	o := plan.Options{
		ID: id, Features: e.features, Gather: rootless(), Files: len(stdio.Files), NoFile: z.NoFile, Permitted: permitted(),
	}
	if spec.Linux != nil && spec.Linux.Seccomp != nil {
		f, err := e.filters.Compile(spec.Linux.Seccomp)
		if err != nil {
			return o, fmt.Errorf("%w: %w", runtime.ErrInvalidSpec, err)
		}
		if len(f.Insns) > 0 {
			o.Seccomp = &plan.Filter{Program: f.Insns, Flags: uint(f.Flags), Notify: f.Notify}
		}
	}
	return o, nil
}

// warnOfCapabilities tells of those that no kernel has, as config.md#linux-process wants it.
func (e *Engine) warnOfCapabilities(id string, p *specs.Process) {
	if unknown := plan.UnknownCapabilities(p.Capabilities); len(unknown) > 0 {
		e.log.Warn("ignoring unknown capabilities in process.capabilities", "container", id, "unknown", unknown)
	}
	for _, name := range plan.NotAmbient(p.Capabilities) {
		e.log.Warn("can't raise ambient capability "+name+": it is not permitted and inheritable", "container", id)
	}
}

// permitted are the capabilities of this process, which do not change.
var permitted = sync.OnceValue(func() plan.CapSet {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	if err := unix.Capget(&h, &d[0]); err != nil {
		return ^plan.CapSet(0) // let the kernel judge
	}
	return plan.CapSet(d[0].Permitted) | plan.CapSet(d[1].Permitted)<<32
})

// withOOMScore is the specification with an oom_score_adj that may be set.
func (e *Engine) withOOMScore(id string, spec *specs.Spec) *specs.Spec {
	allowed := e.store.AllowedOOMScore(id, spec.Process.OOMScoreAdj)
	if allowed == spec.Process.OOMScoreAdj {
		return spec
	}
	s, p := *spec, *spec.Process
	p.OOMScoreAdj = allowed
	s.Process = &p
	return &s
}

// mountFlags are the flags of mount(2) of the mount that a path is in.
func mountFlags(path string) (uintptr, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, fmt.Errorf("root.path %s: %w", path, err)
	}
	const noSymfollow = 0x2000 // ST_NOSYMFOLLOW
	var flags uintptr
	for _, f := range []struct {
		has int64
		is  uintptr
	}{
		{unix.ST_RDONLY, unix.MS_RDONLY},
		{unix.ST_NOSUID, unix.MS_NOSUID},
		{unix.ST_NODEV, unix.MS_NODEV},
		{unix.ST_NOEXEC, unix.MS_NOEXEC},
		{unix.ST_NOATIME, unix.MS_NOATIME},
		{unix.ST_NODIRATIME, unix.MS_NODIRATIME},
		{unix.ST_RELATIME, unix.MS_RELATIME},
		{noSymfollow, unix.MS_NOSYMFOLLOW},
	} {
		if st.Flags&f.has != 0 {
			flags |= f.is
		}
	}
	return flags, nil
}

// homeIn is the home directory of a user, by the /etc/passwd of a root file system, which may
// be anything, a device too; "/" if that does not say.
func homeIn(root string, uid uint32) string {
	const most = 1 << 20 // bytes of the file that are read
	dir, err := safepath.Open(root)
	if err != nil {
		return "/"
	}
	defer dir.Close()
	data, err := dir.ReadFile("etc/passwd", most)
	if err != nil {
		return "/"
	}
	want := []byte(strconv.FormatUint(uint64(uid), 10))
	for line := range bytes.Lines(data) {
		fields := bytes.Split(bytes.TrimSuffix(line, []byte("\n")), []byte(":")) // passwd(5)
		if len(fields) >= 6 && bytes.Equal(fields[2], want) && len(fields[5]) > 0 {
			return string(fields[5])
		}
	}
	return "/"
}
