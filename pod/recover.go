package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/coracle-project/coracle/network"
	"github.com/coracle-project/coracle/pod/record"
	"github.com/coracle-project/coracle/shim/client"
)

// Start is recovery, and must have returned before any other method but Close is called.
// It reads all records, asks the shims what is really there, and rolls every operation
// that was cut off back (making) or forward (stopping, removing):
//
//	record        shim says         becomes
//	making        anything          rolled back: nobody ever learned its id
//	created       –                 created
//	starting      unknown, created  created (the start can be tried again)
//	starting      running           running
//	starting      stopped           exited, with the shim's exit status
//	running       running           running
//	running       stopped           exited, with the shim's exit status
//	running       unknown           exited, code 255, reason "Unknown"
//	exited        anything          exited; freed in the shim
//	removing      anything          removed
//	none          anything          killed and freed
//
// What needs time is done in the background after Start has returned; only what callers
// could see is waited for.
func (m *Manager) Start(ctx context.Context) error {
	for _, dir := range []string{m.podDir().Path, m.containerDir().Path} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return fmt.Errorf("start pod manager: %w", err)
		}
	}
	if err := m.Namespaces.Root(m.nsRoot()); err != nil {
		return fmt.Errorf("start pod manager: %w", err)
	}
	strayPods, strayContainers, err := m.load()
	if err != nil {
		return fmt.Errorf("start pod manager: %w", err)
	}
	// Exits that fell into the gap come as events too; from here on they find
	// their containers.
	m.life.start(m.watch)
	known, err := m.Shim.List(ctx)
	if err != nil {
		return fmt.Errorf("start pod manager: ask the shims: %w", err)
	}
	m.recoverAll(ctx, known)
	m.removeStrays(ctx, known, strayPods, strayContainers)
	return nil
}

// load fills the indexes from the records.
func (m *Manager) load() (strayPods, strayContainers []string, err error) {
	pods, err := m.podDir().LoadAll()
	if err != nil {
		return nil, nil, err
	}
	containers, err := m.containerDir().LoadAll()
	if err != nil {
		return nil, nil, err
	}
	for id, rec := range pods.Records {
		e := newEntry(id, m.podDir(), rec, m.podChanged)
		identity := rec.Config.identity()
		if rec.Phase == podRemoving || rec.Phase == podMaking {
			identity += "\x00" + id // its name is free already
		}
		if holder, ok := m.pods.add(identity, e); !ok {
			m.log.Error("two pods of one name, the second is left out", "name", rec.Config.String(), "id", id, "holder", holder)
		}
	}
	for id, rec := range containers.Records {
		e := newEntry(id, m.containerDir(), rec, m.containerChanged)
		identity := containerIdentity(rec.PodID, &rec.Config)
		if rec.Phase == containerRemoving || rec.Phase == containerMaking {
			identity += "\x00" + id
		}
		if holder, ok := m.containers.add(identity, e); !ok {
			m.log.Error("two containers of one name, the second is left out", "name", rec.Config.Name, "id", id, "holder", holder)
		}
	}
	if strayPods, err = m.strays("pod", pods.Stray); err != nil {
		return nil, nil, err
	}
	strayContainers, err = m.strays("container", containers.Stray)
	return strayPods, strayContainers, err
}

