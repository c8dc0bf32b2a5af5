package spec

import (
	"os"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/ocispec"
	"github.com/coracle-project/coracle/pod/podconfig"
)

// maxSeccompProfile bounds a profile file.
const maxSeccompProfile = 1 << 20

// Seccomp reads the seccomp profile of a container or sandbox; unset is the one where nothing is
// asked for.
func Seccomp(s *podconfig.Seccomp, unset podconfig.ProfileType) (ocispec.Seccomp, error) {
	kind := s.Type
	if kind == "" {
		kind = unset
	}
	switch kind {
	case podconfig.ProfileRuntimeDefault:
		return ocispec.Seccomp{Default: true}, nil
	case podconfig.ProfileLocalhost:
		st, err := os.Stat(s.Localhost)
		if err != nil {
			return ocispec.Seccomp{}, errdefs.Errorf(errdefs.ErrInvalid, "seccomp profile: %w", err)
		}
		if !st.Mode().IsRegular() || st.Size() > maxSeccompProfile {
			return ocispec.Seccomp{}, errdefs.Errorf(errdefs.ErrInvalid, "seccomp profile %s is not a file of at most %d bytes", s.Localhost,
				maxSeccompProfile)
		}
		b, err := os.ReadFile(s.Localhost)
		if err != nil {
			return ocispec.Seccomp{}, errdefs.Errorf(errdefs.ErrInvalid, "seccomp profile: %w", err)
		}
		return ocispec.Seccomp{JSON: string(b)}, nil
	}
	return ocispec.Seccomp{}, nil
}
