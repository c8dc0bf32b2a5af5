// Package subpath shows a part of a volume, which its containers may change meanwhile, in a
// place of its own.
package subpath

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/mountpoint"
)

// Bind resolves subPath in the volume at volumeDir and binds what it finds on target, which
// containers cannot change. A directory that does not exist is made, with the mode of the volume. A
// path that leads out of the volume, by a link too, is refused.
//
// A container of the pod may replace any part of the path while this runs. So the kernel resolves
// it, within the volume only, to a descriptor, and the mount is made from that descriptor.
func Bind(ctx context.Context, volumeDir, subPath, target string) error {
	volume, err := unix.Open(volumeDir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: volumeDir, Err: err}
	}
	defer unix.Close(volume)
	source, err := openOrMake(volume, path.Clean(subPath))
	if err != nil {
		return err
	}
	defer unix.Close(source)
	return mountpoint.Bind(ctx, source, target)
}

// Check refuses what the API refuses, too.
func Check(subPath string) error {
	if path.IsAbs(subPath) {
		return fmt.Errorf("error SubPath `%s` must not be an absolute path", subPath)
	}
	if slices.Contains(strings.Split(subPath, "/"), "..") {
		return fmt.Errorf("unable to provision SubPath `%s`: must not contain '..'", subPath)
	}
	return nil
}

// openOrMake opens what subPath is in the volume, making directories that are missing.
func openOrMake(volume int, subPath string) (int, error) {
	fd, err := openBeneath(volume, subPath)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	var top unix.Stat_t
	if err := unix.Fstat(volume, &top); err != nil {
		return -1, err
	}
	parent, err := openBeneath(volume, ".")
	if err != nil {
		return -1, err
	}
	parts := strings.Split(subPath, "/")
	for i, part := range parts {
		next, err := openBeneath(volume, path.Join(parts[:i+1]...))
		if errors.Is(err, unix.ENOENT) {
			next, err = makeDirAt(parent, part, top.Mode&0o7777)
		}
		unix.Close(parent)
		if err != nil {
			return -1, err
		}
		parent = next
	}
	return parent, nil
}

// openBeneath opens what path leads to within the volume. Links are followed as long as they stay
// in it.
func openBeneath(volume int, path string) (int, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	}
	for range 32 {
		fd, err := unix.Openat2(volume, path, &how)
		// The kernel gives up when something was renamed meanwhile.
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return -1, &os.PathError{Op: "open subPath", Path: path, Err: err}
		}
		return fd, nil
	}
	return -1, &os.PathError{Op: "open subPath", Path: path, Err: unix.EAGAIN}
}

// makeDirAt makes a directory and opens it. What a container puts in its place between the two
// steps is refused if it is a link, and otherwise something that the container owns anyway.
func makeDirAt(parent int, name string, mode uint32) (int, error) {
	if err := unix.Mkdirat(parent, name, mode&0o777); err != nil {
		return -1, &os.PathError{Op: "mkdir", Path: name, Err: err}
	}
	dir, err := unix.Openat(parent, name, layout.OpenDir, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: name, Err: err}
	}
	if err := unix.Fchmod(dir, mode); err != nil { // whatever the umask is
		unix.Close(dir)
		return -1, &os.PathError{Op: "chmod", Path: name, Err: err}
	}
	return dir, nil
}
