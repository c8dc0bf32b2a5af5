package runtime

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// ValidateSpec checks what the runtime spec demands of a config.json before
// anything is made, so that a mistake is reported with the field's name, its
// value and how to mend it. bundle is the bundle's absolute path. Errors are
// ErrInvalidSpec. What only the kernel can judge (does a mount source exist, is a
// capability known) is left to Create.
func ValidateSpec(spec *specs.Spec, bundle string) error {
	if spec == nil {
		return invalid("spec", "is missing")
	}
	if err := validateVersion(spec.Version); err != nil {
		return err
	}
	if spec.Process == nil {
		return invalid("process", "is missing, a container needs a program to run")
	}
	if err := ValidateProcess(spec.Process); err != nil {
		return err
	}
	if err := validateRoot(spec.Root, bundle); err != nil {
		return err
	}
	for i, m := range spec.Mounts {
		if err := validateMount(fmt.Sprintf("mounts[%d]", i), m); err != nil {
			return err
		}
	}
	if err := validateHooks(spec.Hooks); err != nil {
		return err
	}
	if spec.Linux == nil {
		return nil
	}
	return validateLinux(spec)
}

func validateVersion(v string) error {
	if v == "" {
		return invalid("ociVersion", "is missing, set it to %q", specs.Version)
	}
	major, rest, ok := strings.Cut(v, ".")
	if _, err := strconv.ParseUint(major, 10, 32); !ok || err != nil || rest == "" {
		return invalid("ociVersion", "%q is no semantic version, set it to %q", v, specs.Version)
	}
	if major != "1" {
		return invalid("ociVersion", "%q is not supported, this runtime knows 1.0.0 to %s", v, specs.Version)
	}
	return nil
}

func validateRoot(root *specs.Root, bundle string) error {
	if root == nil {
		return invalid("root", "is missing, give the root file system's path")
	}
	if err := validateText("root.path", root.Path); err != nil {
		return err
	}
	if root.Path == "" {
		return invalid("root.path", "is empty, give the root file system's path")
	}
	path := root.Path
	if !filepath.IsAbs(path) {
		path = filepath.Join(bundle, path)
	}
	st, err := os.Stat(path)
	if err != nil {
		return invalid("root.path", "%q cannot be used: %w", root.Path, err)
	}
	if !st.IsDir() {
		return invalid("root.path", "%q is not a directory", root.Path)
	}
	return nil
}

func validateMount(field string, m specs.Mount) error {
	if m.Destination == "" {
		return invalid(field+".destination", "is empty, give an absolute path in the container")
	}
	for _, f := range []struct{ name, value string }{
		{"destination", m.Destination}, {"source", m.Source}, {"type", m.Type},
	} {
		if err := validateText(field+"."+f.name, f.value); err != nil {
			return err
		}
	}
	for i, o := range m.Options {
		if err := validateText(fmt.Sprintf("%s.options[%d]", field, i), o); err != nil {
			return err
		}
	}
	bind := slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
	if (bind || m.Type == "bind") && m.Source == "" {
		return invalid(field+".source", "is empty, a bind mount at %q needs a source", m.Destination)
	}
	return nil
}

func validateHooks(h *specs.Hooks) error {
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
			if hook.Timeout != nil && *hook.Timeout <= 0 {
				return invalid(field+".timeout", "%d is not positive, give seconds or leave it out", *hook.Timeout)
			}
		}
	}
	return nil
}

// validateText refuses the zero byte, which ends a string for the kernel: what
// stands behind it would be silently ignored.
func validateText(field, value string) error {
	if i := strings.IndexByte(value, 0); i >= 0 {
		return invalid(field, "%q has a zero byte at position %d", value, i+1)
	}
	return nil
}

// validateID32 checks a uid or gid. The kernel keeps the highest for "no id".
func validateID32(field string, id uint32) error {
	if id == math.MaxUint32 {
		return invalid(field, "%d is out of range, the highest id is %d", id, uint32(math.MaxUint32-1))
	}
	return nil
}

func invalid(field, format string, args ...any) error {
	return fmt.Errorf("%w: "+field+" "+format, append([]any{ErrInvalidSpec}, args...)...)
}
