// Package bundle writes bundles for other programs: runtimes older than the specification that we
// follow, each with habits of its own.
package bundle

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// version is the ociVersion that is written: crun before 1.9 refuses any after 1.0, and no runtime
// makes a difference between them. What one does not know in a configuration it ignores
// (config.md#extensibility).
const version = "1.0.2"

// Write makes the directory of a bundle with a configuration whose paths do not depend on where it
// is. from is the bundle that spec was for: its own file may say something else, or not be there.
// oomScore is what the process gets (base.Store.AllowedOOMScore: other runtimes fail on what they
// may not set).
func Write(dir string, spec *specs.Spec, from string, oomScore *int) error {
	s := *spec
	s.Version = version
	if s.Root != nil && !filepath.IsAbs(s.Root.Path) {
		root := *s.Root
		root.Path = filepath.Join(from, root.Path)
		s.Root = &root
	}
	s.Mounts = make([]specs.Mount, 0, len(spec.Mounts))
	for _, m := range spec.Mounts {
		if isBind(m) && !filepath.IsAbs(m.Source) {
			m.Source = filepath.Join(from, m.Source)
		}
		s.Mounts = append(s.Mounts, m)
	}
	if spec.Process != nil {
		process := *spec.Process
		process.OOMScoreAdj = oomScore
		s.Process = &process
	}
	b, err := json.Marshal(&s)
	if err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	if err := os.Mkdir(dir, 0o711); err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), b, 0o600); err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	return nil
}

func isBind(m specs.Mount) bool {
	return m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
}
