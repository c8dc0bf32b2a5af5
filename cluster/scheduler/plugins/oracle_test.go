package plugins_test

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	toolscache "k8s.io/client-go/tools/cache"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	upcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	upframework "k8s.io/kubernetes/pkg/scheduler/framework"
	upplugins "k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	upruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	upmetrics "k8s.io/kubernetes/pkg/scheduler/metrics"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/scheduler/cache"
	"github.com/coracle-project/coracle/cluster/scheduler/framework"
	"github.com/coracle-project/coracle/cluster/scheduler/plugins"
	"github.com/coracle-project/coracle/cluster/scheduler/testkit"
)

// ours is a profile of our plugins over the objects of a world.
type ours struct {
	profile  *framework.Profile
	cache    *cache.Cache
	snapshot *framework.Snapshot
	opening  sync.WaitGroup
}

// open has the plugins ready that wait for the first pod with claims or extended resources.
func (o *ours) open(ctx context.Context) {
	pod := &v1.Pod{Spec: v1.PodSpec{
		Volumes:    []v1.Volume{{VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "x"}}}},
		Containers: []v1.Container{{Resources: v1.ResourceRequirements{Requests: v1.ResourceList{testkit.GPU: resource.MustParse("1")}}}},
	}}
	for _, pl := range o.profile.PreEnqueues {
		pl.PreEnqueue(pod)
	}
	o.opening.Wait()
	for _, pl := range o.profile.Enqueuers {
		if pre, ok := pl.(framework.PreFilter); ok && (pl.Name() == "VolumeBinding" || pl.Name() == "NodeVolumeLimits" ||
			pl.Name() == "DynamicResources") {
			pre.PreFilter(ctx, framework.NewCycleState(o.snapshot, nil), framework.NewPodInfo(pod))
		}
	}
}

// world is a random cluster.
type world struct {
	*testkit.Random
	informers informers.SharedInformerFactory
	client    *fake.Clientset
	nodes     []*v1.Node
	pods      []*v1.Pod
	nominated map[string][]*v1.Pod
	args      plugins.Args
	rejectors sets.Set[string] // the plugins that have rejected pods
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{Random: testkit.New(seed), nominated: make(map[string][]*v1.Pod), rejectors: sets.New[string]()}
	w.args.Packing = seed%2 == 1
	if seed%3 == 0 {
		w.args.Resources = []plugins.ResourceWeight{
			{Name: v1.ResourceCPU, Weight: 1},
			{Name: v1.ResourceEphemeralStorage, Weight: 2},
			{Name: testkit.GPU, Weight: 3},
		}
	}
	w.settings(seed)
	var objects []runtime.Object
	for _, ns := range testkit.Namespaces() {
		objects = append(objects, ns)
		objects = append(objects, &v1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: "web"}, Spec: v1.ServiceSpec{Selector: map[string]string{"app": "web"}},
		}, &appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: "rs"},
			Spec: appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: []string{"db", "web"}},
			}}},
		})
	}
	w.client = fake.NewClientset(append(objects, w.storage()...)...)
	w.informers = informers.NewSharedInformerFactory(w.client, 0)
	for range 1 + w.IntN(12) {
		node := w.Node()
		w.nodes = append(w.nodes, node)
		if err := w.client.Tracker().Add(w.drivers(node.Name)); err != nil {
			t.Fatal(err)
		}
		for range w.IntN(5) {
			w.pods = append(w.pods, w.disks(w.stores(w.owned(w.PodOn(node)))))
		}
		if w.IntN(5) == 0 {
			w.nominated[node.Name] = append(w.nominated[node.Name], w.Pod())
		}
	}
	return w
}

// owned puts some pods under a replica set.
func (w *world) owned(pod *v1.Pod) *v1.Pod {
	if w.IntN(3) == 0 {
		yes := true
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs", Controller: &yes}}
	}
	return pod
}

func (w *world) start(ctx context.Context) {
	w.informers.Start(ctx.Done())
	w.informers.WaitForCacheSync(ctx.Done())
}

