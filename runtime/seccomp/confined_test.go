package seccomp

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// confinedArg makes the test binary a process that confines itself.
const confinedArg = "confined"

// order is what a confined process is to do: load the profile's filter and make calls.
type order struct {
	Profile *specs.LinuxSeccomp
	Calls   []sysCall
	// Answer is what an agent in the same process lets the calls return of which it is notified.
	Answer uint64
	// Exec is then executed.
	Exec []string
}

type sysCall struct {
	Nr   uintptr
	Args [maxArgs]uint64
}

// answer is what came of it.
type answer struct {
	Listener int // a descriptor, -1 for none
	Results  []result
}

type result struct {
	Value uintptr
	Errno syscall.Errno
}

func confined(in io.Reader, out io.Writer) int {
	if err := obey(in, out); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func obey(in io.Reader, out io.Writer) error {
	var o order
	if err := json.NewDecoder(in).Decode(&o); err != nil {
		return err
	}
	f, err := Compile(o.Profile)
	if err != nil {
		return err
	}
	a := answer{Listener: -1}
	// The thread alone is confined, so that the rest of a Go process needs no rules. It is
	// never unlocked: the thread ends with its goroutine.
	done, listener := make(chan error), make(chan int, 1)
	go func() {
		runtime.LockOSThread()
		fd, err := load(f)
		if err != nil {
			done <- err
			return
		}
		if f.Notify {
			a.Listener = fd
			listener <- fd
		}
		for _, c := range o.Calls {
			n := c.Args
			v, _, errno := syscall.RawSyscall6(c.Nr, uintptr(n[0]), uintptr(n[1]), uintptr(n[2]), uintptr(n[3]), uintptr(n[4]), uintptr(n[5]))
			a.Results = append(a.Results, result{v, errno})
		}
		if o.Exec != nil {
			done <- unix.Exec(o.Exec[0], o.Exec, nil)
			return
		}
		done <- nil
	}()
	if f.Notify {
		go serve(<-listener, o.Answer)
	}
	if err := <-done; err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(a)
}

// load confines the calling thread.
func load(f *Filter) (fd int, err error) {
	prog := unix.SockFprog{Len: uint16(len(f.Insns)), Filter: &f.Insns[0]}
	n, _, errno := syscall.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, uintptr(f.Flags), uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return -1, fmt.Errorf("load a filter (this test needs root): %w", errno)
	}
	return int(n), nil
}

// serve is an agent: it answers all notifications.
func serve(listener int, value uint64) {
	for {
		var request struct { // struct seccomp_notif
			id    uint64
			pid   uint32
			flags uint32
			data  [64]byte
		}
		if _, _, errno := syscall.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_RECV,
			uintptr(unsafe.Pointer(&request))); errno != 0 {
			return
		}
		response := struct { // struct seccomp_notif_resp
			id    uint64
			value uint64
			errno int32
			flags uint32
		}{id: request.id, value: value}
		if _, _, errno := syscall.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SEND,
			uintptr(unsafe.Pointer(&response))); errno != 0 {
			return
		}
	}
}
