package plan

import (
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Hook is the plan of a hook that runs in a container's namespaces before the container's root is
// its root directory: it finds the host's files (config.md#createcontainer-hooks). Its working
// directory is root, the host's path of the container's root, as with runc: relative paths are
// those of the container.
func Hook(h specs.Hook, join Namespaces, root string) *Plan {
	b := &builder{}
	b.given(FdSync)
	container := b.given(FdContainer)
	b.add(Stdio{Fds: [3]Fd{b.given(FdStdin), b.given(FdStdout), b.given(FdStderr)}})
	b.add(Setns{Fd: container, Types: join}, Chdir{Path: root, First: true})
	if join&unix.CLONE_NEWUSER != 0 {
		b.add(BecomeRoot{})
	}
	b.add(Chdir{Path: root})
	b.keepFds(-1)
	args := h.Args
	if len(args) == 0 {
		args = []string{h.Path}
	}
	b.add(Umask{0o022}, Fork{}, Session{}, Execute{Args: args, Env: h.Env, Path: h.Path})
	return &b.plan
}
