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
	goleak.VerifyTestMain(runtimetest.Tests(m.Run))
}
