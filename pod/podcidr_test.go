package pod

import (
	"net/netip"
	"slices"
	"testing"
)

// The network is told of other address ranges.
func TestSetPodCIDR(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	ranges := []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}
	ok(t, m.SetPodCIDR(t.Context(), ranges))
	if !slices.Equal(b.ranges, ranges) {
		t.Errorf("ranges %v", b.ranges)
	}
}
