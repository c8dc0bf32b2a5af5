// Package runtimetest is the suite of tests that every runtime.Engine must pass,
// with the bundles and leak checks it uses.
package runtimetest

import (
	"testing"

	"github.com/coracle-project/coracle/runtime"
)

// NewEngine makes the engine under test on an empty state directory.
type NewEngine func(t testing.TB, stateDir string) runtime.Engine

// Run runs the suite. It must not run in parallel with other tests that start
// processes, because it checks that none is left. Each test ends with a leak check.
func Run(t *testing.T, engine NewEngine) {
	for _, group := range []map[string]func(*rig){
		lifeTests, execTests, terminalTests, signalTests, badTests, resourceTests, hookTests,
	} {
		for name, test := range group {
			t.Run(name, func(t *testing.T) {
				r := newRig(t, engine)
				test(r)
				r.checkLeaks()
			})
		}
	}
}
