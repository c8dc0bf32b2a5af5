package cli_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/coracle-project/coracle/cmd/coracle-oci/cli"
	"github.com/coracle-project/coracle/cmd/coracle-oci/cli/withlc"
	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/lc"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

func TestMain(m *testing.M) {
	lc.Init()
	if os.Getenv(asProgram) != "" {
		cli.Main(withlc.Companion(), nil)
	}
	testscript.Main(runtimetest.Tests(m.Run), map[string]func(){"coracle-oci": func() { cli.Main(withlc.Companion(), nil) }})
}

// TestScripts runs the command line as its users do, one behaviour per file of
// testdata. In each, $BOX is a bundle without config.json, $ID a container id of
// its own and the state directory is $ROOT; the command bundle writes config.json.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:   "testdata",
		Setup: setup,
		Cmds:  map[string]func(*testscript.TestScript, bool, []string){"bundle": writeBundle},
	})
}

func setup(env *testscript.Env) error {
	box := filepath.Join(env.WorkDir, "box")
	if err := runtimetest.MakeRootfs(filepath.Join(box, "rootfs")); err != nil {
		return err
	}
	root := filepath.Join(env.WorkDir, "state")
	id := fmt.Sprintf("oci-%d-%s", os.Getpid(), filepath.Base(env.WorkDir))
	env.Setenv("BOX", box)
	env.Setenv("ROOT", root)
	env.Setenv("ID", id)
	env.Defer(func() { cleanUp(env.T().(testing.TB), root, id) })
	return nil
}

// cleanUp fails the test if the script left a container behind.
func cleanUp(t testing.TB, root, id string) {
	e, err := lc.New(lc.Config{StateDir: root})
	if err != nil {
		t.Error(err)
		return
	}
	ids, err := e.List(t.Context())
	if err != nil {
		t.Error(err)
	}
	for _, left := range ids {
		t.Errorf("the script left container %s", left)
		if c, err := e.Load(t.Context(), left); err == nil {
			_ = c.Delete(t.Context(), runtime.DeleteOptions{Force: true})
		}
	}
	left, _ := filepath.Glob("/sys/fs/cgroup/*" + runtimetest.CgroupParent + "/" + id)
	if len(left) > 0 {
		t.Errorf("the script left cgroups %v", left)
	}
}

// writeBundle is the command bundle [field=value...] -- args...: it writes
// $BOX/config.json. Fields: terminal, cwd, hostname, version, annotation.
func writeBundle(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("bundle does not fail")
	}
	var settings []string
	for len(args) > 0 && args[0] != "--" {
		settings, args = append(settings, args[0]), args[1:]
	}
	if len(args) > 0 {
		args = args[1:]
	}
	spec := runtimetest.Spec(ts.Getenv("ID"), args...)
	for _, s := range settings {
		name, value, _ := strings.Cut(s, "=")
		set, ok := bundleSettings[name]
		if !ok {
			ts.Fatalf("bundle: unknown field %q", name)
		}
		set(spec, value)
	}
	data, err := json.Marshal(spec)
	ts.Check(err)
	ts.Check(os.WriteFile(filepath.Join(ts.Getenv("BOX"), "config.json"), data, 0o644))
}

var bundleSettings = map[string]func(*specs.Spec, string){
	"terminal":   func(s *specs.Spec, v string) { s.Process.Terminal = v == "true" },
	"cwd":        func(s *specs.Spec, v string) { s.Process.Cwd = v },
	"root":       func(s *specs.Spec, v string) { s.Root.Path = v },
	"version":    func(s *specs.Spec, v string) { s.Version = v },
	"annotation": func(s *specs.Spec, v string) { s.Annotations = map[string]string{"note": v} },
}
