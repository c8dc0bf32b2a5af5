// Package nodettl keeps the annotation node.alpha.kubernetes.io/ttl of every Node: for how many
// seconds its kubelet may use a Secret or ConfigMap before it looks at it again. The larger the
// cluster, the longer.
package nodettl

import (
	"context"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/nodepatch"
)

// size is a size of clusters: from least to most nodes.
type size struct {
	least, most int
	seconds     int
}

// sizes are upstream's. They overlap, so that a node that comes and goes does not change all
// others.
var sizes = []size{
	{0, 100, 0},
	{90, 500, 15},
	{450, 1000, 30},
	{900, 2000, 60},
	{1800, int(^uint(0) >> 1), 300},
}

const (
	// everyNode is the key for all nodes, which no node has as its name.
	everyNode = ""
	// settle is how long after a cluster has come to another size all nodes are written: one that
	// grows to 1,000 nodes comes to three sizes. Nothing waits for the annotation.
	settle = time.Minute
	// workers wait for other changes of their nodes when many nodes join.
	workers = 32
)

type controller struct {
	write *nodepatch.Writer
	nodes corelisters.NodeLister
	add   func(key string)
	later func(key string, d time.Duration)

	mu    sync.Mutex
	known map[string]struct{} // names of nodes
	size  int                 // index into sizes
}

// New returns the controller, which writes with write; its keys are nodes.
func New(set *client.Set, write *nodepatch.Writer) *frame.Controller {
	nodes := set.Informers.Core().V1().Nodes()
	c := &controller{write: write, nodes: nodes.Lister(), known: map[string]struct{}{}}
	f := frame.New("ttl", workers, set.Logger(), c.sync)
	c.add, c.later = f.Add, f.AddAfter
	f.Watch(nodes.Informer(), c.concerned)
	return f
}

func (c *controller) concerned(obj any) []string {
	self := frame.Self(obj)
	if c.resize(c.count(self)) {
		c.later(everyNode, settle)
	}
	return self
}

// count returns how many nodes there are, after a change of those that are named. To list all for
// each change of one would take as many steps as there are nodes, squared.
func (c *controller) count(changed []string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.known) == 0 { // when it starts, all are there at once
		all, _ := c.nodes.List(labels.Everything())
		for _, node := range all {
			c.known[node.Name] = struct{}{}
		}
	}
	for _, name := range changed {
		if _, err := c.nodes.Get(name); err == nil {
			c.known[name] = struct{}{}
		} else {
			delete(c.known, name)
		}
	}
	return len(c.known)
}

// resize notes how many nodes there are, and says whether that makes it a cluster of another size.
func (c *controller) resize(nodes int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.size
	for nodes > sizes[c.size].most {
		c.size++
	}
	for nodes < sizes[c.size].least {
		c.size--
	}
	return c.size != before
}

func (c *controller) wanted() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strconv.Itoa(sizes[c.size].seconds)
}

func (c *controller) sync(ctx context.Context, name string) error {
	if name == everyNode {
		all, err := c.nodes.List(labels.Everything())
		for _, node := range all {
			c.add(node.Name)
		}
		return err
	}
	node, err := c.nodes.Get(name)
	if err != nil {
		return ignoreGone(err)
	}
	wanted := c.wanted()
	now, had := node.Annotations[corev1.ObjectTTLAnnotationKey]
	if now == wanted {
		return nil
	}
	return ignoreGone(c.write.Apply(ctx, name, nodepatch.Change{
		Annotations: map[string]string{corev1.ObjectTTLAnnotationKey: wanted}, Patient: !had, // a new node is written by others, too
	}))
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
