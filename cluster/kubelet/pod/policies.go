package pod

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Policies has network policies in force before a pod can send or receive anything.
type Policies interface {
	// Admit returns when the policies of a pod are in force for its addresses. It is called for
	// each sandbox of the pod, before a container of it starts, and once for the one that the pod
	// had when the kubelet started.
	Admit(ctx context.Context, pod *v1.Pod, addresses []netip.Addr) error
	// Gone tells that nothing is left of a pod.
	Gone(uid types.UID)
}

// admitTimeout is when an attempt is given up. It is tried again as any step is.
const admitTimeout = 30 * time.Second

// admit has the policies of the pod in force for its newest sandbox.
func (w *worker) admit(ctx context.Context, pod *v1.Pod) error {
	if w.r.Policies == nil || pod.Spec.HostNetwork || len(w.observed.SandboxStatuses) == 0 {
		return nil
	}
	sandbox := w.observed.SandboxStatuses[0]
	if sandbox.Id == w.admitted || sandbox.State != runtimeapi.PodSandboxState_SANDBOX_READY {
		return nil
	}
	var addresses []netip.Addr
	for _, ip := range w.observed.IPs {
		a, err := netip.ParseAddr(ip)
		if err != nil {
			return fmt.Errorf("address %q of sandbox %s: %w", ip, sandbox.Id, err)
		}
		addresses = append(addresses, a.Unmap())
	}
	ctx, cancel := context.WithTimeout(ctx, admitTimeout)
	defer cancel()
	if err := w.r.Policies.Admit(ctx, pod, addresses); err != nil {
		return err
	}
	w.admitted = sandbox.Id
	return nil
}
