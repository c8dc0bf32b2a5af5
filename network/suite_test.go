package network_test

import (
	"testing"

	"github.com/coracle-project/coracle/network"
	"github.com/coracle-project/coracle/network/networktest"
)

func TestBuiltInNetworkPassesTheSuite(t *testing.T) {
	networktest.Suite(t, func(t *testing.T) networktest.Harness { return harness(t, network.StartedForTest(t)) })
}

func TestCNIPassesTheSuite(t *testing.T) {
	networktest.Suite(t, func(t *testing.T) networktest.Harness { return harness(t, network.StartedWithCNIForTest(t)) })
}

func harness(t *testing.T, m *network.Manager) networktest.Harness {
	t.Helper()
	return networktest.Harness{
		Network:  m,
		NewNetNS: func(t *testing.T) (string, func()) { t.Helper(); return network.NewNetNSForTest(t) },
		Leases: func(t *testing.T) int {
			t.Helper()
			if err := m.Flush(t.Context()); err != nil {
				t.Error(err)
			}
			return len(m.Leases())
		},
	}
}
