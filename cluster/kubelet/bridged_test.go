package kubelet

import (
	"strings"
	"testing"

	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cluster/kubelet/cri/critest"
)

// Each pod that is still on the old bridge gets an event, and no other pod does.
func TestTellOfBridged(t *testing.T) {
	for name, c := range map[string]struct {
		info string
		want int
	}{
		"one": {`["sandbox-1"]`, 1}, "none": {`[]`, 0}, "another runtime": {"", 0}, "no list": {`{`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := critest.New()
			for _, pod := range []string{"old", "new"} {
				if _, err := f.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
					Metadata: &runtimeapi.PodSandboxMetadata{Name: pod, Namespace: "ns", Uid: pod},
				}}); err != nil {
					t.Fatal(err)
				}
			}
			if c.info != "" {
				f.SetInfo(map[string]string{"bridged": c.info})
			}
			recorder := record.NewFakeRecorder(10)
			recorder.IncludeObject = true
			tellOfBridged(t.Context(), f.Client(), recorder)
			close(recorder.Events)
			var got []string
			for e := range recorder.Events {
				got = append(got, e)
			}
			if len(got) != c.want {
				t.Fatalf("events %q", got)
			}
			if c.want > 0 && (!strings.Contains(got[0], "OnOldBridge") || !strings.Contains(got[0], "kind=Pod")) {
				t.Errorf("event %q", got[0])
			}
		})
	}
}
