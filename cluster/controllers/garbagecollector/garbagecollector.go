// Package garbagecollector deletes objects whose owners are gone, and carries out what a deletion
// asked for its object's dependents: delete them too (background, the default), delete them first
// (foreground), or leave them behind (orphan).
//
// It watches all kinds of objects that the server lets it list, watch and delete, also those of
// CustomResourceDefinitions that come and go, and keeps of each object its identity and its owner
// references (graph.go). An object is looked at (collect.go) when an owner of it has gone, is
// unknown or waits for its dependents, and when it waits itself. What the graph cannot answer is
// asked of the server before anything is deleted, and every deletion and patch is bound to the
// object's UID: a graph that lags costs a call, never an object.
//
// Nothing is looked at before the watches have delivered what exists, or 30 seconds have passed.
// A call that fails is repeated with the frame's back-off. An owner of a kind that the server
// does not know, or that no watch shows, is asked for again after half a second, doubling to 17
// minutes.
package garbagecollector

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/kinds"
)

const (
	workers = 20
	// syncLimit bounds the wait for watches at the start: one broken kind must not stop the rest.
	syncLimit = 30 * time.Second
	// rediscoverEvery is the pause between looks at which kinds exist, while there is a reason to
	// look: a definition has changed a moment ago, or a group did not answer.
	rediscoverEvery = 30 * time.Second
	// otherServersEvery is the pause between such looks while other servers serve some groups: of
	// their kinds come and go without an event.
	otherServersEvery = time.Minute
	// settle is how long a changed definition gets until its kind is served.
	settle = time.Second
)

type collector struct {
	set      *client.Set
	metadata metadata.Interface
	frame    *frame.Controller
	recorder record.EventRecorder
	graph    *graph

	// table holds the kinds that exist now.
	table atomic.Pointer[kinds.Table]
	// redefined is sent to, without waiting, when the kinds that exist may have changed.
	redefined chan struct{}

	// Owned by the watch goroutine:
	monitors      map[schema.GroupVersionResource]*monitor
	running       sync.WaitGroup
	informers     []cache.InformerSynced
	lookAgainSoon bool
	otherServers  bool // serve some of the groups
}

// Observer gets the objects that the collector sees. It must not block.
type Observer interface {
	// Exists is called for an object that came or changed.
	Exists(r kinds.Resource, obj metav1.Object)
	// Gone is called for one that is not there, or not watched, any more.
	Gone(uid types.UID)
}

// New returns the collector. Its watches of metadata belong to it; they start and end with Run.
// observer may be nil.
func New(set *client.Set, metadata metadata.Interface, observer Observer) *frame.Controller {
	return newCollector(set, metadata, observer).frame
}

func newCollector(set *client.Set, metadata metadata.Interface, observer Observer) *collector {
	c := &collector{
		set: set, metadata: metadata,
		graph:     newGraph(observer),
		redefined: make(chan struct{}, 1),
		monitors:  map[schema.GroupVersionResource]*monitor{},
	}
	c.frame = frame.New("garbagecollector", workers, set.Logger(), c.sync)
	for _, r := range shared {
		synced, err := c.graph.listen(newKind(r), set.Informers)
		if err != nil { // not a kind of this client: watched like the others
			c.frame.Log.Error("garbage collector cannot share an informer", "resource", r.String(), "err", err)
			continue
		}
		c.informers = append(c.informers, synced)
	}
	recorder, flush := set.Recorder("garbage-collector-controller", "")
	c.recorder = recorder
	c.frame.Also(func(ctx context.Context) {
		defer flush()
		c.watch(ctx)
	})
	return c
}

// watch keeps one monitor per kind running until ctx ends.
func (c *collector) watch(ctx context.Context) {
	defer c.running.Wait()
	for !c.discover(ctx) { // the server is not there yet
		if !sleep(ctx, time.Second) {
			return
		}
	}
	synced := c.informers
	for _, m := range c.monitors {
		synced = append(synced, m.synced.Load)
	}
	c.running.Go(func() { c.release(ctx, synced) })
	for {
		var again <-chan time.Time
		if c.lookAgainSoon {
			again = time.After(rediscoverEvery)
		} else if c.otherServers {
			again = time.After(otherServersEvery)
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
			c.lookAgainSoon = false
		case <-c.redefined:
			// When the definition has settled, and once more in case that this takes longer.
			c.lookAgainSoon = true
			if !sleep(ctx, settle) {
				return
			}
		}
		c.discover(ctx)
	}
}

// release waits for the watches and lets the work begin.
func (c *collector) release(ctx context.Context, synced []cache.InformerSynced) {
	limited, cancel := context.WithTimeout(ctx, syncLimit)
	defer cancel()
	if !cache.WaitForCacheSync(limited.Done(), synced...) {
		if ctx.Err() != nil {
			return
		}
		c.frame.Log.Warn("garbage collection starts before all kinds of objects were listed")
	}
	c.graph.complete(c.frame.Add)
}

// discover asks which kinds there are, and starts and stops monitors accordingly. It returns false
// when the server gave no answer.
func (c *collector) discover(ctx context.Context) bool {
	table, err := kinds.Discover(c.set.Kube.Discovery())
	if err != nil {
		c.lookAgainSoon = true
		c.frame.Log.Warn("garbage collector cannot discover all kinds of objects", "err", err)
	}
	if table == nil {
		return false
	}
	c.table.Store(table)
	c.otherServers = c.findOtherServers(ctx, table)
	wanted := map[schema.GroupVersionResource]kinds.Resource{}
	for r := range table.With("delete", "list", "watch") {
		if _, isShared := shared[r.GroupVersionResource]; !isShared && !ignored.Has(r.GroupResource()) {
			wanted[r.GroupVersionResource] = r
		}
	}
	for gvr, m := range c.monitors {
		// A group whose server is away has not lost its objects.
		if _, ok := wanted[gvr]; !ok && table.Failed[gvr.GroupVersion()] == nil {
			m.end()
			delete(c.monitors, gvr)
		}
	}
	for gvr, r := range wanted {
		if c.monitors[gvr] != nil {
			continue
		}
		m := &monitor{kind: newKind(r), graph: c.graph, done: make(chan struct{})}
		if definesKinds.Has(gvr.GroupResource()) {
			m.changed = c.redefine
		}
		watching, stop := context.WithCancel(ctx)
		m.stop = stop
		c.monitors[gvr] = m
		c.running.Go(func() {
			defer close(m.done)
			m.run(watching, c.metadata)
		})
	}
	return true
}

// findOtherServers says whether there is an APIService that is not the API server's own. It keeps
// what was found before if it cannot ask.
func (c *collector) findOtherServers(ctx context.Context, table *kinds.Table) bool {
	services, ok := table.ForResource(registrations)
	if !ok {
		return false
	}
	found, err := c.metadata.Resource(services.GroupVersionResource).List(ctx, metav1.ListOptions{LabelSelector: "!" + automanaged, Limit: 1})
	if err != nil {
		c.frame.Log.Warn("garbage collector cannot list APIServices", "err", err)
		return c.otherServers
	}
	return len(found.Items) > 0
}

// redefine asks for a new look at which kinds there are.
func (c *collector) redefine() {
	select {
	case c.redefined <- struct{}{}:
	default: // asked for already
	}
}

// sleep waits for d, and returns false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
