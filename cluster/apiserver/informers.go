package apiserver

import (
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/admissionregistration"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/informers/networking"
	"k8s.io/client-go/tools/cache"
)

// askedEvery is how often upstream's admission plugins and allocators ask whether informers have
// synced.
const askedEvery = 100 * time.Millisecond

// promptInformers are the shared informers for upstream's code that asks every 100 ms whether they
// have synced. Such an informer does not say no before that time has passed, so the caller goes
// on as soon as the informer has synced. A start of the API server has several such waits, one
// after the other.
type promptInformers struct {
	informers.SharedInformerFactory
	// policies are the sources of the two kinds of admission policies.
	validating, mutating *compiled
}

func newPromptInformers(shared informers.SharedInformerFactory) promptInformers {
	return promptInformers{shared, newCompiled(), newCompiled()}
}

// compiled is done when a source of admission policies has compiled those that there are. A source
// then follows the informer of their bindings. A request that comes before waits for 100 ms.
type compiled struct {
	once sync.Once
	done chan struct{}
}

func newCompiled() *compiled { return &compiled{done: make(chan struct{})} }

func (c *compiled) finish() { c.once.Do(func() { close(c.done) }) }

// Core implements informers.SharedInformerFactory, as do the next.
func (p promptInformers) Core() core.Interface { return core.New(p, metav1.NamespaceAll, nil) }

func (p promptInformers) Admissionregistration() admissionregistration.Interface {
	return admissionregistration.New(p, metav1.NamespaceAll, nil)
}

func (p promptInformers) Networking() networking.Interface {
	return networking.New(p, metav1.NamespaceAll, nil)
}

// InformerFor implements internalinterfaces.SharedInformerFactory.
func (p promptInformers) InformerFor(obj runtime.Object, make internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	i := promptInformer{SharedIndexInformer: p.SharedInformerFactory.InformerFor(obj, make)}
	switch obj.(type) {
	case *corev1.Namespace: // a plugin for policies asks for namespaces first
		i.after = []*compiled{p.validating, p.mutating}
	case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
		i.followed = p.validating
	case *admissionregistrationv1.MutatingAdmissionPolicyBinding:
		i.followed = p.mutating
	}
	return i
}

// promptInformer is one of promptInformers.
type promptInformer struct {
	cache.SharedIndexInformer
	// after is what it awaits in addition, once; followed is done when it gets a handler.
	after    []*compiled
	followed *compiled
}

// HasSynced implements cache.SharedInformer.
func (i promptInformer) HasSynced() bool {
	if !within(askedEvery, i.HasSyncedChecker().Done()) {
		return false
	}
	for _, c := range i.after {
		if !within(askedEvery, c.done) {
			c.finish() // the caller asks the source itself
		}
	}
	return true
}

// within waits for done, and says whether it came in time.
func within(limit time.Duration, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
	}
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-done:
		return true
	case <-late.C:
		return false
	}
}

// AddEventHandler implements cache.SharedInformer.
func (i promptInformer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	registration, err := i.SharedIndexInformer.AddEventHandler(h)
	if err != nil {
		return nil, err
	}
	if i.followed != nil {
		i.followed.finish()
	}
	return promptRegistration{registration}, nil
}

// RemoveEventHandler implements cache.SharedInformer.
func (i promptInformer) RemoveEventHandler(r cache.ResourceEventHandlerRegistration) error {
	if prompt, ok := r.(promptRegistration); ok {
		r = prompt.ResourceEventHandlerRegistration
	}
	return i.SharedIndexInformer.RemoveEventHandler(r)
}

// promptRegistration is a handler's, for callers that ask as those of promptInformers do.
type promptRegistration struct {
	cache.ResourceEventHandlerRegistration
}

// HasSynced implements cache.ResourceEventHandlerRegistration.
func (r promptRegistration) HasSynced() bool { return within(askedEvery, r.HasSyncedChecker().Done()) }
