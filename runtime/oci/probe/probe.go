// Package probe tells what can be known of an OCI runtime's command without making a container.
// It is apart from package oci, because the daemon, which asks, makes none.
package probe

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go/features"
	"golang.org/x/sys/unix"
)

// featuresTimeout bounds the question, which a daemon asks when it starts.
const featuresTimeout = 5 * time.Second

// Features is what a command can do, as far as it matters to those who write configurations.
type Features struct {
	// RecursiveReadonly: it knows the mount option rro. IDMap: it can show the ids of a user
	// namespace in mounts.
	RecursiveReadonly, IDMap bool
}

// Ask has a command tell its features (features.md of the runtime spec). One that has no such
// command has none.
func Ask(ctx context.Context, path string) (Features, error) {
	if err := Command(path); err != nil {
		return Features{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, featuresTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "features")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.WaitDelay = time.Second // a child of the command may keep the pipe
	out, err := cmd.Output()
	if err != nil {
		return Features{}, fmt.Errorf("ask %s for its features: %w", path, err)
	}
	return parseFeatures(path, out)
}

func parseFeatures(path string, out []byte) (Features, error) {
	var f features.Features
	if err := json.Unmarshal(out, &f); err != nil {
		return Features{}, fmt.Errorf("ask %s for its features: %w", path, err)
	}
	have := Features{RecursiveReadonly: slices.Contains(f.MountOptions, "rro")}
	if f.Linux != nil && f.Linux.MountExtensions != nil && f.Linux.MountExtensions.IDMap != nil {
		enabled := f.Linux.MountExtensions.IDMap.Enabled
		have.IDMap = enabled != nil && *enabled
	}
	return have, nil
}

// Command says whether path can be a handler's command: absolute, and a file that may be
// executed.
func Command(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("OCI runtime %q is not an absolute path", path)
	}
	st, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("OCI runtime: %w", err)
	}
	if !st.Mode().IsRegular() || unix.Access(path, unix.X_OK) != nil {
		return fmt.Errorf("OCI runtime %s is not a program", path)
	}
	return nil
}
