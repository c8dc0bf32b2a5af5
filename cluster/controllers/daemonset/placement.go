package daemonset

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	upstream "k8s.io/kubernetes/pkg/controller"
	"k8s.io/kubernetes/pkg/controller/daemon/util"
	"k8s.io/kubernetes/pkg/features"

	"github.com/coracle-project/coracle/cluster/controllers/internal/adoption"
)

// fit is whether a node is one for a DaemonSet's pods.
type fit struct {
	// start: a pod should run there.
	start bool
	// stay: a pod that is there already may stay. It may when only new pods are kept away, by a
	// taint NoSchedule.
	stay bool
}

// fitOf compares the pod template, with the tolerations that every daemon pod gets, with a node.
func fitOf(ds *appsv1.DaemonSet, node *corev1.Node) fit {
	spec := ds.Spec.Template.Spec // a shallow copy: only the list of tolerations is replaced
	if spec.NodeName != "" && spec.NodeName != node.Name {
		return fit{}
	}
	util.AddOrUpdateDaemonPodTolerations(&spec)
	pod := &corev1.Pod{ObjectMeta: ds.Spec.Template.ObjectMeta, Spec: spec}
	pod.Spec.NodeName = node.Name
	// A selector that does not parse matches nothing.
	if matches, _ := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); !matches {
		return fit{}
	}
	untolerated := func(effects ...corev1.TaintEffect) bool {
		_, found := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, spec.Tolerations,
			func(taint *corev1.Taint) bool {
				for _, effect := range effects {
					if taint.Effect == effect {
						return true
					}
				}
				return false
			}, utilfeature.DefaultFeatureGate.Enabled(features.TaintTolerationComparisonOperators))
		return found
	}
	if untolerated(corev1.TaintEffectNoExecute) {
		return fit{}
	}
	return fit{start: !untolerated(corev1.TaintEffectNoSchedule), stay: true}
}

// place works out the fit of every node.
func (d *daemon) place() {
	d.fits = make(map[string]fit, len(d.nodes))
	for _, node := range d.nodes {
		d.fits[node.Name] = fitOf(d.ds, node)
	}
}

// claimPods sorts the DaemonSet's pods by the node that each is on or meant for.
func (d *daemon) claimPods(ctx context.Context) error {
	selector, err := d.selector()
	if err != nil {
		return err
	}
	d.all, err = adoption.Claim[*corev1.Pod]{
		Owner: d.ds, Kind: kind, Selector: selector, Read: d.read,
		Patch: func(ctx context.Context, pod *corev1.Pod, patch []byte) error {
			return d.controller.pods.Patch(ctx, d.key, pod, patch)
		},
	}.Of(ctx, adoption.Candidates[*corev1.Pod](d.podCache, kind.Kind, d.ds))
	if err != nil {
		return err
	}
	d.pods = map[string][]*corev1.Pod{}
	for _, pod := range d.all {
		if podutil.IsPodTerminal(pod) && pod.DeletionTimestamp != nil {
			continue // done with, but for its finalizers
		}
		if node, err := util.GetTargetNodeName(pod); err == nil {
			d.pods[node] = append(d.pods[node], pod)
		}
	}
	return nil
}

// concernsNode is those DaemonSets that have something to do since a node is as it is. Nodes are
// written all the time by their kubelets; most of it moves no pod.
func (c *controller) concernsNode(obj any) []string {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil
	}
	daemons, err := c.daemons.List(labels.Everything())
	if err != nil || len(daemons) == 0 {
		return nil
	}
	pods, err := c.podCache.ByIndex(upstream.PodNodeNameKeyIndex, node.Name)
	if err != nil {
		return nil
	}
	has := map[string]bool{} // by DaemonSet
	for _, obj := range pods {
		if ref := metav1.GetControllerOfNoCopy(obj.(*corev1.Pod)); ref != nil && ref.Kind == kind.Kind {
			has[obj.(*corev1.Pod).Namespace+"/"+ref.Name] = true
		}
	}
	var concerned []*appsv1.DaemonSet
	for _, ds := range daemons {
		fit, present := fitOf(ds, node), has[ds.Namespace+"/"+ds.Name]
		// The last case: a pod where none should be may have become right.
		if fit.start && !present || !fit.stay && present || present && ds.Status.NumberMisscheduled > 0 {
			concerned = append(concerned, ds)
		}
	}
	return adoption.KeysOf(concerned)
}
