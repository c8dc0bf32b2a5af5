package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	apitypes "github.com/containerd/containerd/api/types"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/coracle-project/coracle/internal/recordfile"
	"github.com/coracle-project/coracle/internal/version"
	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/shim/pidfd"
	"github.com/coracle-project/coracle/shim/sock"
)

// How containerd itself drives a shim (core/runtime/v2/README.md): it calls the binary in the
// bundle's directory with flags and one of the actions "start" and "delete".

const runtimeName = "io.containerd.coracle.v1"

// containerdFlags are containerd's; those that a shim without events or debug output has
// no use for are accepted and ignored.
type containerdFlags struct {
	namespace, id, bundle string
	info, version         bool
}

// bootstrap is what "start" prints (containerd's BootstrapParams, version 3 of the protocol).
type bootstrap struct {
	Version  int    `json:"version"`
	Address  string `json:"address"`
	Protocol string `json:"protocol"`
}

func containerdCommand(args []string) error {
	var f containerdFlags
	fs := flag.NewFlagSet("containerd-shim-coracle-v1", flag.ContinueOnError)
	fs.StringVar(&f.namespace, "namespace", "", "containerd's namespace")
	fs.StringVar(&f.id, "id", "", "container id")
	fs.StringVar(&f.bundle, "bundle", "", "bundle directory (delete)")
	fs.BoolVar(&f.version, "v", false, "print the version and exit")
	fs.BoolVar(&f.version, "version", false, "print the version and exit")
	fs.BoolVar(&f.info, "info", false, "print containerd's RuntimeInfo and exit")
	fs.Bool("debug", false, "ignored")
	fs.String("socket", "", "ignored")
	address := fs.String("address", "", "socket for the event of publish; otherwise ignored: containerd waits for exits over the Task API")
	fs.String("publish-binary", "", "ignored")
	if err := fs.Parse(args); err != nil {
		return err
	}
	switch {
	case f.version:
		fmt.Println(version.String())
		return nil
	case f.info:
		return printProto(&apitypes.RuntimeInfo{
			Name: runtimeName, Version: &apitypes.RuntimeVersion{Version: version.Number()},
		})
	case fs.Arg(0) == "publish":
		return publish(*address, fs.Args()[1:])
	case fs.NArg() != 1:
		return fmt.Errorf("one action is needed, start or delete, not %q", fs.Args())
	}
	if err := runtime.ValidateID(f.id); err != nil {
		return err
	}
	if err := runtime.ValidateID(f.namespace); err != nil {
		return fmt.Errorf("namespace: %w", err)
	}
	switch action := fs.Arg(0); action {
	case "start":
		return start(f)
	case "delete":
		return remove(f)
	default:
		return fmt.Errorf("unknown action %q: start and delete are known", action)
	}
}

// stateDir is the shim's, one per container. It is short, because containerd dials the
// socket in it by its path.
func (f containerdFlags) stateDir() string {
	sum := sha256.Sum256([]byte(f.namespace + "/" + f.id))
	return fmt.Sprintf("/run/coracle-shim/%x", sum[:16])
}

// start runs a shim in the background and prints where it listens. It listens before this
// returns: the socket is made here and passed on.
func start(f containerdFlags) error {
	dir := f.stateDir()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	l, err := sock.Listen(dir, sock.Shim, "unix")
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	defer l.Close()
	socket, err := l.File()
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	defer socket.Close()
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(dir, "shim.log"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(self, "serve", "-state", dir, "-name", "containerd/"+f.id, "-listen-fd", "3")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{socket}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	if err := writePID(dir, cmd.Process.Pid); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	return json.NewEncoder(os.Stdout).Encode(bootstrap{
		Version: 3, Address: "unix://" + filepath.Join(dir, sock.Shim), Protocol: "ttrpc",
	})
}

// remove is called when a shim has gone or does not answer: it ends both the shim and the
// container, and prints how that ended.
func remove(f containerdFlags) error {
	dir := f.stateDir()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	endShim(dir)
	_, containers, err := openEngines("", dir, slog.New(slog.DiscardHandler))
	if err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	c, err := containers.Load(ctx, f.id)
	if errors.Is(err, recordfile.ErrDamaged) {
		c, err = containers.Rebuild(ctx, f.id, runtime.Known{Bundle: f.bundle})
	}
	if err == nil {
		if err := c.Delete(ctx, runtime.DeleteOptions{Force: true}); err != nil {
			return fmt.Errorf("delete: %w", err)
		}
	}
	if f.bundle != "" {
		if err := unix.Unmount(filepath.Join(f.bundle, "rootfs"), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil &&
			err != unix.EINVAL && err != unix.ENOENT { // not mounted; no rootfs
			return fmt.Errorf("delete: unmount rootfs: %w", err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	return printProto(&task.DeleteResponse{ExitStatus: 128 + uint32(unix.SIGKILL), ExitedAt: timestamppb.Now()})
}

func writePID(dir string, pid int) error {
	start, err := pidfd.StartTime(pid)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "shim.pid"), fmt.Appendf(nil, "%d %d\n", pid, start), 0o600)
}

// endShim kills the shim of a state directory, if it still runs.
func endShim(dir string) {
	b, err := os.ReadFile(filepath.Join(dir, "shim.pid"))
	if err != nil {
		return
	}
	var pid int
	var start uint64
	if _, err := fmt.Sscan(string(b), &pid, &start); err != nil {
		return
	}
	f, err := pidfd.OpenStarted(pid, start)
	if err != nil {
		return // it is gone
	}
	defer f.Close()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return
	}
	_, _ = pidfd.Wait(f)
}

func printProto(m proto.Message) error {
	b, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(b)
	return err
}
