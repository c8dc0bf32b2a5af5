// Package watched keeps single config maps and secrets up to date for as long as someone holds
// them.
//
// A node may read only the objects that its pods refer to, so it cannot list a namespace: each
// object has a watch of its own, started by the first Hold and ended by the last Release. Pods that
// refer to the same object share the watch. An object that says it is immutable is read once and
// not watched any longer.
//
// Get answers from memory once the object has been read, and waits for that reading up to a second.
// It returns a NotFound status error while the object does not exist. A holder is told of a change
// only when what it last got from Get is no longer true, so that nothing is done twice.
package watched

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// errLate says in upstream's words that an object was not read in that time.
var errLate = errors.New("timed out waiting for the condition")

// Kind is what an object is; its text is how upstream's messages call it.
type Kind string

// The kinds that pods refer to.
const (
	ConfigMap Kind = "configmap"
	Secret    Kind = "secret"
)

// Key names one object.
type Key struct {
	Kind            Kind
	Namespace, Name string
}

// Objects are the objects that are held now. It is safe for concurrent use.
type Objects struct {
	// FirstRead is how long Get waits for an object's first reading: by default a second, as
	// upstream's kubelet does. It may be set until the first use.
	FirstRead time.Duration

	kube kubernetes.Interface

	mu   sync.Mutex
	held map[Key]*object
}

// New returns an empty set of objects, to be read through kube.
func New(kube kubernetes.Interface) *Objects {
	return &Objects{FirstRead: time.Second, kube: kube, held: map[Key]*object{}}
}

// Hold returns a reference to the object, which is kept up to date until the reference is released.
// changed is called when an answer of the reference's Get has become untrue; it must not block.
func (o *Objects) Hold(key Key, changed func()) *Ref {
	o.mu.Lock()
	defer o.mu.Unlock()
	obj := o.held[key]
	if obj == nil {
		ctx, cancel := context.WithCancel(context.Background())
		obj = &object{key: key, cancel: cancel, read: make(chan struct{}), refs: map[*Ref]struct{}{}}
		o.held[key] = obj
		go o.reflector(key, obj).RunWithContext(ctx)
	}
	r := &Ref{objects: o, object: obj, changed: changed}
	obj.mu.Lock()
	obj.refs[r] = struct{}{}
	obj.mu.Unlock()
	return r
}

func (o *Objects) release(r *Ref) {
	o.mu.Lock()
	defer o.mu.Unlock()
	obj := r.object
	obj.mu.Lock()
	delete(obj.refs, r)
	last := len(obj.refs) == 0
	obj.mu.Unlock()
	if last && o.held[obj.key] == obj {
		delete(o.held, obj.key)
		obj.cancel()
	}
}

// reflector watches one object by its name.
func (o *Objects) reflector(key Key, store *object) *cache.Reflector {
	byName := fields.OneTermEqualSelector(metav1.ObjectNameField, key.Name).String()
	lw := &cache.ListWatch{DisableChunking: true}
	var kind runtime.Object
	switch key.Kind {
	case ConfigMap:
		kind = &v1.ConfigMap{}
		lw.ListWithContextFunc = func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			opts.FieldSelector = byName
			return o.kube.CoreV1().ConfigMaps(key.Namespace).List(ctx, opts)
		}
		lw.WatchFuncWithContext = func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			opts.FieldSelector = byName
			return o.kube.CoreV1().ConfigMaps(key.Namespace).Watch(ctx, opts)
		}
	case Secret:
		kind = &v1.Secret{}
		lw.ListWithContextFunc = func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			opts.FieldSelector = byName
			return o.kube.CoreV1().Secrets(key.Namespace).List(ctx, opts)
		}
		lw.WatchFuncWithContext = func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			opts.FieldSelector = byName
			return o.kube.CoreV1().Secrets(key.Namespace).Watch(ctx, opts)
		}
	}
	return cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, o.kube), kind, store,
		cache.ReflectorOptions{
			Name: string(key.Kind) + " " + key.Namespace + "/" + key.Name,
			// The first tries follow soon: see OnceGranted.
			Backoff: &wait.Backoff{Duration: 20 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 12, Cap: 30 * time.Second},
		})
}

