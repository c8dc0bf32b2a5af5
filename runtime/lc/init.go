package lc

import (
	"os"
	"runtime"

	"github.com/opencontainers/runc/libcontainer"
	// nsenter's C constructor joins and makes namespaces before the Go runtime
	// starts threads, which setns(2) would refuse.
	_ "github.com/opencontainers/runc/libcontainer/nsenter"
)

// initArg is how libcontainer calls its own executable to become a container's
// first process (or the first process of an exec).
const initArg = "init"

// Init turns the process into a container's init if libcontainer started it for
// that, and then never returns. Every main that links an Engine of this package
// calls it before anything else; tests do so in TestMain.
func Init() {
	if len(os.Args) > 1 && os.Args[1] == initArg && os.Getenv("_LIBCONTAINER_INITPIPE") != "" {
		libcontainer.Init()
	}
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
