package plan

import (
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Execute executes the program that FindProgram found, execve(2). A name without a slash is looked
// for in the directories of PATH.
type Execute struct {
	Args []string `json:"args"`
	Env  []string `json:"env"`
	// Path is the program if Args[0] is another name.
	Path string `json:"path,omitempty"`
}

func (o Execute) String() string { return "execute " + strings.Join(o.Args, " ") }

func (o Execute) lower(a *asm) {
	argv, env := a.strings(o.Args), a.strings(o.Env)
	failed := &label{}
	execute := func(path string) {
		in := a.call(unix.SYS_EXECVE, path, argv, env)
		if a.hasGate {
			in.forgiving(failed, execErrors...)
		}
	}
	if a.program == 0 {
		execute(o.path())
	} else {
		for i, c := range Candidates(o.path(), o.Env) {
			chosen, next := &label{}, &label{}
			a.call(opIfEq, a.program, i+1).then(chosen)
			a.call(opIfEq, 0, 0).then(next)
			a.bind(chosen)
			execute(c)
			a.bind(next)
		}
	}
	if a.hasGate {
		a.bind(failed)
		o.tell(a)
	}
}

// execErrors are what says of a program that is there that it cannot be executed.
var execErrors = []unix.Errno{
	unix.ENOEXEC, unix.ENOENT, unix.EACCES, unix.EPERM, unix.EINVAL, unix.ETXTBSY, unix.ELOOP, unix.ENOMEM, unix.E2BIG, unix.EIO,
}

// tell has init say on its standard error why it cannot execute its program, and end with
// 255: the container counts as started, so no one else is there to be told. Callers show
// people what runc says here.
func (o Execute) tell(a *asm) {
	errno := a.newSlot()
	a.call(opErrno).to(errno)
	for _, e := range execErrors {
		other, this := &label{}, &label{}
		a.call(opIfEq, errno, int(e)).then(this)
		a.call(opIfEq, 0, 0).then(other)
		a.bind(this)
		msg := fmt.Sprintf("exec %s: %s\n", o.path(), e.Error())
		a.call(unix.SYS_WRITE, 2, msg, len(msg)).forgiving(nil, unix.EBADF, unix.EPIPE, unix.EAGAIN, unix.ENOSPC, unix.EPERM, unix.EIO)
		a.bind(other)
	}
	const status = 255
	a.call(unix.SYS_EXIT_GROUP, status)
}

func (o Execute) path() string {
	if o.Path != "" {
		return o.Path
	}
	return o.Args[0]
}

func (o Execute) explain(errno unix.Errno) error {
	if errno == unix.ENOENT {
		return fmt.Errorf("exec %s: %w: it is not there, or the interpreter that it names", o.path(), errno)
	}
	return notExecutable(o.path(), errno)
}

// FindProgram checks that the program is there, before the container counts as created.
type FindProgram struct {
	Name string   `json:"name"`
	Env  []string `json:"-"`
}

func (o FindProgram) String() string { return "find program " + o.Name }

// lower looks as exec.LookPath does, whose errors callers know: a name with a slash says what
// is wrong with it; in PATH, what cannot be executed is passed by.
func (o FindProgram) lower(a *asm) {
	const fOK, xOK = 0, 1
	a.program = a.constant(0)
	found := &label{}
	slash := strings.Contains(o.Name, "/")
	for i, c := range Candidates(o.Name, o.Env) {
		next, dir, plain := &label{}, &label{}, &label{}
		access := func(p string, mode int) *insn {
			return a.call(unix.SYS_FACCESSAT2, unix.AT_FDCWD, p, mode, unix.AT_EACCESS)
		}
		pass := func(in *insn) {
			if !slash {
				in.forgiving(next, unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.ENAMETOOLONG, unix.EACCES)
			}
		}
		pass(access(c, fOK))
		access(c+"/.", fOK).then(dir).forgiving(plain, unix.ENOTDIR)
		a.bind(plain)
		pass(access(c, xOK))
		a.call(opSet, i+1).to(a.program).then(found)
		a.bind(dir)
		if slash {
			a.call(opFail, int(unix.EISDIR))
		}
		a.bind(next)
	}
	a.call(opFail, int(unix.ENOENT))
	a.bind(found)
}

func (o FindProgram) explain(errno unix.Errno) error { return notExecutable(o.Name, errno) }

// Candidates are the paths to try for a program, in order.
func Candidates(name string, env []string) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	search := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	for _, e := range env {
		if p, ok := strings.CutPrefix(e, "PATH="); ok {
			search = p
		}
	}
	var out []string
	for _, dir := range strings.Split(search, ":") {
		if dir == "" {
			dir = "."
		}
		out = append(out, path.Join(dir, name))
	}
	return out
}

func notExecutable(name string, errno unix.Errno) error {
	switch {
	case errno == unix.ENOENT && !strings.Contains(name, "/"):
		return fmt.Errorf("exec: %q: executable file not found in $PATH", name)
	case errno == unix.ENOENT || errno == unix.ENOTDIR:
		return fmt.Errorf("exec: %q: stat %s: %w", name, name, errno)
	}
	return fmt.Errorf("exec: %q: %w", name, errno)
}
