//go:build cgo && seccomp

package seccomp

import (
	"slices"
	"testing"
	_ "unsafe" // for go:linkname

	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"
)

// The reference is runc itself, and not our reading of it: these are its functions, at the
// version in go.mod. runc exports only the one that loads the program into its caller.

//go:linkname runcAction github.com/opencontainers/runc/libcontainer/seccomp.getAction
func runcAction(act configs.Action, errnoRet *uint) (seccomp.ScmpAction, error)

//go:linkname runcRule github.com/opencontainers/runc/libcontainer/seccomp.matchCall
func runcRule(filter *seccomp.ScmpFilter, call *configs.Syscall, defAct seccomp.ScmpAction) error

//go:linkname runcPatch github.com/opencontainers/runc/libcontainer/seccomp/patchbpf.enosysPatchFilter
func runcPatch(config *configs.Seccomp, filter *seccomp.ScmpFilter) ([]unix.SockFilter, error)

// reference is the program that runc makes of a profile with the installed libseccomp.
func reference(profile *specs.LinuxSeccomp) ([]unix.SockFilter, error) {
	config, err := specconv.SetupSeccomp(profile)
	if err != nil {
		return nil, err
	}
	other, err := runcAction(config.DefaultAction, config.DefaultErrnoRet)
	if err != nil {
		return nil, err
	}
	filter, err := seccomp.NewFilter(other)
	if err != nil {
		return nil, err
	}
	defer filter.Release()
	for _, name := range config.Architectures {
		a, err := seccomp.GetArchFromString(name)
		if err != nil {
			return nil, err
		}
		if err := filter.AddArch(a); err != nil {
			return nil, err
		}
	}
	if len(config.Syscalls) > 32 {
		if err := filter.SetOptimize(2); err != nil {
			return nil, err
		}
	}
	for _, call := range config.Syscalls {
		if err := runcRule(filter, call, other); err != nil {
			return nil, err
		}
	}
	return runcPatch(config, filter)
}

// knownToLibrary is the profile without calls that are newer than the installed libseccomp,
// and without flags, which are no part of a program.
func knownToLibrary(t testing.TB, in *specs.LinuxSeccomp) *specs.LinuxSeccomp {
	t.Helper()
	out := *in
	out.Flags = []specs.LinuxSeccompFlag{}
	out.Syscalls = nil
	for _, s := range in.Syscalls {
		s.Names = slices.DeleteFunc(slices.Clone(s.Names), func(name string) bool {
			_, err := seccomp.GetSyscallFromName(name)
			return err != nil
		})
		if len(s.Names) > 0 {
			out.Syscalls = append(out.Syscalls, s)
		}
	}
	return &out
}
