package plugins

import (
	"iter"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// namedClaims yields the names of the PersistentVolumeClaims that pod's volumes name.
func namedClaims(pod *v1.Pod) iter.Seq[string] {
	return func(yield func(string) bool) {
		for name, own := range allClaims(pod) {
			if !own && !yield(name) {
				return
			}
		}
	}
}

// allClaims yields the names of all PersistentVolumeClaims that pod's volumes need, with whether
// it is one that is made for this pod alone (an ephemeral volume's).
func allClaims(pod *v1.Pod) iter.Seq2[string, bool] {
	return func(yield func(string, bool) bool) {
		for i := range pod.Spec.Volumes {
			switch v := &pod.Spec.Volumes[i]; {
			case v.PersistentVolumeClaim != nil:
				if !yield(v.PersistentVolumeClaim.ClaimName, false) {
					return
				}
			case v.Ephemeral != nil:
				if !yield(ephemeral.VolumeClaimName(pod, v), true) {
					return
				}
			}
		}
	}
}

// namesClaim says whether a volume of pod names the claim.
func namesClaim(pod *v1.Pod, claim *v1.PersistentVolumeClaim) bool {
	if claim == nil || claim.Namespace != pod.Namespace {
		return false
	}
	for name := range namedClaims(pod) {
		if name == claim.Name {
			return true
		}
	}
	return false
}

// claimIsNamed is the hint that a claim which came or changed is one that the pod names.
func claimIsNamed(pod *framework.PodInfo, _, new *v1.PersistentVolumeClaim) bool {
	return namesClaim(pod.Pod(), new)
}
