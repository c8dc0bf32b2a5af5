// Package overlay connects the pods of different nodes: it decides from Node objects how each other
// node is reached, and package paths has the kernel do it.
//
// Pods keep their addresses: nothing is translated between nodes. On a link that both nodes share,
// packets are routed as they are. Between other nodes they go through a VXLAN tunnel. Each pair of
// nodes decides for itself, by its own routes, and decides again when a node's address, or the
// machine's own network, changes. New ways are there before old ones are taken out.
//
// With Options.Encryption, all packets between nodes' pods go through WireGuard instead, and
// nothing is sent to, or taken from, a node that has published no key.
//
// With one node, nothing is made, and nothing is followed.
package overlay

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/nodeaddr"
	"github.com/coracle-project/coracle/cluster/overlay/paths"
)

// The network of tunnels: the same on all nodes of a cluster.
const (
	VNI  = 6443
	Port = 8472 // UDP; what Linux took before 4789 was assigned, and Flannel and Cilium do
)

// Options say which node this is.
type Options struct {
	NodeName string
	// Cluster is a number that no other cluster of this machine has: the API server's port.
	Cluster int
	// Pods are the networks of the cluster's pods: a node's range outside them is refused.
	Pods []netip.Prefix
	// Services are the networks of Services, which no node's pods may have.
	Services []netip.Prefix
	// Encryption is nil for packets as they are.
	Encryption *Encryption
	// Health is told whether pods of other nodes are reached; nil for no one.
	Health *health.Part
}

// Overlay connects this node's pods with those of others.
type Overlay struct {
	Options
	*frame.Controller
	nodes  corelisters.NodeLister
	events record.EventRecorder
	log    *slog.Logger
	// within runs what touches the kernel: tests have several machines.
	within func(func() error) error

	// changed is set when the machine's network has changed.
	changed atomic.Bool

	// What follows is the worker's.
	network   *paths.Network // nil without other nodes
	self      paths.Node     // with which network was opened
	following sync.WaitGroup
	cleaned   bool
	seen      map[string]Node // the nodes that paths are in force for; nil if they are not
	accepted  map[string]Node
	former    former
	problems  map[string]string // that Events tell of, by node
}

// key is the only one: all nodes are looked at together.
const key = "nodes"

const (
	// pause is between two looks at all nodes, of which each changes every few minutes, and at
	// the machine's network, which changes often while pods start.
	pause = 200 * time.Millisecond
	// grace is for how long packets are taken from an address that a node had before. As many may
	// have it as a node may have addresses.
	grace = time.Minute
)

// New asks for informers and makes no call.
func New(set *client.Set, o Options) *Overlay {
	nodes := set.Informers.Core().V1().Nodes()
	v := &Overlay{
		Options: o, nodes: nodes.Lister(), log: set.Logger(), former: former{}, problems: map[string]string{},
		within: func(f func() error) error { return f() },
	}
	var stop func()
	v.events, stop = set.Recorder("overlay", o.NodeName)
	v.Controller = frame.New("overlay", 1, set.Logger(), func(ctx context.Context, _ string) error {
		err := v.within(func() error { return v.sync(ctx) })
		if err != nil {
			v.Health.Fails(err)
		}
		return err
	})
	v.Watch(nodes.Informer(), func(any) []string {
		v.AddAfter(key, pause)
		return nil
	})
	v.Also(func(ctx context.Context) {
		v.Add(key) // also if there is no node yet: something may be left
		<-ctx.Done()
		stop()
	})
	return v
}

// Run connects pods until ctx ends. What it has made stays, so that a restart interrupts nothing.
func (v *Overlay) Run(ctx context.Context) error {
	v.Controller.Run(ctx)
	v.close()
	return nil
}

// close ends what follows the kernel.
func (v *Overlay) close() {
	if v.network == nil {
		return
	}
	if err := v.network.Close(); err != nil {
		v.log.Warn("overlay", "err", err)
	}
	v.network = nil
	v.following.Wait()
}

// sync makes the kernel what the nodes say.
func (v *Overlay) sync(ctx context.Context) error {
	objects, err := v.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	if err := v.publish(ctx, objects); err != nil {
		return err
	}
	self, others, problems, err := v.parse(objects)
	if err != nil {
		return err
	}
	// With encryption, packets to nodes that are not known yet stay here.
	if (len(others) > 0 || v.Encryption != nil) && len(self.Ranges) > 0 {
		return v.connect(ctx, objects, self, others, problems)
	}
	v.seen = nil
	v.tell(objects, problems)
	return v.alone(self, len(others), warnings(problems))
}

