// Package policy enforces NetworkPolicies and ClusterNetworkPolicies for the pods of one node:
// package compile translates them, and package rules keeps them in the kernel.
//
// A change is in force as soon as the informers tell of it; changes that come meanwhile are put in
// force together. Nothing is polled. While the cluster has no policy there is no table in the
// kernel, and a pod's start costs nothing.
//
// The rules outlive the process: what was forbidden stays forbidden while it is restarted. Cleanup
// removes them.
//
// Where the kubelet runs in this process, it has each pod admitted before the first container
// starts (Admit), so that no packet precedes the policies. Elsewhere, a pod whose address the API
// does not tell yet can send and receive nothing, if Options say which links or addresses are
// pods'.
package policy

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/internal/shrink"
	"github.com/coracle-project/coracle/cluster/policy/compile"
	"github.com/coracle-project/coracle/cluster/policy/rules"
)

// Options say what policies depend on besides the API.
type Options struct {
	// Table is the name of the nftables table.
	Table string
	// NodeName is this node's name in the API.
	NodeName string
	// PodRanges are networks of this node's pods. While there are policies, nothing passes from and
	// to an address in them that no pod is known to have.
	PodRanges []netip.Prefix
	// LinkGroup, if set, returns the group of the links of this node's pods, for the same purpose;
	// 0 for none. It is asked at the start and after RuntimeStarted. Until it has answered, pods
	// that a policy is about do not start, unless the table of an earlier process tells the group.
	LinkGroup func(context.Context) (uint32, error)
	// Health gets whether policies are in force; it may be nil.
	Health *health.Part
	// Log gets what an operator should know; nil is the Set's.
	Log *slog.Logger
	// API is how ClusterNetworkPolicies are read, whose definition may be installed or removed at
	// any time, and how their status is written; nil for the component's own identity. It needs the
	// rights to list and watch customresourcedefinitions and clusternetworkpolicies, and to patch
	// clusternetworkpolicies/status.
	API *rest.Config
	// ForgetNodes removes, from the status of ClusterNetworkPolicies, the conditions of nodes that
	// the API no longer has. One process of a cluster does so.
	ForgetNodes bool
}

// The pauses after a failure, between repairs of rules that others change, and before connections
// of pods that are gone are looked for.
const (
	firstPause  = time.Second
	longestWait = 10 * time.Second // less than the kubelet waits
	repairPause = 200 * time.Millisecond
	gonePause   = time.Second
)

// table is a *rules.Table.
type table interface {
	Apply(context.Context, rules.Change) error
	Repair(context.Context) (differed bool, err error)
	Changed() <-chan struct{}
	Adopted() (idents map[netip.Addr]uint32, pods map[netip.Addr]rules.Pod)
	AdoptedLinkGroup() (group uint32, exists bool)
	Cutter() (cutter, error)
	Close() error
}

// Policy enforces policies on this node.
type Policy struct {
	Options
	set     *client.Set
	cluster *clusterPolicies // nil without an API for them
	synced  []cache.DoneChecker
	wake    chan struct{} // there is something to put in force
	ready   chan struct{} // closed when the API's objects are known
	ended   chan struct{} // closed when Run ends

	runtime chan struct{} // the runtime was started

	open   func(rules.Config) (table, error)
	remove func(name string) error
	did    func() // called after each sync, by tests
	// linkPatience bounds one question to the runtime.
	linkPatience time.Duration

	mu       sync.Mutex
	state    *compile.State
	pods     shrink.Map[compile.ID, *known]
	admitted shrink.Map[types.UID, compile.ID] // by the kubelet's UID of a pod
	waiting  []waiter
	noTable  bool // in the kernel
}

// known is what is known of a pod. It is forgotten when both the API and the kubelet have done so.
type known struct {
	object    *corev1.Pod  // the API's, nil if there is none
	admitted  *corev1.Pod  // the kubelet's, nil if there is none
	addresses []netip.Addr // of admitted
}

// waiter waits for a pod's classes to be in force.
type waiter struct {
	id        compile.ID
	addresses []netip.Addr
	isolated  bool       // by a policy
	done      chan error // has room
}

