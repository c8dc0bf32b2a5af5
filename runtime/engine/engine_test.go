package engine_test

import (
	"os"
	"testing"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/engine"
	"github.com/coracle-project/coracle/runtime/lc"
	"github.com/coracle-project/coracle/runtime/plan"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

func TestMain(m *testing.M) {
	lc.Init()
	if len(os.Args) > 1 && os.Args[1] == helperArg {
		os.Exit(helper(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == ramdiskArg {
		os.Exit(onRamdisk(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == runnerArg {
		os.Exit(runner(os.Args[2]))
	}
	os.Exit(runtimetest.Tests(m.Run).Run())
}

// processes are the children of this process that libcontainer has started, of all engines.
var processes lc.Children

func newEngine(t testing.TB, dir string) runtime.Engine {
	return openWith(t, engine.Config{StateDir: dir})
}

// openWith makes an engine that leaves to libcontainer what it cannot do.
func openWith(t testing.TB, cfg engine.Config) *engine.Engine {
	t.Helper()
	var err error
	if cfg.Fallback, err = lc.New(lc.Config{StateDir: cfg.StateDir, Children: &processes}); err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestEngine(t *testing.T) { runtimetest.Run(t, newEngine) }

// TestEngineWithoutMountSetattr stands in for Linux 5.10, which lacks mount_setattr(2).
func TestEngineWithoutMountSetattr(t *testing.T) {
	runtimetest.RunWithoutMountSetattr(t, func(t testing.TB, dir string) runtime.Engine {
		return openWith(t, engine.Config{StateDir: dir, Features: &plan.Features{}})
	})
}
