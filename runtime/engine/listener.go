package engine

import (
	"encoding/json"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// listener is an agent that answers system calls in a process's place,
// config-linux.md#seccomp.
type listener struct {
	Path     string `json:"path"`
	Metadata string `json:"metadata,omitempty"`
}

// hand gives the agent a process's descriptor, with the state of its container.
func (l *listener) hand(pid, fd int, state specs.State) error {
	if err := l.send(pid, fd, state); err != nil {
		return fmt.Errorf("give the seccomp agent at linux.seccomp.listenerPath %s its descriptor: %w", l.Path, err)
	}
	return nil
}

func (l *listener) send(pid, fd int, state specs.State) error {
	message, err := json.Marshal(specs.ContainerProcessState{
		Version: specs.Version, Fds: []string{specs.SeccompFdName}, Pid: pid, Metadata: l.Metadata, State: state,
	})
	if err != nil {
		return err
	}
	copied, err := borrow(pid, fd)
	if err != nil {
		return err
	}
	defer (&files{copied}).close()
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(sock)
	if err := unix.Connect(sock, &unix.SockaddrUnix{Name: l.Path}); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if _, err := unix.SendmsgN(sock, message, unix.UnixRights(copied...), nil, unix.MSG_NOSIGNAL); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}
