package pod

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cluster/kubelet/pod/internal/podtest"
)

// network notes what it is told, and what the runtime was told before.
type network struct {
	*bench
	name    string
	told    *calls
	failure atomic.Pointer[error]
}

// calls are those of all networks, in their order.
type calls struct {
	mu  sync.Mutex
	all []string
}

func (c *calls) add(call string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, call)
}

// take returns those since the last time.
func (c *calls) take() []string {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.all
	c.all = nil
	return last
}

func (n *network) Admit(_ context.Context, _ *v1.Pod, addresses []netip.Addr) error {
	n.told.add(fmt.Sprint(n.name, " admits ", addresses, " after ", n.runtime.Calls()))
	if failure := n.failure.Load(); failure != nil {
		return *failure
	}
	return nil
}

func (n *network) Gone(types.UID) {
	n.told.add(n.name + " forgets")
}

// withNetworks gives a bench networks with names.
func withNetworks(b *bench, names ...string) (networks []*network, told func() []string) {
	var all calls
	for _, name := range names {
		n := &network{bench: b, name: name, told: &all}
		networks = append(networks, n)
		b.runner.Networks = append(b.runner.Networks, n)
	}
	return networks, all.take
}

func (b *bench) addresses(p *v1.Pod) []string {
	v, _ := b.runner.View(p.UID)
	return v.Observed.IPs
}

// Networks admit a sandbox before a container of it starts, one after the other. They forget it
// when it is gone, whether the pod has ended or gets another one.
func TestNetworksAdmitEachSandbox(t *testing.T) {
	onBench(t, func(b *bench) {
		_, told := withNetworks(b, "one", "two")
		p := b.run(podtest.Pod(v1.RestartPolicyAlways, "", "a"))
		expect := func(when string, want ...string) {
			t.Helper()
			if got := told(); !slices.Equal(got, want) {
				t.Errorf("%s: told is %q, want %q", when, got, want)
			}
		}
		first := b.addresses(p)
		expect("at first", fmt.Sprintf("one admits %v after [RunPodSandbox]", first), fmt.Sprintf("two admits %v after []", first))
		b.wantCalls("CreateContainer", "StartContainer")

		b.exit(p, "a", 1)
		b.wantWaits(p, "running")
		expect("a container starts again in the same sandbox")

		v, _ := b.runner.View(p.UID)
		b.runtime.Exit("a", 137)
		stop := &runtimeapi.StopPodSandboxRequest{PodSandboxId: v.Observed.SandboxStatuses[0].Id}
		if _, err := b.runtime.StopPodSandbox(b.t.Context(), stop); err != nil {
			t.Fatal(err)
		}
		b.runtime.Calls()
		b.runner.Wake(p.UID)
		synctest.Wait()
		time.Sleep(time.Minute)
		b.wantWaits(p, "running")
		second := b.addresses(p)
		if slices.Equal(first, second) {
			t.Errorf("both sandboxes have %v", first)
		}
		expect("another sandbox", "two forgets", "one forgets",
			fmt.Sprintf("one admits %v after [RunPodSandbox]", second), fmt.Sprintf("two admits %v after []", second))
		b.runtime.Calls()

		b.runner.Remove(p)
		time.Sleep(time.Minute)
		expect("the pod is removed", "two forgets", "one forgets")
	})
}

// A network that refuses a pod keeps its containers from starting, and says why. It is asked again.
func TestNetworkThatRefuses(t *testing.T) {
	onBench(t, func(b *bench) {
		networks, told := withNetworks(b, "one", "two")
		failure := errors.New("no nftables")
		networks[0].failure.Store(&failure)
		p := b.run(podtest.Pod(v1.RestartPolicyAlways, "", "a"))
		b.wantCalls()
		b.wantEvent("Warning FailedCreatePodSandBox Failed to create pod sandbox: no nftables")
		if got := told(); !strings.HasPrefix(got[0], "one admits") || slices.ContainsFunc(got, func(s string) bool {
			return strings.HasPrefix(s, "two")
		}) {
			t.Errorf("told is %q", got)
		}
		networks[0].failure.Store(nil)
		time.Sleep(retryMost)
		synctest.Wait()
		b.wantWaits(p, "running")
	})
}

// A network that refused a pod is told of its end, too: it may know something of it.
func TestNetworkForgetsWhatItRefused(t *testing.T) {
	onBench(t, func(b *bench) {
		networks, told := withNetworks(b, "one")
		failure := errors.New("no nftables")
		networks[0].failure.Store(&failure)
		p := b.run(podtest.Pod(v1.RestartPolicyAlways, "", "a"))
		b.runner.Remove(p)
		time.Sleep(time.Minute)
		if got := told(); got[len(got)-1] != "one forgets" {
			t.Errorf("told is %q", got)
		}
	})
}

