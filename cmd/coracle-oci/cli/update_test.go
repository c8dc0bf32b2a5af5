package cli

import (
	"reflect"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestUpdateFlags(t *testing.T) {
	i, u := func(n int64) *int64 { return &n }, func(n uint64) *uint64 { return &n }
	for _, c := range []struct {
		name  string
		flags updateFlags
		want  specs.LinuxResources
	}{
		{"none", updateFlags{}, specs.LinuxResources{}},
		{"sizes", updateFlags{memory: "1k", swap: "-1", reservation: "2M"}, specs.LinuxResources{
			Memory: &specs.LinuxMemory{Limit: i(1024), Swap: i(-1), Reservation: i(2 << 20)},
		}},
		{"no limit of memory is none of swap", updateFlags{memory: "-1"}, specs.LinuxResources{
			Memory: &specs.LinuxMemory{Limit: i(-1), Swap: i(0)},
		}},
		{"cpu", updateFlags{
			period: "1000", quota: "-1", burst: "5", shares: "7", cpus: "0-1", mems: "0", realtimePeriod: "8",
			realtimeRuntime: "9",
		}, specs.LinuxResources{
			CPU: &specs.LinuxCPU{
				Period: u(1000), Quota: i(-1), Burst: u(5), Shares: u(7), Cpus: "0-1", Mems: "0",
				RealtimePeriod: u(8), RealtimeRuntime: i(9),
			},
		}},
		{"an idle one has no share", updateFlags{idle: "1"}, specs.LinuxResources{
			CPU: &specs.LinuxCPU{Idle: i(1), Shares: u(0)},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.flags.resources(func(string) bool { return false })
			if err != nil {
				t.Fatal(err)
			}
			completeResources(got)
			if c.want.CPU == nil {
				c.want.CPU = &specs.LinuxCPU{}
			}
			if c.want.Memory == nil {
				c.want.Memory = &specs.LinuxMemory{}
			}
			if !reflect.DeepEqual(*got, c.want) {
				t.Errorf("got %+v %+v, want %+v %+v", got.CPU, got.Memory, c.want.CPU, c.want.Memory)
			}
		})
	}
}

func TestUpdateFlagsThatAreWrong(t *testing.T) {
	for says, flags := range map[string]updateFlags{
		"--memory":             {memory: "lots"},
		"--memory-swap":        {swap: "-2"},
		"--memory-reservation": {reservation: "1x"},
		"--cpu-period":         {period: "-1"},
		"--cpu-quota":          {quota: "x"},
		"--cpu-share":          {shares: "1.5"},
		"--cpu-burst":          {burst: "x"},
		"--cpu-idle":           {idle: "yes"},
		"--cpu-rt-period":      {realtimePeriod: "x"},
		"--cpu-rt-runtime":     {realtimeRuntime: "x"},
	} {
		_, err := flags.resources(func(string) bool { return false })
		if err == nil || !strings.Contains(err.Error(), says+" ") {
			t.Errorf("%s: error %v", says, err)
		}
	}
}
