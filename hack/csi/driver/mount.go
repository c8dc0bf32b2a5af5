package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mountpoint is a line of the table of mounts: where what is mounted.
type mountpoint struct{ path, device, root string }

func mountpoints() (list []mountpoint, err error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 {
			list = append(list, mountpoint{path: plain(fields[4]), device: fields[2], root: fields[3]})
		}
	}
	return list, lines.Err()
}

// mounted says whether something is mounted at a path.
func mounted(path string) (bool, error) {
	list, err := mountpoints()
	return slices.ContainsFunc(list, func(m mountpoint) bool { return m.path == path }), err
}

// elsewhere returns another place, than staging, of what is mounted at a path, or "".
func elsewhere(path, staging string) (string, error) {
	list, err := mountpoints()
	i := slices.IndexFunc(list, func(m mountpoint) bool { return m.path == path })
	if err != nil || i < 0 {
		return "", err
	}
	for _, m := range list {
		if m.device == list[i].device && m.root == list[i].root && m.path != path && m.path != staging {
			return m.path, nil
		}
	}
	return "", nil
}

// plain undoes the kernel's escapes, as \040 for a space.
func plain(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// unmount takes off all that is mounted at a path.
func unmount(path string) error {
	for {
		is, err := mounted(path)
		if err != nil || !is {
			return err
		}
		if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
}

// mountImage mounts the file system of an image, which is made if there is none.
func mountImage(image, at string, options []string) error {
	has, err := hasFileSystem(image)
	if err != nil {
		return err
	}
	if !has {
		// One that was only half made has no superblock: mkfs writes it last. Data and metadata
		// share the little room.
		if out, err := exec.Command("mkfs.btrfs", "-q", "-M", "-d", "single", "-m", "single", image).CombinedOutput(); err != nil {
			return fmt.Errorf("mkfs.btrfs: %w: %s", err, out)
		}
	}
	device, err := attachLoop(image, unix.LO_FLAGS_AUTOCLEAR)
	if err != nil {
		return err
	}
	defer device.Close() // the mount keeps it
	flags, data := uintptr(0), []string(nil)
	for _, option := range options {
		switch option {
		case "ro":
			flags |= unix.MS_RDONLY
		case "noatime":
			flags |= unix.MS_NOATIME
		case "sync":
			flags |= unix.MS_SYNCHRONOUS
		default:
			data = append(data, option)
		}
	}
	if err := unix.Mount(device.Name(), at, fileSystem, flags, strings.Join(data, ",")); err != nil {
		return fmt.Errorf("mount %s at %s with %q: %w", device.Name(), at, options, err)
	}
	if flags&unix.MS_RDONLY != 0 {
		return nil
	}
	return growFileSystem(at) // it may be of a smaller snapshot
}

// bind mounts a directory or a device at another place.
func bind(from, at string, readonly bool) error {
	if err := unix.Mount(from, at, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s at %s: %w", from, at, err)
	}
	if readonly {
		if err := unix.Mount("", at, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			return errors.Join(fmt.Errorf("make %s read-only: %w", at, err), unmount(at))
		}
	}
	return nil
}
