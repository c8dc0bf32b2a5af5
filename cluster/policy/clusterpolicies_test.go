package policy

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	cachetesting "k8s.io/client-go/tools/cache/testing"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/coracle-project/coracle/cluster/policy/compile"
)

// tierNode is a node whose API may have ClusterNetworkPolicies.
type tierNode struct {
	*node
	definitions, objects *cachetesting.FakeControllerSource
	// before, if not nil, is asked before each list and watch of the policies.
	before func() error
	// forbid is how often the definition is still refused.
	forbid atomic.Int64

	forgets bool        // conditions of nodes that are gone
	forgot  chan string // a policy, and the manager of what was removed of it
	written chan status
	refuse  func() error // the next writes, may be nil
}

// status is what was written of a policy.
type status struct {
	name      string
	condition metav1.Condition
}

// noStreams is a source that is listed before it is watched.
type noStreams struct{ cache.ListerWatcher }

// IsWatchListSemanticsUnSupported is what reflectors ask.
func (noStreams) IsWatchListSemanticsUnSupported() bool { return true }

// gate is a source that may wait or fail.
type gate struct {
	*cachetesting.FakeControllerSource
	before func() error
}

func (g gate) List(o metav1.ListOptions) (runtime.Object, error) {
	if err := g.before(); err != nil {
		return nil, err
	}
	return g.FakeControllerSource.List(o)
}

func (g gate) Watch(o metav1.ListOptions) (watch.Interface, error) {
	if err := g.before(); err != nil {
		return nil, err
	}
	return g.FakeControllerSource.Watch(o)
}

func newTierNode(t *testing.T, objects ...any) *tierNode {
	n := &tierNode{
		node:        unstarted(t, objects...),
		definitions: cachetesting.NewFakeControllerSource(), objects: cachetesting.NewFakeControllerSource(),
		forgot: make(chan string, 100), written: make(chan status, 100), before: func() error { return nil }, refuse: func() error { return nil },
	}
	t.Cleanup(n.definitions.Shutdown)
	t.Cleanup(n.objects.Shutdown)
	n.prepare = func(p *Policy) {
		p.cluster = newClusterPolicies(p)
		p.cluster.definition = noStreams{p.cluster.tellDefinition(&cache.ListWatch{
			ListWithContextFunc: func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
				if n.forbid.Add(-1) >= 0 {
					return nil, apierrors.NewForbidden(schema.GroupResource{Resource: "customresourcedefinitions"}, clusterDefinition,
						errors.New("no right"))
				}
				return n.definitions.List(o)
			},
			WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) { return n.definitions.Watch(o) },
		})}
		objects := gate{n.objects, func() error { return n.before() }}
		p.cluster.objects = noStreams{p.cluster.tellObjects(&cache.ListWatch{
			ListWithContextFunc:  func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) { return objects.List(o) },
			WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) { return objects.Watch(o) },
		})}
		p.ForgetNodes = n.forgets
		if err := p.cluster.watchNodes(p.set.Informers.Core().V1().Nodes()); err != nil {
			t.Error(err)
		}
		p.cluster.write = func(_ context.Context, name, manager string, body []byte) error {
			if err := n.refuse(); err != nil {
				return err
			}
			var o policyv1alpha2.ClusterNetworkPolicy
			if manager != fieldManager("here") {
				if err := json.Unmarshal(body, &o); err != nil || o.Name != name || o.UID == "" || len(o.Status.Conditions) > 0 {
					t.Errorf("another node's status %s: %v", body, err)
				}
				n.forgot <- name + " " + manager
				return nil
			}
			if err := json.Unmarshal(body, &o); err != nil || len(o.Status.Conditions) != 1 || o.Name != name || o.Kind != "ClusterNetworkPolicy" {
				t.Errorf("status %s: %v", body, err)
				return err
			}
			n.written <- status{name, o.Status.Conditions[0]}
			return nil
		}
	}
	return n
}

