package lc

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/selinux/go-selinux"
	"github.com/sirupsen/logrus"

	"github.com/coracle-project/coracle/runtime"
)

// libcontainerProcess translates a valid process and its stdio.
func libcontainerProcess(p *specs.Process, stdio runtime.Stdio) (*libcontainer.Process, error) {
	if p.SelinuxLabel != "" && !selinux.GetEnabled() {
		return nil, fmt.Errorf("%w: process.selinuxLabel %q is set but this machine has no SELinux", runtime.ErrInvalidSpec, p.SelinuxLabel)
	}
	affinity, err := configs.ConvertCPUAffinity(p.ExecCPUAffinity)
	if err != nil {
		return nil, fmt.Errorf("%w: process.execCPUAffinity: %w", runtime.ErrInvalidSpec, err)
	}
	noNewPrivileges := p.NoNewPrivileges
	out := &libcontainer.Process{
		Args: p.Args, Env: p.Env, Cwd: p.Cwd,
		UID: int(p.User.UID), GID: int(p.User.GID),
		Label: p.SelinuxLabel, AppArmorProfile: p.ApparmorProfile,
		NoNewPrivileges: &noNewPrivileges,
		Scheduler:       p.Scheduler, IOPriority: p.IOPriority, CPUAffinity: affinity,
		ExtraFiles: stdio.Files,
		// What init logs comes back through a pipe.
		LogLevel: strconv.Itoa(int(logrus.GetLevel())),
	}
	for _, gid := range p.User.AdditionalGids {
		out.AdditionalGroups = append(out.AdditionalGroups, int(gid))
	}
	for _, l := range p.Rlimits {
		out.Rlimits = append(out.Rlimits, configs.Rlimit{Type: runtime.Rlimits[l.Type], Soft: l.Soft, Hard: l.Hard})
	}
	if c := p.Capabilities; c != nil {
		out.Capabilities = &configs.Capabilities{
			Bounding: c.Bounding, Effective: c.Effective, Permitted: c.Permitted,
			Inheritable: c.Inheritable, Ambient: c.Ambient,
		}
	}
	if s := p.ConsoleSize; s != nil {
		out.ConsoleWidth, out.ConsoleHeight = uint16(s.Width), uint16(s.Height)
	}
	return out, attach(out, p.Terminal, stdio)
}

// attach sets the standard streams. A nil *os.File must not get into an
// io.Reader or io.Writer field: it would no longer be nil there.
func attach(out *libcontainer.Process, terminal bool, stdio runtime.Stdio) error {
	if terminal {
		if stdio.Console == nil {
			return errors.New("process.terminal is set but there is no console socket to send the terminal to")
		}
		out.ConsoleSocket = stdio.Console
		return nil
	}
	set := func(f *os.File, to func(*os.File)) {
		if f != nil {
			to(f)
		}
	}
	set(stdio.Stdin, func(f *os.File) { out.Stdin = f })
	set(stdio.Stdout, func(f *os.File) { out.Stdout = f })
	set(stdio.Stderr, func(f *os.File) { out.Stderr = f })
	return nil
}
