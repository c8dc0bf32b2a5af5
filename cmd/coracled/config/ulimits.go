package config

import (
	"errors"
	"strings"

	"github.com/docker/go-units"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// checkUlimits wants limits as docker run --ulimit takes them, each once.
func checkUlimits(limits []string) error {
	var errs []error
	seen := map[string]bool{}
	for _, text := range limits {
		l, err := units.ParseUlimit(text)
		switch {
		case err != nil:
			errs = append(errs, wrong("runtime.ulimits", "%q is not name=soft:hard with the name of a limit: %v", text, err))
		case l.Soft < -1 || l.Hard < -1:
			errs = append(errs, wrong("runtime.ulimits", "%q: a limit is a number from 0 on, or -1 for none", text))
		case seen[l.Name]:
			errs = append(errs, wrong("runtime.ulimits", "%q: %s is set twice", text, l.Name))
		default:
			seen[l.Name] = true
		}
	}
	return errors.Join(errs...)
}

// Rlimits are the ulimits, which Check has seen to be such, as the OCI spec has them.
func (r Runtime) Rlimits() []specs.POSIXRlimit {
	var out []specs.POSIXRlimit
	for _, text := range r.Ulimits {
		if l, err := units.ParseUlimit(text); err == nil {
			out = append(out, specs.POSIXRlimit{Type: "RLIMIT_" + strings.ToUpper(l.Name), Soft: uint64(l.Soft), Hard: uint64(l.Hard)})
		}
	}
	return out
}