func (w *world) ours(ctx context.Context, t *testing.T, first ...framework.Enabled) *ours {
	t.Helper()
	o := &ours{cache: cache.New(slog.New(slog.DiscardHandler)), snapshot: &framework.Snapshot{}}
	h := &framework.Handle{
		Log: slog.New(slog.DiscardHandler), Informers: w.informers, Kube: w.client, Waiting: framework.NewWaitingPods(), Parallel: 2,
		Background: func(f func(context.Context)) { o.opening.Go(func() { f(ctx) }) },
		Moves:      func(framework.Kind) toolscache.ResourceEventHandler { return toolscache.ResourceEventHandlerFuncs{} },
		Reopened:   func(*v1.Pod, string) {},
	}
	profile, err := framework.NewProfile("default-scheduler", append(first, plugins.Default(h, w.args)...)...)
	if err != nil {
		t.Fatal(err)
	}
	h.Profile = profile
	o.profile = profile
	for _, n := range w.nodes {
		o.cache.SetNode(n)
	}
	for _, p := range w.pods {
		o.cache.SetPod(p)
	}
	return o
}

// nominator gives upstream's framework the world's nominations.
type nominator struct{ *world }

func (n nominator) AddNominatedPod(klog.Logger, fwk.PodInfo, *fwk.NominatingInfo) {}
func (n nominator) DeleteNominatedPodIfExists(*v1.Pod)                            {}
func (n nominator) UpdateNominatedPod(klog.Logger, *v1.Pod, fwk.PodInfo)          {}
func (n nominator) NominatedPodsForNode(node string) []fwk.PodInfo {
	var list []fwk.PodInfo
	for _, p := range n.nominated[node] {
		info, _ := upframework.NewPodInfo(p)
		list = append(list, info)
	}
	return list
}

// notCompared are upstream's plugins for what this scheduler does not act on.
var notCompared = sets.New("DynamicResources")

// settings gives some worlds settings as a file of the scheduler's may have.
func (w *world) settings(seed uint64) {
	if seed%5 == 1 {
		w.args.HardAffinityWeight, w.args.IgnorePreferred = ptr.To(int32(w.IntN(101))), w.IntN(2) == 0
	}
	if seed%5 == 2 {
		w.args.Shape = []plugins.ShapePoint{
			{Used: 0, Score: 100},
			{Used: int64(20 + w.IntN(40)), Score: 10 * int64(w.IntN(11))},
			{Used: 90, Score: 50},
		}
	}
	if seed%5 == 3 {
		disk := v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{
			Key: "disk", Operator: v1.NodeSelectorOpIn,
			Values: []string{"ssd"},
		}}}
		w.args.AddedAffinity = &v1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.PreferredSchedulingTerm{{
			Weight:     7,
			Preference: disk,
		}}}
		if w.IntN(2) == 0 {
			w.args.AddedAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{disk}}
		}
		w.args.Ignored = []v1.ResourceName{testkit.GPU}
	}
	if seed%5 == 4 {
		w.args.Spread = &[]v1.TopologySpreadConstraint{
			{MaxSkew: 1, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.ScheduleAnyway},
			{MaxSkew: 1, TopologyKey: "rack", WhenUnsatisfiable: []v1.UnsatisfiableConstraintAction{v1.DoNotSchedule, v1.ScheduleAnyway}[w.IntN(2)]},
		}
		w.args.IgnoredGroups = []string{"example.com"}
	}
}

// configure gives upstream's plugins the world's settings.
func (w *world) configure(object runtime.Object) {
	switch args := object.(type) {
	case *config.InterPodAffinityArgs:
		args.HardPodAffinityWeight, args.IgnorePreferredTermsOfExistingPods = ptr.Deref(w.args.HardAffinityWeight, 1), w.args.IgnorePreferred
	case *config.NodeAffinityArgs:
		args.AddedAffinity = w.args.AddedAffinity
	case *config.PodTopologySpreadArgs:
		if w.args.Spread != nil {
			args.DefaultingType, args.DefaultConstraints = config.ListDefaulting, *w.args.Spread
		}
	case *config.NodeResourcesFitArgs:
		for _, name := range w.args.Ignored {
			args.IgnoredResources = append(args.IgnoredResources, string(name))
		}
		args.IgnoredResourceGroups = w.args.IgnoredGroups
		w.strategy(args.ScoringStrategy)
	}
}

