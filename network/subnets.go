package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/coracle-project/coracle/internal/atomicfile"
	"github.com/coracle-project/coracle/internal/recordfile"
	"github.com/coracle-project/coracle/internal/transient"
)

// SetPodCIDR sets other address ranges for future pods, as a cluster assigns them to nodes, and
// records them. They apply to the built-in network, and to CNI plugins that declare the capability
// ipRanges. Existing pods keep their addresses.
func (m *Manager) SetPodCIDR(_ context.Context, subnets []netip.Prefix) error {
	if err := checkSubnets(subnets); err != nil {
		return err
	}
	if err := m.saveSubnets(subnets); err != nil {
		return err
	}
	m.cni.ranges.Store(&subnets)
	return m.builtin.changeSubnets(subnets)
}

func (m *Manager) saveSubnets(subnets []netip.Prefix) error {
	data, err := json.Marshal(subnets)
	if err != nil {
		return fmt.Errorf("set pod subnets: %w", err)
	}
	if err := atomicfile.Write(m.subnetsFile(), data, 0o600); err != nil {
		return fmt.Errorf("set pod subnets: %w", err)
	}
	return nil
}

func (m *Manager) subnetsFile() string { return filepath.Join(m.config.StateDir, "subnets.json") }

// startSubnets returns the ranges to use from the start.
func (m *Manager) startSubnets() ([]netip.Prefix, error) {
	var w transient.Waits
	saved, err := transient.Try(&w, m.savedSubnets)
	if recordfile.Newer(err) != nil {
		return nil, err
	}
	if err != nil {
		kept, asideErr := setAside(m.subnetsFile(), filepath.Join(m.config.StateDir, damagedDir), filepath.Base(m.subnetsFile()))
		saved = m.builtin.standingSubnets()
		m.config.Log.Warn("file of pod subnets was damaged and set aside; using those in force, or of the settings, until others are set",
			"path", m.subnetsFile(), "moved", kept, "subnets", saved, "reason", err, "err", asideErr)
		switch {
		case asideErr != nil:
		case saved == nil:
			err = os.Remove(m.subnetsFile())
		default:
			err = m.saveSubnets(saved)
		}
		if asideErr == nil && err != nil && !errors.Is(err, os.ErrNotExist) {
			m.config.Log.Warn("cannot replace damaged file of pod subnets", "path", m.subnetsFile(), "err", err)
		}
	}
	if saved == nil {
		return m.config.Subnets, nil
	}
	m.cni.ranges.Store(&saved)
	return saved, nil
}

// savedSubnets returns the ranges last given to SetPodCIDR; nil if it was never called.
func (m *Manager) savedSubnets() ([]netip.Prefix, error) {
	data, err := os.ReadFile(m.subnetsFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read pod subnets: %w", err)
	}
	if err := recordfile.CheckNotNewer(m.subnetsFile(), data, recordVersion); err != nil {
		return nil, fmt.Errorf("read pod subnets: %w", err)
	}
	var subnets []netip.Prefix
	if err := json.Unmarshal(data, &subnets); err != nil {
		return nil, fmt.Errorf("read pod subnets %s: %w", m.subnetsFile(), err)
	}
	return subnets, checkSubnets(subnets)
}

// standingSubnets returns the ranges that the host has routes for; nil if it has none.
func (b *builtin) standingSubnets() []netip.Prefix {
	h, err := newHostLinks()
	if err != nil {
		return nil
	}
	defer h.close()
	subnets, err := b.ranges(h)
	if err != nil || checkSubnets(subnets) != nil {
		return nil
	}
	return subnets
}
