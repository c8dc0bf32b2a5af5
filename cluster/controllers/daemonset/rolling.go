package daemonset

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/controller/daemon/util"
)

// roll replaces pods of earlier revisions, one step at a time.
func (d *daemon) roll(ctx context.Context) error {
	desired := 0
	for _, node := range d.nodes {
		if d.fits[node.Name].start {
			desired++
		}
	}
	unavailable, err := util.UnavailableCount(d.ds, desired)
	if err != nil {
		return fmt.Errorf("invalid value for MaxUnavailable: %w", err)
	}
	surge, err := util.SurgeCount(d.ds, desired)
	if err != nil {
		return fmt.Errorf("invalid value for MaxSurge: %w", err)
	}
	if surge > 0 {
		return d.apply(ctx, d.surgeStep(surge, desired))
	}
	if desired > 0 && unavailable == 0 { // neither is allowed: nothing would ever move
		unavailable = 1
	}
	return d.apply(ctx, d.deleteStep(unavailable))
}

// places returns the nodes where the DaemonSet has pods or should have one.
func (d *daemon) places() []string {
	places := map[string]bool{}
	for name := range d.pods {
		places[name] = true
	}
	for name, fit := range d.fits {
		if fit.start {
			places[name] = true
		}
	}
	return slices.Sorted(maps.Keys(places))
}

// oldAndNew returns the one pod of an earlier revision and the one of the present revision on a
// node, of those that are not being deleted. Where there is more than one of either kind it is for
// manage to prune first.
func (d *daemon) oldAndNew(node string) (older, newer *corev1.Pod, clear bool) {
	for _, pod := range d.pods[node] {
		if pod.DeletionTimestamp != nil {
			continue
		}
		slot := &older
		if util.IsPodUpdated(pod, d.hash, d.templateGeneration()) {
			slot = &newer
		}
		if *slot != nil {
			return nil, nil, false
		}
		*slot = pod
	}
	return older, newer, true
}

// deleteStep deletes old pods, so that manage makes new ones in their place. Those that are not
// available go in any case. Available ones go as long as no more than maxUnavailable nodes are
// without an available pod; every node that is between pods counts.
func (d *daemon) deleteStep(maxUnavailable int) changes {
	var broken, candidates []*corev1.Pod
	unavailable := 0
	for _, node := range d.places() {
		older, newer, clear := d.oldAndNew(node)
		switch {
		case !clear, (older == nil) == (newer == nil):
			unavailable++
		case newer != nil:
			if !d.available(newer) {
				unavailable++
			}
		case !d.available(older):
			broken = append(broken, older)
			unavailable++
		default:
			candidates = append(candidates, older)
		}
	}
	spare := min(max(maxUnavailable-unavailable, 0), len(candidates))
	return changes{delete: append(broken, candidates[:spare]...)}
}

// surgeStep creates new pods alongside old ones, on at most maxSurge nodes at a time, and deletes
// each old pod whose successor is available. Where the old pod is not available its successor is
// not counted. A node that the DaemonSet no longer fits keeps its available old pod until enough
// are available elsewhere.
func (d *daemon) surgeStep(maxSurge, desired int) changes {
	var todo changes
	var leftovers []*corev1.Pod
	var candidates []string
	surging, available := 0, 0
	for _, node := range d.places() {
		older, newer, clear := d.oldAndNew(node)
		if !clear {
			surging++
			continue
		}
		if serving := firstOf(older, newer); serving != nil && d.available(serving) {
			available++
		}
		switch {
		case older == nil: // manage sees to it
		case newer != nil:
			if d.available(newer) {
				todo.delete = append(todo.delete, older)
			} else {
				surging++
			}
		case !d.fits[node].start:
			if d.available(older) {
				leftovers = append(leftovers, older)
			} else {
				todo.delete = append(todo.delete, older)
			}
		case !d.available(older):
			todo.create = append(todo.create, node)
		default:
			candidates = append(candidates, node)
		}
	}
	todo.delete = append(todo.delete, leftovers[:min(max(available-desired, 0), len(leftovers))]...)
	todo.create = append(todo.create, candidates[:min(max(maxSurge-surging, 0), len(candidates))]...)
	return todo
}

func firstOf(a, b *corev1.Pod) *corev1.Pod {
	if a != nil {
		return a
	}
	return b
}
