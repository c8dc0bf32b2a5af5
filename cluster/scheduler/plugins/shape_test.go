package plugins_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
	"github.com/coracle-project/coracle/cluster/scheduler/testkit"
)

// counter is a plugin that has nothing against any node, and counts how often it is asked.
type counter struct{ filtered, scored atomic.Int64 }

func (*counter) Name() string { return "counter" }

func (c *counter) Filter(*framework.CycleState, *framework.PodInfo, *framework.NodeInfo) *framework.Status {
	c.filtered.Add(1)
	return nil
}

func (c *counter) Score(*framework.CycleState, *framework.PodInfo, *framework.NodeInfo) (int64, *framework.Status) {
	c.scored.Add(1)
	return 1, nil
}

func (*counter) Shape(b []byte, _ *framework.CycleState, _ *framework.PodInfo) ([]byte, bool) {
	return b, true
}

// TestRepeatedPods compares what is recalled for pods of shapes that come again and again with what
// plugins say, while nodes and the pods on them change.
func TestRepeatedPods(t *testing.T) {
	// As in TestLikeUpstream.
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.DRAExtendedResource, false)
	var recalled, recalledScores, compared int64
	for seed := range uint64(100) {
		w := newWorld(t, seed)
		ctx, cancel := context.WithCancel(t.Context())
		for _, pod := range w.pods {
			if seed%2 == 0 { // or what pods say of each other counts for all that come
				pod.Spec.Affinity = nil
			}
		}
		asked := &counter{}
		o := w.ours(ctx, t, framework.Enabled{Plugin: asked, Weight: 1})
		w.start(ctx)
		o.open(ctx)
		c := &changes{world: w, ours: o}
		shapes := c.alike()
		for _, pod := range shapes {
			if seed%4 == 0 { // spread by default, so that not all scores repeat
				pod.Labels = map[string]string{"app": "web"}
				pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs", Controller: ptr.To(true)}}
			}
		}
		for i := range 90 {
			c.change()
			pod := shapes[w.IntN(min(len(shapes), 2+i/12))].DeepCopy() // sometimes more shapes than are kept
			pod.Name, pod.UID = fmt.Sprint("again-", i), types.UID(fmt.Sprint("again-", i))
			o.cache.Update(o.snapshot)
			state, info := framework.NewCycleState(o.snapshot, nil), framework.NewPodInfo(pod)
			if _, _, status := o.profile.PreFilter(ctx, state, info); !status.OK() {
				continue
			}
			var feasible []*framework.NodeInfo
			var places []int
			asked.filtered.Store(0)
			for place, n := range o.snapshot.Nodes {
				before := asked.filtered.Load()
				got := o.profile.FilterAt(state, info, place)
				if asked.filtered.Load() == before {
					recalled++
				}
				want := o.profile.Filter(state, info, n)
				if !reflect.DeepEqual(got, want) {
					t.Fatalf("seed %d, step %d, %s: recalled %+v, the plugins say %+v", seed, i, n.Node().Name, got, want)
				}
				if want.OK() {
					feasible, places = append(feasible, n), append(places, place)
				}
				compared++
			}
			got, status := o.profile.Score(ctx, state, info, feasible, places, 2)
			got = slices.Clone(got)
			recalledScores += int64(len(feasible)) - asked.scored.Swap(0)
			want, wantStatus := o.profile.Score(ctx, state, info, feasible, nil, 1)
			asked.scored.Store(0)
			if !status.OK() || !wantStatus.OK() || !slices.Equal(got, want) {
				t.Fatalf("seed %d, step %d: recalled scores %v, %v, of the plugins %v, %v", seed, i, got, status, want, wantStatus)
			}
			if len(feasible) > 0 && w.IntN(2) == 0 {
				pod.Spec.NodeName = feasible[w.IntN(len(feasible))].Node().Name
				o.cache.SetPod(pod)
				c.placed = append(c.placed, pod)
			}
		}
		cancel()
	}
	t.Logf("%d nodes were filtered: %d were recalled, and %d scores", compared, recalled, recalledScores)
	if recalled < compared/10 || recalledScores < 500 {
		t.Error("too little was recalled")
	}
}

// changes are made to a cluster at random.
type changes struct {
	*world
	*ours
	placed []*v1.Pod
	more   int
}

// alike returns pods that any node may suit, without claims and without regard for other pods. Each
// differs from the first in one way.
func (c *changes) alike() []*v1.Pod {
	first := c.Pod()
	spec := &first.Spec
	spec.Affinity, spec.TopologySpreadConstraints, spec.NodeSelector, spec.Volumes, first.Labels = nil, nil, nil, nil, nil
	spec.Containers, spec.InitContainers, spec.Tolerations = spec.Containers[:1], nil, nil
	only := &spec.Containers[0]
	only.Ports, only.RestartPolicyRules, only.Image = nil, nil, "image-0"
	delete(only.Resources.Requests, testkit.GPU)
	pods := []*v1.Pod{first}
	for _, change := range []func(*v1.PodSpec){
		func(s *v1.PodSpec) {
			s.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule}}
		},
		func(s *v1.PodSpec) {
			s.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectPreferNoSchedule}}
		},
		func(s *v1.PodSpec) { s.Containers[0].Image = "image-3" },
		func(s *v1.PodSpec) { s.Containers[0].Resources.Requests[v1.ResourceCPU] = resource.MustParse("1100m") },
		func(s *v1.PodSpec) {
			s.Containers[0].Resources.Requests[v1.ResourceMemory] = resource.MustParse("1500Mi")
		},
		func(s *v1.PodSpec) {
			s.Containers[0].Resources.Requests[v1.ResourceEphemeralStorage] = resource.MustParse("2Gi")
		},
		func(s *v1.PodSpec) { s.Containers[0].Resources.Requests[testkit.GPU] = resource.MustParse("1") },
		func(s *v1.PodSpec) {
			s.Containers = append(s.Containers, v1.Container{Name: "other", Image: "image-0"})
		},
		func(s *v1.PodSpec) { s.InitContainers = []v1.Container{{Name: "init", Image: "image-9"}} },
	} {
		pod := first.DeepCopy()
		change(&pod.Spec)
		pods = append(pods, pod)
	}
	c.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	return pods
}

// change changes a node, or which there are, or the pods on one, or nothing.
func (c *changes) change() {
	i := c.IntN(len(c.nodes))
	other := c.Node()
	node := c.nodes[i].DeepCopy()
	switch c.IntN(9) {
	case 0:
		node.Spec.Unschedulable = !node.Spec.Unschedulable
	case 1:
		node.Spec.Taints = other.Spec.Taints
	case 2:
		node.Status.Images = other.Status.Images
	case 3:
		node.Status.Allocatable = other.Status.Allocatable
	case 4:
		if len(c.placed) > 0 {
			c.cache.RemovePod(c.placed[0].UID)
			c.placed = c.placed[1:]
		}
		return
	case 5:
		if len(c.nodes) > 2 {
			c.cache.RemoveNode(node.Name)
			c.nodes = slices.Delete(c.nodes, i, i+1)
		}
		return
	case 6: // another in its place
		c.cache.RemoveNode(node.Name)
		c.more++
		node = other
		node.Name = fmt.Sprint("more-", c.more)
	case 7: // as it is, said again
	default:
		return
	}
	c.nodes[i] = node
	c.cache.SetNode(node)
}
