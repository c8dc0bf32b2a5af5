package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/cmd/coracle/bar"
	"github.com/coracle-project/coracle/internal/atomicfile"
	"github.com/coracle-project/coracle/internal/privatedir"
)

// upgrade is an upgrade of this machine's programs, as its record says. The record is written
// before the first program is replaced, and removed when all is done: an upgrade that was killed is
// finished, or undone, by the next `coracle upgrade`.
type upgrade struct {
	place    `json:"-"`
	steps    *steps
	deadline time.Duration
	// back is --back. late is whether the snapshot may lack too much to be restored unasked.
	back, late bool

	Swap swap `json:"swap"`
	// Begun is when the upgrade began: the snapshot is of then.
	Begun time.Time `json:"begun,omitzero"`
	// Snapshot is the file with the cluster's data from before the upgrade, "" if other machines
	// keep them, too.
	Snapshot string `json:"snapshot,omitempty"`
	// Back is whether the old programs are to run again, and why.
	Back bool   `json:"back,omitempty"`
	Why  string `json:"why,omitempty"`
}

func upgradeCommand(p *place) *cobra.Command {
	var deadline time.Duration
	var back bool
	cmd := &cobra.Command{
		Use:   "upgrade [DIRECTORY|PACKAGE.deb...]",
		Short: "replace the programs of this machine by new ones while pods run, or go back to the old ones",
		Long: `upgrade saves a snapshot of the cluster, replaces Coracle's programs next to this one by those of a directory or of
Debian packages, restarts coracled, the shims and the cluster process, and waits until "coracle status" finds nothing
wrong with this machine. Pods keep running. If that fails, or takes longer than --deadline, the old programs are put back
and started. The snapshot's data are restored only if the old programs refuse the present data because newer ones have
written it.

Without an argument it finishes an upgrade that was interrupted. If that was long ago, the new programs may have run
since, and a snapshot is not restored unless --back says so.`,
		Example: `  coracle upgrade ./coracle-v1.2.0/bin
  coracle upgrade coracle_1.2.0_amd64.deb coracle-kube_1.2.0_amd64.deb
  coracle upgrade        # after an interruption
  coracle upgrade --back # after an interruption, to run the old programs again`,
		RunE: func(cmd *cobra.Command, from []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			u := &upgrade{place: *p, steps: newSteps(cmd.OutOrStdout()), deadline: deadline, back: back}
			if err := u.run(ctx, from, cmd.ErrOrStderr()); err != nil {
				return fmt.Errorf("upgrade: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&back, "back", false, "have the old programs run again, and restore the snapshot if they refuse the present data")
	cmd.Flags().DurationVar(&deadline, "deadline", 3*time.Minute,
		"how long the new programs may take until \"coracle status\" finds nothing wrong")
	return cmd
}

// runDeadlines is how many deadlines a whole run may take: one for the new programs, and two to go
// back.
const runDeadlines = 3

func (u *upgrade) dir() string    { return filepath.Join(u.kubeRoot(), "upgrade") }
func (u *upgrade) record() string { return filepath.Join(u.dir(), "upgrade.json") }

// lock is the file that a running upgrade holds a lock on.
func (u *upgrade) lock() string { return filepath.Join(u.dir(), "lock") }

func (u *upgrade) run(ctx context.Context, from []string, out io.Writer) error {
	if os.Geteuid() != 0 {
		return errors.New("the programs and their data belong to root: use sudo")
	}
	if u.deadline <= 0 {
		return fmt.Errorf("--deadline %s is not above 0", u.deadline)
	}
	if _, err := os.Stat(u.kubeRoot()); err != nil {
		return fmt.Errorf("%s has neither a cluster nor a node of one", u.root)
	}
	if err := privatedir.Make(u.dir()); err != nil {
		return err
	}
	lock, err := hold(u.lock())
	if err != nil {
		return fmt.Errorf("another upgrade runs: %w", err)
	}
	defer func() { _ = lock.Close() }()
	if err := u.begin(ctx, from, out); err != nil {
		return err
	}
	if !u.Back {
		switch err := u.tryNew(ctx); {
		case err == nil:
			return u.finish("all is well with the new programs")
		case u.late:
			return fmt.Errorf("%w; the old programs are not put back, as they may need the snapshot of %s, without all that was written since: "+
				"'coracle upgrade%s' tries again, and 'coracle upgrade --back%[3]s' goes back", err, u.Begun.Local().Format(time.DateTime), u.flags())
		default:
			u.Back, u.Why = true, err.Error()
		}
		if err := u.write(); err != nil {
			return err
		}
	}
	// An interrupt must not leave the machine between two versions.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), (runDeadlines-1)*u.deadline)
	defer cancel()
	u.steps.waits("the old programs are put back: " + u.Why)
	if err := u.retreat(ctx); err != nil {
		return fmt.Errorf("%s; the old programs do not work either: %w; 'coracle upgrade' tries again", u.Why, err)
	}
	if err := u.finish("the old programs run again"); err != nil {
		return err
	}
	return fmt.Errorf("the old programs run again: %s", u.Why)
}

// begin goes on with an upgrade that was interrupted, or prepares a new one.
func (u *upgrade) begin(ctx context.Context, from []string, out io.Writer) error {
	interrupted, err := u.read()
	switch {
	case err != nil:
		return err
	case !interrupted && u.back:
		return errors.New("no upgrade was interrupted: --back has nothing to go back to")
	case interrupted && len(from) > 0:
		return errors.New("an upgrade was interrupted: 'coracle upgrade' without an argument finishes it first")
	case !interrupted && len(from) == 0:
		return errors.New("name a directory or Debian packages with the new programs")
	case interrupted:
		u.late = !u.back && u.Snapshot != "" && time.Since(u.Begun) > runDeadlines*u.deadline
		return nil
	}
	if err := u.prepare(ctx, from, out); err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	return nil
}

// tryNew returns nil when all is well with the new programs.
func (u *upgrade) tryNew(ctx context.Context) error {
	if u.back {
		return errors.New("--back was given")
	}
	return u.advance(ctx)
}

// prepare does what changes nothing that runs: it checks the new programs, and saves the data.
func (u *upgrade) prepare(ctx context.Context, from []string, out io.Writer) (err error) {
	o := remembered(u.place)
	if o.several() {
		return errors.New("upgrade works on machines with one node, and this one has several nodes: 'coracle down', replace the programs, 'coracle up'")
	}
	if pid, err := holder(u.supervisor()); err != nil || pid == 0 {
		return errors.Join(err, errors.New("the cluster does not run: replace the programs without upgrade, or 'coracle up' first"))
	}
	u.Begun = time.Now()
	if u.Swap, err = newSwap(); err != nil {
		return err
	}
	if err := u.runHere(); err != nil {
		return err
	}
	if err := u.well(ctx); err != nil { // else it would look like a fault of the new programs
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, u.Swap.clean())
		}
	}()
	if err := u.Swap.collect(ctx, from); err != nil {
		return err
	}
	// One of several control-plane nodes cannot go back to older data alone.
	if o.Server == "" && o.builtInEtcd() == nil && !u.severalControlPlanes() {
		u.Snapshot = filepath.Join(u.dir(), "before.snapshot")
		if err := os.Remove(u.Snapshot); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if _, err := saveSnapshot(ctx, u.place, bar.New(out, "snapshot"), u.Snapshot); err != nil {
			return fmt.Errorf("snapshot: %w", err)
		}
		u.steps.done("a snapshot is in " + u.Snapshot)
	}
	if err := u.Swap.keep(); err != nil {
		return err
	}
	return u.write()
}

// advance puts the new programs in place, and returns when all is well with them.
func (u *upgrade) advance(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, u.deadline)
	defer cancel()
	if err := u.Swap.forward(); err != nil {
		return err
	}
	u.steps.done("the new programs are in " + u.Swap.Bin)
	return u.restart(ctx)
}

// retreat puts the old programs in place again. Only if these refuse the data, which newer programs
// have written, those of the snapshot are restored: all that was written since is lost.
func (u *upgrade) retreat(ctx context.Context) error {
	if err := u.Swap.back(); err != nil {
		return err
	}
	tried, cancel := context.WithTimeout(ctx, u.deadline)
	defer cancel()
	err := u.restart(tried)
	if refused := (dataRefused{}); u.Snapshot == "" || !errors.As(err, &refused) {
		return err
	}
	if u.late {
		return fmt.Errorf("%w; the data of %s are in %s: 'coracle upgrade --back%s' restores them, without all that was written since", err,
			u.Begun.Local().Format(time.DateTime), u.Snapshot, u.flags())
	}
	u.steps.waits("the data from before the upgrade are restored: " + err.Error())
	if err := u.endAll(ctx); err != nil {
		return err
	}
	if err := u.coracle(ctx, "snapshot", "restore", u.Snapshot); err != nil {
		return err
	}
	return u.restart(ctx)
}

// restart has the programs that are in place run, and returns when nothing is wrong. The error is
// dataRefused if the cluster process does not start because of the data.
func (u *upgrade) restart(ctx context.Context) error {
	if err := u.endAll(ctx); err != nil {
		return err
	}
	from := logSize(u.kubeLog())
	if err := u.startAll(ctx); err != nil {
		if line := newerDataLine(u.kubeLog(), from); line != "" {
			return dataRefused{line}
		}
		return err
	}
	if err := u.coracle(ctx, "shim", "restart"); err != nil {
		return err
	}
	for {
		err := u.well(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Second):
		}
	}
}

