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
// value and how to fix it. bundle is the bundle's absolute path. Errors are
// ErrInvalidSpec. What only the kernel can judge (does a mount source exist, is a
// capability known) is left to Create.
func ValidateSpec(spec *specs.Spec, bundle string) error {
	if err := ValidateSpecOnHostMounts(spec, bundle); err != nil {
		return err
	}
	isMount := func(n specs.LinuxNamespace) bool { return n.Type == specs.MountNamespace }
	if spec.Linux != nil && !slices.ContainsFunc(spec.Linux.Namespaces, isMount) {
		return invalid("linux.namespaces", "lacks %q, a root file system needs a mount namespace of its own", specs.MountNamespace)
	}
	return nil
}

// ValidateSpecOnHostMounts is ValidateSpec for an engine that can also do what the runtime
// spec says of a missing mount namespace (config-linux.md#namespaces): the container's
// mounts are then made in, and left in, the caller's.
func ValidateSpecOnHostMounts(spec *specs.Spec, bundle string) error {
	if spec == nil {
		return invalid("spec", "is missing")
	}
	if !filepath.IsAbs(bundle) {
		return fmt.Errorf("bundle %q is not an absolute path", bundle)
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
	for i := range spec.Mounts {
		if err := validateMount(i, &spec.Mounts[i]); err != nil {
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

// texts are fields of the same kind.
type texts []text

type text struct{ field, value string }

func (list texts) validate() error {
	for _, t := range list {
		if err := validateText(t.field, t.value); err != nil {
			return err
		}
	}
	return nil
}

func invalid(field, format string, args ...any) error {
	return fmt.Errorf("%w: "+field+" "+format, append([]any{ErrInvalidSpec}, args...)...)
}
