//go:build cgo

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// workshop has the bundles and programs that are measured.
type workshop struct {
	dir, bin string
	bundles  map[string]string // by name of the seccomp profile
	floor    string            // see floor.c
}

// Names of seccomp profiles.
const (
	noSeccomp      = "no seccomp"
	defaultSeccomp = "default seccomp"
)

// cgroupPath is every container's: they run one at a time.
const cgroupPath = "/coracle-ocibench/one"

func newWorkshop(dir, bin string) (*workshop, error) {
	w := &workshop{dir: dir, bin: bin, bundles: map[string]string{}}
	for _, profile := range []string{noSeccomp, defaultSeccomp} {
		bundle := filepath.Join(dir, profile)
		if err := runtimetest.MakeRootfs(filepath.Join(bundle, "rootfs")); err != nil {
			return nil, err
		}
		s, err := spec(profile, "/bin/true")
		if err != nil {
			return nil, err
		}
		data, err := json.Marshal(s)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(bundle, "config.json"), data, 0o644); err != nil {
			return nil, err
		}
		w.bundles[profile] = bundle
	}
	return w, w.compileFloor()
}

// spec is the container of all measurements.
func spec(profile string, args ...string) (*specs.Spec, error) {
	s := runtimetest.Spec("one", args...)
	s.Linux.CgroupsPath = cgroupPath
	if profile == noSeccomp {
		return s, nil
	}
	var err error
	if s.Linux.Seccomp, err = seccomp.GetDefaultProfile(s); err != nil {
		return nil, fmt.Errorf("default seccomp profile: %w", err)
	}
	return s, nil
}

// compileFloor compiles floor.c, what any runtime has to do.
func (w *workshop) compileFloor() error {
	w.floor = filepath.Join(w.dir, "floor")
	source := filepath.Join(w.dir, "floor.c")
	if err := os.WriteFile(source, []byte(floorSource), 0o644); err != nil {
		return err
	}
	if out, err := exec.Command("cc", "-O2", "-static", "-o", w.floor, source).CombinedOutput(); err != nil {
		return fmt.Errorf("compile floor.c: %w: %s", err, out)
	}
	return nil
}

// close removes the cgroups that runtimes have made above their containers'.
func (w *workshop) close() {
	parent := filepath.Dir(cgroupPath)
	dirs, _ := filepath.Glob("/sys/fs/cgroup/*" + parent)
	for _, dir := range append(dirs, "/sys/fs/cgroup"+parent) {
		_ = unix.Rmdir(dir)
	}
}
