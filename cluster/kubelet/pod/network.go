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

// connect has the networks admit the pod's newest sandbox, and forget one that is gone. It leaves
// its error in w.unconnected.
func (w *worker) connect(ctx context.Context, pod *v1.Pod, timeout time.Duration) error {
	if pod.Spec.HostNetwork {
		return nil
	}
	sandbox := ""
	if all := w.observed.SandboxStatuses; len(all) > 0 && all[0].State == runtimeapi.PodSandboxState_SANDBOX_READY {
		sandbox = all[0].Id
	}
	if sandbox != w.connected {
		w.disconnect()
	}
	if sandbox == w.connected && w.unconnected == nil || len(w.r.Networks) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	w.connected = sandbox
	w.unconnected = w.admit(ctx, pod)
	return w.unconnected
}

func (w *worker) admit(ctx context.Context, pod *v1.Pod) error {
	if len(w.observed.IPs) == 0 {
		return fmt.Errorf("the runtime tells no address of sandbox %s: no network policy can be enforced for it", w.connected)
	}
	var addresses []netip.Addr
	for _, ip := range w.observed.IPs {
		a, err := netip.ParseAddr(ip)
		if err != nil {
			return fmt.Errorf("address %q of sandbox %s: %w", ip, w.connected, err)
		}
		addresses = append(addresses, a.Unmap())
	}
	for _, n := range w.r.Networks {
		if err := n.Admit(ctx, pod, addresses); err != nil {
			return err
		}
	}
	return nil
}

// disconnect has the networks forget the pod's sandbox.
func (w *worker) disconnect() {
	if w.connected == "" {
		return
	}
	w.connected, w.unconnected = "", nil
	for _, n := range slices.Backward(w.r.Networks) {
		n.Gone(w.uid)
	}
}
