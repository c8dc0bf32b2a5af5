package daemonset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/kubernetes/pkg/controller/daemon/util"

	"github.com/coracle-project/coracle/cluster/controllers/internal/podcontrol"
)

// burst is how many pods of a DaemonSet are created, and how many deleted, in one sync: all nodes
// would pull the same image at once.
const burst = 250

// changes is what is to be done.
type changes struct {
	create []string // names of nodes
	delete []*corev1.Pod
}

// manage creates pods where there are none and deletes those that should not be.
func (d *daemon) manage(ctx context.Context) error {
	var todo changes
	for _, node := range d.nodes {
		d.settle(node.Name, &todo)
	}
	// A pod that was never bound and whose node is gone never will be. Pods that were bound are
	// the pod garbage collector's.
	for node, pods := range d.pods {
		if _, exists := d.fits[node]; exists {
			continue
		}
		for _, pod := range pods {
			if pod.Spec.NodeName == "" {
				todo.delete = append(todo.delete, pod)
			}
		}
	}
	return d.apply(ctx, todo)
}

// settle adds to todo what one node needs.
func (d *daemon) settle(node string, todo *changes) {
	fit, pods := d.fits[node], d.pods[node]
	switch {
	case fit.start && len(pods) == 0:
		todo.create = append(todo.create, node)
		return
	case !fit.stay:
		for _, pod := range pods {
			if pod.DeletionTimestamp == nil {
				todo.delete = append(todo.delete, pod)
			}
		}
		return
	}
	alive := d.bury(node, pods, todo)
	slices.SortFunc(alive, byAge)
	if !util.AllowsSurge(d.ds) {
		if len(alive) > 1 {
			todo.delete = append(todo.delete, alive[1:]...)
		}
		return
	}
	if len(alive) == 0 && fit.start { // what is there is on its way out: surging need not wait for it
		todo.create = append(todo.create, node)
		return
	}
	d.settleSurge(alive, todo)
}

// bury adds to todo the pods that failed or, though they should never, succeeded. It returns those
// that live.
func (d *daemon) bury(node string, pods []*corev1.Pod, todo *changes) []*corev1.Pod {
	var alive []*corev1.Pod
	for _, pod := range pods {
		switch {
		case pod.DeletionTimestamp != nil:
		case pod.Status.Phase == corev1.PodFailed:
			id := fmt.Sprintf("%s/%d/%s", d.ds.UID, d.ds.Status.ObservedGeneration, node)
			if d.backoff.IsInBackOffSinceUpdate(id, d.now) {
				d.queue.AddAfter(d.key, d.backoff.Get(id))
				continue
			}
			d.backoff.Next(id, d.now)
			d.backoff.GC() // those of nodes and generations long gone
			d.events.Eventf(d.ds, corev1.EventTypeWarning, "FailedDaemonPod", "Found failed daemon pod %s/%s on node %s, will try to kill it",
				pod.Namespace, pod.Name, node)
			todo.delete = append(todo.delete, pod)
		case pod.Status.Phase == corev1.PodSucceeded:
			d.events.Eventf(d.ds, corev1.EventTypeNormal, "SucceededDaemonPod", "Found succeeded daemon pod %s/%s on node %s, will try to delete it",
				pod.Namespace, pod.Name, node)
			todo.delete = append(todo.delete, pod)
		default:
			alive = append(alive, pod)
		}
	}
	return alive
}

// settleSurge adds to todo what is too much on a node where an old and a new pod may overlap: they
// may only as long as the old one is ready and the new one not yet available.
func (d *daemon) settleSurge(alive []*corev1.Pod, todo *changes) {
	if len(alive) < 2 {
		return
	}
	var oldest [2]*corev1.Pod // of earlier revisions, of the present one
	for _, pod := range alive {
		i := 0
		if pod.Labels[appsv1.ControllerRevisionHashLabelKey] == d.hash {
			i = 1
		}
		if oldest[i] != nil {
			todo.delete = append(todo.delete, pod)
			continue
		}
		oldest[i] = pod
	}
	if oldest[0] != nil && oldest[1] != nil && (!podutil.IsPodReady(oldest[0]) || d.available(oldest[1])) {
		todo.delete = append(todo.delete, oldest[0])
	}
}

func (d *daemon) available(pod *corev1.Pod) bool {
	return podutil.IsPodAvailable(pod, d.ds.Spec.MinReadySeconds, metav1.NewTime(d.now))
}

// byAge orders bound pods before others, then older before younger ones.
func byAge(a, b *corev1.Pod) int {
	if aBound, bBound := a.Spec.NodeName != "", b.Spec.NodeName != ""; aBound != bBound {
		if aBound {
			return -1
		}
		return 1
	}
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// apply creates and deletes pods.
func (d *daemon) apply(ctx context.Context, todo changes) error {
	create, remove := todo.create[:min(len(todo.create), burst)], todo.delete[:min(len(todo.delete), burst)]
	template := util.CreatePodTemplate(d.ds.Spec.Template, d.templateGeneration(), d.hash)
	_, createErr := podcontrol.SlowStart(len(create), func(i int) error {
		template := template.DeepCopy()
		template.Spec.Affinity = util.ReplaceDaemonSetPodNodeNameNodeAffinity(template.Spec.Affinity, create[i])
		return d.controller.pods.Create(ctx, d.ds, template, "")
	})
	_, deleteErr := d.controller.pods.DeleteAll(ctx, d.ds, remove)
	return errors.Join(createErr, deleteErr)
}

// templateGeneration is the deprecated annotation's value, nil if there is none. The API sets it on
// every DaemonSet, so its pods carry it in a label.
func (d *daemon) templateGeneration() *int64 {
	generation, err := util.GetTemplateGeneration(d.ds)
	if err != nil {
		return nil
	}
	return generation
}
