package pod

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// policies notes what the runtime was told before it is asked.
type policies struct {
	*bench
	calls     [][]string
	addresses []string
	gone      []types.UID
	failure   atomic.Pointer[error]
}

func (p *policies) Admit(_ context.Context, pod *v1.Pod, addresses []netip.Addr) error {
	p.calls = append(p.calls, p.runtime.Calls())
	for _, a := range addresses {
		p.addresses = append(p.addresses, pod.Name+" "+a.String())
	}
	if failure := p.failure.Load(); failure != nil {
		return *failure
	}
	return nil
}

func (p *policies) Gone(uid types.UID) { p.gone = append(p.gone, uid) }

func TestPoliciesAreInForceBeforeAContainerStarts(t *testing.T) {
	onBench(t, func(b *bench) {
		gate := &policies{bench: b}
		b.runner.Policies = gate
		p := b.run(onePod(v1.RestartPolicyAlways, "", "a"))
		if len(gate.calls) != 1 || !slices.Equal(gate.calls[0], []string{"RunPodSandbox"}) || !strings.HasPrefix(gate.addresses[0], "p 10.0.0.") {
			t.Fatalf("admitted %v after %v", gate.addresses, gate.calls)
		}
		b.wantCalls("CreateContainer", "StartContainer")

		// Containers that start again are in the sandbox that was admitted.
		b.exit(p, "a", 1)
		b.wantWaits(p, "running")
		if len(gate.calls) != 1 {
			t.Errorf("admitted %v", gate.addresses)
		}
		b.runtime.Calls()

		// Another sandbox is not.
		v, _ := b.runner.View(p.UID)
		b.runtime.Exit("a", 137)
		stop := &runtimeapi.StopPodSandboxRequest{PodSandboxId: v.Observed.SandboxStatuses[0].Id}
		if _, err := b.runtime.StopPodSandbox(b.t.Context(), stop); err != nil {
			t.Fatal(err)
		}
		b.runner.Wake(p.UID)
		synctest.Wait()
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(gate.calls) != 2 || gate.addresses[0] == gate.addresses[1] || slices.Contains(gate.calls[1], "StartContainer") {
			t.Errorf("admitted %v after %v", gate.addresses, gate.calls)
		}
		b.wantWaits(p, "running")
	})
}

// Policies that cannot be enforced keep containers from starting, and say so. It is tried again.
func TestPoliciesThatCannotBeEnforced(t *testing.T) {
	onBench(t, func(b *bench) {
		gate := &policies{bench: b}
		failure := errors.New("no nftables")
		gate.failure.Store(&failure)
		b.runner.Policies = gate
		p := b.run(onePod(v1.RestartPolicyAlways, "", "a"))
		b.wantCalls()
		b.wantEvent("Warning FailedCreatePodSandBox Failed to create pod sandbox: no nftables")
		gate.failure.Store(nil)
		time.Sleep(retryMost)
		synctest.Wait()
		b.wantWaits(p, "running")
	})
}

// A kubelet that starts finds pods, whose policies may not be in force.
func TestPoliciesOfPodsThatRunAlready(t *testing.T) {
	onBench(t, func(b *bench) {
		p := b.run(onePod(v1.RestartPolicyAlways, "", "a"))
		b.runtime.Calls()
		gate := &policies{bench: b}
		config := b.runner.Config
		config.Policies = gate
		ctx, cancel := context.WithCancel(b.t.Context())
		again := NewRunner(ctx, config)
		again.Apply(p)
		synctest.Wait()
		if len(gate.calls) != 1 || len(gate.calls[0]) != 0 {
			t.Errorf("admitted %v after %v", gate.addresses, gate.calls)
		}
		b.wantCalls()
		cancel()
		again.Wait()
	})
}

func TestPoliciesAreToldOfPodsThatAreGone(t *testing.T) {
	onBench(t, func(b *bench) {
		gate := &policies{bench: b}
		b.runner.Policies = gate
		p := b.run(onePod(v1.RestartPolicyAlways, "", "a"))
		b.runner.Remove(p)
		time.Sleep(time.Minute)
		synctest.Wait()
		if !slices.Equal(gate.gone, []types.UID{p.UID}) {
			t.Errorf("gone are %v", gate.gone)
		}
	})
}

func TestPodsOfTheNodesNetworkAreNotAdmitted(t *testing.T) {
	onBench(t, func(b *bench) {
		gate := &policies{bench: b}
		b.runner.Policies = gate
		p := onePod(v1.RestartPolicyAlways, "", "a")
		p.Spec.HostNetwork = true
		b.wantWaits(b.run(p), "running")
		if len(gate.calls) != 0 {
			t.Errorf("admitted %v", gate.addresses)
		}
	})
}
