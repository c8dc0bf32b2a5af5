package engine

import (
	"context"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/internal/copyup"
	"github.com/coracle-project/coracle/runtime/internal/netdev"
	"github.com/coracle-project/coracle/runtime/internal/target"
	"github.com/coracle-project/coracle/runtime/plan"
)

// borrow copies descriptors of a process of ours, pidfd_getfd(2). The caller closes them.
func borrow(pid int, from ...int) ([]int, error) {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("pidfd_open: %w", err)
	}
	defer unix.Close(process)
	var out files
	for _, fd := range from {
		copied, err := unix.PidfdGetfd(process, fd, 0)
		if err != nil {
			out.close()
			return nil, fmt.Errorf("pidfd_getfd: %w", err)
		}
		out.add(copied)
	}
	return out.fds, nil
}

// copyUp copies the content of a directory that a process has open into another one.
func copyUp(ctx context.Context, pid, from, to int) error {
	fds, err := borrow(pid, from, to)
	if err == nil {
		defer (&files{fds}).close()
		err = copyup.Copy(ctx, fds[0], fds[1])
	}
	if err != nil {
		return fmt.Errorf("mount option tmpcopyup: %w", err)
	}
	return nil
}

// makeTarget makes the target of a mount below a directory that a process has open, which belongs
// to root of the container.
func (b *birth) makeTarget(pid, which, root int) error {
	if which >= len(b.code.Targets) {
		return fmt.Errorf("the process asks for target %d, there are %d", which, len(b.code.Targets))
	}
	t := b.code.Targets[which]
	fds, err := borrow(pid, root)
	if err != nil {
		return err
	}
	defer (&files{fds}).close()
	owner := target.Owner{UID: unix.Geteuid(), GID: unix.Getegid()}
	if m := b.plan.Mappings; m != nil {
		owner = target.Owner{UID: hostID(m.UIDs), GID: hostID(m.GIDs)}
	}
	return target.Make(fds[0], t.Path, t.Dir, owner)
}

// hostID is what 0 is mapped to.
func hostID(list []plan.Mapping) int {
	for _, m := range list {
		if m.Inside == 0 {
			return int(m.Outside)
		}
	}
	return -1
}

// moveDevices moves network devices into the namespace of a process.
func moveDevices(devices map[string]specs.LinuxNetDevice, pid int) error {
	ns, err := unix.Open(fmt.Sprintf("/proc/%d/ns/net", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the container's network namespace: %w", err)
	}
	defer unix.Close(ns)
	return netdev.Move(devices, ns)
}
