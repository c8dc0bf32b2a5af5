package spec

import (
	"reflect"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/pod/podtest"
)

func TestMergeResources(t *testing.T) {
	old, new := int64(1), int64(2)
	r := &specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &old, Swap: &old}, Unified: map[string]string{"a": "1", "b": "1"},
		HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 1}, {Pagesize: "1GB", Limit: 1}},
	}
	podtest.OK(t, mergeResources(r, &specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &new}, Pids: &specs.LinuxPids{Limit: &new}, Unified: map[string]string{"b": "2"},
		HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 2}},
	}))
	want := &specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &new, Swap: &old}, Pids: &specs.LinuxPids{Limit: &new}, Unified: map[string]string{"a": "1", "b": "2"},
		HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "1GB", Limit: 1}, {Pagesize: "2MB", Limit: 2}},
	}
	if !reflect.DeepEqual(r, want) {
		t.Errorf("got %+v, want %+v", r, want)
	}
}
