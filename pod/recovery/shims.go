package recovery

import (
	"context"
	"errors"
	"fmt"

	"github.com/coracle-project/coracle/network"
	"github.com/coracle-project/coracle/pod/life"
	"github.com/coracle-project/coracle/shim/client"
)

// Where pods have shims of their own, one that does not answer holds up its pod alone: nothing of
// the pod is touched, and operations on it wait, until it answers. The others are recovered at
// once.

// answers is what the shims have reported.
type answers struct {
	known  map[string][]string // containers by pod
	silent map[string]error    // pods whose shims have not answered
}

// listShims asks for all containers. If it fails, nothing is known.
func (rv *Recoverer) listShims(ctx context.Context) (answers, error) {
	known, err := rv.Shim.List(ctx)
	var some *client.UnansweredError
	if errors.As(err, &some) {
		return answers{known: known, silent: some.Pods}, nil
	}
	return answers{known: known}, err
}

// answered reports whether everything is known about a pod.
func (a answers) answered(podID string) bool { return a.silent[podID] == nil }

func (a answers) inShim() map[string]bool {
	in := map[string]bool{}
	for _, ids := range a.known {
		for _, id := range ids {
			in[id] = true
		}
	}
	return in
}

// leaveUnanswered makes directories without a record unmanaged if a shim that has not answered may
// have a part of them. It returns the others.
func (rv *Recoverer) leaveUnanswered(a answers, b bare) (rest bare) {
	if len(a.silent) == 0 {
		return b
	}
	for _, id := range b.containers {
		podID := rv.podInBundle(id)
		if podID != "" && a.answered(podID) {
			rest.containers = append(rest.containers, id)
			continue
		}
		rv.leave(Unmanaged{Kind: UnmanagedContainer, ID: id, PodID: podID},
			errors.New("its record is missing, and a shim that may have it does not answer"))
	}
	for _, id := range b.pods {
		if a.answered(id) {
			rest.pods = append(rest.pods, id)
			continue
		}
		rv.leave(Unmanaged{Kind: UnmanagedPod, ID: id, PodID: id},
			fmt.Errorf("its record is missing, and its shim does not answer: %w", a.silent[id]))
	}
	return rest
}

// recoverLate recovers each pod whose shim had not answered, as soon as the shim answers.
func (rv *Recoverer) recoverLate(ctx context.Context, silent map[string]error) {
	for pause := firstAsk; len(silent) > 0; pause = min(2*pause, lastAsk) {
		if life.Sleep(ctx, pause) != nil {
			return
		}
		try, cancel := context.WithTimeout(ctx, listLimit)
		all, err := rv.listShims(try)
		cancel()
		if err != nil {
			continue // the next try may get more answers
		}
		came, still := answers{known: map[string][]string{}}, map[string]error{}
		late := map[string]bool{}
		for podID := range silent {
			if err := all.silent[podID]; err != nil {
				still[podID] = err
				continue
			}
			late[podID] = true
			if ids := all.known[podID]; len(ids) > 0 {
				came.known[podID] = ids
			}
		}
		silent = still
		if len(late) == 0 {
			continue
		}
		pause = firstAsk
		isLate := func(podID string) bool { return late[podID] }
		rv.recoverContainers(ctx, came.inShim(), isLate)
		rv.endStrays(ctx, came.known, bare{})
		rv.recoverPods(ctx, came.inShim(), isLate)
		rv.removeLate(late)
	}
}

// removeLate removes pods that have no record.
func (rv *Recoverer) removeLate(late map[string]bool) {
	unmanaged := rv.podsOfUnmanaged()
	for podID := range late {
		if rv.Pods.Exact(podID) != nil || unmanaged[podID] {
			continue
		}
		rv.Clean.Queue("unknown pod", podID, func(ctx context.Context) error {
			if err := rv.Network.Teardown(ctx, network.Pod{ID: podID}); err != nil {
				return err
			}
			if err := rv.Namespaces.Remove(ctx, rv.Dirs.NamespacesOf(podID)); err != nil {
				return err
			}
			return rv.Shim.DeletePod(ctx, podID)
		})
	}
}
