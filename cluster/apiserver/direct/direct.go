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

	mu    sync.Mutex // held to begin a read
	reads sync.WaitGroup
}

// noLimit is the time limit of a watch for which none is asked.
const noLimit = 1 << 62 * time.Nanosecond

// errStopped is why nothing can be read.
var errStopped = errors.New("the API server has stopped")

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
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads.Wait()
}

// begin counts a read; the caller calls reads.Done at its end.
func (s *Storages) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended.Err() != nil {
		return errStopped
	}
	s.reads.Add(1)
	return nil
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
	r, err := s.reader(ctx)
	if err != nil {
		return nil, err
	}
	defer s.reads.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ended, cancel)()
	options, err := internal(o)
	if err != nil {
		return nil, err
	}
	list, err := r.List(ctx, options)
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
	r, err := s.reader(ctx)
	if err != nil {
		return nil, err
	}
	options, err := internal(o)
	if err != nil {
		s.reads.Done()
		return nil, err
	}
	limit := noLimit
	if o.TimeoutSeconds != nil { // as the API's handler does: a watch that hangs is made again
		limit = time.Duration(*o.TimeoutSeconds) * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	unhook := context.AfterFunc(s.ended, cancel)
	end := func() { unhook(); cancel() }
	from, err := r.Watch(ctx, options)
	if err != nil {
		end()
		s.reads.Done()
		return nil, err
	}
	w := &watcher{from: from, kind: s.kind, end: end, stopped: ctx.Done(), events: make(chan watch.Event)}
	go func() {
		defer s.reads.Done()
		w.run()
	}()
	return w, nil
}

// reader waits until storages can be read, and begins a read.
func (s source) reader(ctx context.Context) (reader, error) {
	select {
	case <-s.opened:
	case <-s.ended.Done():
		return nil, fmt.Errorf("read %s: %w", s.kind, errStopped)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	r := s.byKind[s.kind.GroupKind()]
	if r == nil {
		return nil, fmt.Errorf("read %s: it is not served", s.kind)
	}
	if err := s.begin(); err != nil {
		return nil, fmt.Errorf("read %s: %w", s.kind, err)
	}
	return r, nil
}

func internal(o metav1.ListOptions) (*metainternalversion.ListOptions, error) {
	var options metainternalversion.ListOptions
	err := metainternalversion.Convert_v1_ListOptions_To_internalversion_ListOptions(&o, &options, nil)
	return &options, err
}

// convert returns obj as a kind of the API. The two share memory.
func convert(obj runtime.Object, kind schema.GroupVersionKind) (runtime.Object, error) {
	out, err := legacyscheme.Scheme.New(kind)
	if err != nil {
		return nil, err
	}
	return out, legacyscheme.Scheme.Convert(obj, out, nil)
}