// parse returns what Node objects say, and what is wrong with other nodes' objects, by name. Such a
// node stays what it was when it was accepted last.
func (v *Overlay) parse(objects []*corev1.Node) (self Node, others []Node, problems map[string]error, err error) {
	problems = map[string]error{}
	for _, object := range objects {
		n, err := v.nodeOf(object)
		switch {
		case object.Name == v.NodeName && err != nil:
			return Node{}, nil, nil, fmt.Errorf("this node: %w", err)
		case object.Name == v.NodeName:
			self = n
		case err != nil:
			problems[object.Name] = err
			if old, had := v.accepted[object.Name]; had {
				others = append(others, old)
			}
		default:
			others = append(others, n)
		}
	}
	return self, others, problems, nil
}

// connect connects this node's pods with those of others.
func (v *Overlay) connect(ctx context.Context, objects []*corev1.Node, self Node, others []Node, problems map[string]error) error {
	seen := map[string]Node{self.Name: self}
	for _, n := range others {
		seen[n.Name] = n
	}
	now := time.Now()
	// Most changes of Node objects are of other things.
	if !v.changed.Swap(false) && len(problems) == 0 && maps.EqualFunc(v.seen, seen, Node.equal) && !v.former.over(now) {
		return nil
	}
	v.seen = nil
	if err := v.open(self); err != nil {
		return err
	}
	host, err := v.look(self, others)
	if err != nil {
		return err
	}
	c := Choose(self, others, v.accepted, host)
	maps.Copy(problems, c.Problems)
	v.former.note(v.accepted, c.Accepted, now)
	v.accepted = c.Accepted
	if again := v.former.add(c.Peers, now); again > 0 {
		v.AddAfter(key, again)
	}
	self.Addresses = slices.DeleteFunc(slices.Clone(self.Addresses), func(a netip.Addr) bool { return !host.Addresses[a] })
	me := paths.Node{Name: self.Name, Addresses: self.Addresses, Ranges: self.Ranges}
	if v.Encryption != nil {
		me.Closed = v.Pods
	}
	err = v.network.Apply(ctx, paths.New(me, c.Peers))
	v.tell(objects, problems)
	if err != nil {
		return err
	}
	v.Health.Works(v.summary(c.Peers), warnings(problems)...)
	v.seen = seen
	return nil
}

// warnings are what status says of the nodes that are refused.
func warnings(problems map[string]error) (all []string) {
	for _, name := range slices.Sorted(maps.Keys(problems)) {
		all = append(all, fmt.Sprintf("node %s is refused: %v", name, problems[name]))
	}
	return all
}

// summary is what status says.
func (v *Overlay) summary(peers []paths.Peer) string {
	if v.Encryption != nil {
		return fmt.Sprintf("pods of %s: encrypted by WireGuard", health.Count(len(peers), "other node"))
	}
	direct := 0
	for _, p := range peers {
		if !slices.ContainsFunc(p.Paths, func(path paths.Path) bool { return path.Link == 0 }) {
			direct++
		}
	}
	return fmt.Sprintf("pods of %s: %d by direct routes, %d through VXLAN", health.Count(len(peers), "other node"), direct, len(peers)-direct)
}

// alone is for a node without others that are accepted, or without a range of pods yet.
func (v *Overlay) alone(self Node, others int, refused []string) error {
	switch { // what a process before has made stays until the nodes are known
	case self.Name == "":
		v.Health.Works("waits: this node is not registered yet", refused...)
		return nil
	case others > 0 || v.Encryption != nil:
		v.Health.Works("waits: this node has no range of pods yet", refused...)
		return nil
	}
	v.close()
	v.accepted, v.former = nil, former{}
	if !v.cleaned {
		if err := paths.Remove(v.Cluster); err != nil {
			return fmt.Errorf("remove the paths to nodes that are gone: %w", err)
		}
		v.cleaned = true
	}
	off := "off: there is no other node"
	if len(refused) > 0 {
		off = "off: all other nodes are refused"
	}
	v.Health.Works(off, refused...)
	return nil
}

// open starts to follow the machine's network, with this node as it is.
func (v *Overlay) open(self Node) error {
	me := paths.Node{Name: self.Name, Ranges: self.Ranges}
	if v.network != nil && slices.Equal(v.self.Ranges, me.Ranges) {
		return nil
	}
	v.close()
	n, err := paths.Open(paths.Config{Cluster: v.Cluster, Node: me, VNI: VNI, Port: Port, Encryption: v.Encryption.kernel(), Log: v.log})
	if err != nil {
		return err
	}
	v.network, v.self, v.cleaned = n, me, false
	v.following.Go(func() {
		for range n.Changed() {
			v.changed.Store(true)
			v.AddAfter(key, pause)
		}
	})
	return nil
}

