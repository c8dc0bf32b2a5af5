package policy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// nodeWatch knows the nodes. With Options.ForgetNodes it removes the conditions of those that are
// gone: when the process starts, and when a node is deleted. The condition of a node that enforces
// policies before the API has it may be among them, and comes back with the next change of the
// policy.
type nodeWatch struct {
	*clusterPolicies
	lister  corelisters.NodeLister
	names   func() []string // of all nodes
	synced  cache.DoneChecker
	deleted chan struct{} // a node was
}

// watchNodes asks for an informer and makes no call.
func (c *clusterPolicies) watchNodes(nodes coreinformers.NodeInformer) error {
	w := &nodeWatch{clusterPolicies: c, lister: nodes.Lister(), names: nodes.Informer().GetStore().ListKeys, deleted: make(chan struct{}, 1)}
	registration, err := nodes.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
		if _, ok := object[*corev1.Node](obj); ok {
			select {
			case w.deleted <- struct{}{}:
			default:
			}
		}
	}})
	if err != nil {
		return fmt.Errorf("watch for nodes that are gone: %w", err)
	}
	w.synced = registration.HasSyncedChecker()
	c.nodes = w
	return nil
}

// tells says whether this node is one of those that say of a policy that they enforce it.
func (w *nodeWatch) tells() bool {
	before := 0
	for _, name := range w.names() {
		if name < w.NodeName {
			before++
		}
	}
	return before < mostTellers
}

// run removes conditions until ctx ends.
func (w *nodeWatch) run(ctx context.Context) {
	if !cache.WaitFor(ctx, "nodes of network policies", w.synced, w.clusterPolicies) {
		return
	}
	pause := firstPause
	for {
		var again <-chan time.Time
		if err := w.forgetGone(ctx); err != nil {
			w.Log.Warn("conditions of nodes that are gone stay in the status of ClusterNetworkPolicies", "err", err, "again", pause)
			again, pause = time.After(pause), min(2*pause, longestWait)
		} else {
			pause = firstPause
		}
		select {
		case <-ctx.Done():
			return
		case <-w.deleted:
		case <-again:
		}
	}
}

// forgetGone removes the conditions of all nodes that the API does not have, each as the manager
// that wrote it: what another program has written stays. The error is one that may pass.
func (w *nodeWatch) forgetGone(ctx context.Context) error {
	w.mu.Lock()
	policies := w.state.ClusterPolicies()
	w.mu.Unlock()
	var errs []error
	for _, p := range policies {
		for _, c := range p.Status.Conditions {
			node, ours := strings.CutPrefix(c.Type, conditionPrefix)
			if !ours || node == w.NodeName {
				continue
			}
			if _, err := w.lister.Get(node); !apierrors.IsNotFound(err) {
				continue
			}
			if err := w.applyConditions(ctx, p, node); w.passing(p.Name, err) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
