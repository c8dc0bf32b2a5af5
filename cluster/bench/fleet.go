package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	coordv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// beatEvery is how often the lease of each simulated node is renewed, as by kubelets.
	beatEvery = 10 * time.Second
	// beatLimit is when a renewal, or the look after it, is given up: the next nodes are not to fall
	// silent, too.
	beatLimit = 5 * time.Second
)

// fleet are the simulated nodes.
type fleet struct {
	*bench
	leases []atomic.Pointer[coordv1.Lease] // as the API server has answered last; nil before the node joins
	silent atomic.Int64                    // how often one was not ready
}

func simulatedNode(i int) string { return fmt.Sprintf("simulated-%d", i) }

// joinAll makes all nodes, and returns when none has a taint. Then they live until life ends.
func (f *fleet) joinAll(ctx, life context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, f.long(f.nodes))
	defer cancel()
	simulated := metav1.ListOptions{LabelSelector: "bench=simulated", ResourceVersion: "0"}
	watching, err := f.kube.CoreV1().Nodes().Watch(life, simulated)
	if err != nil {
		return err
	}
	untainted := make(chan error, 1)
	go f.watch(life, watching, simulated, untainted)
	writes, err := f.writes(ctx)
	if err != nil {
		return err
	}
	began, used := time.Now(), f.cpu()
	if err := each(ctx, f.nodes, f.join); err != nil {
		return err
	}
	select {
	case err := <-untainted:
		if err != nil {
			return err
		}
	case <-ctx.Done():
		return fmt.Errorf("nodes do not lose their taints: %w", context.Cause(ctx))
	}
	f.took(fmt.Sprintf("%d nodes: joined, and no taint left", f.nodes), time.Since(began))
	f.found(figure{Name: "… CPU time for each node", Unit: "ms", Value: f.spent(used, f.nodes)})
	f.found(figure{Name: "… memory but for files", Unit: "MB", Value: float64(f.anonymous()) / 1024})
	after, err := f.writes(ctx)
	if err != nil {
		return err
	}
	f.found(figure{Name: "… requests that write, for each node", Unit: "1", Value: float64(after-writes) / float64(f.nodes)})
	return nil
}

// watch tells untainted when no node has a taint, or that it cannot watch any more. A node that the
// cluster takes for silent says that it is ready again, as its kubelet would.
func (f *fleet) watch(ctx context.Context, w watch.Interface, o metav1.ListOptions, untainted chan<- error) {
	free, away, told := map[string]bool{}, map[string]bool{}, false
	seen := func(_ watch.EventType, n *v1.Node) bool {
		if delete(free, n.Name); len(n.Spec.Taints) == 0 {
			free[n.Name] = true
		}
		if len(free) == f.nodes && !told {
			told = true
			untainted <- nil
		}
		for _, c := range n.Status.Conditions {
			if c.Type != v1.NodeReady {
				continue
			}
			isAway := c.Status != v1.ConditionTrue
			if isAway && !away[n.Name] {
				f.silent.Add(1)
			}
			if away[n.Name] = isAway; isAway {
				go f.sayReady(ctx, n.Name)
			}
		}
		return false
	}
	for {
		_, err := drain(w, &o.ResourceVersion, seen)
		w.Stop()
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			o.ResourceVersion, err = "0", nil // the watch begins with all that there are
		}
		if err == nil {
			w, err = f.kube.CoreV1().Nodes().Watch(ctx, o)
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			if !told {
				untainted <- fmt.Errorf("%d of %d nodes lost their taints: %w", len(free), f.nodes, err)
			}
			return
		}
	}
}

func (f *fleet) sayReady(ctx context.Context, node string) {
	now := time.Now().UTC().Format(time.RFC3339)
	ready := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady","lastHeartbeatTime":%q}]}}`, now)
	_, err := f.kube.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, ready, metav1.PatchOptions{}, "status")
	if err != nil && ctx.Err() == nil {
		f.say("%s is silent, and cannot say that it is ready: %v", node, err)
	}
}

// writes is how many requests that change something the API server has had, without those that
// renew leases.
func (b *bench) writes(ctx context.Context) (sum int, err error) {
	raw, err := b.kube.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(raw)) {
		labels, value, ok := strings.Cut(strings.TrimPrefix(line, "apiserver_request_total{"), "} ")
		if !ok || !strings.HasPrefix(line, "apiserver_request_total{") {
			continue
		}
		verb := func(v string) bool { return strings.Contains(labels, fmt.Sprintf("verb=%q", v)) }
		renewal := verb("PUT") && strings.Contains(labels, `resource="leases"`)
		if renewal || !verb("POST") && !verb("PUT") && !verb("PATCH") && !verb("DELETE") {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			return 0, fmt.Errorf("metrics: %w", err)
		}
		sum += int(n)
	}
	return sum, nil
}

// join makes a node and its lease.
func (f *fleet) join(ctx context.Context, i int) error {
	name, labels := simulatedNode(i), map[string]string{"bench": "simulated"}
	now, seconds := metav1.NowMicro(), int32(40)
	lease, err := f.kube.CoordinationV1().Leases(v1.NamespaceNodeLease).Create(ctx, &coordv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       coordv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	room := v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("8"), v1.ResourceMemory: resource.MustParse("32Gi"),
		v1.ResourcePods: resource.MustParse("110"),
	}
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			"bench": "simulated", v1.LabelHostname: name, v1.LabelOSStable: "linux", v1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%3),
		}},
		Status: v1.NodeStatus{Capacity: room, Allocatable: room, Conditions: []v1.NodeCondition{{
			Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		}}},
	}
	_, err = f.kube.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	f.leases[i].Store(lease)
	return err
}

// beat renews the leases of all nodes that have joined, as kubelets do, until ctx ends.
func (f *fleet) beat(ctx context.Context) {
	var all sync.WaitGroup
	for first := range clients {
		all.Go(func() {
			for ctx.Err() == nil {
				round := time.Now()
				for i := first; i < f.nodes && ctx.Err() == nil; i += clients {
					f.renew(ctx, i)
					// Evenly over the time.
					f.pause(ctx, time.Until(round.Add(beatEvery*time.Duration(i+1)/time.Duration(f.nodes))))
				}
				f.pause(ctx, time.Until(round.Add(beatEvery)))
			}
		})
	}
	all.Wait()
}

func (f *fleet) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (f *fleet) renew(ctx context.Context, i int) {
	lease := f.leases[i].Load()
	if lease == nil {
		return
	}
	lease = lease.DeepCopy()
	now := metav1.NowMicro()
	lease.Spec.RenewTime = &now
	limited, cancel := context.WithTimeout(ctx, beatLimit)
	defer cancel()
	renewed, err := f.kube.CoordinationV1().Leases(v1.NamespaceNodeLease).Update(limited, lease, metav1.UpdateOptions{})
	if err == nil {
		f.leases[i].Store(renewed)
		return
	}
	if ctx.Err() != nil {
		return
	}
	f.say("heartbeat of %s: %v", lease.Name, err)
	// The write may have been made: the next one is of the version that there is.
	asking, stop := context.WithTimeout(ctx, beatLimit)
	defer stop()
	if lease, err = f.kube.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(asking, lease.Name, metav1.GetOptions{}); err == nil {
		f.leases[i].Store(lease)
	}
}
