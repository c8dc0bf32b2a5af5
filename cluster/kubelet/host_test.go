package kubelet

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cluster/kubelet/cri"
	"github.com/coracle-project/coracle/cluster/kubelet/cri/critest"
	"github.com/coracle-project/coracle/cluster/kubelet/pod"
)

// Commands and logs of a pod are not those of the one that had its name before, and is still
// ending.
func TestAPodIsFoundByTheNameOfAnotherThatEnds(t *testing.T) {
	view := func(uid types.UID, removed bool) pod.View {
		return pod.View{Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db-0", UID: uid}}, Removed: removed}
	}
	k := &Kubelet{}
	views := []pod.View{view("old", true), view("new", false), view("older", true)}
	for range 2 {
		for uid, want := range map[types.UID]types.UID{"": "new", "new": "new", "old": "old"} {
			if p, ok := k.find(views, "ns", "db-0", uid); !ok || p.UID != want {
				t.Errorf("asked for the UID %q it finds %v", uid, p)
			}
		}
		slices.Reverse(views)
	}
	if p, ok := k.find(views[:1], "ns", "db-0", ""); !ok || p.UID != "old" {
		t.Errorf("the only one is not found, but %v", p)
	}
	if p, ok := k.find(views, "ns", "db-1", ""); ok {
		t.Errorf("it finds %v by another name", p)
	}
}

// Regression: images were compared by the names that pods write, which the runtime completes
// ("docker.io/library/data:latest"), and were removed while a container had them mounted.
func TestMountedImagesAreKnownByTheirIDs(t *testing.T) {
	runtime := critest.New("sha256:data")
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}}
	p.Spec.Volumes = []v1.Volume{{VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "data"}}}}
	_, err := runtime.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: "i"},
		Labels: cri.ContainerLabels(p, &v1.Container{Name: "c"}),
		Mounts: []*runtimeapi.Mount{
			{ContainerPath: "/dir", HostPath: "/dir"},
			{ContainerPath: "/image", Image: &runtimeapi.ImageSpec{Image: "sha256:data", UserSpecifiedImage: "data"}},
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	observed, err := runtime.Client().Pod(t.Context(), p.UID)
	if err != nil {
		t.Fatal(err)
	}
	for phase, want := range map[v1.PodPhase][]string{v1.PodRunning: {"sha256:data", "data"}, v1.PodFailed: {"sha256:data"}} {
		p.Status.Phase = phase
		if got := imagesMounted([]pod.View{{Pod: p, Observed: observed}}); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", phase, got, want)
		}
	}
}
