package podconfig

import "testing"

func TestLimitsOnHost(t *testing.T) {
	huge := map[string]uint64{"2MB": 0}
	for _, tc := range []struct {
		name      string
		r         Resources
		host      HostLimits
		swap      int64
		hugepages int
	}{
		{"memory alone means no swap", Resources{MemoryLimit: 100}, HostLimits{Swap: true}, 100, 0},
		{"swap as given", Resources{MemoryLimit: 100, MemorySwapLimit: 150}, HostLimits{Swap: true}, 150, 0},
		{"no limit", Resources{MemoryLimit: -1}, HostLimits{Swap: true}, -1, 0},
		{"nothing", Resources{}, HostLimits{Swap: true}, 0, 0},
		{"no swap accounting", Resources{MemoryLimit: 100, MemorySwapLimit: 100}, HostLimits{}, 0, 0},
		{"huge pages", Resources{Hugepages: huge}, HostLimits{Hugepages: true}, 0, 1},
		{"no huge page controller", Resources{Hugepages: huge}, HostLimits{}, 0, 0},
	} {
		if got := tc.r.On(tc.host); got.MemorySwapLimit != tc.swap || len(got.Hugepages) != tc.hugepages {
			t.Errorf("%s: got %+v", tc.name, got)
		}
	}
	r := Resources{MemoryLimit: 200, MemorySwapLimit: 300, CPUQuota: 10, CPUPeriod: 20, CPUShares: 5}
	if got := r.Change(Resources{MemoryLimit: 200}); got.MemorySwapLimit != 300 || got.CPUQuota != 0 {
		t.Errorf("memory changes with %+v", got)
	}
	if got := r.Change(Resources{CPUQuota: 10}); got.CPUPeriod != 20 || got.CPUShares != 0 || got.MemoryLimit != 0 {
		t.Errorf("quota changes with %+v", got)
	}
}