// A kubelet that starts finds pods, which networks may not know of. They are admitted even if they
// end.
func TestNetworksAdmitPodsThatRunAlready(t *testing.T) {
	for _, ends := range []bool{false, true} {
		onBench(t, func(b *bench) {
			p := b.run(podtest.Pod(v1.RestartPolicyAlways, "", "a"))
			b.runtime.Calls()
			_, told := withNetworks(b, "one")
			ctx, cancel := context.WithCancel(b.t.Context())
			again := NewRunner(ctx, b.runner.Config)
			if ends {
				again.RemoveUnknown(p)
			} else {
				again.Apply(p)
			}
			synctest.Wait()
			if got := told(); len(got) == 0 || got[0] != fmt.Sprintf("one admits %v after []", b.addresses(p)) || (len(got) > 1) != ends {
				t.Errorf("ends %v: told is %q", ends, got)
			}
			cancel()
			again.Wait()
		})
	}
}

// stuck is a network that does not answer.
type stuck struct{ asked atomic.Int64 }

func (s *stuck) Admit(ctx context.Context, _ *v1.Pod, _ []netip.Addr) error {
	s.asked.Add(1)
	<-ctx.Done()
	return ctx.Err()
}

func (*stuck) Gone(types.UID) {}

// A pod that cannot be admitted and is deleted still gets its signals in time.
func TestEndOfPodThatCannotBeAdmitted(t *testing.T) {
	for _, known := range []bool{false, true} {
		onBench(t, func(b *bench) {
			p := b.run(podtest.Pod(v1.RestartPolicyAlways, "", "a"))
			b.runtime.Calls()
			var n stuck
			config := b.runner.Config
			config.Networks = []Network{&n}
			ctx, cancel := context.WithCancel(b.t.Context())
			again := NewRunner(ctx, config)
			if known {
				again.Apply(p)
				synctest.Wait()
				if n.asked.Load() != 1 {
					t.Error("the pod is not admitted when the kubelet starts")
				}
				p = p.DeepCopy()
				p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Now()}, new(int64(5))
				again.Apply(p)
			} else {
				again.RemoveUnknown(p)
			}
			time.Sleep(endingAdmitTimeout)
			synctest.Wait()
			if calls := b.runtime.Calls(); n.asked.Load() == 0 || !slices.Contains(calls, "StopContainer") {
				t.Errorf("known %v: asked %d times; calls after %s: %q", known, n.asked.Load(), endingAdmitTimeout, calls)
			}
			cancel()
			again.Wait()
		})
	}
}

// A sandbox whose addresses are not known is not admitted, and its containers do not start.
func TestSandboxWithoutAddresses(t *testing.T) {
	onBench(t, func(b *bench) {
		_, told := withNetworks(b, "one")
		b.runtime.HideAddresses(true)
		p := b.run(podtest.Pod(v1.RestartPolicyAlways, "", "a"))
		b.wantCalls("RunPodSandbox")
		b.wantEvent(
			"Warning FailedCreatePodSandBox Failed to create pod sandbox: the runtime tells no address of sandbox sandbox-1: no network policy " +
				"can be enforced for it",
		)
		if got := told(); len(got) != 0 {
			t.Errorf("told is %q", got)
		}
		b.runtime.HideAddresses(false)
		time.Sleep(retryMost)
		synctest.Wait()
		b.wantWaits(p, "running")
		if got := told(); len(got) != 1 || !strings.HasPrefix(got[0], "one admits [10.0.0.1]") {
			t.Errorf("told is %q", got)
		}
	})
}

// Pods of the node's network have no addresses of their own.
func TestPodsOfTheNodesNetworkAreNotAdmitted(t *testing.T) {
	onBench(t, func(b *bench) {
		_, told := withNetworks(b, "one")
		p := podtest.Pod(v1.RestartPolicyAlways, "", "a")
		p.Spec.HostNetwork = true
		b.wantWaits(b.run(p), "running")
		b.delete()
		if got := told(); len(got) != 0 {
			t.Errorf("told is %q", got)
		}
	})
}

// A pod that is bound before its node has a range of addresses waits, and starts at once when it
// has: the runtime could give it an address that is another node's. The node's network is there.
func TestPodsWaitForAddresses(t *testing.T) {
	onBench(t, func(b *bench) {
		var ready atomic.Bool
		b.runner.NoAddresses = func() error {
			if ready.Load() {
				return nil
			}
			return errors.New("no range yet")
		}
		p := b.run(podtest.Pod(v1.RestartPolicyAlways, "", "a"))
		b.wantEvent("Warning NetworkNotReady network is not ready: no range yet")
		b.wantCalls()
		time.Sleep(10 * time.Minute) // until the pauses between tries are long
		b.wantCalls()
		ready.Store(true)
		b.runner.RetryAll()
		synctest.Wait()
		b.wantWaits(p, "running")
	})
	onBench(t, func(b *bench) {
		b.runner.NoAddresses = func() error { return errors.New("no range yet") }
		p := podtest.Pod(v1.RestartPolicyAlways, "", "a")
		p.Spec.HostNetwork = true
		b.wantWaits(b.run(p), "running")
	})
}
