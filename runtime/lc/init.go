package lc

import (
	"os"
	"runtime"
	"unsafe"

	"github.com/opencontainers/runc/libcontainer"
	// nsenter's C constructor joins and makes namespaces before the Go runtime
	// starts threads, which setns(2) would refuse.
	_ "github.com/opencontainers/runc/libcontainer/nsenter"
	"golang.org/x/sys/unix"
)

// initArg is how libcontainer calls its own executable to become a container's
// first process (or the first process of an exec).
const initArg = "init"

// Init turns the process into a container's init if libcontainer started it for
// that, and then never returns. Every main that links an Engine of this package
// calls it before anything else; tests do so in TestMain.
func Init() {
	if len(os.Args) > 1 && os.Args[1] == initArg && os.Getenv("_LIBCONTAINER_INITPIPE") != "" {
		freshSignals()
		libcontainer.Init()
	}
}

// freshSignals resets every ignored signal of this process to its default action, and unblocks all
// signals of this thread, which executes the container's program. Both would otherwise survive
// execve(2). The Go runtime has handlers for all signals but those that were ignored at its start
// (SIGHUP, SIGINT).
func freshSignals() {
	const last, setSize, ignore = 64, 8, 1
	type action struct {
		handler, flags, restorer uintptr
		mask                     uint64
	}
	for sig := uintptr(1); sig <= last; sig++ {
		var now, standard action
		_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, 0, uintptr(unsafe.Pointer(&now)), setSize, 0, 0)
		if errno == 0 && now.handler == ignore {
			_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&standard)), 0, setSize, 0, 0)
		}
	}
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &unix.Sigset_t{}, nil) // cannot fail: every mask is valid
}

// Running Init here already spares each new container the initialisers of all
// packages that sort after this one, which is most of a shim.
//
// The lock keeps the main goroutine on the main thread and so all others off it.
// While libcontainer prepares mounts it moves one thread of this process into the
// container's mount namespace and lets it end there. The main thread cannot end:
// were it chosen, it would stay in that namespace for good, keep the container's
// mounts busy, and /proc/self would show the container's root and mounts instead
// of ours.
func init() {
	Init()
	runtime.LockOSThread()
}
