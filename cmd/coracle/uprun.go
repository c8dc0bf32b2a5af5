package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/logfile"
)

// upRun is one run of up: what it found, so that a failure ends what it has started and nothing
// else.
type upRun struct {
	place
	o    *upOptions
	last upOptions
	// limit is of --timeout.
	limit *timeLimit
	// runtime is whether coracled ran before: it held its lock, or answered. supervisor
	// is the pid of the cluster's supervisor, 0 if none ran.
	runtime    bool
	supervisor int
	coracled   launched
	// rules is whether rules of Services were there before, of a cluster whose pods may go on.
	rules bool
	// nodes is whether further nodes were there before: they may run, and their pods.
	nodes bool
	// paths is whether such a cluster had paths to other nodes' pods before.
	paths bool
	// announces is whether load balancers' addresses of such a cluster were announced before.
	announces bool
	// since is when this up started the cluster process; a kubelet that ran may have spoken before.
	since time.Time
	// cluster is the supervisor that this up has launched, nil if none.
	cluster *exec.Cmd
	// gate is where its cluster process waits, nil if it does not. firstLog is whether there was no
	// log of such a process before.
	gate     *gate
	firstLog bool
	// started is the supervisor that ran when the API server answered.
	started int
}

// look finds what runs, and refuses flags that differ from what that was started with.
func (u *upRun) look(ctx context.Context, differ []string) (err error) {
	// Only up uses it, each time.
	differ = slices.DeleteFunc(differ, func(flag string) bool { return flag == "images" })
	if u.supervisor, err = holder(u.place.supervisor()); err != nil {
		return err
	}
	u.nodes = u.nodeNetwork(*u.o).Exists()
	u.rules, u.announces, u.paths = len(rulesLeft(u.o.Port)) > 0, announces(u.o.Port), pathsLeft(u.o.Port)
	pid, err := holder(u.place.runtime())
	if err != nil {
		return err
	}
	if u.runtime = pid != 0; !u.runtime { // one with another --state may serve the socket
		try, cancel := context.WithTimeout(ctx, longestTry)
		defer cancel()
		_, err := runtimeVersion(try, u.Socket())
		u.runtime = err == nil
	}
	leave := "leave the flags out"
	if slices.ContainsFunc(differ, func(flag string) bool {
		return slices.Contains(u.o.FromFile, flag) || slices.Contains(u.last.FromFile, flag)
	}) {
		leave = "undo the change of the configuration file"
	}
	again := fmt.Sprintf("'coracle down%s' first, which ends the pods, or %s", u.flags(), leave)
	if u.supervisor != 0 && len(differ) > 0 {
		return u.o.differs("the cluster", differ, u.last, again)
	}
	differ = slices.DeleteFunc(differ, func(flag string) bool { return !slices.Contains(ofRuntime, flag) })
	if !u.runtime || len(differ) == 0 {
		return nil
	}
	if boot, err := bootID(); err == nil && u.last.Coracled && u.last.Boot == boot {
		return u.o.differs("coracled", differ, u.last, again)
	}
	return fmt.Errorf("up --%s: the coracled that serves %s was not started by up and has settings of its own: change those, and leave the "+
		"flags out",
		strings.Join(differ, ", --"), u.Socket())
}

// checkPrograms has the programs look at flags that were given and that only they understand.
func (u *upRun) checkPrograms(ctx context.Context, given func(flag string) bool) error {
	check := func(name string, args ...string) error {
		program, err := sibling(name)
		if err != nil {
			return err
		}
		output, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
		if err == nil {
			return nil
		}
		said := strings.TrimPrefix(strings.TrimSpace(string(output)), name+": ")
		switch ended := (*exec.ExitError)(nil); {
		case ctx.Err() != nil:
			return fmt.Errorf("up: %s, which checks flags, has not ended: %w", name, ctx.Err())
		case errors.As(err, &ended) && said != "":
			return fmt.Errorf("up: %w", outdated(program, errors.New(said)))
		}
		return fmt.Errorf("up: %s, which checks flags: %w", name, err)
	}
	var both sync.WaitGroup
	var runtime, cluster, bgp error
	if !u.runtime && u.o.Config != "" {
		both.Go(func() { runtime = check("coracled", "config", "check", u.o.Config) })
	}
	if u.supervisor == 0 && slices.ContainsFunc(slices.Collect(maps.Keys(u.o.settings())), given) {
		both.Go(func() {
			if cluster = u.startGated(ctx); errors.Is(cluster, errSilent) {
				cluster = check("coracle-kube", append(kubeArgs(u.place, *u.o), "--check")...)
			}
		})
	}
	if u.supervisor == 0 && len(u.o.BGPPeers) > 0 { // also of before: the files of passwords may have changed
		both.Go(func() { bgp = check(bgpProgram, append(bgpArgs(u.place, *u.o), "--check")...) })
	}
	both.Wait()
	return cmp.Or(runtime, cluster, bgp)
}

