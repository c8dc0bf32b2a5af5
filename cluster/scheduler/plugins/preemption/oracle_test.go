package preemption_test

import (
	"context"
	"log/slog"
	"reflect"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	upcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	upframework "k8s.io/kubernetes/pkg/scheduler/framework"
	upplugins "k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	upruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	upmetrics "k8s.io/kubernetes/pkg/scheduler/metrics"

	"github.com/coracle-project/coracle/cluster/scheduler/cache"
	"github.com/coracle-project/coracle/cluster/scheduler/framework"
	"github.com/coracle-project/coracle/cluster/scheduler/plugins"
	"github.com/coracle-project/coracle/cluster/scheduler/plugins/preemption"
	"github.com/coracle-project/coracle/cluster/scheduler/testkit"
)

type noNominations struct{}

func (noNominations) AddNominatedPod(klog.Logger, fwk.PodInfo, *fwk.NominatingInfo) {}
func (noNominations) DeleteNominatedPodIfExists(*v1.Pod)                            {}
func (noNominations) UpdateNominatedPod(klog.Logger, *v1.Pod, fwk.PodInfo)          {}
func (noNominations) NominatedPodsForNode(string) []fwk.PodInfo                     { return nil }

func budgets() []*policyv1.PodDisruptionBudget {
	budget := func(namespace, app string, allowed int32) *policyv1.PodDisruptionBudget {
		return &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: app},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
			Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed},
		}
	}
	return []*policyv1.PodDisruptionBudget{budget("red", "web", 0), budget("red", "db", 1), budget("green", "web", 0)}
}

func upstream(ctx context.Context, t *testing.T, client *fake.Clientset, shared informers.SharedInformerFactory, pods []*v1.Pod,
	nodes []*v1.Node,
) (upframework.Framework, *upcache.Snapshot) {
	t.Helper()
	upmetrics.Register()
	var versioned configv1.KubeSchedulerConfiguration
	scheme.Scheme.Default(&versioned)
	var cfg config.KubeSchedulerConfiguration
	if err := scheme.Scheme.Convert(&versioned, &cfg, nil); err != nil {
		t.Fatal(err)
	}
	left := sets.New("VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone", "DynamicResources")
	profile := &cfg.Profiles[0]
	profile.Plugins.MultiPoint.Enabled = slices.DeleteFunc(profile.Plugins.MultiPoint.Enabled, func(p config.Plugin) bool {
		return left.Has(p.Name)
	})
	snapshot := upcache.NewSnapshot(pods, nodes)
	f, err := upruntime.NewFramework(ctx, upplugins.NewInTreeRegistry(), profile, upruntime.WithClientSet(client),
		upruntime.WithInformerFactory(shared), upruntime.WithSnapshotSharedLister(snapshot), upruntime.WithPodNominator(noNominations{}))
	if err != nil {
		t.Fatal(err)
	}
	return f, snapshot
}

func withoutPorts(p *v1.Pod) {
	for i := range p.Spec.Containers {
		p.Spec.Containers[i].Ports = nil
	}
	for i := range p.Spec.InitContainers {
		p.Spec.InitContainers[i].Ports = nil
	}
}

func namesOf(pods []*v1.Pod) []string {
	var list []string
	for _, p := range pods {
		list = append(list, p.Name)
	}
	return list
}

