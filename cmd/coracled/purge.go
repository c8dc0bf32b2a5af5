package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cmd/coracled/config"
	"github.com/coracle-project/coracle/internal/apparmor"
	"github.com/coracle-project/coracle/internal/nspin"
	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/pod/podconfig"
)

const (
	// endOfDaemon is how long a running daemon may take to end after SIGTERM.
	endOfDaemon = 30 * time.Second
	// atOnce is how many pods are removed at the same time.
	atOnce = 8
)

// ownState and ownRoot are what Coracle makes in its two directories. Nothing else
// is deleted from them.
var (
	ownState = []string{"pods", "containers", "ns", "shim", "network", "build", "reserve", "lock", apparmor.StateFile, peersDir}
	ownRoot  = []string{"images", "snapshots", "snapshotters", "build", "lock"}
)

func purgeCommand(f *flags) *cobra.Command {
	var images, stopped bool
	cmd := &cobra.Command{
		Use:   "purge",
		Short: "remove all pods and whatever else keeps running or mounted",
		Long: `purge ends the daemon of --state if it runs, kills and removes all its pods, ends the
shim and its keeper, and removes the network's firewall table, addresses and routes, the cgroup and the
state directory. Images stay unless --all is given. With --stopped it fails if a daemon runs, and ends none.`,
		Example: `  coracled purge
  coracled purge --all --root /srv/coracle --state /run/coracle-test`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.load(cmd)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			take := takeState
			if stopped {
				take = lockState
			}
			return purge(ctx, c, images, take, newLog(c.Log, c.Log.SlogLevel(), os.Stderr))
		},
	}
	cmd.Flags().BoolVar(&images, "all", false, "remove the images, too")
	cmd.Flags().BoolVar(&stopped, "stopped", false, "fail if a daemon has --state, instead of ending it")
	return cmd
}

func purge(ctx context.Context, c config.Config, images bool, take taker, log *slog.Logger) error {
	if err := needRoot(); err != nil {
		return fmt.Errorf("purge: %w", err)
	}
	state, err := exists(c.State)
	if err != nil {
		return fmt.Errorf("purge: %w", err)
	}
	root, err := exists(c.Root)
	if err != nil {
		return fmt.Errorf("purge: %w", err)
	}
	if state || root {
		// Without the state directory (someone has emptied /run) there may still be
		// a firewall table, writable layers.
		if err := purgeOwned(ctx, c, images || !root, take, log); err != nil {
			return fmt.Errorf("purge: %w", err)
		}
	}
	return nil
}

func exists(path string) (bool, error) {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// purgeOwned becomes the owner of both directories and takes down all that is in the
// state directory, and in the root if images are to go. A daemon with another state
// directory on the same root is not ours to end. The locks are kept until the end: a
// daemon that is started meanwhile, by systemd, must not use what is being deleted.
func purgeOwned(ctx context.Context, c config.Config, images bool, take taker, log *slog.Logger) error {
	if err := makeDirs(c); err != nil {
		return err
	}
	lock, err := take(ctx, c.State)
	if err != nil {
		return err
	}
	defer lock.release()
	root, err := lockDir(c.Root)
	if err != nil {
		return err
	}
	defer root.release()
	n, err := startNode(ctx, c, nil, log)
	if err != nil {
		return err
	}
	if err := errors.Join(n.removePods(ctx), n.layers.RemoveMounts(ctx)); err != nil {
		return errors.Join(err, n.close())
	}
	if err := n.snapshots.DropLazy(); err != nil {
		return errors.Join(err, n.close())
	}
	// What pods leave behind is deleted in the background, by them and by what is below
	// them: each is asked to be done before what it works with goes.
	err = errors.Join(n.pods.Flush(ctx), n.layers.Flush(ctx), n.network.Flush(ctx), n.network.Purge(ctx), n.shim.Shutdown(ctx), n.close())
	if err != nil {
		return err
	}
	if cgroupDriver(c) == podconfig.Cgroupfs {
		if err := removeCgroup(cgroupRoot(c)); err != nil {
			return err
		}
	}
	if err := nspin.RemoveRoot(filepath.Join(c.State, "ns")); err != nil {
		return err
	}
	if err := os.Remove(c.Socket()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := removeOwn(c.State, ownState); err != nil || !images {
		return err
	}
	return removeOwn(c.Root, ownRoot)
}

// taker gets the lock of a state directory.
type taker func(ctx context.Context, dir string) (*dirLock, error)

// lockState is for a caller that does not know whose daemon may run: it leaves that alone.
func lockState(_ context.Context, dir string) (*dirLock, error) { return lockDir(dir) }

// takeState gets the lock of a state directory, from a running daemon if need be.
func takeState(ctx context.Context, dir string) (*dirLock, error) {
	lock, err := lockDir(dir)
	if !errors.Is(err, errRunning) {
		return lock, err
	}
	if err := endDaemon(dir); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, endOfDaemon)
	defer cancel()
	return awaitDir(ctx, dir)
}

// endDaemon sends SIGTERM to the holder of the lock. The pid comes from the lock's
// file; that it is the holder's is seen from its having the file open, through a
// pidfd, so that a number used again harms no one.
func endDaemon(dir string) error {
	f, err := openLock(dir)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	pid := holder(f)
	if pid <= 0 {
		return fmt.Errorf("lock %s: does not say who holds it", f.Name())
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil // ended meanwhile
	}
	if err != nil {
		return fmt.Errorf("end daemon %d: %w", pid, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if !hasOpen(pid, f) {
		return fmt.Errorf("end daemon: process %d does not hold %s", pid, f.Name())
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end daemon %d: %w", pid, err)
	}
	return nil
}

// hasOpen says whether a process has the same file open.
func hasOpen(pid int, f *os.File) bool {
	want, err := f.Stat()
	if err != nil {
		return false
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, fd := range fds {
		if st, err := os.Stat(filepath.Join(dir, fd.Name())); err == nil && os.SameFile(st, want) {
			return true
		}
	}
	return false
}

// removePods stops and removes all pods, several at a time.
func (n *node) removePods(ctx context.Context) error {
	var all errgroup.Group
	all.SetLimit(atOnce)
	for p := range n.pods.Pods(pod.PodFilter{}) {
		all.Go(func() error {
			if err := n.pods.Stop(ctx, p.ID); err != nil {
				return err
			}
			return n.pods.Remove(ctx, p.ID)
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	for _, u := range n.pods.Unmanaged() { // pods first: they take their containers along
		remove := n.pods.RemoveContainer
		if u.Kind == pod.UnmanagedPod {
			remove = n.pods.Remove
		}
		if err := remove(ctx, u.ID); err != nil {
			return err
		}
	}
	return nil
}

// removeOwn deletes the named entries of dir, and dir if nothing else is in it. It
// does not cross into a mount: one that is still there is an error, not a way to
// delete what is mounted.
func removeOwn(dir string, names []string) error {
	for _, name := range names {
		path := filepath.Join(dir, name)
		if at, err := mountBelow(path); err != nil {
			return err
		} else if at != "" {
			return fmt.Errorf("remove %s: %s is still mounted", path, at)
		}
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	err := os.Remove(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EBUSY) {
		return nil
	}
	return err
}