func (w *world) strategy(s *config.ScoringStrategy) {
	if w.args.Packing {
		s.Type = config.MostAllocated
	}
	if len(w.args.Shape) > 0 {
		s.Type, s.RequestedToCapacityRatio = config.RequestedToCapacityRatio, &config.RequestedToCapacityRatioParam{}
		for _, p := range w.args.Shape {
			s.RequestedToCapacityRatio.Shape = append(s.RequestedToCapacityRatio.Shape,
				config.UtilizationShapePoint{Utilization: int32(p.Used), Score: int32(p.Score / 10)})
		}
	}
	if len(w.args.Resources) > 0 {
		s.Resources = nil
		for _, r := range w.args.Resources {
			s.Resources = append(s.Resources, config.ResourceSpec{Name: string(r.Name), Weight: r.Weight})
		}
	}
}

// upstream returns upstream's default profile, over the snapshot as it is at the time.
func (w *world) upstream(ctx context.Context, t *testing.T) (upframework.Framework, *upcache.Snapshot) {
	t.Helper()
	upmetrics.Register()
	var versioned configv1.KubeSchedulerConfiguration
	scheme.Scheme.Default(&versioned)
	var cfg config.KubeSchedulerConfiguration
	if err := scheme.Scheme.Convert(&versioned, &cfg, nil); err != nil {
		t.Fatal(err)
	}
	profile := &cfg.Profiles[0]
	profile.Plugins.MultiPoint.Enabled = slices.DeleteFunc(profile.Plugins.MultiPoint.Enabled, func(p config.Plugin) bool {
		return notCompared.Has(p.Name)
	})
	for _, c := range profile.PluginConfig {
		w.configure(c.Args)
	}
	snapshot := upcache.NewSnapshot(w.pods, w.nodes)
	f, err := upruntime.NewFramework(ctx, upplugins.NewInTreeRegistry(), profile,
		upruntime.WithClientSet(w.client), upruntime.WithInformerFactory(w.informers),
		upruntime.WithSnapshotSharedLister(snapshot), upruntime.WithPodNominator(nominator{w}),
		upruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(w.informers.Storage().V1().CSINodes().Lister())))
	if err != nil {
		t.Fatal(err)
	}
	return f, snapshot
}

func codeOf(s *fwk.Status) framework.Code {
	switch s.Code() {
	case fwk.Success:
		return framework.Success
	case fwk.Unschedulable:
		return framework.Unschedulable
	case fwk.UnschedulableAndUnresolvable:
		return framework.Unresolvable
	}
	return framework.Error
}

func sorted(list []string) []string {
	list = slices.Clone(list)
	slices.Sort(list)
	return list
}

// TestLikeUpstream compares which nodes pods fit, why not, and how nodes are scored, with
// upstream's plugins, over random clusters to which pods are added one by one.
func TestLikeUpstream(t *testing.T) {
	// It needs what allocates devices, which is not compared.
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.DRAExtendedResource, false)
	rejections, scored, ours, rejectors := 0, 0, sets.New[string](), sets.New[string]()
	for seed := range uint64(300) {
		w := newWorld(t, seed)
		ctx, cancel := context.WithCancel(t.Context())
		o := w.ours(ctx, t)
		ours.Insert(o.profile.Rejectors()...)
		_, _ = w.upstream(ctx, t) // registers its informers
		w.start(ctx)
		o.open(ctx)
		for range 6 {
			pod := w.disks(w.stores(w.owned(w.Pod())))
			r, s, placed := w.compare(ctx, t, o, pod, seed)
			rejections += r
			scored += s
			if placed != "" {
				p := pod.DeepCopy()
				p.Spec.NodeName = placed
				w.pods = append(w.pods, p)
				o.cache.SetPod(p)
			}
			if t.Failed() {
				t.FailNow()
			}
		}
		cancel()
		rejectors = rejectors.Union(w.rejectors)
	}
	if idle := ours.Difference(rejectors).Delete("DefaultPreemption", "DynamicResources", "NodeName", "SchedulingGates"); len(idle) > 0 {
		t.Errorf("%v rejected no pod", sets.List(idle))
	}
	if rejections < 1000 || scored < 1000 {
		t.Errorf("only %d rejections and %d scores were compared", rejections, scored)
	}
}

