package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/coracle-project/coracle/internal/atomicfile"
)

// upgradable are the programs that an upgrade replaces, if the new version has them.
func upgradable() []string {
	return []string{
		"containerd-shim-coracle-v1", "coracle-lazy", "coracle-oci", "coracle-oci-libcontainer", "coracle-build", "coracle-buildkitd",
		"coracled", "coracle-kube", "coracle-bgp", "coracle",
	}
}

// swap replaces the programs of a directory by others, and puts them back. Its steps can be done
// again: a program that is missing in new has been moved, and one that is in old was not there
// before if it is empty.
type swap struct {
	// Bin has the programs, Stage is a directory in it for new and old ones: a program is replaced
	// by a rename.
	Bin      string   `json:"bin"`
	Stage    string   `json:"stage"`
	Programs []string `json:"programs"`
}

func (s swap) fresh(program string) string { return filepath.Join(s.Stage, "new", program) }
func (s swap) old(program string) string   { return filepath.Join(s.Stage, "old", program) }

// newSwap returns what replaces the programs next to this one.
func newSwap() (swap, error) {
	self, err := os.Executable()
	if err != nil {
		return swap{}, err
	}
	bin := filepath.Dir(self)
	return swap{Bin: bin, Stage: filepath.Join(bin, ".coracle-upgrade")}, nil
}

// runHere fails unless the programs that run are those that are replaced. A command of the new
// version, executed where that was unpacked, would replace the new programs by themselves.
func (u *upgrade) runHere() error {
	for _, one := range u.processes() {
		pid, err := holder(one.lock)
		if err != nil {
			return fmt.Errorf("%s: %w", one.what, err)
		}
		if pid == 0 {
			continue // status says so
		}
		program, err := os.Readlink(procFile(pid, "exe"))
		if err != nil {
			return fmt.Errorf("%s: %w", one.what, err)
		}
		if dir := filepath.Dir(strings.TrimSuffix(program, " (deleted)")); dir != u.Swap.Bin {
			return fmt.Errorf("%s runs from %s, and this command replaces the programs in %s: run '%s upgrade%s' with the new programs", one.what, dir,
				u.Swap.Bin, filepath.Join(dir, "coracle"), u.flags())
		}
	}
	return nil
}

// collect copies the new programs from a directory, or from Debian packages, and has each say its
// version.
func (s *swap) collect(ctx context.Context, from []string) error {
	if err := s.clean(); err != nil {
		return err
	}
	for _, dir := range []string{"new", "old"} {
		if err := os.MkdirAll(filepath.Join(s.Stage, dir), 0o700); err != nil {
			return err
		}
	}
	for _, source := range from {
		dir, err := s.unpack(ctx, source)
		if err != nil {
			return err
		}
		for _, program := range upgradable() {
			err := copyProgram(filepath.Join(dir, program), s.fresh(program))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			if !slices.Contains(s.Programs, program) {
				s.Programs = append(s.Programs, program)
			}
		}
	}
	if len(s.Programs) == 0 {
		return fmt.Errorf("no programs of Coracle in %s", strings.Join(from, ", "))
	}
	for _, program := range s.Programs {
		if err := runs(ctx, s.fresh(program)); err != nil {
			return fmt.Errorf("the new %s: %w", program, err)
		}
	}
	return nil
}

// unpack returns the directory of the programs in source.
func (s *swap) unpack(ctx context.Context, source string) (string, error) {
	if filepath.Ext(source) != ".deb" {
		st, err := os.Stat(source)
		if err == nil && !st.IsDir() {
			err = fmt.Errorf("%s is neither a directory nor a Debian package", source)
		}
		return source, err
	}
	dir := filepath.Join(s.Stage, "package")
	if said, err := exec.CommandContext(ctx, "dpkg-deb", "-x", source, dir).CombinedOutput(); err != nil {
		return "", fmt.Errorf("dpkg-deb -x %s: %w: %s", source, err, strings.TrimSpace(string(said)))
	}
	return filepath.Join(dir, "usr", "bin"), nil
}

func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	if st, err := in.Stat(); err != nil || !st.Mode().IsRegular() {
		return errors.Join(err, fmt.Errorf("%s is no program", from))
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chmod(0o755), out.Sync(), out.Close())
}

// programPatience is how long a program may take to say its version.
const programPatience = 30 * time.Second

// runs says whether a program can be executed here at all.
func runs(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, programPatience)
	defer cancel()
	flag := "--version"
	if filepath.Base(path) == "containerd-shim-coracle-v1" {
		flag = "-v"
	}
	err := exec.CommandContext(ctx, path, flag).Run()
	if ended := (*exec.ExitError)(nil); errors.As(err, &ended) && filepath.Base(path) == "coracle-lazy" {
		return nil // it has no such flag: that it starts is enough
	}
	return err
}

// keep links the programs that will be replaced to the directory of the old ones.
func (s swap) keep() error {
	for _, program := range s.Programs {
		err := os.Link(filepath.Join(s.Bin, program), s.old(program))
		if errors.Is(err, fs.ErrNotExist) { // an empty file says that there was none
			err = os.WriteFile(s.old(program), nil, 0o600)
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return atomicfile.Sync(filepath.Join(s.Stage, "old"))
}

// forward puts the new programs in place.
func (s swap) forward() error {
	for _, program := range s.Programs {
		if err := os.Rename(s.fresh(program), filepath.Join(s.Bin, program)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return atomicfile.Sync(s.Bin)
}

// back puts the old programs in place again.
func (s swap) back() error {
	for _, program := range s.Programs {
		path := filepath.Join(s.Bin, program)
		st, err := os.Stat(s.old(program))
		switch {
		case errors.Is(err, fs.ErrNotExist): // it is back
			continue
		case err != nil:
			return err
		case st.Size() == 0:
			err = os.Remove(path)
		default:
			// Another name of it, so that a second try finds it. To rename a file onto another name
			// of itself does nothing.
			temp := path + ".old"
			_ = os.Remove(temp)
			if err = os.Link(s.old(program), temp); err == nil {
				err = os.Rename(temp, path)
			}
			_ = os.Remove(temp) // if the program had never been replaced
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return atomicfile.Sync(s.Bin)
}

func (s swap) clean() error { return os.RemoveAll(s.Stage) }
