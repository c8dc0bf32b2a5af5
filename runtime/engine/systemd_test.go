package engine_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/cgroups/systemd"

	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// A container in a scope of systemd's, where that runs, and one sentence where it does not.
// hack/oci/vm has more.
func TestSystemdCgroup(t *testing.T) {
	id := fmt.Sprintf("scope-%d", os.Getpid())
	spec := runtimetest.Spec(id, "/bin/sh", "-c", "read x; cat /proc/self/cgroup")
	spec.Linux.CgroupsPath = "system.slice:boat:" + id
	o := order{State: filepath.Join(t.TempDir(), "state"), Bundle: runtimetest.Bundle(t), ID: id, Spec: spec, SystemdCgroup: true}
	o.Exec = inside(o, "cat /proc/self/cgroup")
	said, err := o.run(t)
	if !systemd.IsRunningSystemd() {
		if err == nil || !strings.Contains(said, "systemd not running on this host") {
			t.Errorf("without systemd: %v, %s", err, said)
		}
		return
	}
	if err != nil || !strings.Contains(said, "0::/\n") {
		t.Errorf("%v, %s", err, said)
	}
}

func TestSystemdCgroupOfAnotherForm(t *testing.T) {
	id := fmt.Sprintf("scope-%d", os.Getpid())
	o := order{
		State: filepath.Join(t.TempDir(), "state"), Bundle: runtimetest.Bundle(t), ID: id, Spec: runtimetest.Spec(id, "/bin/true"),
		SystemdCgroup: true,
	}
	if said, err := o.run(t); err == nil || !strings.Contains(said, "is not of the form SLICE:PREFIX:NAME") {
		t.Errorf("%v, %s", err, said)
	}
}
