package kubelet

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/kubelet/status"
)

// asking is a pod whose class and priority its name begins with: "b" of BestEffort, "u" of
// Burstable, "g" of Guaranteed; a critical one is "S" (static) or "C" (by its priority).
func asking(name, cpu, memory string) *v1.Pod {
	p := &v1.Pod{}
	p.Name, p.Namespace, p.UID = name, "ns", types.UID(name)
	p.Spec.Priority = ptr.To[int32](0)
	requests := v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
	c := v1.Container{Name: "c"}
	switch name[0] {
	case 'u':
		c.Resources.Requests = requests
	case 'g':
		c.Resources.Requests, c.Resources.Limits = requests, requests
	case 'S':
		p.Annotations = map[string]string{kubetypes.ConfigSourceAnnotationKey: kubetypes.FileSource}
		c.Resources.Requests = requests
	case 'C':
		p.Spec.Priority = ptr.To[int32](2_000_000_000)
		c.Resources.Requests = requests
	}
	p.Spec.Containers = []v1.Container{c}
	return p
}

// Regression: a static pod, or another critical one, was refused on a node that others had filled,
// and nothing tried it again.
func TestACriticalPodGetsRoom(t *testing.T) {
	four := v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("4Gi"), v1.ResourcePods: resource.MustParse("4"),
	}
	for name, c := range map[string]struct {
		pods   []*v1.Pod
		comes  *v1.Pod
		edit   func(*v1.Pod)
		gone   string // the pods that make room
		reason string
	}{
		"there is room": {pods: []*v1.Pod{asking("u1", "2", "1Gi")}, comes: asking("S", "2", "1Gi")},
		"a static pod":  {pods: []*v1.Pod{asking("u1", "4", "1Gi")}, comes: asking("S", "1", "1Gi"), gone: "u1"},
		"a critical pod by its priority": {
			pods: []*v1.Pod{asking("u1", "4", "1Gi")}, comes: asking("C", "1", "1Gi"), gone: "u1",
		},
		"an ordinary pod": {pods: []*v1.Pod{asking("u1", "4", "1Gi")}, comes: asking("u2", "1", "1Gi"), reason: "OutOfcpu"},
		"critical pods stay": {
			pods: []*v1.Pod{asking("S1", "4", "1Gi"), asking("u1", "0", "1Gi")}, comes: asking("S", "1", "1Gi"), reason: "OutOfcpu",
		},
		"more than there is": {pods: []*v1.Pod{asking("u1", "1", "1Gi")}, comes: asking("S", "5", "1Gi"), reason: "OutOfcpu"},
		"refused for another reason, too": {
			pods: []*v1.Pod{asking("u1", "4", "1Gi")}, comes: asking("S", "1", "1Gi"),
			edit: func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }, reason: "NodeAffinity",
		},
		"Burstable before Guaranteed": {
			pods: []*v1.Pod{asking("g1", "2", "1Gi"), asking("u1", "2", "1Gi")}, comes: asking("S", "1", "1Gi"), gone: "u1",
		},
		"Guaranteed if the others are not enough": {
			pods: []*v1.Pod{asking("g1", "2", "1Gi"), asking("u1", "1", "1Gi"), asking("g2", "1", "1Gi")}, comes: asking("S", "2", "1Gi"),
			gone: "u1 g2",
		},
		"one pod rather than two": {
			pods:  []*v1.Pod{asking("u1", "1", "1Gi"), asking("u2", "2", "1Gi"), asking("u3", "1", "1Gi")},
			comes: asking("S", "2", "1Gi"), gone: "u2",
		},
		"the smaller of those that are enough": {
			pods: []*v1.Pod{asking("u1", "2500m", "2Gi"), asking("u2", "1500m", "1Gi")}, comes: asking("S", "1", "1Gi"), gone: "u2",
		},
		"of what is short": {
			pods: []*v1.Pod{asking("u1", "3", "1Gi"), asking("u2", "1", "3Gi")}, comes: asking("S", "0", "1Gi"), gone: "u1",
		},
		"the number of pods": {
			pods:  []*v1.Pod{asking("b1", "0", "0"), asking("u1", "1", "1Gi"), asking("u2", "1", "1Gi"), asking("g1", "1", "1Gi")},
			comes: asking("S", "1", "1Gi"), gone: "b1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := onNode(t, four)
			events := record.NewFakeRecorder(10)
			k.recorder, k.opts.Log = events, slog.New(slog.DiscardHandler)
			a := newAdmission(k)
			pods := map[types.UID]*v1.Pod{}
			a.given = func(uid types.UID) (*v1.Pod, bool) { return pods[uid], pods[uid] != nil }
			var gone []string
			a.evict = func(uid types.UID, e status.Eviction) bool {
				gone = append(gone, string(uid))
				if e.Reason != "Preempting" || !e.Disruption {
					t.Errorf("%s ends with %+v", uid, e)
				}
				return true
			}
			for _, p := range c.pods {
				pods[p.UID], a.pods[p.UID] = p, p
			}
			if c.edit != nil {
				c.edit(c.comes)
			}
			reason, message, ok := a.admitLocked(c.comes)
			if reason != c.reason || ok != (c.reason == "") {
				t.Errorf("%t, %s: %s, want %q", ok, reason, message, c.reason)
			}
			want := strings.Fields(c.gone)
			slices.Sort(gone)
			slices.Sort(want)
			if !slices.Equal(gone, want) || len(events.Events) != len(want) {
				t.Errorf("%q make room with %d events, want %q", gone, len(events.Events), want)
			}
			// Until they have ended they do not count, and no one has them end again.
			if len(gone) > 0 {
				pods[c.comes.UID], a.pods[c.comes.UID] = c.comes, c.comes
				_, message, ok := a.admitLocked(asking("C2", "0", "0"))
				if again := slices.ContainsFunc(gone[len(want):], func(uid string) bool { return slices.Contains(want, uid) }); !ok || again {
					t.Errorf("the next critical pod: %s, %q made room", message, gone)
				}
			}
		})
	}
}
