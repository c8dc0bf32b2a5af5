package client

import (
	"path/filepath"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/shim/steps"
)

// EngineSteps returns where the time of making a container went, as its shim has left it; none if
// Coracle's own engine has not made it. It reads a file, so that a hung shim keeps no one from
// asking.
func (c *Client) EngineSteps(podID, id string) ([]steps.Step, error) {
	for _, name := range []string{podID, id} {
		if err := runtime.ValidateID(name); err != nil {
			return nil, err
		}
	}
	for _, shim := range []string{nodeShim, podID} {
		s, err := steps.Read(filepath.Join(shimDir(c.cfg.StateDir, shim), "engine"), id)
		if len(s) > 0 || err != nil {
			return s, err
		}
	}
	return nil, nil
}
