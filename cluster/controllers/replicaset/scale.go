package replicaset

import (
	"context"
	"sort"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	upstream "k8s.io/kubernetes/pkg/controller"

	"github.com/coracle-project/coracle/cluster/controllers/internal/adoption"
	"github.com/coracle-project/coracle/cluster/controllers/internal/podcontrol"
)

// scale creates the pods that rs lacks or deletes those that it has too many of.
func (c *controller) scale(ctx context.Context, rs *appsv1.ReplicaSet, active []*corev1.Pod) error {
	surplus := len(active) - int(*rs.Spec.Replicas)
	var err error
	switch {
	case surplus < 0:
		_, err = podcontrol.SlowStart(min(-surplus, podcontrol.Burst), func(int) error {
			return c.pods.Create(ctx, rs, &rs.Spec.Template, "")
		})
	case surplus > 0:
		_, err = c.pods.DeleteAll(ctx, rs, victims(active, c.related(rs), min(surplus, podcontrol.Burst)))
	}
	return err
}

// related returns the pods of all ReplicaSets that have the same controller as rs: of the same
// Deployment's other revisions too. A ReplicaSet on its own has none.
func (c *controller) related(rs *appsv1.ReplicaSet) []*corev1.Pod {
	ref := metav1.GetControllerOfNoCopy(rs)
	if ref == nil {
		return nil
	}
	var pods []*corev1.Pod
	for _, sibling := range adoption.Named[*appsv1.ReplicaSet](c.setCache, rs.Namespace, ref.Kind, ref.Name) {
		if metav1.GetControllerOfNoCopy(sibling).UID == ref.UID {
			pods = append(pods, adoption.Owned[*corev1.Pod](c.podCache, kind.Kind, sibling)...)
		}
	}
	return pods
}

// victims returns the n of active that will be missed least: those not scheduled or not ready
// before those at work, then by deletion cost, then those that share their node with most related
// pods, then the younger ones. Unless all have to go.
func victims(active, related []*corev1.Pod, n int) []*corev1.Pod {
	if n >= len(active) {
		return active
	}
	crowd := map[string]int{} // related pods at work, per node
	for _, pod := range related {
		if upstream.IsPodActive(pod) {
			crowd[pod.Spec.NodeName]++
		}
	}
	ranked := upstream.ActivePodsWithRanks{Pods: active, Rank: make([]int, len(active)), Now: metav1.Now()}
	for i, pod := range active {
		ranked.Rank[i] = crowd[pod.Spec.NodeName]
	}
	sort.Sort(ranked)
	return ranked.Pods[:n]
}