// TestVictimsLikeUpstream compares, over random clusters, which pods would have to go from each
// node, how many budgets that breaks, and why a node is no help, with upstream's plugin.
func TestVictimsLikeUpstream(t *testing.T) {
	nodesWithVictims := 0
	for seed := range uint64(300) {
		r := testkit.New(seed)
		ctx, cancel := context.WithCancel(t.Context())
		client := fake.NewClientset()
		for _, ns := range testkit.Namespaces() {
			if err := client.Tracker().Add(ns); err != nil {
				t.Fatal(err)
			}
		}
		shared := informers.NewSharedInformerFactory(client, 0)
		var nodes []*v1.Node
		var pods []*v1.Pod
		for range 1 + r.IntN(8) {
			n := r.Node()
			nodes = append(nodes, n)
			for i := range 1 + r.IntN(6) {
				p := r.PodOn(n)
				if i > 0 {
					// Two pods cannot hold one port; upstream does not count holders.
					withoutPorts(p)
				}
				pods = append(pods, p)
			}
		}
		h := &framework.Handle{
			Log: slog.New(slog.DiscardHandler), Informers: shared, Kube: client, Waiting: framework.NewWaitingPods(), Parallel: 1,
		}
		enabled := plugins.Default(h, plugins.Args{})
		enabled = slices.DeleteFunc(enabled, func(e framework.Enabled) bool { return e.Name() == "DynamicResources" }) // there are no devices
		profile, err := framework.NewProfile("default-scheduler", enabled...)
		if err != nil {
			t.Fatal(err)
		}
		h.Profile = profile
		plugin := enabled[slices.IndexFunc(enabled, func(e framework.Enabled) bool {
			return e.Name() == "DefaultPreemption"
		})].Plugin.(*preemption.Plugin)
		up, snapshot := upstream(ctx, t, client, shared, pods, nodes)
		upPlugin, err := defaultpreemption.New(ctx,
			&config.DefaultPreemptionArgs{MinCandidateNodesPercentage: 10, MinCandidateNodesAbsolute: 100}, up, feature.Features{})
		if err != nil {
			t.Fatal(err)
		}
		shared.Start(ctx.Done())
		shared.WaitForCacheSync(ctx.Done())
		c, s := cache.New(slog.New(slog.DiscardHandler)), &framework.Snapshot{}
		for _, n := range nodes {
			c.SetNode(n)
		}
		for _, p := range pods {
			c.SetPod(p)
		}
		c.Update(s)

		for range 4 {
			pod := r.Pod()
			high := int32(15 + r.IntN(20))
			pod.Spec.Priority = &high
			info := framework.NewPodInfo(pod)
			state := framework.NewCycleState(s, nil)
			upState := upframework.NewCycleState()
			_, _, status := profile.PreFilter(ctx, state, info)
			_, upStatus, _ := up.RunPreFilterPlugins(ctx, upState, pod)
			if !status.OK() || !upStatus.IsSuccess() {
				continue
			}
			for _, n := range s.Nodes {
				upNode, err := snapshot.Get(n.Node().Name)
				if err != nil {
					t.Fatal(err)
				}
				if profile.Filter(state, info, n).Code() != framework.Unschedulable {
					continue
				}
				got, gotViolations, status := plugin.VictimsOn(state.Clone(), info, n.Clone(), budgets())
				victims, violations, upStatus := upPlugin.SelectVictimsOnNode(ctx, upState.Clone(), pod, upNode.Snapshot(), budgets())
				if status.OK() != upStatus.IsSuccess() || !status.OK() && !reflect.DeepEqual(status.Reasons(), upStatus.Reasons()) {
					t.Fatalf("seed %d, pod %s on %s: %v %q, upstream %v %q", seed, pod.Name, n.Node().Name,
						status.Code(), status.Reasons(), upStatus.Code(), upStatus.Reasons())
				}
				if !status.OK() {
					continue
				}
				nodesWithVictims++
				if !slices.Equal(namesOf(got), namesOf(victims)) || gotViolations != violations {
					t.Fatalf("seed %d, pod %s on %s: victims are %v with %d violations, upstream's %v with %d", seed, pod.Name, n.Node().Name,
						namesOf(got), gotViolations, namesOf(victims), violations)
				}
			}
		}
		cancel()
	}
	if nodesWithVictims < 200 {
		t.Errorf("only %d nodes with victims were compared", nodesWithVictims)
	}
}

func TestPick(t *testing.T) {
	at := func(priority int32, started int64) *v1.Pod {
		start := metav1.Unix(started, 0)
		return &v1.Pod{Spec: v1.PodSpec{Priority: &priority}, Status: v1.PodStatus{StartTime: &start}}
	}
	type nodes = map[string][]*v1.Pod
	for _, test := range []struct {
		name       string
		victims    nodes
		violations map[string]int
	}{
		{"fewest violations", nodes{"worse": {at(1, 1)}, "best": {at(9, 1)}}, map[string]int{"worse": 1}},
		{"lowest of highest priorities", nodes{"worse": {at(5, 1)}, "best": {at(4, 1), at(4, 1), at(4, 1)}}, nil},
		{"lowest sum", nodes{"worse": {at(5, 1), at(4, 1)}, "best": {at(5, 1), at(3, 1)}}, nil},
		{"fewer, though negative", nodes{"worse": {at(-5, 1), at(-5, 1)}, "best": {at(-5, 1)}}, nil},
		{"started last", nodes{"worse": {at(5, 1), at(3, 9)}, "best": {at(5, 2), at(3, 1)}}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := preemption.PickOf(test.victims, test.violations); got != "best" {
				t.Errorf("picked %s", got)
			}
		})
	}
}
