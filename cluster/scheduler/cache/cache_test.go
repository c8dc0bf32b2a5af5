package cache_test

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-project/coracle/cluster/scheduler/cache"
	"github.com/coracle-project/coracle/cluster/scheduler/framework"
	"github.com/coracle-project/coracle/cluster/scheduler/testkit"
)

func node(name, zone string) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelTopologyZone: zone}}}
}

func pod(name, node, cpu string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)},
		Spec: v1.PodSpec{NodeName: node, Containers: []v1.Container{{Resources: v1.ResourceRequirements{
			Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)},
		}}}},
	}
}

// view brings s up to date and returns it as node: requested milli-CPU, in the order of nodes.
func view(c *cache.Cache, s *framework.Snapshot) []string {
	c.Update(s)
	var list []string
	for _, n := range s.Nodes {
		list = append(list, fmt.Sprintf("%s:%d", n.Node().Name, n.Requested.MilliCPU))
	}
	return list
}

func expect(t *testing.T, c *cache.Cache, s *framework.Snapshot, want ...string) {
	t.Helper()
	if got := view(c, s); !slices.Equal(got, want) {
		t.Errorf("snapshot is %v, not %v", got, want)
	}
}

func TestLifeOfAPod(t *testing.T) {
	c, s := cache.New(slog.New(slog.DiscardHandler)), &framework.Snapshot{}
	c.SetNode(node("a", ""))
	c.SetNode(node("b", ""))
	assumed := framework.NewPodInfo(pod("p", "", "1")).OnNode("a")
	if err := c.Assume(assumed); err != nil {
		t.Fatal(err)
	}
	if c.Assume(assumed) == nil {
		t.Error("a pod can be assumed twice")
	}
	expect(t, c, s, "a:1000", "b:0")
	c.Forget("p")
	c.Forget("p")
	expect(t, c, s, "a:0", "b:0")

	if err := c.Assume(assumed); err != nil {
		t.Fatal(err)
	}
	c.SetPod(pod("p", "b", "1")) // someone else was first
	if c.Assumed("p") != nil {
		t.Error("the pod is still assumed")
	}
	expect(t, c, s, "a:0", "b:1000")
	c.Forget("p") // it is too late for that
	c.SetPod(pod("p", "b", "2"))
	expect(t, c, s, "a:0", "b:2000")
	if !c.RemovePod("p") || c.RemovePod("p") {
		t.Error("the pod should be known once")
	}
	expect(t, c, s, "a:0", "b:0")
}

func TestSnapshotsDoNotChange(t *testing.T) {
	c, s := cache.New(slog.New(slog.DiscardHandler)), &framework.Snapshot{}
	c.SetNode(node("a", ""))
	c.SetPod(pod("p", "a", "1"))
	c.Update(s)
	before := s.Nodes[0]
	c.SetPod(pod("q", "a", "1"))
	c.RemovePod("p")
	c.SetNode(node("a", "elsewhere"))
	if len(before.Pods) != 1 || before.Requested.MilliCPU != 1000 || before.Node().Labels[v1.LabelTopologyZone] != "" {
		t.Error("a node in a snapshot was changed")
	}
}

func TestStatusUpdatesChangeNoNode(t *testing.T) {
	c, s := cache.New(slog.New(slog.DiscardHandler)), &framework.Snapshot{}
	c.SetNode(node("a", ""))
	if err := c.Assume(framework.NewPodInfo(pod("p", "", "1")).OnNode("a")); err != nil {
		t.Fatal(err)
	}
	c.Update(s)
	before := s.Nodes[0]
	running := pod("p", "a", "1")
	running.Status.Phase = v1.PodRunning
	c.SetPod(running)
	c.Update(s)
	if s.Nodes[0] != before {
		t.Error("the node was copied")
	}
	if before.Pods[0].Pod() != running {
		t.Error("the pod is an old one")
	}
	if c.Assumed("p") != nil {
		t.Error("the pod is still assumed")
	}
}

func TestNodesComeAndGo(t *testing.T) {
	c, s := cache.New(slog.New(slog.DiscardHandler)), &framework.Snapshot{}
	c.SetPod(pod("early", "a", "1")) // the pods' informer is ahead
	expect(t, c, s)
	for _, n := range []*v1.Node{node("a", "x"), node("b", "x"), node("c", "y")} {
		c.SetNode(n)
	}
	expect(t, c, s, "a:1000", "c:0", "b:0") // one of each zone in turn
	c.RemoveNode("a")
	expect(t, c, s, "b:0", "c:0")
	if s.Get("a") != nil || s.Get("b") == nil {
		t.Error("names are not up to date")
	}
	c.SetNode(node("a", "x")) // back before its pod was seen to be gone
	expect(t, c, s, "b:0", "c:0", "a:1000")
	c.RemoveNode("a")
	c.RemovePod("early")
	c.SetNode(node("d", "y"))
	expect(t, c, s, "b:0", "c:0", "d:0")
	slots := make(map[int]bool)
	for _, n := range s.Nodes {
		if slots[n.Slot] || n.Slot >= s.Slots {
			t.Errorf("slot %d is not right", n.Slot)
		}
		slots[n.Slot] = true
	}
}

