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
	"k8s.io/apimachinery/pkg/watch"
)

// beatEvery is how often the lease of each simulated node is renewed.
const beatEvery = 20 * time.Second

// fleet are the simulated nodes.
type fleet struct {
	*bench
	leases []atomic.Pointer[coordv1.Lease] // as the API server has answered last; nil before the node joins
}

func simulatedNode(i int) string { return fmt.Sprintf("simulated-%d", i) }

// joinAll makes all nodes, and returns when none has a taint.
func (f *fleet) joinAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, f.long(f.nodes))
	defer cancel()
	simulated := metav1.ListOptions{LabelSelector: "bench=simulated", ResourceVersion: "0"}
	watching, err := f.kube.CoreV1().Nodes().Watch(ctx, simulated)
	if err != nil {
		return err
	}
	untainted := make(chan error, 1)
	go func() { untainted <- f.untainted(ctx, watching, simulated) }()
	writes, err := f.writes(ctx)
	if err != nil {
		return err
	}
	began, used := time.Now(), f.cpu()
	if err := each(ctx, f.nodes, f.join); err != nil {
		return err
	}
	if err := <-untainted; err != nil {
		return err
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

// untainted returns when all nodes have no taint. A watch that the API server ends is opened again.
func (f *fleet) untainted(ctx context.Context, w watch.Interface, o metav1.ListOptions) error {
	free := map[string]bool{}
	all := func(_ watch.EventType, n *v1.Node) bool {
		if delete(free, n.Name); len(n.Spec.Taints) == 0 {
			free[n.Name] = true
		}
		return len(free) == f.nodes
	}
	for {
		finished, err := drain(w, &o.ResourceVersion, all)
		w.Stop()
		if finished {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%d of %d nodes lost their taints: %w", len(free), f.nodes, context.Cause(ctx))
		}
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			o.ResourceVersion, err = "0", nil // the watch begins with all that there are
		}
		if err != nil {
			return err
		}
		if w, err = f.kube.CoreV1().Nodes().Watch(ctx, o); err != nil {
			return err
		}
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
	renewed, err := f.kube.CoordinationV1().Leases(v1.NamespaceNodeLease).Update(ctx, lease, metav1.UpdateOptions{})
	if err == nil {
		f.leases[i].Store(renewed)
	} else if ctx.Err() == nil {
		f.say("heartbeat of %s: %v", lease.Name, err)
	}
}
