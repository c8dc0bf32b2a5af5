package direct

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/admissionregistration"
	"k8s.io/client-go/informers/apps"
	"k8s.io/client-go/informers/autoscaling"
	"k8s.io/client-go/informers/batch"
	"k8s.io/client-go/informers/certificates"
	"k8s.io/client-go/informers/coordination"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/discovery"
	"k8s.io/client-go/informers/events"
	"k8s.io/client-go/informers/flowcontrol"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/informers/networking"
	"k8s.io/client-go/informers/node"
	"k8s.io/client-go/informers/policy"
	"k8s.io/client-go/informers/rbac"
	"k8s.io/client-go/informers/resource"
	"k8s.io/client-go/informers/scheduling"
	"k8s.io/client-go/informers/storage"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// Informers returns shared's informers, of which those of built-in kinds read the storages. Each
// reads all objects of its kind, and has the index of namespaces. The function that InformerFor is
// given is ignored for them, with its filters and indexes.
func (s *Storages) Informers(shared informers.SharedInformerFactory) informers.SharedInformerFactory {
	return factory{shared, s}
}

type factory struct {
	informers.SharedInformerFactory
	storages *Storages
}

// InformerFor implements informers.SharedInformerFactory, as do the next.
func (f factory) InformerFor(obj runtime.Object, make internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	return f.SharedInformerFactory.InformerFor(obj, func(kube kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		kinds, _, err := legacyscheme.Scheme.ObjectKinds(obj)
		if err != nil { // it is not built in
			return make(kube, resync)
		}
		return cache.NewSharedIndexInformer(source{f.storages, kinds[0]}, obj, resync,
			cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	})
}

func (f factory) ForResource(r schema.GroupVersionResource) (informers.GenericInformer, error) {
	for kind := range legacyscheme.Scheme.KnownTypes(r.GroupVersion()) {
		k := r.GroupVersion().WithKind(kind)
		if named, _ := meta.UnsafeGuessKindToResource(k); named != r {
			continue
		}
		obj, err := legacyscheme.Scheme.New(k)
		if err != nil {
			return nil, err
		}
		f.InformerFor(obj, nil) // which shared finds by its type
		break
	}
	return f.SharedInformerFactory.ForResource(r)
}

func (f factory) Admissionregistration() admissionregistration.Interface {
	return admissionregistration.New(f, metav1.NamespaceAll, nil)
}
func (f factory) Apps() apps.Interface { return apps.New(f, metav1.NamespaceAll, nil) }
func (f factory) Autoscaling() autoscaling.Interface {
	return autoscaling.New(f, metav1.NamespaceAll, nil)
}
func (f factory) Batch() batch.Interface { return batch.New(f, metav1.NamespaceAll, nil) }
func (f factory) Certificates() certificates.Interface {
	return certificates.New(f, metav1.NamespaceAll, nil)
}

func (f factory) Coordination() coordination.Interface {
	return coordination.New(f, metav1.NamespaceAll, nil)
}
func (f factory) Core() core.Interface           { return core.New(f, metav1.NamespaceAll, nil) }
func (f factory) Discovery() discovery.Interface { return discovery.New(f, metav1.NamespaceAll, nil) }
func (f factory) Events() events.Interface       { return events.New(f, metav1.NamespaceAll, nil) }
func (f factory) Flowcontrol() flowcontrol.Interface {
	return flowcontrol.New(f, metav1.NamespaceAll, nil)
}

func (f factory) Networking() networking.Interface {
	return networking.New(f, metav1.NamespaceAll, nil)
}
func (f factory) Node() node.Interface         { return node.New(f, metav1.NamespaceAll, nil) }
func (f factory) Policy() policy.Interface     { return policy.New(f, metav1.NamespaceAll, nil) }
func (f factory) Rbac() rbac.Interface         { return rbac.New(f, metav1.NamespaceAll, nil) }
func (f factory) Resource() resource.Interface { return resource.New(f, metav1.NamespaceAll, nil) }
func (f factory) Scheduling() scheduling.Interface {
	return scheduling.New(f, metav1.NamespaceAll, nil)
}
func (f factory) Storage() storage.Interface { return storage.New(f, metav1.NamespaceAll, nil) }
