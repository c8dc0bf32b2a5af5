// Package withlc is what coracle-oci leaves to its companion: libcontainer, and what else is heavy.
package withlc

import (
	"fmt"
	"log/slog"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer/seccomp"
	"sigs.k8s.io/yaml"

	"github.com/coracle-project/coracle/cmd/coracle-oci/cli"
	"github.com/coracle-project/coracle/runtime/engine"
	"github.com/coracle-project/coracle/runtime/lc"
)

// Companion is for the main function of the companion; see lc.Init, too.
func Companion() *cli.Companion {
	return &cli.Companion{
		Engine: func(stateDir string, log *slog.Logger) (engine.Fallback, error) {
			return lc.New(lc.Config{StateDir: stateDir, Log: log})
		},
		Features: func() any { return knownFeatures() },
		Stats:    func(s *cgroups.Stats) any { return statsOf(s) },
		YAML:     func(v any) ([]byte, error) { return yaml.Marshal(v) },
		Version:  libseccompVersion,
	}
}

// libseccompVersion is "" without libseccomp.
func libseccompVersion() string {
	major, minor, micro := seccomp.Version()
	if major+minor+micro == 0 {
		return ""
	}
	return fmt.Sprintf("%d.%d.%d", major, minor, micro)
}
