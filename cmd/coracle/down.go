package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func downCommand(p *place) *cobra.Command {
	var purge bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "stop what up has started, and the pods with it",
		Long: `down ends the cluster process; if up had started coracled, it also removes the pods and ends
coracled, its shim and its network. What the API server holds and the images stay for the next up,
unless --purge is given. A coracled that somebody else has started goes on, and so do its pods.`,
		Example: `  coracle down
  coracle down --purge      # also images, certificates and everything in the cluster`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			return down(ctx, *p, purge, cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&purge, "purge", false, "remove images, certificates and the cluster's data, too")
	return cmd
}

func down(ctx context.Context, p place, purge bool, out io.Writer) error {
	if os.Geteuid() != 0 {
		return errors.New("down: it ends processes and removes mounts of root: use sudo")
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	steps := newSteps(out)
	pid, err := holder(p.supervisor())
	if err != nil {
		return err
	}
	if pid != 0 {
		if err := end(ctx, pid); err != nil {
			return fmt.Errorf("down: the cluster's supervisor: %w", err)
		}
		steps.done("the cluster process has ended")
	}
	o := remembered(p)
	if o.Coracled {
		if err := purgeCoracled(ctx, p, o, purge); err != nil {
			return err
		}
		steps.done("pods and coracled have ended")
	}
	if err := unmountBelow(p.kubeRoot()); err != nil {
		return err
	}
	if purge {
		if err := removeCluster(p); err != nil {
			return err
		}
		steps.done("the cluster's data is removed")
	}
	for _, path := range []string{p.supervisor(), p.settings()} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	_ = os.Remove(p.state) // when nobody else has files there
	return nil
}

// purgeCoracled removes all pods and ends coracled and what belongs to it.
func purgeCoracled(ctx context.Context, p place, o upOptions, images bool) error {
	program, err := sibling("coracled")
	if err != nil {
		return err
	}
	args := []string{"purge", "--root", p.root, "--state", p.state, "--address", "unix://" + p.socket()}
	if o.Config != "" {
		args = append(args, "--config", o.Config)
	}
	if images {
		args = append(args, "--all")
	}
	if said, err := exec.CommandContext(ctx, program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("coracled purge: %w:\n%s", err, said)
	}
	return nil
}

// unmountBelow unmounts what the kubelet has mounted for pods' volumes, innermost first.
func unmountBelow(dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return err
	}
	slices.SortFunc(mounts, func(a, b *mountinfo.Info) int { return strings.Compare(b.Mountpoint, a.Mountpoint) })
	for _, m := range mounts {
		if m.Mountpoint == dir {
			continue // an operator's own disk
		}
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", m.Mountpoint, err)
		}
	}
	return nil
}

// removeCluster removes what up and the cluster process have written.
func removeCluster(p place) error {
	for _, path := range []string{p.kubeRoot(), p.kubeconfig(), filepath.Join(p.logs(), "kube.log"), filepath.Join(p.logs(), "coracled.log")} {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	_ = os.Remove(p.logs()) // when nobody else has files there
	_ = os.Remove(p.root)
	return nil
}
