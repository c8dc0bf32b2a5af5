package nodelifecycle

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/internal/shrink"
)

func counting() *controller {
	c := &controller{
		health: shrink.New[string, *health](), zones: map[string]*zone{},
		shares: shrink.New[string, share](), counts: map[string]count{},
	}
	c.frame = frame.New("test", 1, slog.New(slog.DiscardHandler), nil)
	return c
}

func inZone(name, zone string, status corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}},
	}
}

// look is what sync does to a node's share.
func (c *controller) look(node *corev1.Node) bool {
	c.health.Entries[node.Name] = &health{ready: readyStatus(node)}
	return c.recount(node)
}

// Whatever comes, changes, is looked at and goes, and in whatever order, zones are the sums of
// their nodes.
func TestZonesAreTheSumsOfTheirNodes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	c := counting()
	there := map[string]*corev1.Node{}
	for range 20_000 {
		name := fmt.Sprint("n", random.IntN(12))
		node := inZone(name, fmt.Sprint("z", random.IntN(3)),
			[]corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown}[random.IntN(3)])
		if random.IntN(5) == 0 {
			node.Labels[excludeLabel] = ""
		}
		switch old := there[name]; {
		case random.IntN(3) > 0:
			looked := c.shares.Entries[name].looked
			c.came(old, node)
			if random.IntN(2) == 0 {
				c.look(node)
			} else if looked {
				node = old // it counts until the next look
			}
			there[name] = node
		case old == nil:
			c.came(nil, node)
			there[name] = node
			if random.IntN(2) == 0 { // gone before it was looked at
				c.came(node, nil)
				delete(there, name)
			}
		default:
			c.came(old, nil)
			c.countLocked(name, nil) // as removed does
			delete(there, name)
		}
		want := map[string]count{}
		for name := range there {
			s, ok := c.shares.Entries[name]
			if !ok {
				t.Fatalf("%s is not counted", name)
			}
			node := there[name]
			if s.zone != zoneOf(node) || s.excluded != isExcluded(node) || s.ready != (readyStatus(node) == corev1.ConditionTrue) {
				t.Fatalf("%s counts as %+v, and is %+v", name, s, node)
			}
			if isExcluded(node) {
				continue
			}
			n := want[zoneOf(node)]
			if readyStatus(node) == corev1.ConditionTrue {
				n.ready++
			} else {
				n.away++
			}
			want[zoneOf(node)] = n
		}
		if len(c.shares.Entries) != len(there) || !maps.Equal(c.counts, want) {
			t.Fatalf("%d nodes are counted as %d, in zones as %v, want %v", len(there), len(c.shares.Entries), c.counts, want)
		}
	}
}

// The first node that is looked at after a start is not taken for all of its zone.
func TestNodesCountBeforeTheyAreLookedAt(t *testing.T) {
	c := counting()
	for i := range 10 {
		c.came(nil, inZone(fmt.Sprint("n", i), "z", corev1.ConditionTrue))
	}
	dead := inZone("dead", "z", corev1.ConditionUnknown)
	c.came(nil, dead)
	if !c.look(dead) {
		t.Error("the first look at a node counts for nothing")
	}
	c.judgeZones()
	if c.allDown() {
		t.Error("one node that is away, of eleven, was taken for all")
	}
	if c.look(dead) {
		t.Error("a heartbeat was taken for a change of the zone")
	}
}

// A node that comes costs the same among a thousand as alone.
func TestZonesAreJudgedWithoutListingNodes(t *testing.T) {
	c := counting()
	for i := range 1000 {
		c.look(inZone(fmt.Sprint("n", i), fmt.Sprint("z", i%3), corev1.ConditionTrue))
	}
	c.judgeZones()
	if allocations := testing.AllocsPerRun(1000, c.judgeZones); allocations >= 10 { // others of the process may make some
		t.Errorf("%v allocations, want none", allocations)
	}
}
