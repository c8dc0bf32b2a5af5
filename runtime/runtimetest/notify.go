package runtimetest

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"unsafe"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// agent answers the system calls of one process with an error, seccomp_unotify(2).
func (r *rig) agent(l *net.UnixListener, errno unix.Errno) <-chan specs.ContainerProcessState {
	states := make(chan specs.ContainerProcessState, 1)
	go func() {
		conn, err := l.AcceptUnix()
		if err != nil {
			close(states)
			return
		}
		defer conn.Close()
		data, oob := make([]byte, 64<<10), make([]byte, 64)
		n, on, _, _, err := conn.ReadMsgUnix(data, oob)
		if err != nil {
			close(states)
			return
		}
		var state specs.ContainerProcessState
		_ = json.Unmarshal(data[:n], &state)
		messages, _ := unix.ParseSocketControlMessage(oob[:on])
		fds, _ := unix.ParseUnixRights(&messages[0])
		states <- state
		for {
			const receive, send = 0xc0502100, 0xc0182101 // SECCOMP_IOCTL_NOTIF_RECV and _SEND
			// Before Linux 6.11 RECV does not return when the last process is gone.
			poll := []unix.PollFd{{Fd: int32(fds[0]), Events: unix.POLLIN}}
			if _, err := unix.Poll(poll, -1); errors.Is(err, unix.EINTR) {
				continue
			}
			if poll[0].Revents&unix.POLLIN == 0 {
				break
			}
			var notification [80]byte
			if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fds[0]), receive, uintptr(unsafe.Pointer(&notification))); e != 0 {
				if e == unix.EINTR {
					continue
				}
				break // ENOENT: the process is gone
			}
			answer := struct {
				id    [8]byte
				value int64
				err   int32
				flags uint32
			}{id: [8]byte(notification[:8]), err: -int32(errno)}
			_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(fds[0]), send, uintptr(unsafe.Pointer(&answer)))
		}
		_ = unix.Close(fds[0])
	}()
	return states
}

var notifyTests = map[string]func(*rig){
	"a seccomp agent answers system calls": func(r *rig) {
		// Not in the bundle: a socket's path has no more than 107 bytes, and a test's name is long.
		dir, err := os.MkdirTemp("", "agent")
		r.must(err)
		defer os.RemoveAll(dir)
		path := filepath.Join(dir, "agent")
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		r.must(err)
		defer l.Close()
		for _, noNewPrivs := range []bool{true, false} {
			spec := r.spec("mkdir /tmp/x 2>&1; exec sleep 1000")
			spec.Process.NoNewPrivileges = noNewPrivs
			spec.Annotations = map[string]string{"a": "b"}
			spec.Linux.Seccomp = &specs.LinuxSeccomp{
				DefaultAction: specs.ActAllow, ListenerPath: path, ListenerMetadata: "meta",
				Architectures: []specs.Arch{specs.ArchX86_64, specs.ArchAARCH64},
				Syscalls:      []specs.LinuxSyscall{{Names: []string{"mkdir", "mkdirat"}, Action: specs.ActNotify}},
			}
			states := r.agent(l, unix.ENOTEMPTY)
			out := r.output()
			c := r.create(spec, runtime.Stdio{Stdout: out.write})
			pid := c.Pid()
			state := <-states
			if state.Pid != pid || state.State.ID != c.ID() || state.Metadata != "meta" || len(state.Fds) != 1 ||
				state.Fds[0] != specs.SeccompFdName || state.State.Status != specs.StateCreating {
				r.Errorf("the agent got %+v", state)
			}
			r.must(c.Start(r.Context()))
			if got := out.line(); got != "mkdir: can't create directory '/tmp/x': Directory not empty" {
				r.Errorf("got %q", got)
			}
			states = r.agent(l, unix.ENOTBLK)
			p := process("mkdir /tmp/y")
			p.NoNewPrivileges = noNewPrivs
			r.execSays(c, p, "mkdir: can't create directory '/tmp/y': Block device required")
			if state := <-states; state.State.Status != specs.StateRunning || state.Pid == pid || state.State.Pid != pid {
				r.Errorf("for the exec the agent got %+v", state)
			}
			r.end(c, pid)
		}
	},

	"a seccomp agent that is not there is an error": func(r *rig) {
		spec := r.spec("true")
		spec.Linux.Seccomp = &specs.LinuxSeccomp{
			DefaultAction: specs.ActAllow, ListenerPath: filepath.Join(r.bundle, "nobody"),
			Syscalls: []specs.LinuxSyscall{{Names: []string{"mkdir"}, Action: specs.ActNotify}},
		}
		r.refused(spec, "nobody")
	},
}
