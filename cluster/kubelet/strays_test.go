package kubelet

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cluster/kubelet/cri"
)

// Regression: the runtime finished the sandbox of a pod whose object was deleted meanwhile, after a
// new process of the kubelet had looked for such pods. It stayed for ever.
func TestASandboxThatIsFinishedLateIsRemoved(t *testing.T) {
	onStaticBench(t, func(b *staticBench) {
		ctx, cancel := context.WithCancel(b.t.Context())
		defer cancel()
		b.strays = newStrays(b.Kubelet)
		go b.strays.run(ctx)
		for _, name := range []string{"deleted", "other"} {
			p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
			p.UID = "u-deleted"
			if name == "other" {
				p.UID = "u-other"
			}
			_, err := b.runtime.RunPodSandbox(b.t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
				Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "ns", Uid: string(p.UID)}, Labels: cri.SandboxLabels(p),
			}})
			if err != nil {
				t.Fatal(err)
			}
		}
		b.wake("u-deleted")
		synctest.Wait()
		if got := b.runtime.Calls(); len(got) > 0 {
			t.Errorf("calls %v while the API may still tell of the pod", got)
		}
		b.backlog.open(b.apply)
		b.runtime.Fail("ListPodSandbox", errors.New("busy"))
		b.wake("u-deleted")
		synctest.Wait()
		b.runtime.Fail("ListPodSandbox", nil)
		time.Sleep(strayAgain)
		synctest.Wait()
		if got, want := b.runtime.Calls(), []string{"StopPodSandbox", "RemovePodSandbox"}; !slices.Equal(got, want) {
			t.Errorf("calls %v, want %v", got, want)
		}
		left, err := b.cri.LabelledPods(b.t.Context())
		if err != nil || len(left) != 1 || left[0].UID != "u-other" {
			t.Errorf("left %v, %v", left, err)
		}
	})
}