func definition(established bool, version string) *apiextensionsv1.CustomResourceDefinition {
	d := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: clusterDefinition}}
	d.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: version, Served: true}}
	if established {
		d.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{
			Type:   apiextensionsv1.Established,
			Status: apiextensionsv1.ConditionTrue,
		}}
	}
	return d
}

// wall denies what pods of the namespace x receive from each other.
func wall() *policyv1alpha2.ClusterNetworkPolicy {
	p := &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "wall", Generation: 3, UID: "1"}}
	x := &metav1.LabelSelector{MatchLabels: map[string]string{"ns": "x"}}
	p.Spec = policyv1alpha2.ClusterNetworkPolicySpec{
		Tier: policyv1alpha2.AdminTier, Subject: policyv1alpha2.ClusterNetworkPolicySubject{Namespaces: x},
		Ingress: []policyv1alpha2.ClusterNetworkPolicyIngressRule{{
			Action: policyv1alpha2.ClusterNetworkPolicyRuleActionDeny, From: []policyv1alpha2.ClusterNetworkPolicyIngressPeer{{Namespaces: x}},
		}},
	}
	return p
}

func (n *tierNode) status() status {
	n.t.Helper()
	select {
	case s := <-n.written:
		return s
	case <-time.After(patience):
		n.t.Fatal("no status is written")
		return status{}
	}
}

// The policies' definition may come and go at any time, and the policies with it.
func TestDefinitionComesAndGoes(t *testing.T) {
	t.Parallel()
	n := newTierNode(t, pod("a", "10.0.0.1"), pod("b", "10.0.0.2"))
	n.objects.Add(wall())
	asked := make(chan struct{}, 100)
	n.before = func() error { asked <- struct{}{}; return nil }
	n.start()
	n.synced()
	n.until("the start", func() bool { return n.removed == 1 })
	n.definitions.Add(definition(false, "v1alpha2")) // someone makes it
	for range 2 {
		n.definitions.Modify(definition(true, "v1alpha2"))
		n.until("the policy is in force", func() bool { return n.table != nil && !n.allowed(tcp("10.0.0.2", "10.0.0.1")) })
		if s := n.status(); s.name != "wall" || s.condition.Type != "Enforced-here" || s.condition.Status != metav1.ConditionTrue ||
			s.condition.ObservedGeneration != 3 {
			t.Errorf("status %+v", s)
		}
		n.definitions.Delete(definition(true, "v1alpha2"))
		n.until("nothing is enforced", func() bool { return n.table == nil })
		n.definitions.Add(definition(false, "v1alpha2"))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.opened != 2 || len(asked) > 4 { // a list and a watch each time
		t.Errorf("opened %d times; asked for policies %d times", n.opened, len(asked))
	}
}

// A policy that changes or goes is followed.
func TestClusterPolicyChanges(t *testing.T) {
	t.Parallel()
	n := newTierNode(t, pod("a", "10.0.0.1"), pod("b", "10.0.0.2"))
	n.definitions.Add(definition(true, "v1alpha2"))
	n.objects.Add(wall())
	n.start()
	n.synced()
	n.until("the policy is in force", func() bool { return n.table != nil && !n.allowed(tcp("10.0.0.2", "10.0.0.1")) })
	open := wall()
	open.Generation, open.Spec.Ingress[0].Action = 4, policyv1alpha2.ClusterNetworkPolicyRuleActionAccept
	n.objects.Modify(open)
	n.until("the change is in force", func() bool { return n.allowed(tcp("10.0.0.2", "10.0.0.1")) })
	for s := n.status(); s.condition.ObservedGeneration != 4; s = n.status() {
		continue
	}
	n.objects.Delete(open.DeepCopy())
	n.until("the table goes with the last policy", func() bool { return n.table == nil })
}

// A policy that is made again as it was gets a status again, although its end was not seen.
func TestClusterPolicyMadeAgain(t *testing.T) {
	t.Parallel()
	n := newTierNode(t, pod("a", "10.0.0.1"))
	n.definitions.Add(definition(true, "v1alpha2"))
	n.objects.Add(wall())
	n.start()
	n.synced()
	n.status()
	again := wall()
	again.UID, again.Generation = "2", 1
	n.objects.Modify(again)
	if s := n.status(); s.condition.ObservedGeneration != 1 || s.condition.Status != metav1.ConditionTrue {
		t.Errorf("status %+v", s)
	}
}

// The API allows a field manager 128 bytes. Those of nodes whose names begin alike differ.
func TestFieldManager(t *testing.T) {
	t.Parallel()
	if got := fieldManager("here"); got != "coracle-policy-here" {
		t.Error(got)
	}
	long := strings.Repeat("n", 252)
	a, b := fieldManager(long+"a"), fieldManager(long+"b")
	if a == b || len(a) != 128 || len(b) != 128 || len(fieldManager(long[:113])) != 128 {
		t.Errorf("%q and %q", a, b)
	}
}

// After a restart, no pod starts before it is known which policies there are.
func TestPodsWaitForClusterPolicies(t *testing.T) {
	t.Parallel()
	n := newTierNode(t, pod("a", "10.0.0.1"))
	n.definitions.Add(definition(true, "v1alpha2"))
	n.objects.Add(wall())
	listed, let := make(chan struct{}, 10), make(chan struct{})
	n.before = func() error { listed <- struct{}{}; <-let; return nil }
	n.start()
	<-listed
	select {
	case <-n.p.ready:
		t.Error("pods may start, and it is not known which policies there are")
	default:
	}
	admitted := make(chan error, 1)
	go func() {
		admitted <- n.p.Admit(t.Context(), pod("b", ""), []netip.Addr{netip.MustParseAddr("10.0.0.2")})
	}()
	close(let)
	select {
	case err := <-admitted:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("the pod is not admitted")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.table == nil || n.allowed(tcp("10.0.0.1", "10.0.0.2")) {
		t.Error("a pod is admitted before its ClusterNetworkPolicies are in force")
	}
}

// A process that may not look for the definition, or finds a version that it does not know,
// enforces NetworkPolicies, and health warns.
func TestOtherDefinitions(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*tierNode){
		"no right":        func(n *tierNode) { n.forbid.Store(math.MaxInt64) },
		"another version": func(n *tierNode) { n.definitions.Add(definition(true, "v2")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := newTierNode(t, pod("a", "10.0.0.1"), denyAll())
				n.objects.Add(wall())
				prepare(n)
				n.start()
				time.Sleep(forbiddenPatience)
				n.synced()
				n.until("the NetworkPolicy is in force", func() bool { return n.table != nil && !n.allowed(tcp("10.0.0.9", "10.0.0.1")) })
				n.until("health warns", func() bool { s := n.board.States()[0]; return s.Healthy && len(s.Warnings) == 1 })
			})
		})
	}
}

