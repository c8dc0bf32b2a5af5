package recovery

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/coracle-project/coracle/network"
	"github.com/coracle-project/coracle/pod/mounts"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/shim/client"
)

// endStrays ends containers that the shims have and that have no record, and finds all other
// unmanaged objects: see Start. It returns the directories that may be removed.
func (rv *Recoverer) endStrays(ctx context.Context, known map[string][]string, b bare) bare {
	rv.namePods(known)
	b.containers = rv.leaveBareContainers(known, b.containers)
	b.pods = rv.leaveBarePods(known, b.pods)
	unmanagedPods := rv.podsOfUnmanaged()
	tasks := rv.sideBySide()
	for podID, ids := range known {
		for _, id := range ids {
			if rv.Containers.Exact(id) != nil || rv.Pods.Exact(id) != nil || rv.unmanaged.has(id) {
				continue
			}
			if podID == "" {
				rv.leave(Unmanaged{Kind: UnmanagedContainer, ID: id}, errors.New("its record is missing, and the shim does not know its pod"))
				continue
			}
			if rv.Pods.Exact(podID) == nil && unmanagedPods[podID] {
				if id == podID { // init: killing it would end the containers in its PID namespace
					rv.leave(Unmanaged{Kind: UnmanagedPod, ID: id, PodID: id}, errors.New("its directory is missing, and it has unmanaged containers"))
					continue
				}
				rv.leave(Unmanaged{Kind: UnmanagedContainer, ID: id, PodID: podID}, errors.New("its pod is unmanaged"))
				continue
			}
			tasks.do("end container without a record", id, func() error { return rv.endRecordless(ctx, podID, id) })
		}
	}
	tasks.wait()
	return b
}

// removeStrays removes everything that belongs to no record: shims, and what is in the directories
// of pods, containers, namespaces, snapshots and networks. It leaves unmanaged objects alone.
func (rv *Recoverer) removeStrays(ctx context.Context, a answers, b bare) {
	unmanagedPods := rv.podsOfUnmanaged()
	for podID := range a.silent {
		unmanagedPods[podID] = true // for now
	}
	for podID := range a.known {
		if rv.Pods.Exact(podID) == nil && !unmanagedPods[podID] {
			rv.Clean.Queue("shim of unknown pod", podID, func(ctx context.Context) error { return rv.Shim.DeletePod(ctx, podID) })
		}
	}
	var pods, containers []string
	for _, e := range rv.Pods.Each(func(*state.PodRecord) bool { return true }) {
		pods = append(pods, e.ID)
	}
	for id := range unmanagedPods {
		pods = append(pods, id)
	}
	for _, e := range rv.Containers.Each((*state.ContainerRecord).Visible) {
		containers = append(append(containers, e.ID), e.Get().Volumes()...)
	}
	var unseen error // whether some snapshots of unmanaged containers are unknown
	for _, u := range rv.All() {
		if u.Kind == UnmanagedContainer {
			ids, err := rv.unmanagedSnapshots(u.ID)
			containers, unseen = append(containers, ids...), errors.Join(unseen, err)
		}
	}
	rv.within(ctx, "recover networks", func(ctx context.Context) error { return rv.Network.Recover(ctx, pods) })
	rv.queueStrayNetworks(unmanagedPods)
	// Snapshots go after the containers that may have used them, namespaces after
	// the network that was in them. A root that is lost is the trouble of its own
	// container, which fails to start.
	rv.within(ctx, "recover root file systems", func(ctx context.Context) error {
		if unseen != nil {
			return unseen
		}
		return rv.Snapshots.Recover(ctx, containers)
	})
	rv.queueStrayDirs(b)
	rv.attempt("remove strays", "", rv.queueStrayNamespaces(unmanagedPods))
}

// within does one step of the recovery, for recoverLimit at most. What hangs longer, as a call into
// a FUSE file system may, is left behind: the daemon must serve the others.
func (rv *Recoverer) within(ctx context.Context, op string, step func(context.Context) error) {
	rv.step.Store(&op)
	ctx, cancel := context.WithTimeout(ctx, recoverLimit)
	done := make(chan error, 1)
	if !rv.Life.Start(func(context.Context) {
		defer cancel()
		done <- step(ctx)
	}) {
		cancel()
		return
	}
	select {
	case err := <-done:
		rv.attempt(op, "", err)
	case <-ctx.Done():
		select {
		case err := <-done: // it has ended itself, or noticed
			rv.attempt(op, "", err)
		default:
			rv.attempt(op, "", fmt.Errorf("still under way after %s: %w", recoverLimit, ctx.Err()))
		}
	}
}

// namePods sets the pods of unmanaged containers, as the shim knows them.
func (rv *Recoverer) namePods(known map[string][]string) {
	for podID, ids := range known {
		if podID == "" {
			continue // the shim could not read its own record
		}
		for _, id := range ids {
			rv.unmanaged.inPod(id, podID)
		}
	}
}

// podsOfUnmanaged returns the pods that own something unmanaged, though they may have no entry.
func (rv *Recoverer) podsOfUnmanaged() map[string]bool {
	pods := map[string]bool{}
	for _, u := range rv.All() {
		if u.PodID != "" {
			pods[u.PodID] = true
		}
	}
	return pods
}

