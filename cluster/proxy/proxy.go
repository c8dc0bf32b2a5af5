// Package proxy routes connections to Services on one node: it translates Services and
// EndpointSlices to the kernel's rules, which package rules writes.
//
// What a Service means is decided by upstream's packages (k8s.io/kubernetes/pkg/proxy): which ports
// and addresses it has, and which endpoints a connection may go to. A change is in force as soon as
// the informers tell of it; changes that come meanwhile are put in force together. Nothing is
// polled.
//
// The rules outlive the process. Connections go on while it is restarted, and new ones follow the
// rules that it left. Cleanup removes them.
package proxy

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/proxy/rules"
)

// Options say what the proxy depends on besides the API.
type Options struct {
	// Table is the name of the nftables table.
	Table string
	// NodeName is this node's name in the API.
	NodeName string
	// NodeIPs are the node's addresses. Connections that must come back through the node have one
	// of them as their source.
	NodeIPs []netip.Addr
	// ServiceRanges are the networks of Services' addresses. Connections to others in them are
	// refused.
	ServiceRanges []netip.Prefix
	// WatchPods has the proxy know this node's pods from the API. Without it, it knows those that
	// are endpoints, and PodRanges.
	WatchPods bool
	PodRanges []netip.Prefix
	// ExternalIPs routes Services' externalIPs. With them, anyone who may create a Service could
	// take over connections to any address.
	ExternalIPs bool
	// Health gets whether the rules are in force; it may be nil.
	Health *health.Part
	// Log gets what an operator should know; nil is the Set's.
	Log *slog.Logger
}

// The pauses after a failure, and between repairs of rules that others change.
const (
	firstPause  = time.Second
	longestWait = 30 * time.Second
	repairPause = 200 * time.Millisecond
)

// Proxy routes connections to Services on this node.
type Proxy struct {
	Options
	set    *client.Set
	synced []cache.DoneChecker
	wake   chan struct{} // there is something to put in force

	families []*translation
	node     nodeState
	pods     podState
	staged   bool   // the first update was made
	inForce  func() // called after each sync, by tests
}

// New asks for informers and makes no call.
func New(set *client.Set, o Options) (*Proxy, error) {
	// What a pod answers to a loopback address does not come back.
	o.NodeIPs = slices.DeleteFunc(slices.Clone(o.NodeIPs), netip.Addr.IsLoopback)
	o.Log = cmp.Or(o.Log, set.Logger())
	p := &Proxy{Options: o, set: set, wake: make(chan struct{}, 1), inForce: func() {}}
	p.pods.changed = rules.Pods{}
	for _, family := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		p.families = append(p.families, newTranslation(family, &p.Options))
	}
	core := set.Informers.Core().V1()
	handlers := map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		core.Services().Informer():                                 p.services(),
		set.Informers.Discovery().V1().EndpointSlices().Informer(): p.slices(),
		core.Nodes().Informer():                                    p.nodes(),
	}
	if o.WatchPods {
		handlers[core.Pods().Informer()] = p.podHandler()
	}
	for informer, handler := range handlers {
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			return nil, fmt.Errorf("watch for the service proxy: %w", err)
		}
		p.synced = append(p.synced, registration.HasSyncedChecker())
	}
	return p, nil
}

// Run keeps the rules until ctx ends. They stay in the kernel then.
func (p *Proxy) Run(ctx context.Context) error {
	table, err := rules.Open(rules.Config{
		Name: p.Table, Ranges: p.ServiceRanges, NodeIPs: p.sources(), PodRanges: p.PodRanges, Log: p.Log,
	})
	if err != nil {
		return fmt.Errorf("service proxy: %w", err)
	}
	defer table.Close()
	if err := table.Refuse(); err != nil {
		return fmt.Errorf("service proxy: %w", err)
	}
	if !cache.WaitFor(ctx, "service proxy", p.synced...) {
		return nil
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: p.set.Kube.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return fmt.Errorf("service proxy: record events: %w", err)
	}
	defer broadcaster.Shutdown()
	recorder := broadcaster.NewRecorder(scheme.Scheme, "coracle-proxy")
	for _, f := range p.families {
		f.serveHealth(p.NodeName, recorder)
		defer f.endHealth()
	}
	p.keep(ctx, table)
	return nil
}

