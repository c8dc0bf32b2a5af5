package policy

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/coracle-project/coracle/cluster/policy/compile"
)

// object is what an informer says was deleted, which may have been missed.
func object[T any](obj any) (T, bool) {
	if gone, missed := obj.(cache.DeletedFinalStateUnknown); missed {
		obj = gone.Obj
	}
	t, ok := obj.(T)
	return t, ok
}

// handler has f called with each object, and whether it is gone, while mu is held.
func handler[T any](p *Policy, f func(obj T, gone bool)) cache.ResourceEventHandler {
	tell := func(obj any, gone bool) {
		o, ok := object[T](obj)
		if !ok {
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		f(o, gone)
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { tell(obj, false) },
		UpdateFunc: func(_, now any) { tell(now, false) },
		DeleteFunc: func(obj any) { tell(obj, true) },
	}
}

func (p *Policy) policyHandler() cache.ResourceEventHandler {
	return handler(p, func(o *networkingv1.NetworkPolicy, gone bool) {
		if gone {
			p.state.DeletePolicy(o.Namespace, o.Name)
		} else if !p.state.SetPolicy(o) {
			return
		}
		p.signal() // the last one may be gone
	})
}

func (p *Policy) namespaceHandler() cache.ResourceEventHandler {
	return handler(p, func(o *corev1.Namespace, gone bool) {
		if gone {
			p.state.DeleteNamespace(o.Name)
		} else {
			p.state.SetNamespace(o.Name, o.Labels)
		}
		p.signalIfPending()
	})
}

func (p *Policy) podHandler() cache.ResourceEventHandler {
	set := func(id compile.ID, o *corev1.Pod) {
		p.known(id).object = o
		p.setPod(id)
		p.signalIfPending()
	}
	all := handler(p, func(o *corev1.Pod, gone bool) {
		id := compile.IDOf(o)
		if gone {
			if k := p.known(id); k.admitted != nil && k.object != nil {
				k.admitted = k.object // which may say that the pod has ended
			}
			o = nil
		}
		set(id, o)
	})
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { all.OnAdd(obj, false) },
		UpdateFunc: func(before, now any) {
			b, was := before.(*corev1.Pod)
			if n, is := now.(*corev1.Pod); was && is && compile.IDOf(b) != compile.IDOf(n) {
				all.OnDelete(before) // deleted and made again between two looks
			}
			all.OnUpdate(before, now)
		},
		DeleteFunc: all.OnDelete,
	}
}

// known returns what is known of a pod. The caller holds mu.
func (p *Policy) known(id compile.ID) *known {
	k := p.pods.Entries[id]
	if k == nil {
		k = &known{}
		p.pods.Entries[id] = k
	}
	return k
}

// setPod tells the state what is known of a pod. The kubelet knows of addresses first, the API of
// labels. The caller holds mu.
func (p *Policy) setPod(id compile.ID) {
	k := p.pods.Entries[id]
	o, addresses := k.object, k.addresses
	switch {
	case o == nil && k.admitted == nil:
		p.pods.Delete(id)
		p.state.DeletePod(id)
		return
	case o == nil:
		o = k.admitted
	case k.admitted == nil:
		addresses = compile.Addresses(o)
	}
	p.state.SetPod(id, o, addresses, k.admitted != nil)
}
