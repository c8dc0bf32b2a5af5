// Package apitest runs controllers against an API in memory, whose time passes only when a
// test says so.
//
// [Controllers.Run] starts a [Server], informers and controllers in a testing/synctest bubble and
// hands over to the test's own function. In there nothing is ever polled: [Server.Settle] returns
// when every goroutine waits for something that only the test can bring, and [Server.Pass] lets
// time pass.
//
// The server is client-go's object tracker with those parts of a real one's behaviour that
// controllers rely on: names from generateName, UIDs, creation times, generations that count
// changes of the spec, resource versions that rise with every write, conflicts, a status
// subresource with upstream's validation, finalizers, and graceful deletion of pods that are on a
// node. There is no garbage collector. What a kubelet does is left to the test: see pods.go.
package apitest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	ktesting "k8s.io/client-go/testing"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
)

// Server is an API in memory.
type Server struct {
	// Kube is the test's own client. What it writes is neither counted nor refused.
	Kube *fake.Clientset

	tracker ktesting.ObjectTracker
	react   ktesting.ReactionFunc
	start   func() (stop func())
	stop    func() // the controllers that run

	mu      sync.Mutex
	refuse  func(verb, resource string) error
	crash   int     // this write of the controllers, counted down, is the last they do; 0 means none
	crashed bool    // it was done
	invalid []error // statuses that were not valid
	version int64
	serial  int
	writes  map[string]int
}

// Controllers makes what is to run alongside a test.
type Controllers []func(*client.Set) interface{ Run(context.Context) }

// Ours is [Controllers] of these constructors.
func Ours(make ...func(*client.Set) *frame.Controller) Controllers {
	var controllers Controllers
	for _, build := range make {
		controllers = append(controllers, func(set *client.Set) interface{ Run(context.Context) } { return build(set) })
	}
	return controllers
}

// Run runs f alongside controllers.
func (controllers Controllers) Run(t *testing.T, f func(t *testing.T, s *Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.start = func() func() {
			ctx, cancel := context.WithCancel(t.Context())
			shared := client.NewInformers(s.client(true))
			var running sync.WaitGroup
			var built []any
			for _, build := range controllers {
				c := build(&client.Set{Kube: s.client(true), Informers: shared})
				built = append(built, c)
				running.Go(func() { c.Run(ctx) })
			}
			shared.Start(ctx.Done())
			return func() {
				cancel()
				running.Wait()
				shared.Shutdown()
				for _, c := range built {
					for _, err := range refused(c) {
						t.Errorf("a controller did what its role does not allow: %v", err)
					}
				}
			}
		}
		s.stop = s.start()
		defer func() {
			s.stop()
			for _, err := range s.invalid {
				t.Errorf("a status was written that a server would refuse: %v", err)
			}
		}()
		s.Settle()
		f(t, s)
	})
}

// Settle returns once nothing more happens without time passing. Controllers that batch events for
// some milliseconds, and first retries, are given a tenth of a second.
func (s *Server) Settle() { s.Pass(100 * time.Millisecond) }

// Pass lets d pass and whatever it brings happen.
func (s *Server) Pass(d time.Duration) {
	synctest.Wait()
	time.Sleep(d)
	synctest.Wait()
}

// Refuse has f asked before each write of the controllers (as "create", "replicasets/status"); an
// error that it returns is the request's answer. nil lets everything through again.
func (s *Server) Refuse(f func(verb, resource string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = f
}

// Writes returns how often the controllers asked for each "verb resource" or "verb
// resource/subresource" since it was last called, events left out.
func (s *Server) Writes() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := maps.Clone(s.writes)
	clear(s.writes)
	return w
}

// CrashAfter has the controllers die with their n-th write from now on: it is done, but they do not
// get to know it, and do nothing after it until [Server.Restart].
func (s *Server) CrashAfter(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.crash = n
}

// Crashed reports whether the controllers have died.
func (s *Server) Crashed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.crashed
}

// Restart replaces the controllers, and all they had in memory, by new ones.
func (s *Server) Restart() {
	s.stop()
	s.mu.Lock()
	s.crash, s.crashed = 0, false
	s.mu.Unlock()
	s.stop = s.start()
	s.Settle()
}

func newServer() *Server {
	// Versions start far above those that the tracker gives lists by itself.
	s := &Server{version: 1000, writes: map[string]int{}}
	s.tracker = ktesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder())
	s.react = ktesting.ObjectReaction(s.tracker)
	s.Kube = s.client(false)
	return s
}