// sources are addresses for connections that must come back through the node. Of a family that
// NodeIPs lack, it is any address that the node has.
func (p *Proxy) sources() []netip.Addr {
	found := slices.Clone(p.NodeIPs)
	all, err := net.InterfaceAddrs()
	if err != nil {
		return found
	}
	for _, each := range all {
		n, ok := each.(*net.IPNet)
		if !ok {
			continue
		}
		a, _ := netip.AddrFromSlice(n.IP)
		a = a.Unmap()
		served := func(r netip.Prefix) bool { return r.Contains(a) }
		has := func(other netip.Addr) bool { return other.Is6() == a.Is6() }
		if a.IsGlobalUnicast() && !slices.ContainsFunc(p.ServiceRanges, served) && !slices.ContainsFunc(found, has) {
			found = append(found, a)
		}
	}
	return found
}

// keep puts changes in force and repairs what others change, until ctx ends.
func (p *Proxy) keep(ctx context.Context, table *rules.Table) {
	again := time.NewTimer(0) // the first time at once
	defer again.Stop()
	var unanswered <-chan time.Time // nil while no connections are to be looked for
	pause := firstPause
	var repaired time.Time
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-again.C:
			err = p.sync(ctx, table)
		case <-p.wake:
			err = p.sync(ctx, table)
		case <-unanswered:
			unanswered = nil
			if err := p.unanswered(); err != nil {
				p.Log.Warn("some connections may go on trying endpoints that are gone", "err", err)
			}
			continue
		case <-table.Changed():
			// Two programs that correct each other must not take a whole core.
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Until(repaired.Add(repairPause))):
			}
			var differed bool
			if differed, err = table.Repair(ctx); differed && err == nil {
				p.Log.Warn("another program changed the rules of Services", "table", p.Table)
				p.Health.Notes("nftables table " + p.Table + " was changed by another program, and was corrected")
			}
			repaired = time.Now()
		}
		if err == nil {
			if unanswered == nil && slices.ContainsFunc(p.families, func(f *translation) bool { return len(f.connections) > 0 }) {
				unanswered = time.After(unansweredPause)
			}
			p.Health.Works("Services are routed by nftables table " + p.Table)
			pause = firstPause
			continue
		}
		if ctx.Err() != nil {
			return
		}
		p.Log.Error("Services are not routed as they should", "err", err, "again", pause)
		p.Health.Fails(err)
		again.Reset(pause)
		pause = min(2*pause, longestWait)
	}
}

// sync puts in force what changed since the last time.
func (p *Proxy) sync(ctx context.Context, table *rules.Table) error {
	change := rules.Change{Ports: map[rules.Key]*rules.Port{}, Pods: p.pods.take()}
	labels, relabeled := p.node.take()
	if p.staged {
		for _, f := range p.families {
			f.update(labels, relabeled, &change, nil)
		}
	} else {
		p.stage(labels, table, &change)
		p.staged = true
	}
	if err := table.Apply(ctx, change); err != nil {
		return err
	}
	for _, f := range p.families {
		f.applied()
	}
	p.inForce()
	return nil
}

// stage is the first update. The endpoints of some Services go to the kernel while others are
// looked at.
func (p *Proxy) stage(labels map[string]string, table *rules.Table, change *rules.Change) {
	parts := make(chan map[rules.Key]*rules.Port, 1)
	var sent sync.WaitGroup
	sent.Go(func() {
		var err error
		for part := range parts {
			if err != nil {
				continue
			}
			if err = table.Stage(part); err != nil { // what Apply sends has them, too
				p.Log.Warn("endpoints of Services are not sent ahead", "err", err)
			}
		}
	})
	for _, f := range p.families {
		f.update(labels, true, change, parts)
	}
	close(parts)
	sent.Wait()
}

// signal has the loop look at what changed.
func (p *Proxy) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Cleanup removes the rules of a table. It is no error if there are none.
func Cleanup(table string) error {
	if err := rules.Remove(table); err != nil {
		return fmt.Errorf("remove rules of Services: %w", err)
	}
	return nil
}