// OnceGranted calls f until it no longer fails with Forbidden, for up to a second. A node is
// granted what a pod refers to when that pod is bound to it, and the one who judges may learn of
// that an instant after the node has.
func OnceGranted(ctx context.Context, f func() error) error {
	backoff := wait.Backoff{Duration: 10 * time.Millisecond, Factor: 2, Steps: 7}
	for {
		err := f()
		if !apierrors.IsForbidden(err) || backoff.Steps == 0 {
			return err
		}
		timer := time.NewTimer(backoff.Step())
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// Ref is one holder's reference.
type Ref struct {
	objects *Objects
	object  *object
	changed func()

	// asked and seen are guarded by object.mu.
	asked bool   // Get has been called
	seen  string // what Get answered: a resource version, or a word that is none
}

// What Ref.seen is when Get had no object to answer with.
const (
	seenNothing = "nothing yet"
	seenAbsent  = "absent"
)

// Get returns the object: a *v1.ConfigMap or a *v1.Secret, shared, not to be changed.
func (r *Ref) Get(ctx context.Context) (runtime.Object, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.objects.FirstRead, errLate)
	defer cancel()
	select {
	case <-r.object.read:
	case <-ctx.Done():
	}
	r.object.mu.Lock()
	defer r.object.mu.Unlock()
	key := r.object.key
	r.asked = true
	select {
	case <-r.object.read:
	default:
		r.seen = seenNothing
		return nil, fmt.Errorf("failed to sync %s cache: %w", key.Kind, context.Cause(ctx))
	}
	r.seen = r.object.version()
	if r.object.value == nil {
		return nil, apierrors.NewNotFound(v1.Resource(string(key.Kind)), key.Name)
	}
	return r.object.value, nil
}

// Release ends the reference; changed is not called after the call of it that may be under way.
func (r *Ref) Release() { r.objects.release(r) }

// object is one watched object, and the store that its reflector writes to.
type object struct {
	key    Key
	cancel context.CancelFunc
	read   chan struct{} // closed once the first list has been read

	mu    sync.Mutex
	value runtime.Object // nil while the object does not exist
	done  bool           // read is closed
	refs  map[*Ref]struct{}
}

func (o *object) version() string {
	if o.value == nil {
		return seenAbsent
	}
	m := o.value.(metav1.Object)
	return string(m.GetUID()) + "/" + m.GetResourceVersion()
}

// set takes over what the API has, and tells those whose last answer differs.
func (o *object) set(value runtime.Object) {
	o.mu.Lock()
	o.value = value
	if !o.done {
		o.done = true
		close(o.read)
	}
	now := o.version()
	var tell []func()
	for r := range o.refs {
		if r.asked && r.seen != now {
			tell = append(tell, r.changed)
		}
	}
	o.mu.Unlock()
	for _, changed := range tell {
		changed()
	}
	if immutable(value) {
		o.cancel()
	}
}

func immutable(value runtime.Object) bool {
	var flag *bool
	switch v := value.(type) {
	case *v1.ConfigMap:
		flag = v.Immutable
	case *v1.Secret:
		flag = v.Immutable
	}
	return flag != nil && *flag
}

// mine returns obj if it is the watched object: a server (or a fake of one) that ignores the field
// selector must not make one object look like another.
func (o *object) mine(obj any) (runtime.Object, bool) {
	m, ok := obj.(metav1.Object)
	if !ok || m.GetName() != o.key.Name || m.GetNamespace() != o.key.Namespace {
		return nil, false
	}
	m.SetManagedFields(nil)
	value, ok := obj.(runtime.Object)
	return value, ok
}

// Add implements cache.ReflectorStore.
func (o *object) Add(obj any) error {
	if value, ok := o.mine(obj); ok {
		o.set(value)
	}
	return nil
}

// Update implements cache.ReflectorStore.
func (o *object) Update(obj any) error { return o.Add(obj) }

// Delete implements cache.ReflectorStore.
func (o *object) Delete(obj any) error {
	if _, ok := o.mine(obj); ok {
		o.set(nil)
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (o *object) Replace(list []any, _ string) error {
	for _, obj := range list {
		if value, ok := o.mine(obj); ok {
			o.set(value)
			return nil
		}
	}
	o.set(nil)
	return nil
}

// Resync implements cache.ReflectorStore.
func (o *object) Resync() error { return nil }