func TestImagesCountTheirNodes(t *testing.T) {
	c, s := cache.New(slog.New(slog.DiscardHandler)), &framework.Snapshot{}
	with := func(name string, images ...string) *v1.Node {
		n := node(name, "")
		for _, i := range images {
			n.Status.Images = append(n.Status.Images, v1.ContainerImage{Names: []string{i}, SizeBytes: 5})
		}
		return n
	}
	c.SetNode(with("a", "i", "i", "j"))
	c.SetNode(with("b", "i"))
	c.Update(s)
	if got := s.Get("a").Images["i"].Nodes.Load(); got != 2 {
		t.Errorf("image i is on %d nodes, not 2", got)
	}
	c.SetNode(with("b", "j"))
	c.Update(s)
	if got := s.Get("a").Images["i"].Nodes.Load(); got != 1 {
		t.Errorf("image i is on %d nodes, not 1", got)
	}
	c.RemoveNode("a")
	c.Update(s)
	if got := s.Get("b").Images["j"].Nodes.Load(); got != 1 {
		t.Errorf("image j is on %d nodes, not 1", got)
	}
}

// TestSnapshotIsWhatACountFromScratchGives applies random changes and compares each snapshot with
// one of a new cache.
func TestSnapshotIsWhatACountFromScratchGives(t *testing.T) {
	for seed := range uint64(10) {
		r := testkit.New(seed)
		c, s := cache.New(slog.New(slog.DiscardHandler)), &framework.Snapshot{}
		nodes, pods := make(map[string]*v1.Node), make(map[types.UID]*v1.Pod)
		var names []string
		for range 200 {
			switch r.IntN(6) {
			case 0:
				n := r.Node()
				nodes[n.Name], names = n, append(names, n.Name)
				c.SetNode(n)
			case 1:
				if len(names) > 0 {
					name := names[r.IntN(len(names))]
					delete(nodes, name)
					c.RemoveNode(name)
				}
			case 2:
				for uid := range pods {
					delete(pods, uid)
					c.RemovePod(uid)
					break
				}
			default:
				if len(names) > 0 {
					p := r.PodOn(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: names[r.IntN(len(names))]}})
					pods[p.UID] = p
					c.SetPod(p)
				}
			}
			if r.IntN(3) == 0 {
				c.Update(s)
				same(t, s, nodes, pods)
			}
		}
	}
}

func same(t *testing.T, s *framework.Snapshot, nodes map[string]*v1.Node, pods map[types.UID]*v1.Pod) {
	t.Helper()
	fresh, want := cache.New(slog.New(slog.DiscardHandler)), &framework.Snapshot{}
	for _, n := range nodes {
		fresh.SetNode(n)
	}
	for _, p := range pods {
		fresh.SetPod(p)
	}
	fresh.Update(want)
	if len(s.Nodes) != len(want.Nodes) || len(s.WithAffinity) != len(want.WithAffinity) ||
		len(s.WithRequiredAntiAffinity) != len(want.WithRequiredAntiAffinity) {
		t.Fatalf("%d nodes, %d with affinity, %d with anti-affinity; not %d, %d, %d", len(s.Nodes), len(s.WithAffinity),
			len(s.WithRequiredAntiAffinity),
			len(want.Nodes), len(want.WithAffinity), len(want.WithRequiredAntiAffinity))
	}
	for _, n := range want.Nodes {
		got := s.Get(n.Node().Name)
		if len(got.Pods) != len(n.Pods) || len(got.PodsWithAffinity) != len(n.PodsWithAffinity) || got.NonZeroMilliCPU != n.NonZeroMilliCPU ||
			got.Requested.MilliCPU != n.Requested.MilliCPU || got.Requested.Memory != n.Requested.Memory ||
			got.Requested.Scalar[testkit.GPU] != n.Requested.Scalar[testkit.GPU] || len(got.HostPorts) != len(n.HostPorts) {
			t.Fatalf("node %s is %+v, not %+v", n.Node().Name, got, n)
		}
	}
}