// startGated starts the cluster process, and returns nil when it waits with good flags. The error
// is errSilent if it does not check them so: a node's does not, coracle-bgp would not wait, and
// another supervisor may have been quicker. Nor does it wait while images are loaded: its
// supervisor would take minutes at the gate for a life in which it has worked, and never give up.
func (u *upRun) startGated(ctx context.Context) error {
	if u.o.Server != "" || len(u.o.BGPPeers) > 0 || u.archives() {
		return errSilent
	}
	g, err := newGate()
	if err != nil {
		return err
	}
	_, err = os.Stat(u.kubeLog())
	u.firstLog = errors.Is(err, fs.ErrNotExist)
	if err := u.launchSupervisor(g); err != nil || u.cluster == nil {
		g.close()
		return cmp.Or(err, errSilent)
	}
	u.gate = g
	err = g.await(ctx)
	switch refused := badFlags(""); {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		err = fmt.Errorf("up: %w", outdated("coracle-kube", refused))
	case ctx.Err() != nil:
		err = fmt.Errorf("up: coracle-kube, which checks flags, has not ended: %w", err)
	}
	if errors.Is(err, errSilent) {
		u.firstLog = false // it may tell why
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoing)
	defer cancel()
	return errors.Join(err, u.endGated(end))
}

// endGated ends a cluster process that waits at its gate: it has done nothing yet. Its log has
// nothing that up does not say.
func (u *upRun) endGated(ctx context.Context) error {
	if u.gate == nil {
		return nil
	}
	err := endLaunched(ctx, u.cluster)
	u.gate.close()
	if err == nil {
		_ = u.cluster.Wait() // or it would count as running
		if u.firstLog {
			err = logfile.Remove(u.kubeLog())
			_ = os.Remove(u.logs()) // unless there are other logs
		}
	}
	u.gate, u.cluster = nil, nil
	return err
}

// undoing is how long taking back a failed up may take.
const undoing = time.Minute

// fail ends what this up has started, and returns err with what else went wrong. A cluster with
// other control-plane nodes goes on. The caller has the place.
func (u *upRun) fail(ctx context.Context, err error) error {
	if u.supervisor != 0 {
		return err // the cluster ran before, and needs its coracled
	}
	if u.severalControlPlanes() && u.gate == nil && u.clusterRuns() {
		// Its member of etcd may have a vote that the others need for a quorum, also to remove it.
		return fmt.Errorf("%w\nthe cluster process goes on, because other control-plane nodes may need its member of etcd; 'coracle down%s' ends it",
			err, u.flags())
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoing)
	defer cancel()
	errs := []error{err, u.endGated(ctx)}
	errs = append(errs, endLaunched(ctx, u.cluster))
	if pid, err := holder(u.place.supervisor()); err != nil {
		errs = append(errs, err)
	} else if pid != 0 {
		errs = append(errs, end(ctx, pid))
	}
	if u.o.several() && !u.nodes {
		_, err := u.downNodes(ctx, *u.o)
		errs = append(errs, err)
	}
	if !u.rules {
		errs = append(errs, removeRules(u.o.bind(), u.o.Port))
	}
	if !u.paths {
		errs = append(errs, removePaths(ctx, u.o.bind(), u.o.Port))
	}
	if !u.announces {
		errs = append(errs, removeAnnouncements(ctx, u.o.bind(), u.o.Port))
	}
	purged, err := u.endCoracled(ctx)
	errs = append(errs, err)
	before := u.last
	if u.started != 0 {
		before = *u.o // they were good enough for the API server, and pods may have left logs
		before.Coracled, before.Boot = u.last.Coracled, u.last.Boot
	}
	if purged {
		// What the coracled that was started has in --root is for down --purge to remove.
		before.Coracled, before.Boot = true, ""
	}
	errs = append(errs, before.restore(u.place))
	return errors.Join(errs...)
}

// unforce takes --force-new-cluster back when the cluster was not started: a later up without the
// flag must not drop the other members.
func (u *upRun) unforce(ctx context.Context) error {
	if !u.o.force || u.clusterRuns() || !u.severalControlPlanes() { // a start that got so far has done it
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoing)
	defer cancel()
	return kubeTool(ctx, nil, "controlplane", "force", "--undo", "--root", u.kubeRoot())
}

// clusterRuns is whether the cluster's supervisor runs, or this up has started one that has not got
// its lock yet.
func (u *upRun) clusterRuns() bool {
	pid, err := holder(u.place.supervisor())
	return err == nil && pid != 0 || u.cluster != nil && u.cluster.Process.Signal(unix.Signal(0)) == nil
}

// failLate is fail when the place is another's by now: if what this up has started is gone, or
// replaced, nothing is taken back.
func (u *upRun) failLate(ctx context.Context, err error) error {
	if u.supervisor != 0 {
		return err
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoing)
	defer cancel()
	release, lerr := u.exclusive(undo)
	if lerr != nil {
		return errors.Join(err, lerr)
	}
	defer release()
	if pid, herr := holder(u.place.supervisor()); herr != nil || pid != u.started {
		return errors.Join(err, herr)
	}
	return u.fail(ctx, err)
}
