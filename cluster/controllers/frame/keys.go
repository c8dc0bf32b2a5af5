package frame

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// Self is the Keys of an object that is itself what has to be synced.
func Self(obj any) []string {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return nil
	}
	return []string{key}
}

// Owner returns the Keys of objects whose controlling owner, if it is of this kind ("ReplicaSet"),
// has to be synced.
func Owner(kind string) Keys {
	return func(obj any) []string {
		m, ok := obj.(metav1.Object)
		if !ok {
			return nil
		}
		ref := metav1.GetControllerOf(m)
		if ref == nil || ref.Kind != kind {
			return nil
		}
		return []string{m.GetNamespace() + "/" + ref.Name}
	}
}

// panicked is the error of a sync that panicked.
type panicked struct {
	value any
	stack []byte
}

func (p panicked) Error() string { return fmt.Sprintf("panic: %v\n%s", p.value, p.stack) }
