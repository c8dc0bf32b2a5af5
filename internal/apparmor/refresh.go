package apparmor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/internal/atomicfile"
)

// StateFile is the file in the daemon's state directory with the digest of the profile that it has
// loaded. Like loaded profiles, the file is gone after a boot.
const StateFile = "apparmor"

// Refresh loads the default profile, unless this version's text of it is loaded already: to compile
// and replace it takes some 50 ms of each start.
func Refresh(ctx context.Context, stateDir string, loaded Profiles) (replaced bool, err error) {
	file := filepath.Join(stateDir, StateFile)
	text := digest.FromBytes(pinned(directory)).String()
	if loaded[Default] {
		if last, err := os.ReadFile(file); err == nil && string(last) == text {
			return false, nil
		}
	}
	// First, since a replacement that is cut off may have taken place.
	if err := Forget(stateDir); err != nil {
		return false, err
	}
	if err := LoadDefault(ctx); err != nil {
		return false, err
	}
	return true, atomicfile.Write(file, []byte(text), 0o600)
}

// Forget has the next Refresh load the profile: that which is loaded may not be ours.
func Forget(stateDir string) error {
	if err := os.Remove(filepath.Join(stateDir, StateFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
