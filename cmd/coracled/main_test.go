package main

import (
	"os"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"coracled": func() { os.Exit(run()) },
		// The test's binary is in a directory that others cannot enter, so the
		// process gives up its rights when it runs already.
		"coracled-as-nobody": func() {
			if err := syscall.Setresuid(65534, 65534, 65534); err != nil {
				panic(err)
			}
			os.Exit(run())
		},
	})
}

// TestCommandLine runs testdata/script: the command line as a user sees it.
func TestCommandLine(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata/script"})
}
