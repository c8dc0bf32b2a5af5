package kubelet

import (
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cluster/kubelet/cri/critest"
)

// kept keeps what events are about.
type kept struct {
	record.FakeRecorder
	about []string
}

func (k *kept) Event(object runtime.Object, kind, reason, _ string) {
	r, ok := object.(*v1.ObjectReference)
	if !ok {
		k.about = append(k.about, fmt.Sprintf("%T", object))
		return
	}
	k.about = append(k.about, fmt.Sprint(kind, " ", reason, " ", r.Kind, " ", r.Namespace, "/", r.Name, "/", r.UID))
}

// Each pod that is still on the old bridge gets an event, and no other pod does.
func TestReportPodsOnOldBridge(t *testing.T) {
	for name, c := range map[string]struct {
		info string
		want []string
	}{
		"two":             {`["sandbox-1","sandbox-3"]`, []string{"Warning OnOldBridge Pod ns/a/uid-a", "Warning OnOldBridge Pod ns/c/uid-c"}},
		"none":            {`[]`, nil},
		"another runtime": {"", nil},
		"no list":         {`{`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := critest.New()
			for _, pod := range []string{"a", "b", "c"} {
				if _, err := f.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
					Metadata: &runtimeapi.PodSandboxMetadata{Name: pod, Namespace: "ns", Uid: "uid-" + pod},
				}}); err != nil {
					t.Fatal(err)
				}
			}
			if c.info != "" {
				f.SetInfo(map[string]string{"bridged": c.info})
			}
			k := &kept{}
			reportPodsOnOldBridge(t.Context(), f.Client(), k, discard)
			if slices.Sort(k.about); !slices.Equal(k.about, c.want) {
				t.Errorf("events %q, want %q", k.about, c.want)
			}
		})
	}
}
