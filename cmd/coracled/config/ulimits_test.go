package config

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestRlimits(t *testing.T) {
	c, err := Parse([]byte("[runtime]\nulimits = ['nofile=1024:4096', 'core=0', 'memlock=-1']"))
	if err != nil {
		t.Fatal(err)
	}
	want := []specs.POSIXRlimit{
		{Type: "RLIMIT_NOFILE", Soft: 1024, Hard: 4096},
		{Type: "RLIMIT_CORE"},
		{Type: "RLIMIT_MEMLOCK", Soft: math.MaxUint64, Hard: math.MaxUint64},
	}
	if diff := cmp.Diff(want, c.Runtime.Rlimits()); diff != "" {
		t.Error(diff)
	}
}
