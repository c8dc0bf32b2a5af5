package servicecidr

import (
	"context"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
)

// networks is one test's view of the API.
type networks struct {
	*testing.T
	*apitest.Server
}

func (n networks) add(name string, cidrs ...string) {
	n.Helper()
	network := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
	if _, err := n.Kube.NetworkingV1().ServiceCIDRs().Create(context.Background(), network, metav1.CreateOptions{}); err != nil {
		n.Fatal(err)
	}
	n.Settle()
}

func (n networks) give(address, by string) {
	n.Helper()
	ip := &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: address, Labels: map[string]string{networkingv1.LabelManagedBy: by}}}
	if _, err := n.Kube.NetworkingV1().IPAddresses().Create(context.Background(), ip, metav1.CreateOptions{}); err != nil {
		n.Fatal(err)
	}
	n.Settle()
}

func (n networks) remove(name string) {
	n.Helper()
	if err := n.Kube.NetworkingV1().ServiceCIDRs().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
		n.Fatal(err)
	}
	n.Settle()
}

// want says whether a network is "ready", "terminating" or "gone".
func (n networks) want(name, state string) {
	n.Helper()
	network, err := n.Kube.NetworkingV1().ServiceCIDRs().Get(context.Background(), name, metav1.GetOptions{})
	got := "gone"
	if err == nil {
		got = "unknown"
		if c := meta.FindStatusCondition(network.Status.Conditions, networkingv1.ServiceCIDRConditionReady); c != nil {
			got = map[metav1.ConditionStatus]string{metav1.ConditionTrue: "ready", metav1.ConditionFalse: "terminating"}[c.Status]
		}
	} else if !apierrors.IsNotFound(err) {
		n.Fatal(err)
	}
	if got != state {
		n.Errorf("%s is %s, want %s", name, got, state)
	}
}

func run(t *testing.T, f func(n networks)) {
	t.Helper()
	apitest.Ours(New).As("service-cidrs-controller").Run(t, func(t *testing.T, s *apitest.Server) { f(networks{t, s}) })
}

func TestANetworkWithoutAddressesGoesAfterTheGrace(t *testing.T) {
	run(t, func(n networks) {
		n.add("a", "10.1.0.0/24")
		n.want("a", "ready")
		n.remove("a")
		n.want("a", "ready")
		n.Pass(grace)
		n.want("a", "gone")
	})
}

func TestANetworkStaysWhileAnAddressNeedsIt(t *testing.T) {
	run(t, func(n networks) {
		n.add("a", "10.1.0.0/24", "fd00::/112")
		n.give("fd00::7", allocator)
		n.remove("a")
		n.Pass(grace)
		n.want("a", "terminating")
		if err := n.Kube.NetworkingV1().IPAddresses().Delete(context.Background(), "fd00::7", metav1.DeleteOptions{}); err != nil {
			n.Fatal(err)
		}
		n.Settle()
		n.want("a", "gone")
	})
}

func TestAnotherNetworkLetsItGo(t *testing.T) {
	run(t, func(n networks) {
		n.add("a", "10.1.0.0/24")
		n.give("10.1.0.7", allocator)
		n.give("192.0.2.1", "somebody else")
		n.remove("a")
		n.Pass(grace)
		n.want("a", "terminating")
		n.add("larger", "10.1.0.0/16")
		n.want("a", "gone")
		n.want("larger", "ready")
	})
}

// Others may have conditions of a network, too: the controller applies its own only, as upstream's
// does.
func TestTheConditionIsApplied(t *testing.T) {
	run(t, func(n networks) {
		n.Writes()
		n.add("a", "10.1.0.0/24")
		n.want("a", "ready")
		if writes := n.Writes(); writes["patch servicecidrs/status"] == 0 || writes["update servicecidrs/status"] != 0 {
			t.Errorf("the controller's writes are %v", writes)
		}
	})
}
