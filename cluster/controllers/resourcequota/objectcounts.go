package resourcequota

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/internal/feed"
	"github.com/coracle-project/coracle/cluster/controllers/kinds"
)

// syncLimit bounds the wait for a kind's objects, whose server may be another one that hangs.
const syncLimit = 5 * time.Second

// countPrefix starts the name of the quota of any kind's number of objects: "count/jobs.batch".
const countPrefix = "count/"

// aliases are older names of such quotas.
var aliases = map[corev1.ResourceName]string{
	corev1.ResourceConfigMaps:             "configmaps",
	corev1.ResourceSecrets:                "secrets",
	corev1.ResourceReplicationControllers: "replicationcontrollers",
}

// counted watches the kinds of which quotas limit the number. A watch once started goes on until
// the controller ends, since quotas of a kind tend to come back.
type counted struct {
	set      *client.Set
	metadata metadata.Interface
	// registry gets the evaluator of each kind.
	registry quota.Registry
	// changed is told which kind lost an object in which namespace.
	changed func(schema.GroupResource, string)

	mu       sync.Mutex
	watching map[schema.GroupResource]cache.SharedIndexInformer
	start    func(cache.SharedIndexInformer) // nil until run
}

// run lets watches begin, and waits for their end after ctx's.
func (c *counted) run(ctx context.Context) {
	var running sync.WaitGroup
	c.mu.Lock()
	c.start = func(informer cache.SharedIndexInformer) {
		running.Go(func() { informer.RunWithContext(ctx) })
	}
	for _, informer := range c.watching {
		c.start(informer)
	}
	c.mu.Unlock()
	<-ctx.Done()
	c.mu.Lock()
	c.start = func(cache.SharedIndexInformer) {}
	c.mu.Unlock()
	running.Wait()
}

// ensure returns when the kinds that these quotas count are watched, as far as they exist, or after
// some seconds: the evaluator of a kind whose objects have not come yet says so.
func (c *counted) ensure(ctx context.Context, names []corev1.ResourceName) error {
	limited, cancel := context.WithTimeout(ctx, syncLimit)
	defer cancel()
	var missing []schema.GroupResource
	for _, name := range names {
		resource, ok := resourceOf(name)
		if !ok {
			continue
		}
		c.mu.Lock()
		informer := c.watching[resource]
		c.mu.Unlock()
		if informer == nil && c.registry.Get(resource) == nil {
			missing = append(missing, resource)
		} else if informer != nil {
			feed.Synced(limited, informer.HasSyncedChecker())
		}
	}
	if len(missing) == 0 {
		return ctx.Err()
	}
	table, err := kinds.Discover(c.set.Kube.Discovery())
	if table == nil {
		return err
	}
	for _, name := range missing {
		resource, ok := table.ForResource(name)
		if !ok || !resource.Namespaced || !resource.Can("list", "watch") {
			continue // not now: the next look may find it
		}
		feed.Synced(limited, c.watch(resource).HasSyncedChecker())
	}
	return ctx.Err()
}

// resourceOf returns which kind a quota counts by its metadata alone.
func resourceOf(name corev1.ResourceName) (schema.GroupResource, bool) {
	if plural, ok := aliases[name]; ok {
		return schema.GroupResource{Resource: plural}, true
	}
	if resource, ok := strings.CutPrefix(string(name), countPrefix); ok {
		return schema.ParseGroupResource(resource), true
	}
	return schema.GroupResource{}, false
}

// watch starts to watch a kind and to evaluate it.
func (c *counted) watch(resource kinds.Resource) cache.SharedIndexInformer {
	c.mu.Lock()
	defer c.mu.Unlock()
	name := resource.GroupResource()
	if informer := c.watching[name]; informer != nil {
		return informer
	}
	informer := metadatainformer.NewFilteredMetadataInformer(c.metadata, resource.GroupVersionResource, metav1.NamespaceAll, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}, nil)
	_ = informer.Informer().SetTransform(onlyName)
	_, _ = informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
		if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = last.Obj
		}
		c.changed(name, obj.(metav1.Object).GetNamespace())
	}})
	lister := func(schema.GroupVersionResource) (cache.GenericLister, error) {
		if !informer.Informer().HasSynced() {
			return nil, fmt.Errorf("count %s: the server has not listed them yet", name)
		}
		return informer.Lister(), nil
	}
	var alias corev1.ResourceName
	for old, plural := range aliases {
		if name == (schema.GroupResource{Resource: plural}) {
			alias = old
		}
	}
	c.registry.Add(generic.NewObjectCountEvaluator(name, generic.ListResourceUsingListerFunc(lister, resource.GroupVersionResource), alias))
	if c.watching == nil {
		c.watching = map[schema.GroupResource]cache.SharedIndexInformer{}
	}
	c.watching[name] = informer.Informer()
	if c.start != nil {
		c.start(informer.Informer())
	}
	return informer.Informer()
}

// onlyName keeps of an object no more than what counting it needs.
func onlyName(obj any) (any, error) {
	if m, ok := obj.(*metav1.PartialObjectMetadata); ok {
		m.ObjectMeta = metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion}
	}
	return obj, nil
}