// locked is a process that holds a lock.
type locked struct{ what, lock string }

// processes are those that an upgrade restarts.
func (u *upgrade) processes() []locked {
	return []locked{{"the cluster's supervisor", u.supervisor()}, {"coracled", u.runtime()}}
}

// endAll ends the cluster process and coracled. Pods go on without them.
func (u *upgrade) endAll(ctx context.Context) error {
	if err := u.keepRoutes(); err != nil {
		return err
	}
	for _, one := range u.processes() {
		pid, err := holder(one.lock)
		if err == nil && pid != 0 {
			err = end(ctx, pid)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", one.what, err)
		}
	}
	return nil
}

// well returns what status finds wrong first. Other nodes do not count: they are as they are with
// any programs on this machine.
func (u *upgrade) well(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, filepath.Join(u.Swap.Bin, "coracle"), "status", "-o", "json", "--root", u.root, "--state", u.state)
	said, err := cmd.Output()
	var all []health
	if jerr := json.Unmarshal(said, &all); jerr != nil {
		return fmt.Errorf("coracle status: %w", errors.Join(err, jerr))
	}
	own := nodeLine(remembered(u.place).Node)
	for _, h := range all {
		otherNode := strings.HasPrefix(h.Component, nodeLine("")) && h.Component != own
		// Nor is a router that is off a reason to put the old programs back.
		if !h.Healthy && !otherNode && !strings.HasPrefix(h.Component, bgpPeer) {
			return fmt.Errorf("not all is well: %s: %s", h.Component, h.Message)
		}
	}
	return nil
}

