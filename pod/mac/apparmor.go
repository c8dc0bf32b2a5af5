package mac

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	"github.com/coracle-project/coracle/internal/apparmor"
	"github.com/coracle-project/coracle/internal/join"
	"github.com/coracle-project/coracle/pod/errdefs"
)

// AppArmor chooses the profiles of containers on this host.
type AppArmor struct {
	log *slog.Logger
	// loading coalesces concurrent loads of the default profile.
	loading join.Group[struct{}]
}

// NewAppArmor does no I/O.
func NewAppArmor(log *slog.Logger) *AppArmor { return &AppArmor{log: log} }

// Profile resolves what a container asks for: "", "runtime/default", "unconfined" or
// "localhost/NAME". The answer is "" for none.
func (a *AppArmor) Profile(ctx context.Context, want string, privileged bool) (string, error) {
	host := hostProfiles{load: a.load, log: a.log}
	if apparmor.Enabled() {
		// Where securityfs is not mounted, or is hidden, it is as good as off.
		host.loaded, _ = apparmor.Loaded()
	}
	return host.choose(ctx, want, privileged)
}

// load loads the default profile.
func (a *AppArmor) load(ctx context.Context) error {
	_, err := a.loading.Do(ctx, "default", func(ctx context.Context) (struct{}, error) {
		return struct{}{}, apparmor.LoadDefault(ctx)
	})
	return err
}

// hostProfiles is what the host can do.
type hostProfiles struct {
	loaded apparmor.Profiles // nil where there is no AppArmor
	load   func(context.Context) error
	log    *slog.Logger
}

// choose says which profile a container has, "" for none. The default one is loaded when it is
// missing: at first, and after an administrator has run aa-remove-unknown, which removes profiles
// that are in no file of the host. A container that asks for a profile does not run without one, as
// with containerd.
func (a hostProfiles) choose(ctx context.Context, want string, privileged bool) (string, error) {
	switch name, local := strings.CutPrefix(want, "localhost/"); {
	case want == "unconfined":
		return "", nil
	case want == "runtime/default" && a.loaded == nil:
		return "", errdefs.Errorf(errdefs.ErrInvalid, "AppArmor profile %q: this host has no AppArmor; enable it, or ask for none", want)
	case want == "" || want == "runtime/default":
		if privileged || a.loaded == nil {
			return "", nil
		}
		return a.standard(ctx, want != "")
	case !local || name == "":
		return "", errdefs.Errorf(errdefs.ErrInvalid, "AppArmor profile %q is not runtime/default, unconfined or localhost/NAME", want)
	case a.loaded == nil:
		return "", errdefs.Errorf(errdefs.ErrInvalid, "AppArmor profile %q: this host has no AppArmor", want)
	case !a.loaded[name]:
		return "", errdefs.Errorf(errdefs.ErrInvalid, "AppArmor profile %q is not loaded on this host; load it with apparmor_parser", want)
	default:
		return name, nil
	}
}

// standard is the default profile, loaded if it was not. Where nothing can load one, containers
// that did not ask go without, which the daemon says when it starts, and `coracle doctor`.
func (a hostProfiles) standard(ctx context.Context, asked bool) (string, error) {
	if a.loaded[apparmor.Default] {
		return apparmor.Default, nil
	}
	switch err := a.load(ctx); {
	case err == nil:
		return apparmor.Default, nil
	case asked:
		return "", errdefs.Errorf(errdefs.ErrUnavailable, "AppArmor profile runtime/default: %w", err)
	case errors.Is(err, apparmor.ErrNoParser):
		return "", nil
	default:
		a.log.Warn("container runs without an AppArmor profile", "err", err)
		return "", nil
	}
}
