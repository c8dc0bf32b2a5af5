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
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/logfile"
)

func downCommand(p *place) *cobra.Command {
	var purge, volumes bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "stop what up started, and the pods",
		Long: `down stops the cluster process. If up started coracled, it also removes the pods and stops
coracled, its shim and its network. Objects and images stay for the next up, unless --purge
is given. A coracled that up did not start keeps running, and so do its pods.

The data of claims (volumes of the StorageClass local-path) is deleted only with
--delete-volumes. Without it, --purge does nothing if there are any, and prints their number and size.
While a CSI driver has volumes on this node, --purge does nothing either, and names them: delete the
pods that use them first.`,
		Example: `  coracle down
  coracle down --purge      # also images, certificates and everything in the cluster
  coracle down --purge --delete-volumes      # also the data of claims`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			if volumes && !purge {
				return errors.New("down: --delete-volumes goes with --purge; 'kubectl delete pvc NAME' deletes the data of one claim")
			}
			if o := remembered(*p); purge && o.Server != "" {
				return fmt.Errorf("down: this machine is node %s of the cluster at %s: 'coracle leave%s' removes everything, and deletes the node there",
					o.Node, o.Server, p.flags())
			}
			if purge && p.severalControlPlanes() {
				return fmt.Errorf("down: this cluster has other control-plane nodes, which count on this one: 'coracle leave%s' removes everything, and "+
					"this machine from the cluster", p.flags())
			}
			return down(ctx, *p, purge, volumes, cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&purge, "purge", false, "remove images, certificates and the cluster's data, too")
	cmd.Flags().BoolVar(&volumes, "delete-volumes", false, "with --purge: delete the data of claims, too")
	return cmd
}

// downing is one run of down. With purge it removes all data; that of claims only if volumes says
// so.
type downing struct {
	place
	steps          *steps
	purge, volumes bool
	last           upOptions // what up remembers
}

// down stops what up has started.
func down(ctx context.Context, p place, purge, volumes bool, out io.Writer) error {
	return downStepping(ctx, p, purge, volumes, newSteps(out))
}

