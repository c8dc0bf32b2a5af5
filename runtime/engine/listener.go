package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

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
	return deliver(l.Path, message, copied, agentPatience)
}

// agentPatience is how long an agent may not accept a connection, and not read.
const agentPatience = 10 * time.Second

// deliver sends a message with descriptors. The creation of a container or a process waits for it,
// and an agent may hang.
func deliver(path string, message []byte, fds []int, patience time.Duration) error {
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(sock)
	limit := unix.NsecToTimeval(patience.Nanoseconds())
	if err := unix.SetsockoptTimeval(sock, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil { // for connect, too
		return fmt.Errorf("limit the time of the agent: %w", err)
	}
	deadline := time.Now().Add(patience)
	err = insist(deadline, func() error { return unix.Connect(sock, &unix.SockaddrUnix{Name: path}) })
	if err != nil {
		return fmt.Errorf("connect: %w", overdue(err, patience))
	}
	for rights := unix.UnixRights(fds...); len(message) > 0; rights = nil { // with the first byte
		err := insist(deadline, func() error {
			n, err := unix.SendmsgN(sock, message, rights, nil, unix.MSG_NOSIGNAL)
			message = message[max(n, 0):]
			return err
		})
		if err != nil {
			return fmt.Errorf("send: %w", overdue(err, patience))
		}
	}
	return nil
}

// insist repeats a call that a signal interrupts: with a time limit, the kernel does not.
func insist(deadline time.Time, call func() error) error {
	for {
		err := call()
		if !errors.Is(err, unix.EINTR) || time.Now().After(deadline) {
			return err
		}
	}
}

// overdue words what the kernel says of a time limit.
func overdue(err error, patience time.Duration) error {
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return fmt.Errorf("the agent does not answer within %s: %w", patience, err)
	}
	return err
}
