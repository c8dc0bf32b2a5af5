package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cmd/coracled/config"
	"github.com/coracle-project/coracle/cri"
	"github.com/coracle-project/coracle/pod/podconfig"
)

// live is what a reload changes. A new value takes the place of the old one as a whole, so that
// no one sees half of a change.
type live struct {
	config config.Config
	pods   map[string]podconfig.Handler
	edge   []cri.Handler
}

// source is where a daemon's settings come from, for a reload.
type source struct {
	load  func() (config.Config, error) // file and flags, checked
	level *slog.LevelVar                // of the log
}

// reload reads the settings again and takes over those that may change while pods run: registries,
// CNI, runtime handlers, the log's level. With an error in them, all stays as it was. systemd is
// told when it starts and ends (Type=notify-reload, and for systemctl reload with ExecReload).
func (n *node) reload(ctx context.Context, s source) {
	n.tell(reloading())
	switch changed, later, err := n.take(ctx, s); {
	case err != nil:
		n.log.Error("settings not reloaded, those before hold", "err", err)
	case len(later) > 0:
		n.log.Warn("settings reloaded; some need a restart", "changed", changed, "restart for", later)
	default:
		n.log.Info("settings reloaded", "changed", changed)
	}
	n.tell("READY=1")
}

func (n *node) take(ctx context.Context, s source) (changed, later []string, err error) {
	c, err := s.load()
	if err != nil {
		return nil, nil, err
	}
	merged, changed, later := n.live.Load().config.Merge(c)
	if err := errors.Join(checkHandlers(merged.Runtime)...); err != nil {
		return nil, nil, err
	}
	// The only steps that can fail, so the first.
	if err := n.layers.Start(ctx, wantedSnapshotters(merged.Runtime)); err != nil {
		return nil, nil, err
	}
	if err := n.images.SetRegistries(registries(merged.Image)); err != nil {
		return nil, nil, err
	}
	n.network.SetCNI(merged.Network.CNIConfDir, merged.Network.CNIBinDirs)
	n.live.Store(&live{merged, podHandlers(merged.Runtime), n.handlers(ctx, merged.Runtime)})
	s.level.Set(merged.Log.SlogLevel())
	return changed, later, nil
}

// tell tells systemd; that it cannot be told is no reason to stop.
func (n *node) tell(state string) {
	if err := notify(state); err != nil {
		n.log.Warn("cannot notify systemd", "state", state, "err", err)
	}
}

// reloading is what systemd wants to hear when a reload starts: the time tells it which READY=1 is
// the answer to which request (sd_notify(3)).
func reloading() string {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/1000)
}
