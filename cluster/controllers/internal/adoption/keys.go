package adoption

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/coracle-project/coracle/cluster/controllers/frame"
)

// Concerns returns the Keys of objects of type T for a controller of owners of this kind: the one
// that owns the object, or those that might adopt it, which matching finds. An error of matching
// means that there are none, as upstream's listers say it.
func Concerns[T, Owner metav1.Object](kind string, matching func(T) ([]Owner, error)) frame.Keys {
	owner := frame.Owner(kind)
	return func(obj any) []string {
		object, ok := obj.(T)
		if !ok {
			return nil
		}
		if metav1.GetControllerOfNoCopy(object) != nil {
			return owner(object)
		}
		owners, err := matching(object)
		if err != nil {
			return nil
		}
		return KeysOf(owners)
	}
}

// KeysOf returns the keys of objects.
func KeysOf[T metav1.Object](objects []T) []string {
	keys := make([]string, len(objects))
	for i, o := range objects {
		keys[i] = cache.MetaObjectToName(o).String()
	}
	return keys
}
