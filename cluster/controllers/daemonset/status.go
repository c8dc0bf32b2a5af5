package daemonset

import (
	"context"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/kubernetes/pkg/controller/daemon/util"
)

// status counts nodes. Of several pods on a node the oldest counts.
func (d *daemon) status() appsv1.DaemonSetStatus {
	status := *d.ds.Status.DeepCopy()
	status.ObservedGeneration = d.ds.Generation
	status.DesiredNumberScheduled, status.CurrentNumberScheduled, status.NumberMisscheduled = 0, 0, 0
	status.NumberReady, status.NumberAvailable, status.UpdatedNumberScheduled = 0, 0, 0
	for _, node := range d.nodes {
		pods := d.pods[node.Name]
		if !d.fits[node.Name].start {
			if len(pods) > 0 {
				status.NumberMisscheduled++
			}
			continue
		}
		status.DesiredNumberScheduled++
		if len(pods) == 0 {
			continue
		}
		status.CurrentNumberScheduled++
		pod := slices.MinFunc(pods, byAge)
		if podutil.IsPodReady(pod) {
			status.NumberReady++
		}
		if d.available(pod) {
			status.NumberAvailable++
		}
		if util.IsPodUpdated(pod, d.hash, d.templateGeneration()) {
			status.UpdatedNumberScheduled++
		}
	}
	status.NumberUnavailable = status.DesiredNumberScheduled - status.NumberAvailable
	return status
}

// writeStatus writes the status if it differs.
func (d *daemon) writeStatus(ctx context.Context) error {
	status := d.status()
	if !apiequality.Semantic.DeepEqual(d.ds.Status, status) {
		ds := d.ds.DeepCopy()
		ds.Status = status
		written, err := d.kube.AppsV1().DaemonSets(ds.Namespace).UpdateStatus(ctx, ds, metav1.UpdateOptions{})
		if err != nil {
			return err
		}
		d.writes.Wrote(d.key, d.cache, written.ResourceVersion)
	}
	d.wakeWhenAvailable()
	return nil
}

// wakeWhenAvailable has the DaemonSet synced when the next of its ready pods has been ready for
// minReadySeconds, which no event tells.
func (d *daemon) wakeWhenAvailable() {
	wait := time.Duration(d.ds.Spec.MinReadySeconds) * time.Second
	for _, pod := range d.all {
		if podutil.IsPodReady(pod) && pod.DeletionTimestamp == nil && !d.available(pod) {
			since := podutil.GetPodReadyCondition(pod.Status).LastTransitionTime
			d.queue.AddAfter(d.key, time.Until(since.Add(wait))) // the queue keeps the earliest
		}
	}
}
