package pod

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
)

// Network decides what a pod's addresses may send and receive. It is told of each sandbox before a
// container of it starts, and when nothing is left of it. Pods on the node's network have no
// addresses of their own.
type Network interface {
	// Admit returns when all is in force for the addresses of a pod's sandbox. It is called before
	// a container of the sandbox starts, and once for the one that the pod had when the kubelet
	// started. A pod whose Admit fails does not start; it is tried again.
	Admit(ctx context.Context, pod *v1.Pod, addresses []netip.Addr) error
	// Gone tells that nothing of a pod runs any more that had addresses. Admit follows if the pod
	// gets another sandbox.
	Gone(uid types.UID)
}

// admitTimeout is when an attempt is given up. It is tried again as any step is.
const admitTimeout = 30 * time.Second

// endingAdmitTimeout is the same for a pod that is ending: its containers run already, and are not
// to wait for their signals. Some networks isolate only pods that they know of.
const endingAdmitTimeout = time.Second

// connection is how the networks know of one pod. It belongs to the pod's goroutine.
type connection struct {
	networks []Network
	uid      types.UID
	sandbox  string // that the networks were last given
	err      error  // of the network that refused it
}

// connect has the networks admit the pod's newest sandbox, and forget one that is gone. Its error
// stays in c.err.
func (c *connection) connect(ctx context.Context, pod *v1.Pod, observed *kubecontainer.PodStatus, timeout time.Duration) error {
	if pod.Spec.HostNetwork {
		return nil
	}
	sandbox := ""
	if all := observed.SandboxStatuses; len(all) > 0 && all[0].State == runtimeapi.PodSandboxState_SANDBOX_READY {
		sandbox = all[0].Id
	}
	if sandbox != c.sandbox {
		c.disconnect()
	}
	if sandbox == c.sandbox && c.err == nil || len(c.networks) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c.sandbox = sandbox
	c.err = c.admit(ctx, pod, observed.IPs)
	return c.err
}

func (c *connection) admit(ctx context.Context, pod *v1.Pod, ips []string) error {
	if len(ips) == 0 {
		return fmt.Errorf("the runtime tells no address of sandbox %s: no network policy can be enforced for it", c.sandbox)
	}
	var addresses []netip.Addr
	for _, ip := range ips {
		a, err := netip.ParseAddr(ip)
		if err != nil {
			return fmt.Errorf("address %q of sandbox %s: %w", ip, c.sandbox, err)
		}
		addresses = append(addresses, a.Unmap())
	}
	for _, n := range c.networks {
		if err := n.Admit(ctx, pod, addresses); err != nil {
			return err
		}
	}
	return nil
}

// disconnect has the networks forget the pod's sandbox.
func (c *connection) disconnect() {
	if c.sandbox == "" {
		return
	}
	c.sandbox, c.err = "", nil
	for _, n := range slices.Backward(c.networks) {
		n.Gone(c.uid)
	}
}