// leaveBareContainers makes directories without a record unmanaged, unless our own removal can have
// left them. It returns those that can be removed.
func (rv *Recoverer) leaveBareContainers(known map[string][]string, ids []string) (removable []string) {
	podOf := map[string]string{}
	for podID, in := range known {
		for _, id := range in {
			podOf[id] = podID
		}
	}
	for _, id := range ids {
		u := Unmanaged{Kind: UnmanagedContainer, ID: id, PodID: rv.podInBundle(id)}
		if podID, ok := podOf[id]; ok {
			if podID != "" {
				u.PodID = podID
			}
			rv.leave(u, errors.New("its record is missing, and the shim has the container"))
			continue
		}
		mounted := ""
		points, err := mountPoints(rv.Dirs.Containers().Of(id))
		if err == nil {
			mounted, err = mounts.First(points)
		}
		switch {
		case err != nil:
			rv.leave(u, fmt.Errorf("its record is missing: %w", err))
		case mounted != "":
			rv.leave(u, fmt.Errorf("its record is missing, and %s is mounted", mounted))
		default:
			removable = append(removable, id)
		}
	}
	return removable
}

// leaveBarePods does the same for pods.
func (rv *Recoverer) leaveBarePods(known map[string][]string, ids []string) (removable []string) {
	if len(ids) == 0 {
		return nil
	}
	connected := map[string]bool{}
	for _, l := range rv.Network.Leases() {
		connected[l.PodID] = true
	}
	for _, id := range ids {
		leave := func(why error) { rv.leave(Unmanaged{Kind: UnmanagedPod, ID: id, PodID: id}, why) }
		mounted, err := mounts.First([]string{rv.Dirs.PodFiles(id)})
		_, pinned := os.Stat(rv.Dirs.NamespacesOf(id))
		switch {
		case len(known[id]) > 0 || len(rv.In(id)) > 0:
			leave(errors.New("its record is missing, and it has containers"))
		case connected[id]:
			leave(errors.New("its record is missing, and it has a network"))
		case !errors.Is(pinned, fs.ErrNotExist):
			leave(errors.New("its record is missing, and it has namespaces"))
		case err != nil:
			leave(fmt.Errorf("its record is missing: %w", err))
		case mounted != "":
			leave(fmt.Errorf("its record is missing, and %s is mounted", mounted))
		default:
			removable = append(removable, id)
		}
	}
	return removable
}

// endRecordless handles a container in the shim that has neither a record nor a directory. We
// remove the directory only after the container's end. So either the shim carried out the call of a
// daemon that had died, or another program removed the directory.
func (rv *Recoverer) endRecordless(ctx context.Context, podID, id string) error {
	stays := false
	if p := rv.Pods.Exact(podID); p != nil {
		switch p.Get().Phase {
		case state.PodReady, state.PodBroken:
			stays = true
		}
	}
	if stays {
		bounded, cancel := context.WithTimeout(ctx, recoverLimit)
		s, err := rv.Shim.Status(bounded, podID, id)
		cancel()
		switch {
		case errors.Is(err, client.ErrNotFound):
			return nil
		case err != nil:
			rv.leave(Unmanaged{Kind: UnmanagedContainer, ID: id, PodID: podID}, fmt.Errorf("its directory is missing: %w", err))
			return nil
		case s.State == client.StateRunning || s.State == client.StatePaused:
			rv.leave(Unmanaged{Kind: UnmanagedContainer, ID: id, PodID: podID}, errors.New("its directory is missing, and it runs"))
			return nil
		}
	}
	rv.Log.Warn("killing container of the shim that has no record", "container", id, "pod", podID)
	return rv.Exits.EndLeftover(ctx, podID, id)
}

// queueStrayNetworks queues networks that Recover could not take down, because a plugin hung or
// failed, for retries until they are gone.
func (rv *Recoverer) queueStrayNetworks(unmanaged map[string]bool) {
	for _, l := range rv.Network.Leases() {
		if rv.Pods.Exact(l.PodID) == nil && !unmanaged[l.PodID] {
			rv.Clean.Queue("network of unknown pod", l.PodID, func(ctx context.Context) error {
				return rv.Network.Teardown(ctx, network.Pod{ID: l.PodID})
			})
		}
	}
}

// queueStrayDirs has the directories removed in the background: no one waits for that.
func (rv *Recoverer) queueStrayDirs(b bare) {
	for _, id := range b.containers {
		rv.Clean.Queue("directory of unknown container", id, func(context.Context) error { return rv.removeContainerDir(id) })
	}
	for _, id := range b.pods {
		rv.Clean.Queue("directory of unknown pod", id, func(context.Context) error {
			if err := mounts.Detach(rv.Dirs.PodFiles(id)); err != nil {
				return err
			}
			return rv.Dirs.Pods().Remove(id)
		})
	}
}

// queueStrayNamespaces is the same for namespaces.
func (rv *Recoverer) queueStrayNamespaces(unmanagedPods map[string]bool) error {
	pinned, err := os.ReadDir(rv.Dirs.Namespaces())
	if err != nil {
		return err
	}
	for _, d := range pinned {
		if id := d.Name(); rv.Pods.Exact(id) == nil && !unmanagedPods[id] {
			rv.Clean.Queue("namespaces of unknown pod", id, func(ctx context.Context) error {
				return rv.Namespaces.Remove(ctx, rv.Dirs.NamespacesOf(id))
			})
		}
	}
	return nil
}
