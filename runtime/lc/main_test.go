package lc_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/coracle-project/coracle/runtime/lc"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

func TestMain(m *testing.M) {
	if isCRIU() {
		os.Exit(fakeCRIU())
	}
	lc.Init()
	if len(os.Args) > 1 && os.Args[1] == helperArg {
		os.Exit(helper(os.Args[2:]))
	}
	goleak.VerifyTestMain(run(m.Run))
}

// run is the tests, then the removal of the parent of their cgroups: benchmarks do not
// end with a leak check.
type run func() int

func (r run) Run() int {
	defer runtimetest.RemoveCgroupParent()
	return r()
}
