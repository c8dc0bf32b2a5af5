package shim

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// stream is a FIFO that an exec had as one of its streams. It is held without being opened for
// anything, so that it can be asked about when its name is gone.
type stream struct {
	f     *os.File
	input bool
}

// streams are the FIFOs of an exec. Empty for terminals: every holder already sees the hang-up.
type streams []stream

// streams opens the FIFOs. gone are the names of those that have been removed: a daemon that starts
// removes what the one before it has left, before the shim has ended that daemon's execs. Only a
// name can tell then who holds one.
func (r *execRecord) streams() (all streams, gone []string) {
	if r.Terminal {
		return nil, nil
	}
	for _, path := range []string{r.Stdin, r.Stdout, r.Stderr} {
		if path == "" {
			continue
		}
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			gone = append(gone, resolved(path))
		}
		if err != nil {
			continue
		}
		f := os.NewFile(uintptr(fd), path)
		if st, err := f.Stat(); err != nil || st.Mode().Type() != os.ModeNamedPipe {
			f.Close() // a file, which others may have for reasons of their own: /dev/null
			continue
		}
		all = append(all, stream{f, path == r.Stdin})
	}
	return all, gone
}

// resolved is a removed file's name without symbolic links, as /proc shows it. Its directory may
// have been removed, too.
func resolved(path string) string {
	dir := filepath.Dir(path)
	if dir == path {
		return path
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		real = resolved(dir)
	}
	return filepath.Join(real, filepath.Base(path))
}

func (s streams) close() {
	for _, one := range s {
		one.f.Close()
	}
}

// path leads to the FIFO whatever has become of its name.
func (s stream) path() string { return "/proc/self/fd/" + strconv.Itoa(int(s.f.Fd())) }

// inUse says whether someone other than the caller may have one of the streams. It is cheap.
func (s streams) inUse() bool {
	for _, one := range s {
		if !one.input {
			if hasWriter(one.path()) {
				return true
			}
		} else if w, err := openFIFO(one.path(), unix.O_WRONLY); err == nil {
			unix.Close(w)
			return true
		}
	}
	return false
}

// heldBy says whether a process has one of the streams open. Names are compared and no file is
// looked at: a container's own may be on a file system that does not answer.
func (s streams) heldBy(ctx context.Context, pid int) bool { return anyFile(ctx, pid, s.have) }

// holdsAny reports whether a process has a file of one of these names open. The file may have been
// removed since.
func holdsAny(ctx context.Context, pid int, names []string) bool {
	return anyFile(ctx, pid, func(name string) bool { return slices.Contains(names, name) })
}

// anyFile reports whether one of a process's open files has a wanted name.
func anyFile(ctx context.Context, pid int, wanted func(name string) bool) bool {
	dir, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	if err != nil {
		return false // it has ended
	}
	defer dir.Close()
	for ctx.Err() == nil {
		names, err := dir.Readdirnames(256)
		for _, name := range names {
			if wanted(nameOf(filepath.Join(dir.Name(), name))) {
				return true
			}
		}
		if err != nil {
			return false
		}
	}
	return false
}

func (s streams) have(name string) bool {
	for _, one := range s {
		if name != "" && nameOf(one.path()) == name {
			return true
		}
	}
	return false
}

// nameOf is the name of the file that a link in /proc leads to, or had before it was removed; "" if
// it has none.
func nameOf(link string) string {
	name, err := os.Readlink(link)
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(name, " (deleted)")
}
