package engine

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/plan"
)

// files are descriptors to be closed.
type files struct{ fds []int }

func (f *files) add(fd int) { f.fds = append(f.fds, fd) }

func (f *files) close() {
	for _, fd := range f.fds {
		_ = unix.Close(fd)
	}
	f.fds = nil
}

// opener opens what a plan asks for.
type opener struct {
	engine *Engine
	stdio  *runtime.Stdio
	given  map[string]int
	open   *files
	// placeholder is given for what the process opens itself; 0 until it is needed.
	placeholder int
}

// all returns the plan's descriptors, in order. What was opened for it is in o.open.
func (o *opener) all(p *plan.Plan) ([]int, error) {
	fds := make([]int, 0, len(p.Opens)+1)
	for i := range p.Opens {
		fd, err := o.one(&p.Opens[i])
		if err != nil {
			return nil, err
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

func (o *opener) one(want *plan.Open) (int, error) {
	if fd, ok := o.given[want.Name]; ok {
		return fd, nil
	}
	var (
		fd  int
		err error
	)
	switch {
	case want.Gathered:
		return o.anything()
	case want.Tree != nil:
		fd, err = o.tree(want.Tree)
	case want.Path != "":
		if fd, err = unix.Open(want.Path, want.Flags|unix.O_CLOEXEC, 0); err != nil {
			err = fmt.Errorf("open %s: %w", want.Path, err)
		}
	default:
		return o.stream(want.Name)
	}
	if err != nil {
		return -1, err
	}
	o.open.add(fd)
	return fd, nil
}

// anything is a descriptor for the process to replace.
func (o *opener) anything() (int, error) {
	if o.placeholder > 0 {
		return o.placeholder, nil
	}
	fd, err := unix.Open("/dev/null", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open /dev/null: %w", err)
	}
	o.open.add(fd)
	o.placeholder = fd
	return fd, nil
}

func (o *opener) tree(t *plan.Tree) (int, error) {
	fd, err := t.Open(o.engine.features)
	if err != nil || t.IDMap == nil && t.IDMapBy == "" {
		return fd, err
	}
	userns, err := o.idMap(t)
	if err == nil {
		err = t.SetIDMap(fd, userns)
		_ = unix.Close(userns)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// idMap returns the user namespace that maps the owners of a tree's files.
func (o *opener) idMap(t *plan.Tree) (int, error) {
	if t.IDMapBy == "" {
		return o.engine.userNamespace(t.IDMap)
	}
	fd, err := unix.Open(t.IDMapBy, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open user namespace %s: %w", t.IDMapBy, err)
	}
	return fd, nil
}

// stream is one of the descriptors that the caller gives to the process.
func (o *opener) stream(name string) (int, error) {
	var f *os.File
	switch name {
	case plan.FdStdin:
		f = o.stdio.Stdin
	case plan.FdStdout:
		f = o.stdio.Stdout
	case plan.FdStderr:
		f = o.stdio.Stderr
	case plan.FdConsole:
		f = o.stdio.Console
	default:
		var i int
		if !strings.HasPrefix(name, "file ") {
			return -1, fmt.Errorf("the plan wants an unknown descriptor %q", name)
		}
		if _, err := fmt.Sscanf(name, "file %d", &i); err != nil || i >= len(o.stdio.Files) {
			return -1, fmt.Errorf("the plan wants an unknown descriptor %q", name)
		}
		f = o.stdio.Files[i]
	}
	if f == nil {
		fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return -1, fmt.Errorf("open /dev/null: %w", err)
		}
		o.open.add(fd)
		return fd, nil
	}
	fd, err := o.dup(f)
	if err == nil && name != plan.FdConsole {
		// What Go opens often does not block, which no program expects of its standard streams.
		err = unix.SetNonblock(fd, false)
	}
	return fd, err
}

// dup copies a descriptor without changing the mode of the file, as Fd would.
func (o *opener) dup(f *os.File) (int, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	var dupErr error
	err = raw.Control(func(have uintptr) { fd, dupErr = unix.FcntlInt(have, unix.F_DUPFD_CLOEXEC, 3) })
	if err == nil {
		err = dupErr
	}
	if err != nil {
		return -1, fmt.Errorf("duplicate %s: %w", f.Name(), err)
	}
	o.open.add(fd)
	return fd, nil
}

// descriptors are the plan's and, with a unified hierarchy, which of them is the cgroup that
// the child is cloned into, else -1.
func (b *birth) descriptors(gate int) ([]int, int, error) {
	o := &opener{engine: b.engine, stdio: &b.opts.Stdio, open: &b.open, given: map[string]int{
		plan.FdSync: b.conv.childs, plan.FdGate: gate,
	}}
	fds, err := o.all(b.plan)
	if err != nil {
		return nil, -1, err
	}
	fd, err := b.cgroup.directory()
	if err != nil {
		return nil, -1, err
	}
	if fd < 0 {
		return fds, -1, nil
	}
	b.open.add(fd)
	return append(fds, fd), len(fds), nil
}