// New asks for informers and makes no call.
func New(set *client.Set, o Options) (*Policy, error) {
	o.Log = cmp.Or(o.Log, set.Logger())
	p := &Policy{
		Options: o, set: set, wake: make(chan struct{}, 1), ready: make(chan struct{}), ended: make(chan struct{}),
		runtime: make(chan struct{}, 1),
		open:    openTable, remove: rules.Remove, did: func() {},
		linkPatience: linkPatience,
		state:        compile.New(o.NodeName, compile.DefaultLimits), pods: shrink.New[compile.ID, *known](),
		admitted: shrink.New[types.UID, compile.ID](),
	}
	core := set.Informers.Core().V1()
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		core.Pods().Informer():                                       p.podHandler(),
		core.Namespaces().Informer():                                 p.namespaceHandler(),
		set.Informers.Networking().V1().NetworkPolicies().Informer(): p.policyHandler(),
	} {
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			return nil, fmt.Errorf("watch for network policies: %w", err)
		}
		p.synced = append(p.synced, registration.HasSyncedChecker())
	}
	if o.API == nil {
		o.API = set.Config
	}
	if o.API != nil {
		p.cluster = newClusterPolicies(p)
		if err := p.cluster.use(o.API); err != nil {
			return nil, fmt.Errorf("watch for ClusterNetworkPolicies: %w", err)
		}
		if err := p.cluster.watchNodes(core.Nodes()); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func openTable(c rules.Config) (table, error) {
	t, err := rules.Open(c)
	if err != nil {
		return nil, err // not a table that is nil
	}
	return kernelTable{t}, nil
}

// Run keeps the rules until ctx ends. They stay in the kernel then. It is called once.
func (p *Policy) Run(ctx context.Context) error {
	defer close(p.ended)
	var parts sync.WaitGroup
	defer parts.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answered)
	if p.LinkGroup != nil {
		parts.Go(func() { p.askLinks(ctx, answers) })
	}
	synced := p.synced
	if p.cluster != nil {
		parts.Go(func() { p.cluster.run(ctx) })
		parts.Go(func() { p.cluster.writeStatuses(ctx) })
		if p.cluster.nodes != nil && p.ForgetNodes {
			parts.Go(func() { p.cluster.nodes.run(ctx) })
		}
		synced = append(slices.Clip(synced), p.cluster)
	}
	if !cache.WaitFor(ctx, "network policies", synced...) {
		return nil
	}
	recorder, flush := p.set.Recorder("coracle-policy", p.NodeName)
	defer flush()
	close(p.ready)
	k := keeper{Policy: p, recorder: recorder, cuts: newCuts(p.Log), recheck: map[netip.Addr]bool{}, answers: answers}
	defer k.close(context.Canceled)
	k.run(ctx)
	return nil
}

// Admit returns when the policies of a pod of this node are in force for its addresses, which it
// got a moment ago or had when the process started. Without any policy it returns at once.
func (p *Policy) Admit(ctx context.Context, pod *corev1.Pod, addresses []netip.Addr) error {
	if pod.Spec.HostNetwork || len(addresses) == 0 {
		return nil
	}
	failed := func(err error) error {
		return fmt.Errorf("enforce network policies of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	select {
	case <-p.ready:
	case <-p.ended:
		return failed(context.Canceled)
	case <-ctx.Done():
		return failed(p.cluster.unknown(ctx.Err()))
	}
	w := waiter{id: compile.IDOf(pod), addresses: addresses, done: make(chan error, 1)}
	if !p.enlist(w, pod, addresses) {
		return nil
	}
	p.signal()
	select {
	case err := <-w.done:
		if err != nil {
			return failed(err)
		}
		return nil
	case <-p.ended:
		return failed(context.Canceled)
	case <-ctx.Done():
		return failed(ctx.Err())
	}
}

// enlist has w wait for what is known of the pod now, unless there is no policy and no table.
func (p *Policy) enlist(w waiter, pod *corev1.Pod, addresses []netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	addresses = slices.Clone(addresses)
	slices.SortFunc(addresses, netip.Addr.Compare)
	k := p.known(w.id)
	k.admitted, k.addresses = pod, slices.Compact(addresses)
	p.admitted.Entries[pod.UID] = w.id
	p.setPod(w.id)
	p.state.Claim(w.id)
	if p.state.Policies() == 0 && p.noTable {
		return false
	}
	p.waiting = append(p.waiting, w)
	return true
}

// Gone tells that the kubelet has nothing left of a pod that it had admitted.
func (p *Policy) Gone(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id, exists := p.admitted.Entries[uid]
	if !exists {
		return
	}
	p.admitted.Delete(uid)
	k := p.known(id)
	k.admitted, k.addresses = nil, nil
	p.setPod(id)
	p.signalIfPending()
}

// Explain says which policies decide about a new connection of a pod of this node.
func (p *Policy) Explain(c rules.Connection) compile.Explanation {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.Explain(c)
}

// tellHealth says what is in force.
func (p *Policy) tellHealth() {
	p.mu.Lock()
	n := p.state.Policies()
	warnings := p.cluster.warnings()
	p.mu.Unlock()
	message := "there are no network policies"
	if n > 0 {
		message = fmt.Sprintf("%d network policies are enforced by nftables table %s", n, p.Table)
	}
	p.Health.Works(message, warnings...)
}

// signal has the loop look at what changed.
func (p *Policy) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// signalIfPending signals if there is anything to put in force. The caller holds mu.
func (p *Policy) signalIfPending() {
	if p.state.Policies() > 0 && p.state.Pending() {
		p.signal()
	}
}

// Cleanup removes the rules of a table. It is no error if there are none.
func Cleanup(table string) error {
	if err := rules.Remove(table); err != nil {
		return fmt.Errorf("remove rules of network policies: %w", err)
	}
	return nil
}

// report tells of what is not enforced.
func (p *Policy) report(recorder record.EventRecorder, r compile.Result) {
	for _, problem := range r.Problems {
		p.Log.Warn("network policy is not enforced in full; it allows less",
			"policy", types.NamespacedName{Namespace: problem.Policy.GetNamespace(), Name: problem.Policy.GetName()}, "reason", problem.Message)
		recorder.Event(problem.Policy, corev1.EventTypeWarning, problem.Reason, problem.Message)
	}
	if p.cluster != nil {
		p.cluster.status.add(r.Reviews)
	}
}

// inForce has the status of policies say what was put in force.
func (p *Policy) inForce() {
	if p.cluster != nil {
		p.cluster.status.inForce()
	}
}
