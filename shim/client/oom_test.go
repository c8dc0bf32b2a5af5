package client_test

import (
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime/runtimetest"
)

func TestOOM(t *testing.T) {
	r := newRig(t)
	req := r.request("")
	spec := runtimetest.Spec(req.ID, "/bin/dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1")
	spec.Linux.CgroupsPath = cgroupParent + "/" + req.ID
	limit := int64(16 << 20)
	spec.Linux.Resources.Memory = &specs.LinuxMemory{Limit: &limit}
	r.writeSpec(req.Bundle, spec)
	r.run(req)
	if ev := r.exit(req.ID); !ev.OOMKilled || ev.ExitCode != 137 {
		t.Errorf("event %+v", ev)
	}
	if st, err := r.c.Status(r.ctx(), pod, req.ID); err != nil || !st.OOMKilled {
		t.Errorf("status %+v, %v", st, err)
	}
}

func TestUpdate(t *testing.T) {
	r := newRig(t)
	req := r.request("sleep 1000")
	r.run(req)
	limit := int64(64 << 20)
	if err := r.c.Update(r.ctx(), pod, req.ID, &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}}); err != nil {
		t.Fatal(err)
	}
	if s, err := r.c.Stats(r.ctx(), pod, req.ID); err != nil || s.MemoryLimit != uint64(limit) {
		t.Errorf("stats %+v, %v", s, err)
	}
}