// An API server that has just started refuses everyone for a moment. A process that starts then
// leaves the table of the earlier one as it is until it knows which policies there are.
func TestForbiddenAtFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newTierNode(t, pod("a", "10.0.0.1"), pod("b", "10.0.0.2"))
		n.definitions.Add(definition(true, "v1alpha2"))
		n.objects.Add(wall())
		n.forbid.Store(2)
		n.start()
		synctest.Wait()
		if s := n.board.States()[0]; n.forbid.Load() != 1 || s.Healthy || !strings.Contains(s.Message, "forbidden") {
			t.Errorf("refused %d times more; health: %+v", n.forbid.Load(), s)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		err := n.p.Admit(ctx, pod("c", ""), []netip.Addr{netip.MustParseAddr("10.0.0.3")})
		if !errors.Is(err, context.DeadlineExceeded) || !apierrors.IsForbidden(err) {
			t.Errorf("a pod is admitted: %v", err)
		}
		n.until("the policy is in force", func() bool { return n.table != nil && !n.allowed(tcp("10.0.0.2", "10.0.0.1")) })
		time.Sleep(2 * forbiddenPatience)
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.removed != 0 || n.opened != 1 {
			t.Errorf("the table was removed %d times and opened %d times", n.removed, n.opened)
		}
		if s := n.board.States()[0]; !s.Healthy || len(s.Warnings) != 0 {
			t.Errorf("health: %+v", s)
		}
	})
}

