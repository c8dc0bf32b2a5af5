package spec

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/ocispec"
	"github.com/coracle-project/coracle/pod/podconfig"
)

// resolveDevices looks the devices up on the host; a directory means all devices
// below it. With all, the devices of /dev are added.
func resolveDevices(ds []podconfig.Device, all bool) ([]ocispec.Device, error) {
	var out []ocispec.Device
	if all {
		host, err := devicesBelow("/dev", "/dev", "rwm")
		if err != nil {
			return nil, fmt.Errorf("host devices: %w", err)
		}
		out = host
	}
	for _, d := range ds {
		host, err := filepath.EvalSymlinks(d.HostPath)
		if err != nil {
			return nil, errdefs.Errorf(errdefs.ErrInvalid, "device: %w", err)
		}
		to := d.ContainerPath
		if to == "" {
			to = d.HostPath
		}
		perm := d.Permissions
		if perm == "" {
			perm = "rwm"
		}
		got, err := devicesBelow(host, path.Clean(to), perm)
		if err != nil {
			return nil, errdefs.Errorf(errdefs.ErrInvalid, "device %s: %w", d.HostPath, err)
		}
		if len(got) == 0 {
			return nil, errdefs.Errorf(errdefs.ErrInvalid, "%s is not a device", d.HostPath)
		}
		out = append(out, got...)
	}
	return out, nil
}

// notDevices are what a container's /dev has of its own.
var notDevices = map[string]bool{
	"/dev/pts": true, "/dev/shm": true, "/dev/fd": true, "/dev/mqueue": true,
	"/dev/console": true, "/dev/ptmx": true,
}

// devicesBelow lists the device nodes at or below host, as they are to be at to.
func devicesBelow(host, to, perm string) ([]ocispec.Device, error) {
	var out []ocispec.Device
	err := filepath.WalkDir(host, func(p string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist) && p != host:
			return nil // it went while we looked
		case err != nil:
			return err
		case notDevices[p]:
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		case e.Type()&fs.ModeDevice == 0:
			return nil
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return nil // as above
		}
		kind := "c"
		if st.Mode&unix.S_IFMT == unix.S_IFBLK {
			kind = "b"
		}
		mode := fs.FileMode(st.Mode & 0o777)
		out = append(out, ocispec.Device{
			Permissions: perm,
			Node: specs.LinuxDevice{
				Path: to + strings.TrimPrefix(p, host), Type: kind,
				Major: int64(unix.Major(uint64(st.Rdev))), Minor: int64(unix.Minor(uint64(st.Rdev))),
				FileMode: &mode, UID: &st.Uid, GID: &st.Gid,
			},
		})
		return nil
	})
	return out, err
}
