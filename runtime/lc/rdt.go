package lc

import (
	"context"
	"errors"
	"fmt"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/intelrdt"

	"github.com/coracle-project/coracle/runtime"
)

var _ runtime.RdtUpdater = (*container)(nil)

// UpdateRdt implements runtime.RdtUpdater.
func (c *container) UpdateRdt(_ context.Context, l3Cache, memoryBandwidth string) error {
	if err := c.updateRdt(l3Cache, memoryBandwidth); err != nil {
		return c.Fail("update", err)
	}
	return nil
}

func (c *container) updateRdt(l3Cache, memoryBandwidth string) error {
	if l3Cache != "" && !intelrdt.IsCATEnabled() {
		return fmt.Errorf("l3 cache schema: %w by this machine (Intel RDT/CAT)", runtime.ErrUnsupported)
	}
	if memoryBandwidth != "" && !intelrdt.IsMBAEnabled() {
		return fmt.Errorf("memory bandwidth schema: %w by this machine (Intel RDT/MBA)", runtime.ErrUnsupported)
	}
	lib, err := libcontainer.Load(c.Dir(), c.Rec.ID)
	if err != nil {
		return err
	}
	cfg := lib.Config()
	if cfg.IntelRdt == nil {
		return errors.New("the container was made without linux.intelRdt, which cannot be added later")
	}
	rdt := *cfg.IntelRdt
	if l3Cache != "" {
		rdt.L3CacheSchema = l3Cache
	}
	if memoryBandwidth != "" {
		rdt.MemBwSchema = memoryBandwidth
	}
	m := intelrdt.NewManager(&cfg, c.Rec.ID, "")
	if m == nil {
		return fmt.Errorf("linux.intelRdt: %w by this machine", runtime.ErrUnsupported)
	}
	cfg.IntelRdt = &rdt
	return m.Set(&cfg)
}
