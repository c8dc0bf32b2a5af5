package testkit

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
)

// CheckUIDs has kube look at the UID in the preconditions of a deletion, as the API server does:
// the only object of the resource has the given one.
func CheckUIDs(kube *fake.Clientset, resource schema.GroupResource, uid types.UID) {
	kube.PrependReactor("delete", resource.Resource, func(action ktesting.Action) (bool, runtime.Object, error) {
		a := action.(ktesting.DeleteActionImpl)
		if p := a.DeleteOptions.Preconditions; p != nil && p.UID != nil && *p.UID != uid {
			return true, nil, apierrors.NewConflict(resource, a.Name, errors.New("uid mismatch"))
		}
		return false, nil, nil
	})
}