func (w *world) compare(ctx context.Context, t *testing.T, o *ours, pod *v1.Pod, seed uint64) (rejections, scored int, placed string) {
	t.Helper()
	o.cache.Update(o.snapshot)
	nominated := make(framework.Nominations)
	for node, pods := range w.nominated {
		for _, p := range pods {
			nominated[node] = append(nominated[node], framework.NewPodInfo(p))
		}
	}
	info := framework.NewPodInfo(pod)
	state := framework.NewCycleState(o.snapshot, nominated)
	names, narrowed, status := o.profile.PreFilter(ctx, state, info)

	up, snapshot := w.upstream(ctx, t)
	upState := upframework.NewCycleState()
	upResult, upStatus, upNarrowed := up.RunPreFilterPlugins(ctx, upState, pod)
	where := fmt.Sprintf("seed %d, pod %s", seed, pod.Name)
	if got, want := status.Code(), codeOf(upStatus); got != want {
		t.Fatalf("%s: PreFilter is %v (%s), upstream %v (%s)", where, got, status.Message(), want, upStatus.Message())
	}
	if got, want := status.Message(), upStatus.Message(); got != want {
		t.Fatalf("%s: PreFilter says %q, upstream %q", where, got, want)
	}
	if got, want := sets.New(narrowed...), upNarrowed; got.Len()+want.Len() > 0 && !got.Equal(want) {
		t.Fatalf("%s: narrowed by %v, upstream %v", where, got, want)
	}
	if !status.OK() {
		w.rejectors.Insert(status.Plugin())
		return 1, 0, ""
	}
	if upResult.AllNodes() != (names == nil) || names != nil && !names.Equal(upResult.NodeNames) {
		t.Fatalf("%s: narrowed to %v, upstream %v", where, names, upResult)
	}

	var feasible []*framework.NodeInfo
	var upFeasible []fwk.NodeInfo
	misfit := &framework.FitError{Nodes: len(w.nodes), Rejections: framework.NewRejections(o.snapshot)}
	upMisfit := &upframework.FitError{
		Pod: pod, NumAllNodes: len(w.nodes),
		Diagnosis: upframework.Diagnosis{NodeToStatus: upframework.NewDefaultNodeToStatus()},
	}
	var places []int
	for place, n := range o.snapshot.Nodes {
		upNode, err := snapshot.Get(n.Node().Name)
		if err != nil {
			t.Fatal(err)
		}
		got := o.profile.FilterAt(state, info, place)
		want := up.RunFilterPluginsWithNominatedPods(ctx, upState, pod, upNode)
		if want == nil {
			want = fwk.NewStatus(fwk.Success)
		}
		if got.Code() != codeOf(want) || !reflect.DeepEqual(sorted(got.Reasons()), sorted(want.Reasons())) || got.Plugin() != want.Plugin() {
			t.Fatalf("%s on %s: Filter says %v %q of %s, upstream %v %q of %s", where, n.Node().Name,
				got.Code(), got.Reasons(), got.Plugin(), want.Code(), want.Reasons(), want.Plugin())
		}
		if got.OK() {
			feasible, upFeasible, places = append(feasible, n), append(upFeasible, upNode), append(places, place)
			continue
		}
		rejections++
		w.rejectors.Insert(got.Plugin())
		misfit.Rejections.Set(n, got)
		upMisfit.Diagnosis.NodeToStatus.Set(n.Node().Name, want)
	}
	if len(feasible) == 0 {
		if got, want := misfit.Error(), upMisfit.Error(); got != want {
			t.Fatalf("%s: message is %q, upstream's %q", where, got, want)
		}
		return rejections, 0, ""
	}

	scores, status := o.profile.Score(ctx, state, info, feasible, places, 1)
	if s := up.RunPreScorePlugins(ctx, upState, pod, upFeasible); !s.IsSuccess() || !status.OK() {
		t.Fatalf("%s: PreScore: %v, upstream %v", where, status, s)
	}
	upScores, s := up.RunScorePlugins(ctx, upState, pod, upFeasible)
	if !s.IsSuccess() {
		t.Fatal(s)
	}
	best := 0
	for i, n := range feasible {
		if scores[i] != upScores[i].TotalScore {
			t.Fatalf("%s on %s: score is %d, upstream's %d, of %v", where, n.Node().Name, scores[i], upScores[i].TotalScore, upScores[i].Scores)
		}
		if scores[i] > scores[best] {
			best = i
		}
		scored++
	}
	return rejections, scored, feasible[best].Node().Name
}
