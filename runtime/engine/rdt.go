package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/internal/resctrl"
)

var _ runtime.RdtUpdater = (*container)(nil)

// serviceClass is the place of a new container in the resctrl file system, nil if it asks for none.
func (e *Engine) serviceClass(id string, r *specs.LinuxIntelRdt) (*resctrl.Group, error) {
	if r == nil {
		return nil, nil
	}
	root, err := e.resctrlRoot()
	if err != nil {
		return nil, fmt.Errorf("linux.intelRdt is %w by this machine: %w", runtime.ErrUnsupported, err)
	}
	return resctrl.New(root, id, r)
}

func (e *Engine) resctrlRoot() (string, error) {
	if e.resctrl != "" {
		return e.resctrl, nil
	}
	return resctrl.Root()
}

// UpdateRdt implements runtime.RdtUpdater.
func (c *container) UpdateRdt(_ context.Context, l3Cache, memoryBandwidth string) error {
	if err := c.updateRdt(l3Cache, memoryBandwidth); err != nil {
		return c.Fail("update", err)
	}
	return nil
}

func (c *container) updateRdt(l3Cache, memoryBandwidth string) error {
	if l3Cache == "" && memoryBandwidth == "" {
		return nil
	}
	if _, err := c.engine.resctrlRoot(); err != nil {
		return fmt.Errorf("schemas of Intel RDT are %w by this machine: %w", runtime.ErrUnsupported, err)
	}
	if c.Rec.Resctrl == nil {
		return errors.New("the container was made without linux.intelRdt, which cannot be added later")
	}
	return c.Rec.Resctrl.Update(l3Cache, memoryBandwidth)
}