// strays logs and lists directories without a readable record. A record of a newer
// daemon is an error: without understanding it, all that it stands for would be removed.
func (m *Manager) strays(what string, stray map[string]error) ([]string, error) {
	var ids []string
	for id, err := range stray {
		if errors.Is(err, record.ErrVersion) {
			return nil, fmt.Errorf("record of %s %s: %w; run the newer daemon, or remove its pods with it first", what, id, err)
		}
		if !errors.Is(err, os.ErrNotExist) {
			m.log.Error("unreadable record, removed with what it stood for", "what", what, "id", id, "err", err)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// recoverAll rolls every container and then every pod to where it belongs, many at a time.
// One that cannot be is logged: it must not keep the daemon from serving the others.
func (m *Manager) recoverAll(ctx context.Context, known map[string][]string) {
	inShim := map[string]bool{}
	for _, ids := range known {
		for _, id := range ids {
			inShim[id] = true
		}
	}
	tasks := m.sideBySide()
	for _, e := range m.containers.each(func(*containerRecord) bool { return true }) {
		tasks.do("recover container", e.id, func() error { return m.recoverContainer(ctx, e, inShim[e.id]) })
	}
	tasks.wait()
	for _, e := range m.pods.each(func(*podRecord) bool { return true }) {
		tasks.do("recover pod", e.id, func() error { return m.recoverPod(ctx, e, inShim[e.id]) })
	}
	tasks.wait()
}

// steps are done side by side, so many at a time. One that fails is logged, and the
// others go on.
type steps struct {
	m     *Manager
	tasks errgroup.Group
}

func (m *Manager) sideBySide() *steps {
	s := &steps{m: m}
	s.tasks.SetLimit(atOnce)
	return s
}

func (s *steps) do(op, id string, step func() error) {
	s.tasks.Go(func() error {
		s.m.attempt(op, id, step())
		return nil
	})
}

func (s *steps) wait() { _ = s.tasks.Wait() } // no step returns an error

// RecoveryErrors is how many things Start could not put in order; the log says which.
func (m *Manager) RecoveryErrors() int { return int(m.unrecovered.Load()) }

// attempt logs a step of the recovery that failed.
func (m *Manager) attempt(op, id string, err error) {
	if err != nil {
		m.unrecovered.Add(1)
		m.log.Error("recovery incomplete", "op", op, "id", id, "err", err)
	}
}

func (m *Manager) recoverContainer(ctx context.Context, e *entry[containerRecord], inShim bool) error {
	m.dropSaving(e)
	rec := e.get()
	if m.pods.exact(rec.PodID) == nil {
		if err := m.endLeftover(ctx, rec.PodID, e.id, inShim); err != nil {
			return err
		}
		m.queueDrop(e)
		return nil
	}
	switch rec.Phase {
	case containerMaking, containerRemoving:
		m.queueDrop(e)
		return nil
	case containerCreated:
		return nil
	case containerExited:
		if inShim {
			m.clean.queue("exited container", e.id, func(ctx context.Context) error { return m.end(ctx, rec.PodID, e.id) })
		}
		return nil
	}
	s := client.Status{}
	err := error(client.ErrNotFound)
	if inShim {
		s, err = m.Shim.Status(ctx, rec.PodID, e.id)
	}
	switch {
	case errors.Is(err, client.ErrNotFound) && rec.Phase == containerStarting:
		return m.startCutOff(e)
	case errors.Is(err, client.ErrNotFound):
		m.exited(e, unknownExit, time.Time{}, false)
		return nil
	case err != nil:
		return err
	case s.State == client.StateStopped:
		m.exited(e, s.ExitCode, s.ExitedAt, s.OOMKilled)
		return nil
	case s.State == client.StateCreated:
		if err := m.endLeftover(ctx, rec.PodID, e.id, true); err != nil {
			return err
		}
		return m.startCutOff(e)
	}
	if rec.Phase != containerRunning || rec.Pid != s.Pid {
		if err := e.update(func(r *containerRecord) {
			if r.running() {
				r.Phase, r.Pid = containerRunning, s.Pid
			}
		}); err != nil {
			return err
		}
	}
	if rec.Frozen {
		if err := m.thaw(ctx, e); err != nil {
			return err
		}
	}
	if !rec.StopAt.IsZero() {
		m.finishStop(e, time.Until(rec.StopAt))
	}
	return nil
}

// startCutOff makes a container that the last daemon was about to start a created one
// again. StartedAt stays, for the shim may still come upon that daemon's call.
func (m *Manager) startCutOff(e *entry[containerRecord]) error {
	return e.update(func(r *containerRecord) { r.Phase = containerCreated })
}

// finishStop goes on with a stop that the last daemon did not live to end.
func (m *Manager) finishStop(e *entry[containerRecord], grace time.Duration) {
	m.life.start(func(ctx context.Context) {
		if err := m.stopContainer(ctx, e, max(grace, 0)); err != nil && ctx.Err() == nil {
			m.log.Error("stop from before the restart failed", "id", e.id, "err", err)
		}
	})
}

func (m *Manager) recoverPod(ctx context.Context, e *entry[podRecord], initInShim bool) error {
	rec := e.get()
	switch rec.Phase {
	case podMaking:
		m.clean.queue("half-made pod", e.id, func(ctx context.Context) error {
			if err := m.undoPod(ctx, e); err != nil {
				return err
			}
			return m.Shim.DeletePod(ctx, e.id)
		})
	case podRemoving:
		m.queueCleaning(e)
	case podStopping:
		m.clean.queue("half-stopped pod", e.id, func(ctx context.Context) error {
			if err := e.turn.take(ctx); err != nil {
				return err
			}
			defer e.turn.give()
			return m.stopPod(ctx, e)
		})
	case podStopped:
		if !rec.Clean {
			m.queueCleaning(e)
		}
	case podReady:
		return m.recoverReady(ctx, e, initInShim)
	}
	return nil
}

// recoverReady looks whether what a ready pod stands on is still there.
func (m *Manager) recoverReady(ctx context.Context, e *entry[podRecord], initInShim bool) error {
	rec := e.get()
	for _, path := range []string{rec.Namespaces.Net, rec.Namespaces.IPC, rec.Namespaces.UTS, rec.Namespaces.User} {
		if path == "" {
			continue
		}
		if _, err := os.Stat(path); err != nil {
			m.log.Error("a pod's namespace is gone, the pod is not ready any more", "id", e.id, "err", err)
			return e.update(func(r *podRecord) { r.Phase = podBroken })
		}
	}
	if !rec.Init {
		return nil
	}
	s, err := client.Status{}, error(client.ErrNotFound)
	if initInShim {
		s, err = m.Shim.Status(ctx, e.id, e.id)
	}
	switch {
	case err != nil && !errors.Is(err, client.ErrNotFound):
		return err
	case err == nil && s.State == client.StateRunning:
		return e.update(func(r *podRecord) { r.InitPid = s.Pid })
	case rec.InitPid != 0:
		m.initExited(e)
		return nil
	}
	// It was being started: no container is in its namespace yet. Init stays set, for
	// the shim may still come upon the last daemon's call.
	return m.endLeftover(ctx, e.id, e.id, initInShim)
}

// endLeftover ends and frees a container in the shim, if it is there.
func (m *Manager) endLeftover(ctx context.Context, podID, id string, inShim bool) error {
	if !inShim {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, leftoverLimit)
	defer cancel()
	return m.end(ctx, podID, id)
}

// leftoverLimit is how long recovery waits for one container to die.
const leftoverLimit = 5 * time.Second

// removeStrays removes what no record stands for: in the shims, and under the
// directories of pods, containers, namespaces, snapshots and networks.
func (m *Manager) removeStrays(ctx context.Context, known map[string][]string, strayPods, strayContainers []string) {
	tasks := m.sideBySide()
	for podID, ids := range known {
		for _, id := range ids {
			if m.containers.exact(id) == nil && m.pods.exact(id) == nil {
				m.log.Warn("container in the shim without a record, killing it", "id", id, "pod", podID)
				tasks.do("kill unknown container", id, func() error { return m.endLeftover(ctx, podID, id, true) })
			}
		}
	}
	tasks.wait()
	for podID := range known {
		if m.pods.exact(podID) == nil {
			tasks.do("end shim of unknown pod", podID, func() error { return m.Shim.DeletePod(ctx, podID) })
		}
	}
	var pods, containers []string
	for _, e := range m.pods.each(func(*podRecord) bool { return true }) {
		pods = append(pods, e.id)
	}
	for _, e := range m.containers.each((*containerRecord).visible) {
		containers = append(append(containers, e.id), e.get().volumes()...)
	}
	tasks.do("recover networks", "", func() error { return m.Network.Recover(ctx, pods) })
	tasks.wait()
	m.queueStrayNetworks()
	// Snapshots go after the containers that may have used them, namespaces after
	// the network that was in them. A root that is lost is the trouble of its own
	// container, which fails to start.
	m.attempt("recover root file systems", "", m.Snapshots.Recover(ctx, containers))
	m.attempt("remove strays", "", m.removeStrayDirs(ctx, strayPods, strayContainers))
}

// queueStrayNetworks has what Recover did not take down, because a plugin hung or failed, tried again until it is gone.
func (m *Manager) queueStrayNetworks() {
	for _, l := range m.Network.Leases() {
		if m.pods.exact(l.PodID) == nil {
			m.clean.queue("network of unknown pod", l.PodID, func(ctx context.Context) error {
				return m.Network.Teardown(ctx, network.Pod{ID: l.PodID})
			})
		}
	}
}

func (m *Manager) removeStrayDirs(ctx context.Context, pods, containers []string) error {
	for _, id := range containers {
		if err := unmount(filepath.Join(m.containerDir().Of(id), "rootfs")); err != nil {
			return err
		}
		if err := m.containerDir().Remove(id); err != nil {
			return err
		}
	}
	for _, id := range pods {
		if err := unmount(m.podFiles(id)); err != nil {
			return err
		}
		if err := m.podDir().Remove(id); err != nil {
			return err
		}
	}
	pinned, err := os.ReadDir(m.nsRoot())
	if err != nil {
		return err
	}
	for _, d := range pinned {
		if m.pods.exact(d.Name()) == nil {
			if err := m.Namespaces.Remove(ctx, m.nsDir(d.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
