// Package direct provides informers that read the API server's storage in the same process, without
// requests. A watch over HTTP would encode each change and decode it again.
//
// Nothing that a request passes through applies: no authentication, authorization, fairness or
// audit, and no retries of a client before the informer's own. Use these informers for trusted
// components of this process only. They may read everything, and other clients' requests do not
// delay them.
package direct

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// Storages are the storages of the built-in kinds. Use [New].
type Storages struct {
	ended  context.Context
	opened chan struct{} // closed when byKind is complete
	byKind map[schema.GroupKind]reader
	reads  sync.RWMutex // held for reading by each list, and by each watch until it has ended
}

// noLimit is the time limit of lists, and of a watch for which none is asked.
const noLimit = 1 << 62 * time.Nanosecond

// ErrStopped is why nothing can be read.
var ErrStopped = errors.New("the API server has stopped")

// reader is a storage that can be listed and watched.
type reader interface {
	rest.Storage
	rest.Lister
	rest.Watcher
}

// New returns storages to which groups are to be added. All reads end when ended does.
func New(ended context.Context) *Storages {
	return &Storages{ended: ended, opened: make(chan struct{}), byKind: map[schema.GroupKind]reader{}}
}

// Add adds the storages of a group's resources. It must not be called after Open.
func (s *Storages) Add(group *genericapiserver.APIGroupInfo) error {
	for _, resources := range group.VersionedResourcesStorageMap {
		for name, storage := range resources {
			r, ok := storage.(reader)
			if !ok {
				continue // a subresource, or what is only ever created
			}
			kinds, _, err := legacyscheme.Scheme.ObjectKinds(r.New())
			if err != nil {
				return fmt.Errorf("storage of %s: %w", name, err)
			}
			for _, k := range kinds {
				s.byKind[k.GroupKind()] = r
			}
		}
	}
	return nil
}

// Open lets informers read. Until then they wait.
func (s *Storages) Open() { close(s.opened) }

// Wait returns when all reads have ended, after the end of the context that New was given. Then the
// storages may be closed.
func (s *Storages) Wait() {
	s.reads.Lock()
	defer s.reads.Unlock()
}

// source is the cache.ListerWatcher of one kind, in the version that its informer has.
type source struct {
	*Storages
	kind schema.GroupVersionKind
}

// IsWatchListSemanticsUnSupported makes informers list first, which takes one copy of the objects.
// Streaming the first objects would take one of each for each step.
func (source) IsWatchListSemanticsUnSupported() bool { return true }

// List implements cache.Lister.
func (s source) List(o metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), o)
}

// ListWithContext implements cache.ListerWithContext.
func (s source) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	r, err := s.begin(ctx, o, noLimit)
	if err != nil {
		return nil, err
	}
	defer r.end()
	list, err := r.List(r.ctx, &r.options)
	if err != nil {
		return nil, err
	}
	kind := s.kind
	kind.Kind += "List"
	out, err := convert(list, kind)
	if err != nil {
		return nil, err
	}
	// A list has the very objects of the watch cache in it. A reader that changes one, which it must
	// not, would change what the API serves.
	return out.DeepCopyObject(), nil
}

// Watch implements cache.Watcher.
func (s source) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), o)
}

// WatchWithContext implements cache.WatcherWithContext.
func (s source) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	limit := noLimit
	if o.TimeoutSeconds != nil { // as the API's handler does: a watch that hangs is made again
		limit = time.Duration(*o.TimeoutSeconds) * time.Second
	}
	r, err := s.begin(ctx, o, limit)
	if err != nil {
		return nil, err
	}
	from, err := r.Watch(r.ctx, &r.options)
	if err != nil {
		r.end()
		return nil, err
	}
	w := &watcher{read: r, from: from, kind: s.kind, events: make(chan watch.Event)}
	go w.run()
	return w, nil
}

// read is one list or watch of a storage.
type read struct {
	reader
	options metainternalversion.ListOptions
	ctx     context.Context // ends with the server, too
	cancel  context.CancelFunc
	end     func() // to be called once
}

// begin waits until storages can be read, and begins a read that takes limit at most.
func (s source) begin(ctx context.Context, o metav1.ListOptions, limit time.Duration) (*read, error) {
	select {
	case <-s.opened:
	case <-s.ended.Done():
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	s.reads.RLock()
	r, err := s.beginLocked(ctx, o, limit)
	if err != nil {
		s.reads.RUnlock()
		return nil, fmt.Errorf("read %s: %w", s.kind, err)
	}
	return r, nil
}

func (s source) beginLocked(ctx context.Context, o metav1.ListOptions, limit time.Duration) (*read, error) {
	if s.ended.Err() != nil {
		return nil, ErrStopped
	}
	r := &read{reader: s.byKind[s.kind.GroupKind()]}
	if r.reader == nil {
		return nil, errors.New("it is not served")
	}
	if err := metainternalversion.Convert_v1_ListOptions_To_internalversion_ListOptions(&o, &r.options, nil); err != nil {
		return nil, err
	}
	r.ctx, r.cancel = context.WithTimeout(ctx, limit)
	unhook := context.AfterFunc(s.ended, r.cancel)
	r.end = func() {
		unhook()
		r.cancel()
		s.reads.RUnlock()
	}
	return r, nil
}

// convert returns obj as a kind of the API. The two share memory.
func convert(obj runtime.Object, kind schema.GroupVersionKind) (runtime.Object, error) {
	out, err := legacyscheme.Scheme.New(kind)
	if err != nil {
		return nil, err
	}
	return out, legacyscheme.Scheme.Convert(obj, out, nil)
}
