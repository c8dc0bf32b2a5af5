package oci_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"go.uber.org/goleak"

	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/oci"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(runtimetest.Tests(m.Run)) }

// by is an engine that has one command make all containers.
type by struct {
	*oci.Engine
	command string
}

func (e by) Create(ctx context.Context, id string, spec *specs.Spec, opts runtime.CreateOptions) (runtime.Container, error) {
	opts.Handler = runtime.OCIHandler + e.command
	return e.Engine.Create(ctx, id, spec, opts)
}

func with(command string) runtimetest.NewEngine {
	return func(t testing.TB, dir string) runtime.Engine {
		t.Helper()
		e, err := oci.New(oci.Config{StateDir: dir, RootDir: filepath.Join(t.TempDir(), "oci")})
		if err != nil {
			t.Fatal(err)
		}
		return by{e, command}
	}
}

func TestRunc(t *testing.T) {
	runtimetest.RunCommand(t, with("/usr/sbin/runc"), map[string]string{
		"pause of a container that hardly runs": "runc 1.1 thaws again about every millisecond on cgroup v1, and then gives up",
	})
}

func TestCrun(t *testing.T) {
	runtimetest.RunCommand(t, with(testkit.Crun(t)), map[string]string{
		"terminal of an exec":                           "crun 1.8 does not give it a size",
		"SIGTERM ends a container that waits for start": "crun's init waits without handlers, and the kernel spares a namespace's first process",
		"a device rule with access rwa is one with rw":  "crun writes the rule unchanged, and the kernel knows no access a",
	})
}
