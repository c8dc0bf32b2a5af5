// Package notactedon gives each object that nothing of this cluster acts on (package unserved) an
// Event that says so: its creator gets a Warning, but others only see the object, by kubectl
// describe.
//
// It has no watches of its own: the garbage collector, which watches the metadata of all kinds
// anyway, tells it of objects. An object gets one Event, by a name that is made of its UID. The
// Event's name keeps a restart from writing it again while it exists; Events go after an hour.
// Events are written slowly, however many objects come at once.
package notactedon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/kinds"
	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/unserved"
)

// Reason is that of the Events.
const Reason = "NotActedOn"

// At most burst Events at once, then perSecond.
const (
	perSecond = 5
	burst     = 25
)

// Controller writes the Events.
type Controller struct {
	*frame.Controller
	set   *client.Set
	kinds unserved.Kinds
	part  *health.Part
	limit flowcontrol.RateLimiter

	mu      sync.Mutex
	objects map[types.UID]*object
	counts  map[string]int // by kind
}

// object is one that nothing acts on.
type object struct {
	kind     string
	involved *corev1.ObjectReference // nil when it has its Event
	missing  string
}

// New returns the controller, for what nothing acts on in any cluster, and for further kinds. part
// is told how many objects there are; it may be nil.
func New(set *client.Set, further unserved.Kinds, part *health.Part) *Controller {
	c := &Controller{
		set: set, kinds: unserved.With(further), part: part, limit: flowcontrol.NewTokenBucketRateLimiter(perSecond, burst),
		objects: map[types.UID]*object{}, counts: map[string]int{},
	}
	c.Controller = frame.New("not-acted-on", 1, set.Logger(), c.sync)
	c.tell()
	return c
}

// Exists implements garbagecollector.Observer.
func (c *Controller) Exists(r kinds.Resource, obj metav1.Object) {
	missing := c.kinds.Missing(r.GroupResource())
	if missing == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	uid := obj.GetUID()
	if c.objects[uid] != nil {
		return
	}
	c.objects[uid] = &object{r.Kind, &corev1.ObjectReference{
		APIVersion: r.APIVersion(), Kind: r.Kind, Namespace: obj.GetNamespace(), Name: obj.GetName(), UID: uid,
	}, missing}
	c.counts[r.Kind]++
	c.tell()
	c.Add(string(uid))
}

// Gone implements garbagecollector.Observer.
func (c *Controller) Gone(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.objects[uid]
	if o == nil {
		return
	}
	delete(c.objects, uid)
	if c.counts[o.kind]--; c.counts[o.kind] == 0 {
		delete(c.counts, o.kind)
	}
	c.tell()
}

// tell has `coracle status` show how many objects there are. The caller has mu, or the only
// reference.
func (c *Controller) tell() {
	if len(c.counts) == 0 {
		c.part.Works("there are no such objects")
		return
	}
	var all []string
	for _, kind := range slices.Sorted(maps.Keys(c.counts)) {
		all = append(all, fmt.Sprintf("%s (%d)", kind, c.counts[kind]))
	}
	what := "stored, and this cluster does not act on them: " + strings.Join(all, ", ")
	c.part.Works(what, what)
}

// sync writes the Event of one object.
func (c *Controller) sync(ctx context.Context, uid string) error {
	c.mu.Lock()
	o := c.objects[types.UID(uid)]
	c.mu.Unlock()
	if o == nil || o.involved == nil {
		return nil
	}
	if err := c.limit.Wait(ctx); err != nil {
		return err
	}
	event := eventOf(o)
	_, err := c.set.Kube.CoreV1().Events(event.Namespace).Create(ctx, event, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err): // its namespace goes, and the object with it
		c.Log.Debug("an object that nothing acts on gets no event", "object", o.involved, "err", err)
	case err != nil:
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	o.involved = nil
	return nil
}

func eventOf(o *object) *corev1.Event {
	const component = "coracle"
	now := metav1.Now()
	namespace := o.involved.Namespace
	if namespace == "" { // as all Events of objects without one
		namespace = metav1.NamespaceDefault
	}
	sum := sha256.Sum256([]byte(string(o.involved.UID) + Reason))
	name := o.involved.Name
	if len(name) > 200 { // names have 253 bytes
		name = strings.TrimRight(name[:200], ".-")
	}
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, Name: name + "." + hex.EncodeToString(sum[:8])},
		InvolvedObject: *o.involved, Type: corev1.EventTypeWarning, Reason: Reason,
		Message: unserved.Message(o.involved.Kind, o.involved.Name, o.missing),
		Source:  corev1.EventSource{Component: component}, ReportingController: component,
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
}
