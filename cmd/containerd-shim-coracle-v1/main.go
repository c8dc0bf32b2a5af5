// Command containerd-shim-coracle-v1 is the parent of containers (package shim). The
// daemon starts it through the keeper; containerd starts it by its own protocol. The
// same file is also the keeper and the init of pods, by the name it is called with.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/fault"
	"github.com/coracle-project/coracle/internal/logfile"
	"github.com/coracle-project/coracle/internal/recordfile"
	"github.com/coracle-project/coracle/internal/version"
	"github.com/coracle-project/coracle/runtime/engine"
	"github.com/coracle-project/coracle/runtime/lc"
	"github.com/coracle-project/coracle/shim"
	"github.com/coracle-project/coracle/shim/keeper"
	_ "github.com/coracle-project/coracle/shim/keeper/process" // argv[0] "coracle-keeper"
	_ "github.com/coracle-project/coracle/shim/podinit"        // argv[0] "/coracle-pod-init"
	"github.com/coracle-project/coracle/shim/sock"
)

func main() {
	lc.Init() // does not return in a process that is to become a container
	fault.Main()
	if err := run(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "containerd-shim-coracle-v1:", err)
		if recordfile.Newer(err) != nil {
			os.Exit(keeper.ExitStay)
		}
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) > 0 && args[0] == "serve" {
		return serve(args[1:])
	}
	return containerdCommand(args)
}

// serve is how the keeper starts the shim.
func serve(args []string) error {
	fs := flag.NewFlagSet("serve", flag.ContinueOnError)
	state := fs.String("state", "", "`directory` of this shim's socket, records and FIFOs")
	keeperDir := fs.String("keeper", "", "`directory` of the keeper's socket; none without")
	name := fs.String("name", "shim/node", "`name` under which the keeper supervises this shim")
	engineName := fs.String("engine", engine.Name, "`engine` of new containers: coracle or libcontainer")
	listen := fs.Int("listen-fd", -1, "`descriptor` of the listening socket; without, it is made in the state directory")
	ver := fs.Bool("version", false, "print the version and exit")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *ver {
		fmt.Println(version.String())
		return nil
	}
	if !filepath.IsAbs(*state) {
		return fmt.Errorf("state directory %q: give an absolute path with -state", *state)
	}
	tuneMemory()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	// Before any change: another shim of this directory may still be ending.
	lock, err := shim.LockState(ctx, *state, shim.LockPatience)
	if err != nil {
		return err
	}
	defer lock.Release()
	out, err := logfile.Stderr(filepath.Join(*state, "shim.log"))
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(out, nil)).With("shim", *name)
	slog.SetDefault(log) // and for package log
	own, containers, err := openEngines(*engineName, *state, log)
	if err != nil {
		return err
	}
	s := shim.New(shim.Config{StateDir: *state, Engine: containers, KeeperDir: *keeperDir, Name: *name, Log: log})
	if err := s.CheckRecords(ctx); err != nil {
		return err
	}
	l, err := listener(*listen, *state)
	if err != nil {
		return err
	}
	if err := own.Warm(); err != nil {
		log.Warn("it will be tried again for the first container", "err", err)
	}
	// Off the main thread, which the engine keeps out of the scheduler's hands.
	ended := make(chan error)
	go func() {
		if err := s.Adopt(ctx); err != nil {
			ended <- err
			return
		}
		ended <- s.Serve(ctx, l)
	}()
	return <-ended
}

// listener takes the socket that the keeper holds for this shim. A client that connects while no
// shim runs waits for the next one instead of being refused.
func listener(fd int, state string) (net.Listener, error) {
	if fd >= 0 {
		if _, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err == nil {
			unix.CloseOnExec(fd)
			f := os.NewFile(uintptr(fd), "listener")
			defer f.Close()
			return net.FileListener(f)
		}
	}
	return sock.Listen(state, sock.Shim, "unix")
}

// tuneMemory makes the heap small rather than the collector idle: a shim lives for
// months and does little.
func tuneMemory() {
	debug.SetGCPercent(30)
	runtime.GOMAXPROCS(min(runtime.GOMAXPROCS(0), 4))
}
