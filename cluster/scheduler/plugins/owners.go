package plugins

import (
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// owners finds what a pod belongs to.
type owners struct {
	services     corelisters.ServiceLister
	controllers  corelisters.ReplicationControllerLister
	replicaSets  appslisters.ReplicaSetLister
	statefulSets appslisters.StatefulSetLister
}

func newOwners(f informers.SharedInformerFactory) owners {
	return owners{
		services:     f.Core().V1().Services().Lister(),
		controllers:  f.Core().V1().ReplicationControllers().Lister(),
		replicaSets:  f.Apps().V1().ReplicaSets().Lister(),
		statefulSets: f.Apps().V1().StatefulSets().Lister(),
	}
}

// selector returns the selector of the pods that are in the same services and under the same
// controller as pod; an empty one if pod belongs to none.
func (o *owners) selector(pod *v1.Pod) labels.Selector {
	same := labels.Set{}
	services, _ := o.services.Services(pod.Namespace).List(labels.Everything())
	for _, s := range services {
		// Selectors that match one pod cannot contradict each other.
		if len(s.Spec.Selector) > 0 && labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(pod.Labels)) {
			same = labels.Merge(same, s.Spec.Selector)
		}
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return labels.SelectorFromSet(same)
	}
	var more *metav1.LabelSelector
	switch owner.APIVersion + "/" + owner.Kind {
	case v1.SchemeGroupVersion.String() + "/ReplicationController":
		if rc, err := o.controllers.ReplicationControllers(pod.Namespace).Get(owner.Name); err == nil {
			same = labels.Merge(same, rc.Spec.Selector)
		}
	case appsv1.SchemeGroupVersion.String() + "/ReplicaSet":
		if rs, err := o.replicaSets.ReplicaSets(pod.Namespace).Get(owner.Name); err == nil {
			more = rs.Spec.Selector
		}
	case appsv1.SchemeGroupVersion.String() + "/StatefulSet":
		if ss, err := o.statefulSets.StatefulSets(pod.Namespace).Get(owner.Name); err == nil {
			more = ss.Spec.Selector
		}
	}
	selector := labels.SelectorFromSet(same)
	if more != nil {
		if other, err := metav1.LabelSelectorAsSelector(more); err == nil {
			if requirements, selectable := other.Requirements(); selectable {
				selector = selector.Add(requirements...)
			}
		}
	}
	return selector
}
