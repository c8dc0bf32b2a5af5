package validate

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
)

func checkHooks(h *specs.Hooks) error {
	if h == nil {
		return nil
	}
	for _, list := range []struct {
		name  string
		hooks []specs.Hook
	}{
		//lint:ignore SA1019 prestart is deprecated but still part of the spec
		{"prestart", h.Prestart},
		{"createRuntime", h.CreateRuntime},
		{"createContainer", h.CreateContainer},
		{"startContainer", h.StartContainer},
		{"poststart", h.Poststart},
		{"poststop", h.Poststop},
	} {
		for i, hook := range list.hooks {
			field := fmt.Sprintf("hooks.%s[%d]", list.name, i)
			if !filepath.IsAbs(hook.Path) {
				return invalid(field+".path", "%q is not absolute, begin it with /", hook.Path)
			}
			if err := checkHookText(field, &hook); err != nil {
				return err
			}
			if hook.Timeout != nil && *hook.Timeout <= 0 {
				return invalid(field+".timeout", "%d is not positive, give seconds or leave it out", *hook.Timeout)
			}
		}
	}
	return nil
}

func checkHookText(field string, h *specs.Hook) error {
	if err := checkText(field+".path", h.Path); err != nil {
		return err
	}
	for i, a := range h.Args {
		if strings.IndexByte(a, 0) >= 0 {
			return checkText(fmt.Sprintf("%s.args[%d]", field, i), a)
		}
	}
	for i, e := range h.Env {
		if err := checkEnv(e); err != nil {
			return fmt.Errorf("%w: %s.env[%d] %w", runtime.ErrInvalidSpec, field, i, err)
		}
	}
	return nil
}