// Policies that cannot be listed are not known: no pod starts, and health and the pod's error say
// why.
func TestPoliciesThatCannotBeListed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newTierNode(t, pod("a", "10.0.0.1"))
		n.definitions.Add(definition(true, "v1alpha2"))
		n.objects.Add(wall())
		var away atomic.Bool
		away.Store(true)
		failure := errors.New("the API is away")
		n.before = func() error {
			if away.Load() {
				return failure
			}
			return nil
		}
		n.start()
		time.Sleep(10 * time.Second)
		const text = "list ClusterNetworkPolicies: the API is away"
		if s := n.board.States()[0]; s.Healthy || s.Message != text {
			t.Errorf("health: %+v", s)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := n.p.Admit(ctx, pod("c", ""), []netip.Addr{netip.MustParseAddr("10.0.0.3")}); !errors.Is(err, failure) ||
			!strings.Contains(err.Error(), text) {
			t.Errorf("admitted: %v", err)
		}
		away.Store(false)
		n.until("the policy is in force", func() bool {
			return n.table != nil && n.board.States()[0].Healthy && len(n.board.States()[0].Warnings) == 0
		})
	})
}

// What is not enforced is told by an Event on the policy and by its status, which is written again
// if that fails.
func TestStatusOfWhatIsNotEnforced(t *testing.T) {
	t.Parallel()
	n := newTierNode(t, pod("a", "10.0.0.1"))
	events, err := n.api.CoreV1().Events("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	failed := sync.OnceValue(func() error { return errors.New("the API is away") })
	tries := 0
	n.refuse = func() error {
		if tries++; tries == 1 {
			return failed()
		}
		return nil
	}
	n.definitions.Add(definition(true, "v1alpha2"))
	p := wall()
	p.Spec.Egress = []policyv1alpha2.ClusterNetworkPolicyEgressRule{{
		Action: policyv1alpha2.ClusterNetworkPolicyRuleActionAccept,
		To:     []policyv1alpha2.ClusterNetworkPolicyEgressPeer{{Nodes: &metav1.LabelSelector{}}},
	}}
	n.objects.Add(p)
	n.start()
	n.synced()
	const text = "egress[0].to[0]: peers by nodes are not supported"
	s := n.status()
	if s.condition.Status != metav1.ConditionFalse || s.condition.Reason != compile.ReasonUnsupported ||
		!strings.Contains(s.condition.Message, text) {
		t.Errorf("status %+v", s)
	}
	select {
	case e := <-events.ResultChan():
		event := e.Object.(*corev1.Event)
		if event.InvolvedObject.Kind != "ClusterNetworkPolicy" || event.InvolvedObject.Name != "wall" ||
			event.Reason != compile.ReasonUnsupported || !strings.Contains(event.Message, text) {
			t.Errorf("event %+v", event)
		}
	case <-time.After(patience):
		t.Error("there is no event")
	}
}

// A status that says what is true already is not written.
func TestStatusIsNotWrittenAgain(t *testing.T) {
	t.Parallel()
	p := wall()
	wrote := 0
	c := newClusterPolicies(&Policy{Options: Options{NodeName: "here", Log: slog.New(slog.DiscardHandler)}})
	c.write = func(_ context.Context, _, _ string, body []byte) error {
		wrote++
		return json.Unmarshal(body, p)
	}
	review := func() compile.Review { return compile.Review{Policy: p} }
	for range 3 {
		if err := c.writeStatus(t.Context(), review()); err != nil {
			t.Fatal(err)
		}
	}
	if wrote != 1 || len(p.Status.Conditions) != 1 {
		t.Errorf("written %d times: %+v", wrote, p.Status)
	}
	p.Generation++
	since := p.Status.Conditions[0].LastTransitionTime
	if err := c.writeStatus(t.Context(), review()); err != nil || wrote != 2 || !p.Status.Conditions[0].LastTransitionTime.Equal(&since) {
		t.Errorf("%v, written %d times: %+v", err, wrote, p.Status)
	}
}
