package pod

import (
	"bytes"
	"encoding/json"

	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
)

// A caller that got no answer (its deadline passed, the daemon was killed) calls again
// with the same words. If the first call succeeded meanwhile, the second gets its
// result: a pod that is ready, or a container that no one can have started yet, made
// from the very same configuration. Anything else with the identity is ErrExists.

func (m *Manager) repeatedRun(holder string, c *podconfig.Pod) bool {
	e := m.pods.Exact(holder)
	if e == nil {
		return false
	}
	r := e.Get()
	return r.Phase == state.PodReady && sameConfig(&r.Config, c)
}

func (m *Manager) repeatedCreate(holder string, c *podconfig.Container) bool {
	e := m.containers.Exact(holder)
	if e == nil {
		return false
	}
	r := e.Get()
	return r.Phase == state.ContainerCreated && sameConfig(&r.Config, c)
}

// sameConfig compares as records do, so that it holds across a restart of the daemon.
func sameConfig[T any](a, b *T) bool {
	x, xerr := json.Marshal(a)
	y, yerr := json.Marshal(b)
	return xerr == nil && yerr == nil && bytes.Equal(x, y)
}
