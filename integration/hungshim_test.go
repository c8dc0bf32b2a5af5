package integration

import (
	"strings"
	"syscall"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
)

// runtimeReady is the condition as the kubelet sees it.
func (n *node) runtimeReady() *cri.RuntimeCondition {
	n.t.Helper()
	resp, err := n.Status(n.ctx(), &cri.StatusRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	for _, c := range resp.Status.Conditions {
		if c.Type == cri.RuntimeReady {
			return c
		}
	}
	n.t.Fatalf("no condition %s in %v", cri.RuntimeReady, resp)
	return nil
}

// A coracled that is restarted while the shim hangs serves lists, and reports that the runtime is
// not ready and why. When the shim continues, everything works again.
func TestRestartWhileShimHangs(t *testing.T) {
	n := newNode(t, testkit.Options{})
	n.pull("busybox")
	p := n.runPod(nil)
	c := p.run(shell("main", "sleep 1000"))
	if ready := n.runtimeReady(); !ready.Status {
		t.Errorf("before: %v", ready)
	}
	if err := n.Terminate(); err != nil {
		t.Fatal(err)
	}
	shims := n.Shims()
	if len(shims) != 1 {
		t.Fatalf("shims: %v", shims)
	}
	halt(t, shims[0])
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	pods, err := n.ListPodSandbox(n.ctx(), &cri.ListPodSandboxRequest{})
	if err != nil || len(pods.Items) != 1 {
		t.Errorf("pods: %v, %v", pods, err)
	}
	containers, err := n.ListContainers(n.ctx(), &cri.ListContainersRequest{})
	if err != nil || len(containers.Containers) != 1 || containers.Containers[0].State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("containers: %v, %v", containers, err)
	}
	if ready := n.runtimeReady(); ready.Status {
		t.Errorf("condition %v", ready)
	}
	eventually(t, "the shim is why the runtime is not ready", func() bool {
		ready := n.runtimeReady()
		return !ready.Status && ready.Reason == "ShimUnavailable" && strings.HasPrefix(ready.Message, "shim node: ")
	})
	if err := syscall.Kill(shims[0], syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the runtime is ready", func() bool { return n.runtimeReady().Status })
	if out, code := c.exec("echo", "hi"); out != "hi\n" || code != 0 {
		t.Errorf("exec: %q, %d", out, code)
	}
	if now := n.Shims(); len(now) != 1 || now[0] != shims[0] {
		t.Errorf("shim %v was replaced by %v", shims, now)
	}
	c.stopWithin(0)
	p.stop()
	p.remove()
}
