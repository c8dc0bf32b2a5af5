package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// asSupervisor in the environment makes the test binary the supervisor of its arguments.
const asSupervisor = "CORACLE_TEST_SUPERVISOR"

// asCoracle in the environment is a program that takes the place of the coracle that tests execute.
const asCoracle = "CORACLE_TEST_CORACLE"

func TestMain(m *testing.M) {
	if program := os.Getenv(asCoracle); program != "" && len(os.Args) > 1 && os.Args[1] == "--root" {
		os.Stderr.WriteString(unix.Exec(program, os.Args, os.Environ()).Error() + "\n")
		os.Exit(1)
	}
	if lock := os.Getenv(asSupervisor); lock != "" {
		flags := []string{"coracle", "supervise", "--state", lock}
		for len(os.Args) > 2 && os.Args[1] == "--log" {
			flags, os.Args = append(flags, os.Args[1:3]...), os.Args[2:]
		}
		os.Args = append(append(flags, "--"), os.Args[1:]...)
		os.Exit(run())
	}
	if double := doubles[filepath.Base(os.Args[0])]; double != nil {
		os.Exit(double(os.Args[1:]))
	}
	testscript.Main(leakChecked{m}, map[string]func(){"coracle": func() { os.Exit(run()) }})
}

// leakChecked is the tests, and then a look for goroutines that they left.
type leakChecked struct{ m *testing.M }

func (l leakChecked) Run() int {
	code := l.m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		os.Stderr.WriteString(err.Error() + "\n")
		code = 1
	}
	return code
}

// TestCommandLine runs testdata/script: the command line as a user sees it.
func TestCommandLine(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata/script"})
}
