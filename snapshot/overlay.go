package snapshot

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// overlay is one overlayfs mount.
//
// volatile: nothing is synced at unmount; a container's writable layer does not
// outlive a crash of the machine. index and metacopy are off whatever the kernel's
// default: both leave xattrs in layers that tie them to one mount or host, and
// metacopy is unsafe with layers that are not trusted (overlayfs.rst).
type overlay struct {
	lower       []string // uppermost first
	upper, work string
}

// parameters in the order that fsconfig(2) is given them; lower directories come first.
func (o overlay) parameters() [][2]string {
	return [][2]string{
		{"upperdir", o.upper},
		{"workdir", o.work},
		{"index", "off"},
		{"metacopy", "off"},
		{"volatile", ""},
	}
}

// mount mounts the overlay at the directory target.
func (o overlay) mount(target string, api mountAPI) error {
	if api == byString {
		return o.mountByString(target)
	}
	fd, err := o.detached()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach overlay at %s: %w", target, err)
	}
	return nil
}

// mountAPI is how this kernel is told the lower directories.
type mountAPI int

const (
	oneByOne mountAPI = iota // fsconfig(2) with "lowerdir+"
	byString                 // mount(2) with all in one string
)

// findMountAPI asks the kernel.
func findMountAPI() (mountAPI, error) {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err == unix.ENOSYS {
		return byString, nil
	}
	if err != nil {
		return 0, fmt.Errorf("%w: the kernel has no overlayfs: %w", ErrUnsupported, err)
	}
	defer unix.Close(fs)
	if unix.FsconfigSetString(fs, "lowerdir+", "/") != nil {
		return byString, nil
	}
	// A kernel whose overlayfs predates the API takes any parameter, and fails late.
	if unix.FsconfigSetString(fs, "no-such-parameter", "x") == nil {
		return byString, nil
	}
	return oneByOne, nil
}

// detached makes the overlay with the mount API of Linux 5.2, which has no limit on
// the length of the list of layers. It returns a descriptor of the mount, which is
// not yet in any namespace.
func (o overlay) detached() (int, error) {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open overlay: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigSetString(fs, "source", "overlay"); err != nil {
		return -1, explain(fs, "source=overlay", err)
	}
	for _, dir := range o.lower {
		if err := unix.FsconfigSetString(fs, "lowerdir+", dir); err != nil {
			return -1, explain(fs, "lowerdir+="+dir, err)
		}
	}
	for _, p := range o.parameters() {
		if p[1] == "" {
			err = unix.FsconfigSetFlag(fs, p[0])
		} else {
			err = unix.FsconfigSetString(fs, p[0], p[1])
		}
		if err != nil {
			return -1, explain(fs, p[0]+"="+p[1], err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, explain(fs, "create", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return -1, explain(fs, "fsmount", err)
	}
	return fd, nil
}

// explain adds the kernel's own words on why a step of making a mount failed.
func explain(fs int, step string, err error) error {
	if words := kernelLog(fs); words != "" {
		return fmt.Errorf("mount overlay: %s: %w (%s)", step, err, words)
	}
	return fmt.Errorf("mount overlay: %s: %w", step, err)
}

// kernelLog reads the messages waiting on a file system context.
func kernelLog(fs int) string {
	var words []string
	buf := make([]byte, 1024)
	for {
		n, err := unix.Read(fs, buf)
		if err != nil || n <= 0 {
			return strings.Join(words, "; ")
		}
		words = append(words, strings.TrimSpace(string(buf[:n])))
	}
}

// mountByString mounts the overlay with mount(2), for kernels without
// "lowerdir+". All options must fit on a page there.
func (o overlay) mountByString(target string) error {
	options := "lowerdir=" + strings.Join(o.lower, ":")
	for _, p := range o.parameters() {
		options += "," + p[0]
		if p[1] != "" {
			options += "=" + p[1]
		}
	}
	if page := os.Getpagesize(); len(options) >= page {
		return fmt.Errorf("mount overlay: %w: %d layers make options of %d bytes, and this kernel takes %d; use a newer kernel or a shorter root path",
			ErrUnsupported, len(o.lower), len(options), page-1)
	}
	if err := unix.Mount("overlay", target, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount overlay at %s: %w", target, err)
	}
	return nil
}

// unmount detaches the overlay mounted at target; none there is fine.
func unmount(target string) error {
	mounted, err := isOverlayRoot(target)
	if err != nil || !mounted {
		return err
	}
	if err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount %s: %w", target, err)
	}
	return nil
}

// isOverlayRoot reports whether path is the root of an overlay mount.
func isOverlayRoot(path string) (bool, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT || err == unix.ENOTDIR {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return false, fmt.Errorf("statfs %s: %w", path, err)
	}
	if fs.Type != unix.OVERLAYFS_SUPER_MAGIC {
		return false, nil
	}
	var stx unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS, &stx); err != nil {
		return false, fmt.Errorf("statx %s: %w", path, err)
	}
	return stx.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}
