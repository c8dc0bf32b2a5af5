package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/coracle-project/coracle/internal/apparmor"
)

// loadAppArmor loads the default profile before a container wants it, which would wait for it. It
// replaces one that an earlier version has loaded, but not an administrator's.
func loadAppArmor(ctx context.Context, stateDir string, log *slog.Logger) {
	if !apparmor.Enabled() {
		return
	}
	loaded, err := apparmor.Loaded()
	if err != nil {
		log.Warn("containers run without an AppArmor profile: mount securityfs on /sys/kernel/security", "err", err)
		return
	}
	if loaded[apparmor.Default] {
		if file, err := apparmor.Administrators(); err != nil || file != "" {
			log.Info("AppArmor profile not replaced", "profile", apparmor.Default, "file", file, "err",
				errors.Join(err, apparmor.Forget(stateDir)))
			return
		}
	}
	replaced, err := apparmor.Refresh(ctx, stateDir, loaded)
	switch {
	case replaced:
		log.Info("AppArmor profile loaded", "profile", apparmor.Default, "err", err)
	case err == nil:
		log.Debug("AppArmor profile is loaded already", "profile", apparmor.Default)
	case errors.Is(err, apparmor.ErrNoParser):
		log.Warn("containers run without an AppArmor profile: install the package apparmor", "err", err)
	case ctx.Err() == nil:
		log.Warn("AppArmor profile not loaded", "err", err)
	}
}