// downStepping is down as a part of a longer command, whose steps it continues.
func downStepping(ctx context.Context, p place, purge, volumes bool, steps *steps) error {
	if os.Geteuid() != 0 {
		return errors.New("down: it ends processes and removes mounts of root: use sudo")
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	d := &downing{place: p, steps: steps, purge: purge, volumes: volumes}
	if release, err := p.exclusive(ctx); err == nil {
		defer release()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := d.checkBefore(ctx); err != nil {
		return err
	}
	last := remembered(p)
	if len(last.BGPPeers) > 0 { // routers are told through the further nodes' link, too, which goes with them
		if err := p.endSupervisor(ctx, d.steps); err != nil {
			return fmt.Errorf("down: %w", err)
		}
	}
	switch ended, err := p.downNodes(ctx, last); {
	case err != nil:
		return fmt.Errorf("down: %w", err)
	case ended:
		d.steps.done("the further nodes of this machine have ended")
	}
	if err := p.endSupervisor(ctx, d.steps); err != nil {
		return fmt.Errorf("down: %w", err)
	}
	kept := d.checkStopped(ctx)
	d.purge = purge && kept == nil // the rest is done as without it
	d.last = remembered(p)
	left := d.removeKernelState(ctx)
	return errors.Join(d.remove(ctx, left != nil), left, kept) // pods and coracled end in any case
}

// checkBefore refuses a purge that must not delete data, before anything ends.
func (d *downing) checkBefore(ctx context.Context) error {
	if !d.purge {
		return nil
	}
	if err := d.checkPurgeNodes(ctx, remembered(d.place), d.volumes); err != nil {
		return err
	}
	data, err := d.checkPurge(ctx, d.volumes)
	if err != nil {
		return err
	}
	if data.volumes > 0 {
		d.steps.done(data.String() + " will be deleted")
	}
	if err := d.checkCSI(); err != nil {
		return fmt.Errorf("down: --purge has done nothing: %w", err)
	}
	return nil
}

// checkStopped checks a purge again, once the cluster process has ended: volumes may have been made
// or mounted after the first check.
func (d *downing) checkStopped(ctx context.Context) error {
	if !d.purge {
		return nil
	}
	kept := d.checkPurgeAgain(ctx, d.volumes)
	if err := d.checkCSI(); err != nil {
		kept = errors.Join(kept, fmt.Errorf("down has stopped everything, and deleted nothing: %w", err))
	}
	return kept
}

// removeKernelState removes what the cluster process keeps in the kernel. What it cannot remove is
// left for another down.
func (d *downing) removeKernelState(ctx context.Context) error {
	bind, port := d.last.bind(), d.last.Port
	err := errors.Join(removeAnnouncements(ctx, bind, port), removePaths(ctx, bind, port), removeRules(bind, port),
		removeHeldAddresses(d.last))
	if err != nil && d.purge {
		err = fmt.Errorf("%w; %s stays, for another 'coracle down%s --purge'", err, d.settings(), d.flags())
	}
	return err
}

// remove ends coracled if it is ours, and removes mounts, cgroups, directories and, for a purge,
// data. left says that the kernel still has something that up's settings name, so they stay.
func (d *downing) remove(ctx context.Context, left bool) error {
	ours, err := d.last.ours(d.place, d.purge)
	if err != nil {
		return err
	}
	if ours {
		if _, err := d.endLate(ctx, false, d.runtime()); err != nil {
			return err
		}
		if err := purgeCoracled(ctx, d.place, d.last, d.purge); err != nil {
			return err
		}
		d.steps.done("pods and coracled have ended")
	}
	if err := d.unmount(ours); err != nil {
		return err
	}
	if ours { // otherwise its pods go on
		if err := removeCgroups(d.last.CgroupRoot); err != nil {
			return err
		}
	}
	if d.purge {
		if err := d.removeData(left); err != nil {
			return err
		}
	}
	for _, path := range []string{d.kubeState(), d.supervisor(), d.bgp()} {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	_ = os.Remove(d.state) // unless others have files there
	if d.last.Boot == "" || d.purge && !left {
		return nil
	}
	d.last.Boot = "" // what it has in --root is for the next up, or for down --purge
	return d.last.remember(d.place)
}

// unmount removes the mounts that pods have left, if coracled has ended or goes without them.
func (d *downing) unmount(ours bool) error {
	var dirs []string
	if ours || d.purge {
		// Volumes of CSI drivers are mounted in plugins. Their records stay, and the next up mounts
		// them again.
		dirs = append(dirs, filepath.Join(d.kubelet(), "pods"), filepath.Join(d.kubelet(), "plugins"))
	}
	if d.purge { // what a pod has mounted in its volume, for the host to see, is not the cluster's to delete
		dirs = append(dirs, d.volumesDir())
	}
	for _, dir := range dirs {
		if err := unmountBelow(dir); err != nil {
			return err
		}
	}
	return nil
}

// removeData removes the cluster's data, and what up remembers unless something is left.
func (d *downing) removeData(left bool) error {
	if err := d.purgeNodes(); err != nil {
		return err
	}
	emptied, err := removeCluster(d.place, d.last)
	if err != nil {
		return err
	}
	d.steps.done("the cluster's data is removed")
	if !left {
		if emptied, err = forget(d.place, emptied); err != nil {
			return err
		}
	}
	for _, dir := range emptied {
		d.steps.done(dir + " is a mount point: it is emptied and stays")
	}
	return nil
}

// endSupervisor ends the cluster process, if it runs.
func (p place) endSupervisor(ctx context.Context, steps *steps) error {
	late, err := p.endLate(ctx, true, p.supervisor())
	if err != nil {
		return err
	}
	pid, err := holder(p.supervisor())
	if err != nil || pid == 0 && !late {
		return err
	}
	if pid != 0 {
		if err := end(ctx, pid); err != nil {
			return fmt.Errorf("the cluster's supervisor: %w", err)
		}
	}
	steps.done("the cluster process has ended")
	return nil
}

// ours says whether down may end coracled: up has started the one that runs. If none runs, what the
// last one has left counts as started by up, and purge removes it.
func (o upOptions) ours(p place, purge bool) (bool, error) {
	if !o.Coracled {
		return false, nil
	}
	boot, err := bootID()
	if err != nil || o.Boot == boot {
		return true, err
	}
	pid, err := holder(p.runtime())
	return purge && pid == 0, err
}

// purgeCoracled removes all pods and ends coracled and what belongs to it.
func purgeCoracled(ctx context.Context, p place, o upOptions, images bool) error {
	program, err := sibling("coracled")
	if err != nil {
		return err
	}
	args := []string{"purge", "--root", p.root, "--state", p.state, "--address", "unix://" + p.Socket()}
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

// removeCluster removes what up and the cluster process have written, but what up remembers. It
// returns the mount points among that, which stay.
func removeCluster(p place, o upOptions) (emptied []string, err error) {
	if o.PodLogs != "" {
		if err := removePodLogs(p.kubelet(), o.PodLogs); err != nil {
			return nil, err
		}
	}
	if err := p.removeKeys(); err != nil {
		return nil, err
	}
	if emptied, err = removeTree(p.kubeRoot()); err != nil {
		return nil, err
	}
	if err := errors.Join(logfile.Remove(p.kubeLog()), logfile.Remove(p.coracledLog()), logfile.Remove(p.bgpLog())); err != nil {
		return nil, err
	}
	// A coracled that stays is no node of the cluster any more.
	if err := os.Remove(p.imagePeers()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	_ = os.Remove(p.logs()) // unless others have files there
	return emptied, os.RemoveAll(p.kubeconfig())
}

// removeKeys removes the cluster's keys, before its data: if the rest does not follow, the next
// start must not serve a cluster without data to those who trust these keys.
func (p place) removeKeys() error {
	if _, err := removeTree(filepath.Join(p.kubeRoot(), "pki")); err != nil {
		return err
	}
	dir, err := os.Open(p.kubeRoot())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// forget removes what up remembers, last: another down removes by it what is left when this one is
// cut off, or fails. It adds --root to the mount points that stay, if it is one.
func forget(p place, emptied []string) ([]string, error) {
	if err := os.RemoveAll(p.settings()); err != nil || len(emptied) > 0 {
		return emptied, err
	}
	if err := os.Remove(p.root); errors.Is(err, unix.EBUSY) {
		emptied = append(emptied, p.root)
	}
	return emptied, nil
}