// client returns a client for the test or for the controllers.
func (s *Server) client(controllers bool) *fake.Clientset {
	kube := &fake.Clientset{}
	kube.AddReactor("*", "*", func(action ktesting.Action) (bool, runtime.Object, error) {
		if verb := action.GetVerb(); verb == "get" || verb == "list" {
			return s.react(action)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if !controllers || action.GetResource().Resource == "events" {
			obj, err := s.write(action)
			return true, obj, err
		}
		obj, err := s.writeFor(action)
		return true, obj, err
	})
	kube.AddWatchReactor("*", func(action ktesting.Action) (bool, watch.Interface, error) {
		var opts metav1.ListOptions
		if a, ok := action.(ktesting.WatchActionImpl); ok {
			opts = a.ListOptions
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		w, err := s.tracker.Watch(action.GetResource(), action.GetNamespace(), opts)
		if err != nil {
			return true, nil, err
		}
		inOrder(w.(*watch.RaceFreeFakeWatcher))
		return true, drained{watch.Filter(w, notGone)}, nil
	})
	return kube
}

// inOrder sorts the events that a watch begins with by the versions of their objects, as a server
// does. The tracker has them in any order: the last version that a cache has seen would go back.
func inOrder(w *watch.RaceFreeFakeWatcher) {
	var events []watch.Event
	for range len(w.ResultChan()) {
		events = append(events, <-w.ResultChan())
	}
	slices.SortFunc(events, func(a, b watch.Event) int {
		m, _ := meta.Accessor(a.Object)
		n, _ := meta.Accessor(b.Object)
		order, _ := resourceversion.CompareResourceVersion(m.GetResourceVersion(), n.GetResourceVersion())
		return order
	})
	for _, e := range events {
		w.Action(e.Type, e.Object)
	}
}

// drained is a filtered watch whose goroutine ends with it, whether or not all events were read.
type drained struct{ watch.Interface }

func (d drained) Stop() {
	d.Interface.Stop()
	for range d.ResultChan() {
	}
}

// notGone drops the event of an object's last version: a server announces its deletion alone.
func notGone(e watch.Event) (watch.Event, bool) {
	m, err := meta.Accessor(e.Object)
	return e, err != nil || e.Type != watch.Modified || !gone(m)
}

// gone reports whether nothing keeps an object that is being deleted.
func gone(m metav1.Object) bool {
	grace := m.GetDeletionGracePeriodSeconds()
	return m.GetDeletionTimestamp() != nil && len(m.GetFinalizers()) == 0 && (grace == nil || *grace == 0)
}

// writeFor is a write of the controllers.
func (s *Server) writeFor(action ktesting.Action) (runtime.Object, error) {
	if s.crashed {
		return nil, errCrashed
	}
	name := action.GetResource().Resource
	if sub := action.GetSubresource(); sub != "" {
		name += "/" + sub
	}
	s.writes[action.GetVerb()+" "+name]++
	if s.refuse != nil {
		if err := s.refuse(action.GetVerb(), name); err != nil {
			return nil, err
		}
	}
	obj, err := s.write(action)
	if s.crash == 1 {
		s.crashed = true
		return nil, errCrashed
	}
	s.crash = max(s.crash-1, 0)
	return obj, err
}

var errCrashed = errors.New("the controllers have crashed")

func (s *Server) write(action ktesting.Action) (runtime.Object, error) {
	gvr := action.GetResource()
	switch a := action.(type) {
	case ktesting.CreateActionImpl:
		return s.create(a)
	case ktesting.UpdateActionImpl:
		return s.update(gvr, a.GetObject().DeepCopyObject(), a.GetSubresource())
	case ktesting.PatchActionImpl:
		return s.patch(a)
	case ktesting.DeleteActionImpl:
		return nil, s.delete(gvr, a.GetNamespace(), a.GetName(), a.DeleteOptions)
	}
	return nil, fmt.Errorf("apitest: no %s", action.GetVerb())
}

func (s *Server) next() string {
	s.version++
	return fmt.Sprint(s.version)
}

func (s *Server) create(a ktesting.CreateActionImpl) (runtime.Object, error) {
	obj := a.GetObject().DeepCopyObject()
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	s.serial++
	if a.GetResource().Resource == "events" { // named by the time, which several may share
		m.SetName(fmt.Sprintf("%s.%d", m.GetName(), s.serial))
	}
	if m.GetName() == "" {
		m.SetName(fmt.Sprintf("%s%05d", m.GetGenerateName(), s.serial))
	}
	if m.GetUID() == "" {
		m.SetUID(types.UID(fmt.Sprintf("uid-%05d", s.serial)))
	}
	if m.GetCreationTimestamp().Time.IsZero() {
		m.SetCreationTimestamp(metav1.Now())
	}
	if m.GetNamespace() == "" {
		m.SetNamespace(a.GetNamespace())
	}
	m.SetGeneration(1)
	m.SetResourceVersion(s.next())
	if err := s.tracker.Create(a.GetResource(), obj, a.GetNamespace()); err != nil {
		return nil, err
	}
	return s.tracker.Get(a.GetResource(), m.GetNamespace(), m.GetName())
}

// update stores obj: its status alone if that is the subresource, all but its status otherwise.
func (s *Server) update(gvr schema.GroupVersionResource, obj runtime.Object, sub string) (runtime.Object, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	old, err := s.tracker.Get(gvr, m.GetNamespace(), m.GetName())
	if err != nil {
		return nil, err
	}
	was, err := meta.Accessor(old)
	if err != nil {
		return nil, err
	}
	if v := m.GetResourceVersion(); v != "" && v != was.GetResourceVersion() {
		return nil, apierrors.NewConflict(gvr.GroupResource(), m.GetName(), fmt.Errorf("the object has been modified"))
	}
	if uid := m.GetUID(); uid != "" && uid != was.GetUID() {
		return nil, apierrors.NewConflict(gvr.GroupResource(), m.GetName(), fmt.Errorf("uid mismatch: %s, not %s", was.GetUID(), uid))
	}
	before, after := field(old, "Status"), field(obj, "Status")
	if sub == "status" {
		kept := old.DeepCopyObject()
		field(kept, "Status").Set(after)
		k, _ := meta.Accessor(kept)
		if gvr.Resource == "deployments" {
			k.SetAnnotations(m.GetAnnotations())
		}
		if err := validateStatus(gvr, kept, old); err != nil {
			s.invalid = append(s.invalid, err)
			return nil, err
		}
		obj, m = kept, k
	} else if after.IsValid() {
		after.Set(before)
	}
	m.SetGeneration(was.GetGeneration())
	if spec := field(obj, "Spec"); spec.IsValid() && !reflect.DeepEqual(spec.Interface(), field(old, "Spec").Interface()) {
		m.SetGeneration(was.GetGeneration() + 1)
	}
	return s.store(gvr, obj)
}

// store writes obj with a new version, and removes it if it only waited for its finalizers.
func (s *Server) store(gvr schema.GroupVersionResource, obj runtime.Object) (runtime.Object, error) {
	m, _ := meta.Accessor(obj)
	m.SetResourceVersion(s.next())
	if err := s.tracker.Update(gvr, obj, m.GetNamespace()); err != nil {
		return nil, err
	}
	if gone(m) {
		return obj, s.tracker.Delete(gvr, m.GetNamespace(), m.GetName())
	}
	return s.tracker.Get(gvr, m.GetNamespace(), m.GetName())
}

func (s *Server) patch(a ktesting.PatchActionImpl) (runtime.Object, error) {
	old, err := s.tracker.Get(a.GetResource(), a.GetNamespace(), a.GetName())
	if err != nil {
		return nil, err
	}
	// The patch is worked out by a tracker that holds nothing else.
	scratch := ktesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder())
	if err := scratch.Create(a.GetResource(), old, a.GetNamespace()); err != nil {
		return nil, err
	}
	_, obj, err := ktesting.ObjectReaction(scratch)(a)
	if err != nil {
		return nil, err
	}
	if m, _ := meta.Accessor(obj); a.GetSubresource() == "" {
		m.SetResourceVersion("")
	}
	return s.update(a.GetResource(), obj, a.GetSubresource())
}

func (s *Server) delete(gvr schema.GroupVersionResource, namespace, name string, opts metav1.DeleteOptions) error {
	obj, err := s.tracker.Get(gvr, namespace, name)
	if err != nil {
		return err
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	if p := opts.Preconditions; p != nil && p.UID != nil && *p.UID != m.GetUID() {
		return apierrors.NewConflict(gvr.GroupResource(), name, fmt.Errorf("uid mismatch"))
	}
	if m.GetDeletionTimestamp() == nil {
		now := metav1.Now()
		m.SetDeletionTimestamp(&now)
		m.SetDeletionGracePeriodSeconds(graceOf(obj))
	}
	_, err = s.store(gvr, obj)
	return err
}

// field is a struct field of the object that obj points to, settable.
func field(obj runtime.Object, name string) reflect.Value {
	return reflect.ValueOf(obj).Elem().FieldByName(name)
}