// look reads what this machine has.
func (v *Overlay) look(self Node, others []Node) (paths.Host, error) {
	var all []netip.Addr
	for _, n := range others {
		all = append(all, n.Addresses...)
	}
	host, err := v.network.Look(all)
	host.Pods = v.Pods
	for _, s := range v.Services {
		host.Taken = append(host.Taken, paths.Taken{Net: s, What: "the network of Services"})
	}
	return host, err
}

// tell writes an Event for each node that is refused, once for each reason.
func (v *Overlay) tell(objects []*corev1.Node, problems map[string]error) {
	now := map[string]string{}
	for _, object := range objects {
		err := problems[object.Name]
		if err == nil {
			continue
		}
		now[object.Name] = err.Error()
		if v.problems[object.Name] == err.Error() {
			continue
		}
		v.log.Warn("a node is refused in the network of pods", "node", object.Name, "err", err)
		v.events.Eventf(object, corev1.EventTypeWarning, "PodsNotConnected", "Node %s does not connect its pods with those of this node: %v",
			v.NodeName, err)
	}
	v.problems = now
}

// equal reports whether two nodes say the same.
func (n Node) equal(other Node) bool {
	return n.Name == other.Name && n.Created.Equal(other.Created) && slices.Equal(n.Addresses, other.Addresses) &&
		slices.Equal(n.Ranges, other.Ranges) && n.Key == other.Key
}

// nodeOf is what a Node object says. This node may have addresses by which others do not reach it,
// such as loopback ones: it may be the only node.
func (v *Overlay) nodeOf(object *corev1.Node) (n Node, err error) {
	n = Node{Name: object.Name, Created: object.CreationTimestamp.Time}
	if n.Ranges, err = rangesOf(object); err != nil {
		return n, err
	}
	if n.Key, err = v.keyOf(object); err != nil {
		return n, err
	}
	n.Addresses, err = nodeaddr.InternalIPs(object)
	if object.Name == v.NodeName {
		return n, nil
	}
	return n, err
}

// rangesOf are the networks of a node's pods.
func rangesOf(object *corev1.Node) (all []netip.Prefix, err error) {
	ranges := object.Spec.PodCIDRs
	if len(ranges) == 0 && object.Spec.PodCIDR != "" {
		ranges = []string{object.Spec.PodCIDR}
	}
	for _, text := range ranges {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("its pod range %q is no network", text)
		}
		all = append(all, p)
	}
	return all, nil
}

// former has addresses that nodes had before, with the end of their grace. A node may send from one
// for a while after its Node object names another.
type former map[string]map[netip.Addr]time.Time

// note notes what nodes had before.
func (f former) note(before, after map[string]Node, now time.Time) {
	for name, old := range before {
		current, exists := after[name]
		if !exists {
			delete(f, name)
			continue
		}
		for _, a := range old.Addresses {
			if slices.Contains(current.Addresses, a) {
				continue
			}
			if f[name] == nil {
				f[name] = map[netip.Addr]time.Time{}
			}
			f[name][a] = now.Add(grace)
			f.limit(name)
		}
	}
}

// limit drops the address of a node whose grace ends first, if it has too many.
func (f former) limit(name string) {
	if len(f[name]) <= nodeaddr.MostInternalIPs {
		return
	}
	var first netip.Addr
	for a, end := range f[name] {
		if !first.IsValid() || end.Before(f[name][first]) {
			first = a
		}
	}
	delete(f[name], first)
}

// over reports whether the grace of an address has ended.
func (f former) over(now time.Time) bool {
	for _, addresses := range f {
		for _, end := range addresses {
			if !now.Before(end) {
				return true
			}
		}
	}
	return false
}

// add gives peers the addresses that they had before, and returns when the next of these ends, 0 if
// there is none. One that another node has by now is that node's.
func (f former) add(peers []paths.Peer, now time.Time) (next time.Duration) {
	for i, p := range peers {
		for a, end := range f[p.Name] {
			left := end.Sub(now)
			if left <= 0 {
				delete(f[p.Name], a)
				continue
			}
			if next == 0 || left < next {
				next = left
			}
			peers[i].Addresses = append(slices.Clone(peers[i].Addresses), a)
		}
	}
	return next
}
