// Package mergepatch makes patches of objects.
package mergepatch

import (
	"encoding/json"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// Between returns the strategic merge patch that makes after out of before. It is {} if they are
// equal.
func Between[T any](before, after *T) ([]byte, error) {
	from, err := json.Marshal(before)
	if err != nil {
		return nil, err
	}
	to, err := json.Marshal(after)
	if err != nil {
		return nil, err
	}
	var schema T
	return strategicpatch.CreateTwoWayMergePatch(from, to, schema)
}

// PodStatus returns the patch that makes pod's status status. It has the pod's UID, so the API
// refuses it for another pod of this name.
func PodStatus(pod *v1.Pod, status *v1.PodStatus) ([]byte, error) {
	return Between(&v1.Pod{Status: pod.Status}, &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: pod.UID}, Status: *status})
}