// startAll starts both again, by their units where these are enabled.
func (u *upgrade) startAll(ctx context.Context) error {
	for _, unit := range []string{"coracled.service", "coracle.service"} {
		if u.flags() != "" || exec.CommandContext(ctx, "systemctl", "--quiet", "is-enabled", unit).Run() != nil {
			continue
		}
		if said, err := exec.CommandContext(ctx, "systemctl", "restart", unit).CombinedOutput(); err != nil {
			return fmt.Errorf("systemctl restart %s: %w: %s", unit, err, lastLine(said))
		}
	}
	args := []string{"up"}
	if until, ok := ctx.Deadline(); ok {
		args = append(args, "--timeout", time.Until(until).Round(time.Second).String())
	}
	return u.coracle(ctx, args...)
}

// coracle runs the command that is in place, which may be of another version than this one.
func (u *upgrade) coracle(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(u.Swap.Bin, "coracle"), append(args, "--root", u.root, "--state", u.state)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = undoing
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("coracle %s: %s", args[0], strings.TrimPrefix(lastLine(said), "coracle: "))
	}
	return nil
}

func lastLine(said []byte) string {
	lines := strings.Split(strings.TrimSpace(string(said)), "\n")
	return lines[len(lines)-1]
}

// finish forgets the upgrade. The snapshot stays until the next one.
func (u *upgrade) finish(what string) error {
	if err := errors.Join(os.Remove(u.record()), u.Swap.clean()); err != nil {
		return err
	}
	u.steps.done(what)
	return nil
}

// read reads the record of an upgrade that was interrupted, if there is one.
func (u *upgrade) read() (interrupted bool, err error) {
	data, err := os.ReadFile(u.record())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(data, u)
	}
	if err != nil {
		return false, fmt.Errorf("the record of an upgrade, %s: %w", u.record(), err)
	}
	return true, nil
}

func (u *upgrade) write() error {
	data, err := json.MarshalIndent(u, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.WriteSync(u.record(), append(data, '\n'), 0o600)
}

// upgradeHealth has a line if an upgrade runs, or was interrupted.
func upgradeHealth(p place) []health {
	u := upgrade{place: p}
	unfinished, err := u.read()
	if err == nil && !unfinished {
		return nil
	}
	pid, lockErr := holder(u.lock())
	switch {
	case err != nil || lockErr != nil:
		err = errors.Join(err, lockErr)
	case pid != 0: // it asks for the status itself
		return []health{line("upgrade", "", fmt.Sprintf("runs, pid %d", pid), nil)}
	case u.Back:
		err = fmt.Errorf("the old programs are not all back (%s): 'coracle upgrade%s' puts them back", u.Why, p.flags())
	default:
		err = fmt.Errorf("it was interrupted: 'coracle upgrade%s' finishes it", p.flags())
	}
	return []health{line("upgrade", "", "", err)}
}
