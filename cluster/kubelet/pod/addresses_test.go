package pod

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Who lets pods through by their addresses hears of them before a container starts, and when a pod
// has another or ended.
func TestAddressesAreToldBeforeContainersStart(t *testing.T) {
	onBench(t, func(b *bench) {
		var told []string
		b.runner.Addresses = func(_ types.UID, addrs []netip.Addr) {
			told = append(told, fmt.Sprint(addrs, b.runtime.Calls()))
		}
		p := b.run(onePod(v1.RestartPolicyAlways, "", "a"))
		v, _ := b.runner.View(p.UID)
		first := v.Observed.IPs
		b.runtime.Calls()
		b.runner.Wake(p.UID) // nothing has changed
		synctest.Wait()
		b.runtime.Exit("a", 137)
		if _, err := b.runtime.StopPodSandbox(b.t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: v.Observed.SandboxStatuses[0].Id}); err != nil {
			t.Fatal(err)
		}
		b.runtime.Calls()
		b.runner.Wake(p.UID)
		synctest.Wait()
		v, _ = b.runner.View(p.UID)
		second := v.Observed.IPs
		b.runtime.Calls()
		b.delete()
		if want := []string{fmt.Sprintf("%v [RunPodSandbox]", first), "[] []", fmt.Sprintf("%v [RunPodSandbox]", second)}; len(told) != 4 || !slices.Equal(told[:3], want) {
			t.Errorf("told is %q, not %q and the end", told, want)
		}
		if len(told) > 3 && told[3][:2] != "[]" {
			t.Errorf("at the end, told is %s", told[3])
		}
	})
}

// What is on the node's network has no addresses of its own.
func TestAddressesOfTheNodeAreNotTold(t *testing.T) {
	onBench(t, func(b *bench) {
		b.runner.Addresses = func(_ types.UID, addrs []netip.Addr) { t.Errorf("told of %v", addrs) }
		p := onePod(v1.RestartPolicyAlways, "", "a")
		p.Spec.HostNetwork = true
		b.run(p)
		b.delete()
	})
}
