// Package validate checks an OCI configuration before anything is made of it, so that a mistake is
// reported with the field's name, its value and how to fix it. Every error is a
// runtime.ErrInvalidSpec. What only the kernel can judge (whether a mount source exists, whether it
// knows a capability) is left to the engine.
package validate

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
)

// Spec checks a config.json. bundle is the bundle's absolute path.
func Spec(spec *specs.Spec, bundle string) error {
	if err := SpecOnHostMounts(spec, bundle); err != nil {
		return err
	}
	isMount := func(n specs.LinuxNamespace) bool { return n.Type == specs.MountNamespace }
	if spec.Linux != nil && !slices.ContainsFunc(spec.Linux.Namespaces, isMount) {
		return invalid("linux.namespaces", "lacks %q, a root file system needs a mount namespace of its own", specs.MountNamespace)
	}
	return nil
}

// SpecOnHostMounts is Spec for an engine that also runs containers without a mount namespace of
// their own: the container's mounts then appear in the caller's namespace, and stay there
// (config-linux.md#namespaces).
func SpecOnHostMounts(spec *specs.Spec, bundle string) error {
	if spec == nil {
		return invalid("spec", "is missing")
	}
	if !filepath.IsAbs(bundle) {
		return fmt.Errorf("bundle %q is not an absolute path", bundle)
	}
	if err := checkVersion(spec.Version); err != nil {
		return err
	}
	if spec.Process == nil {
		return invalid("process", "is missing, a container needs a program to run")
	}
	if err := Process(spec.Process); err != nil {
		return err
	}
	if err := checkRoot(spec.Root, bundle); err != nil {
		return err
	}
	for i := range spec.Mounts {
		if err := checkMount(i, &spec.Mounts[i]); err != nil {
			return err
		}
	}
	if err := checkHooks(spec.Hooks); err != nil {
		return err
	}
	if spec.Linux == nil {
		return nil
	}
	return checkLinux(spec)
}

func checkVersion(v string) error {
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

func checkRoot(root *specs.Root, bundle string) error {
	if root == nil {
		return invalid("root", "is missing, give the root file system's path")
	}
	if err := checkText("root.path", root.Path); err != nil {
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

// checkText refuses the zero byte, which ends a string for the kernel: it would silently ignore the
// rest.
func checkText(field, value string) error {
	if i := strings.IndexByte(value, 0); i >= 0 {
		return invalid(field, "%q has a zero byte at position %d", value, i+1)
	}
	return nil
}

// checkID32 checks a uid or gid. The kernel keeps the highest for "no id".
func checkID32(field string, id uint32) error {
	if id == math.MaxUint32 {
		return invalid(field, "%d is out of range, the highest id is %d", id, uint32(math.MaxUint32-1))
	}
	return nil
}

// texts are fields of the same kind.
type texts []text

type text struct{ field, value string }

func (list texts) check() error {
	for _, t := range list {
		if err := checkText(t.field, t.value); err != nil {
			return err
		}
	}
	return nil
}

func invalid(field, format string, args ...any) error {
	return fmt.Errorf("%w: "+field+" "+format, append([]any{runtime.ErrInvalidSpec}, args...)...)
}
