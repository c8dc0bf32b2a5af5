package lc_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/lc"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// helperArg makes the test binary a second process that uses an engine.
const helperArg = "engine-helper"

// helper creates a container and ends: args are state directory, bundle, id and a
// createRuntime hook's shell script, which may be empty.
func helper(args []string) int {
	stateDir, bundle, id, script := args[0], args[1], args[2], args[3]
	e, err := lc.New(lc.Config{StateDir: stateDir, Children: &processes})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	spec := runtimetest.Spec(id, "/bin/sleep", "1000")
	if script != "" {
		spec.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", script}}}}
	}
	if _, err := e.Create(context.Background(), id, spec, runtime.CreateOptions{Bundle: bundle}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func helperCommand(t *testing.T, stateDir, bundle, id, script string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", helperArg, stateDir, bundle, id, script)
	cmd.Stderr = os.Stderr
	return cmd
}
