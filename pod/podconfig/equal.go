package podconfig

import (
	"bytes"
	"encoding/json"
)

// Same compares configurations as records do, so that it holds across a restart of the daemon.
//
// A caller that got no answer (its deadline passed, the daemon was killed) calls again
// with the same words. If the first call succeeded meanwhile, the second gets its
// result: a pod that is ready, or a container that no one can have started yet, made
// from the very same configuration. Anything else with the identity is ErrExists.
func Same[T any](a, b *T) bool {
	x, xerr := json.Marshal(a)
	y, yerr := json.Marshal(b)
	return xerr == nil && yerr == nil && bytes.Equal(x, y)
}
