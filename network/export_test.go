package network

import "testing"

// What the tests outside the package, which run the suite, need of those inside.

// NewNetNSForTest pins a network namespace.
func NewNetNSForTest(t *testing.T) (string, func()) { t.Helper(); return newNetNS(t) }

// StartedForTest returns a Manager on the built-in network.
func StartedForTest(t *testing.T) *Manager { t.Helper(); return started(t, testConfig(t)) }

// StartedWithCNIForTest returns a Manager with a CNI configuration.
func StartedWithCNIForTest(t *testing.T) *Manager {
	t.Helper()
	c := testConfig(t)
	withCNI(t, &c)
	return started(t, c)
}
