// Package runtimetest is the suite of tests that every runtime.Engine must pass,
// with the bundles and leak checks it uses.
package runtimetest

import (
	"maps"
	"testing"

	"github.com/coracle-project/coracle/runtime"
)

// NewEngine makes the engine under test on an empty state directory.
type NewEngine func(t testing.TB, stateDir string) runtime.Engine

// Run runs the suite on Coracle's own engine. It must not run in parallel with other tests
// that start processes, because it checks that none is left. Each test ends with a leak check.
func Run(t *testing.T, engine NewEngine) { run(t, engine, kind{}, all...) }

// RunLibcontainer is Run for the engine on libcontainer; see Differences.
func RunLibcontainer(t *testing.T, engine NewEngine) {
	run(t, engine, kind{libcontainer: true}, all...)
}

// RunWithoutMountSetattr is Run for an engine that does without mount_setattr(2), and so
// without id-mapped mounts and recursive mount options.
func RunWithoutMountSetattr(t *testing.T, engine NewEngine) { run(t, engine, kind{old: true}, all...) }

// RunCommand runs what of the suite is about driving containers, not about making them, on an
// engine that leaves both to another program. Tests that this program is known to fail are in
// its known, with the reason.
func RunCommand(t *testing.T, engine NewEngine, known map[string]string) {
	tests := map[string]func(*rig){}
	for _, group := range []group{lifeTests, execTests, terminalTests, signalTests, resourceTests} {
		maps.Copy(tests, group)
	}
	for name := range known {
		if tests[name] == nil {
			t.Errorf("%q is not a test of the suite", name)
		}
		delete(tests, name)
	}
	run(t, engine, kind{libcontainer: true}, tests)
}

// kind is which engine it is.
type kind struct{ libcontainer, old bool }

type group = map[string]func(*rig)

var all = []group{
	lifeTests, execTests, terminalTests, signalTests, dispositionTests, startTests, badTests, resourceTests, hookTests,
	mountTests, pathTests, userTests, joinTests, processTests, programTests, notifyTests, bigTests, deviceTests, labelTests, tmpfsTests,
}

func run(t *testing.T, engine NewEngine, k kind, groups ...group) {
	for _, g := range groups {
		for name, test := range g {
			t.Run(name, func(t *testing.T) {
				r := newRig(t, engine)
				r.kind = k
				test(r)
				r.checkLeaks()
			})
		}
	}
}
