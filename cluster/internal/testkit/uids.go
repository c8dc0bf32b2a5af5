package testkit

import (
	"encoding/json"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
)

// CheckUIDs has kube look at the UID in the preconditions of a deletion and in a patch, as the API
// server does: the only object of the resource has the given one.
func CheckUIDs(kube *fake.Clientset, resource schema.GroupResource, uid types.UID) {
	kube.PrependReactor("delete", resource.Resource, func(action ktesting.Action) (bool, runtime.Object, error) {
		a := action.(ktesting.DeleteActionImpl)
		if p := a.DeleteOptions.Preconditions; p != nil && p.UID != nil && *p.UID != uid {
			return true, nil, apierrors.NewConflict(resource, a.Name, errors.New("uid mismatch"))
		}
		return false, nil, nil
	})
	kube.PrependReactor("patch", resource.Resource, func(action ktesting.Action) (bool, runtime.Object, error) {
		a := action.(ktesting.PatchActionImpl)
		var patch struct{ Metadata metav1.ObjectMeta }
		if err := json.Unmarshal(a.Patch, &patch); err != nil {
			return true, nil, err
		}
		if of := patch.Metadata.UID; of != "" && of != uid {
			immutable := field.Invalid(field.NewPath("metadata", "uid"), of, "field is immutable")
			return true, nil, apierrors.NewInvalid(schema.GroupKind{Group: resource.Group}, a.Name, field.ErrorList{immutable})
		}
		return false, nil, nil
	})
}
