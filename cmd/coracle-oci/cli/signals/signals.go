// Package signals takes all signals of a process through a descriptor, with one system call for
// each. os/signal takes two changes of threads for each, which for 64 is 8 ms: too much for a
// program that lives for a container that runs no longer than that.
package signals

import (
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// handler writes the signal's number, as one byte, to the descriptor toFd. It is a signal
// handler as the kernel calls it, on the stack that Go's threads have for those, and touches
// nothing of Go's but that variable.
//
//lint:ignore U1000 the linker takes its address
func handler()

// restorer returns from a handler, where the C library has a function for that.
//
//lint:ignore U1000 the linker takes its address
func restorer()

// Addresses of the two, set by the linker.
var handlerAddr, restorerAddr uintptr

// Flags of sigaction(2), the same on both.
const saRestorer, saOnStack, saRestart = 0x04000000, 0x08000000, 0x10000000

//lint:ignore U1000 the handler reads it
var toFd int32

// action is the kernel's struct sigaction, amd64 and arm64.
type action struct {
	handler, flags, restorer uintptr
	mask                     uint64
}

// Take has all signals written to the returned descriptor, a pipe that does not block, from now
// until the process ends: each as a byte with its number. It leaves alone those that the Go
// runtime lives on: errors of the program itself, SIGURG and SIGPROF. A second call returns the
// same descriptor.
func Take() (int, error) { return take() }

var take = sync.OnceValues(func() (int, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return -1, fmt.Errorf("take signals: pipe2: %w", err)
	}
	toFd = int32(p[1])
	const last = 64
	for s := unix.Signal(1); s <= last; s++ {
		if !mayTake(s) {
			continue
		}
		const maskSize = 8
		a := action{handler: handlerAddr, flags: saOnStack | saRestart, mask: ^uint64(0)}
		if restorerAddr != 0 {
			a.flags, a.restorer = a.flags|saRestorer, restorerAddr
		}
		if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&a)), 0, maskSize, 0, 0); errno != 0 {
			return -1, fmt.Errorf("take signal %d: %w", s, errno)
		}
	}
	return p[0], nil
})

func mayTake(s unix.Signal) bool {
	const firstOfLibc, lastOfLibc = 32, 34 // which has them for threads
	switch s {
	case unix.SIGKILL, unix.SIGSTOP:
		return false
	case unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGTRAP, unix.SIGSYS, unix.SIGURG, unix.SIGPROF:
		return false
	}
	return s < firstOfLibc || s > lastOfLibc
}
