package adoption

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// byController is the name of the index that [MustIndex] adds.
const byController = "coracle/controller"

// MustIndex lets an informer's objects be found by their controller, and those that have none by
// their namespace. Several controllers may ask for it on the same informer, before it is stopped.
func MustIndex(informer cache.SharedIndexInformer) {
	if _, ok := informer.GetIndexer().GetIndexers()[byController]; ok {
		return
	}
	err := informer.AddIndexers(cache.Indexers{byController: func(obj any) ([]string, error) {
		m, ok := obj.(metav1.Object)
		if !ok {
			return nil, nil
		}
		ref := metav1.GetControllerOfNoCopy(m)
		if ref == nil {
			return []string{indexKey(m.GetNamespace(), "", "")}, nil
		}
		return []string{indexKey(m.GetNamespace(), ref.Kind, ref.Name)}, nil
	}})
	if err != nil { // two indexes of one name, or an informer that was stopped: mistakes in wiring
		panic(err)
	}
}

func indexKey(namespace, kind, name string) string { return namespace + "/" + kind + "/" + name }

// Named returns the objects whose controller reference has this kind and name, whatever its UID:
// besides an object's own dependents also those of an earlier object of the same name.
func Named[T metav1.Object](indexer cache.Indexer, namespace, kind, name string) []T {
	return lookup[T](indexer, indexKey(namespace, kind, name))
}

// Orphans returns the objects of namespace that have no controller.
func Orphans[T metav1.Object](indexer cache.Indexer, namespace string) []T {
	return lookup[T](indexer, indexKey(namespace, "", ""))
}

// Owned returns the objects whose controller is owner, an object of this kind.
func Owned[T metav1.Object](indexer cache.Indexer, kind string, owner metav1.Object) []T {
	var owned []T
	for _, obj := range Named[T](indexer, owner.GetNamespace(), kind, owner.GetName()) {
		if metav1.IsControlledBy(obj, owner) {
			owned = append(owned, obj)
		}
	}
	return owned
}

// Candidates returns what an owner of this kind owns or might adopt: what [Claim.Of] wants.
func Candidates[T metav1.Object](indexer cache.Indexer, kind string, owner metav1.Object) []T {
	return append(Owned[T](indexer, kind, owner), Orphans[T](indexer, owner.GetNamespace())...)
}

func lookup[T metav1.Object](indexer cache.Indexer, value string) []T {
	objs, err := indexer.ByIndex(byController, value)
	if err != nil { // the index was not added: a mistake in wiring
		panic(err)
	}
	found := make([]T, 0, len(objs))
	for _, obj := range objs {
		if t, ok := obj.(T); ok {
			found = append(found, t)
		}
	}
	return found
}
