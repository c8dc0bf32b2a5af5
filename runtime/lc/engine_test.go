package lc_test

import (
	"testing"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/lc"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// processes are the children of this process, of all its engines.
var processes lc.Children

func newEngine(t testing.TB, dir string) runtime.Engine {
	e, err := lc.New(lc.Config{StateDir: dir, Children: &processes})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestEngine(t *testing.T) { runtimetest.RunLibcontainer(t, newEngine) }
