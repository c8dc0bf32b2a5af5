package lc

import (
	"reflect"
	"testing"

	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime/internal/base"
)

// Both engines have to read limits alike, and runc's reading is the reference.
func TestLimitsAreRuncs(t *testing.T) {
	for name, linux := range map[string]*specs.Linux{
		"none":          {},
		"absolute path": {CgroupsPath: "/a/../../b//c"},
		"relative path": {CgroupsPath: "../a/./b"},
		"devices": {Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{
			{Allow: false, Access: "rwm"},
			{Allow: true, Type: "c", Major: new(int64(10)), Access: "rw"},
			{Allow: true, Type: "b", Major: new(int64(8)), Minor: new(int64(1)), Access: "r"},
		}}},
		"memory": {Resources: &specs.LinuxResources{Memory: &specs.LinuxMemory{
			Limit: new(int64(1 << 20)), Reservation: new(int64(2)), Swap: new(int64(-1)), Swappiness: new(uint64(3)),
			DisableOOMKiller: new(true), CheckBeforeUpdate: new(true),
		}}},
		"cpu": {Resources: &specs.LinuxResources{CPU: &specs.LinuxCPU{
			Shares: new(uint64(512)), Quota: new(int64(1)), Burst: new(uint64(2)), Period: new(uint64(3)),
			RealtimeRuntime: new(int64(4)), RealtimePeriod: new(uint64(5)), Cpus: "0-1", Mems: "0", Idle: new(int64(1)),
		}}},
		"pids": {Resources: &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: new(int64(7))}}},
		"block I/O": {Resources: &specs.LinuxResources{BlockIO: &specs.LinuxBlockIO{
			Weight: new(uint16(10)), LeafWeight: new(uint16(11)),
			WeightDevice: []specs.LinuxWeightDevice{{
				LinuxBlockIODevice: specs.LinuxBlockIODevice{Major: 8, Minor: 1},
				Weight:             new(uint16(12)),
			}},
			ThrottleReadBpsDevice:   []specs.LinuxThrottleDevice{{LinuxBlockIODevice: specs.LinuxBlockIODevice{Major: 8}, Rate: 1}},
			ThrottleWriteBpsDevice:  []specs.LinuxThrottleDevice{{Rate: 2}},
			ThrottleReadIOPSDevice:  []specs.LinuxThrottleDevice{{Rate: 3}},
			ThrottleWriteIOPSDevice: []specs.LinuxThrottleDevice{{Rate: 4}},
		}}},
		"the rest": {Resources: &specs.LinuxResources{
			HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 1}},
			Rdma:           map[string]specs.LinuxRdma{"mlx5_1": {HcaHandles: new(uint32(1)), HcaObjects: new(uint32(2))}},
			Network:        &specs.LinuxNetwork{ClassID: new(uint32(1)), Priorities: []specs.LinuxInterfacePriority{{Name: "eth0", Priority: 2}}},
			Unified:        map[string]string{"memory.high": "1"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			want, err := specconv.CreateCgroupConfig(&specconv.CreateOpts{CgroupName: "id", Spec: &specs.Spec{Linux: linux}},
				specconv.AllowedDevices)
			if err != nil {
				t.Fatal(err)
			}
			got, err := base.CgroupConfig("id", linux)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("ours:\n%+v\n%+v\nrunc's:\n%+v\n%+v", got, got.Resources, want, want.Resources)
			}
		})
	}
}
