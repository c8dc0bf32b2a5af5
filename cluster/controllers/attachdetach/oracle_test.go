package attachdetach

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"
	oracle "k8s.io/kubernetes/pkg/controller/volume/attachdetach"
	csiplugin "k8s.io/kubernetes/pkg/volume/csi"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
)

// theirs is upstream's controller.
var theirs = apitest.Controllers{func(set *client.Set) interface{ Run(context.Context) } {
	kube = set.Kube.(*fake.Clientset)
	core, storage := set.Informers.Core().V1(), set.Informers.Storage().V1()
	pods, nodes, claims, volumes := core.Pods(), core.Nodes(), core.PersistentVolumeClaims(), core.PersistentVolumes()
	csiNodes, drivers, attachments := storage.CSINodes(), storage.CSIDrivers(), storage.VolumeAttachments()
	csiNodes.Informer()
	c := must(oracle.NewAttachDetachController(context.Background(), set.Kube, pods, nodes, claims, volumes, csiNodes, drivers, attachments,
		csiplugin.ProbeVolumePlugins(), nil, false, time.Minute, false, oracle.DefaultTimerConfig))
	return apitest.Upstream(c.Run)
}}

// Ours and upstream's controller make the same attachments, reports and Events.
func TestSameAsUpstream(t *testing.T) {
	play := func(controllers apitest.Controllers) (states, events []string) {
		controllers.Run(t, func(t *testing.T, s *apitest.Server) {
			w := world{s, t}
			w.moves(func(name string) {
				w.Pass(30 * time.Second)
				states = append(states, name+": "+w.state())
			})
			events = w.events()
			slices.Sort(events)
			events = slices.Compact(events)
		})
		return states, events
	}
	want, wantEvents := play(theirs)
	got, gotEvents := play(own)
	for _, part := range []string{"Multi-Attach error", "AttachVolume.Attach succeeded"} {
		if !slices.ContainsFunc(wantEvents, func(event string) bool { return strings.Contains(event, part) }) {
			t.Errorf("upstream's events %q have no %q", wantEvents, part)
		}
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%s, upstream %s", got[i], want[i])
		}
	}
	if !slices.Equal(gotEvents, wantEvents) {
		t.Errorf("events\n%q, upstream\n%q", gotEvents, wantEvents)
	}
}
