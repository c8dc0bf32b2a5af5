package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/ownthread"
	"github.com/coracle-project/coracle/snapshot/diff"
)

// overlay is one overlayfs mount.
//
// volatile: nothing is synced at unmount; a container's writable layer does not
// outlive a crash of the machine. index, metacopy and redirect_dir are off whatever the
// kernel's default: they leave xattrs in upper directories that tie them to one mount or
// host, are unsafe to follow in layers that are not trusted (overlayfs.rst), and a
// directory of changes that has none of them can be told apart without its layers.
type overlay struct {
	lower       []string // uppermost first
	upper, work string
	label       string // SELinux label of all files, "" for those on disk
}

// parameters in the order that fsconfig(2) is given them; lower directories come first.
func (o overlay) parameters() [][2]string {
	list := [][2]string{
		{"upperdir", o.upper},
		{"workdir", o.work},
		{"index", "off"},
		{"metacopy", "off"},
		{"redirect_dir", "off"},
		{"volatile", ""},
	}
	if o.label != "" {
		list = append(list, [2]string{"context", o.label})
	}
	return list
}

// mount mounts the overlay at the root's target.
func (o overlay) mount(r Rootfs, api mountAPI) error {
	if api == byString {
		return onOwnThread(func() error { return o.mountByString(r) })
	}
	fd, err := o.detached()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return attach(fd, r)
}

// mountAPI is how a kernel is told the lower directories.
type mountAPI int

// The ways.
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
		return 0, fmt.Errorf("%w: the kernel has no overlayfs: %w", diff.ErrUnsupported, err)
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
		return -1, explain(fs, "overlay", "source=overlay", err)
	}
	for _, dir := range o.lower {
		if err := unix.FsconfigSetString(fs, "lowerdir+", dir); err != nil {
			return -1, explain(fs, "overlay", "lowerdir+="+dir, err)
		}
	}
	for _, p := range o.parameters() {
		if p[1] == "" {
			err = unix.FsconfigSetFlag(fs, p[0])
		} else {
			err = unix.FsconfigSetString(fs, p[0], p[1])
		}
		if err != nil {
			return -1, explain(fs, "overlay", p[0]+"="+p[1], err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, explain(fs, "overlay", "create", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return -1, explain(fs, "overlay", "fsmount", err)
	}
	return fd, nil
}

// explain adds the kernel's own words on why a step of making a mount failed.
func explain(fs int, kind, step string, err error) error {
	if words := kernelLog(fs); words != "" {
		return fmt.Errorf("mount %s: %s: %w (%s)", kind, step, err, words)
	}
	return fmt.Errorf("mount %s: %s: %w", kind, step, err)
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

// take makes the overlay and returns a descriptor of the mount, which is in no namespace
// that outlives this thread's.
func (o overlay) take(r Rootfs, api mountAPI) (int, error) {
	if api == oneByOne {
		return o.detached()
	}
	if err := o.mountByString(r); err != nil {
		return -1, err
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, r.Target, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open tree %s: %w", r.Target, err)
	}
	return fd, nil
}

// mountByString mounts the overlay with mount(2), for kernels without
// "lowerdir+". All options must fit on a page there: many layers are named by numbers,
// as links in a directory that the calling thread, which must have one of its own, goes to.
func (o overlay) mountByString(r Rootfs) error {
	options, page := o.options(o.lower), os.Getpagesize()
	if len(options) >= page {
		names, remove, err := o.numbered()
		if err != nil {
			return err
		}
		defer remove()
		options = o.options(names)
	}
	if len(options) >= page {
		return fmt.Errorf("mount overlay: %w: %d layers make options of %d bytes, and this kernel takes %d; use a newer kernel",
			diff.ErrUnsupported, len(o.lower), len(options), page-1)
	}
	var flags uintptr
	if r.Access == ReadOnly {
		flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV // as attach
	}
	if err := unix.Mount("overlay", r.Target, "overlay", flags, options); err != nil {
		return fmt.Errorf("mount overlay at %s: %w", r.Target, err)
	}
	return nil
}

func (o overlay) options(lower []string) string {
	options := "lowerdir=" + strings.Join(lower, ":")
	for _, p := range o.parameters() {
		options += "," + p[0]
		if p[1] != "" {
			options += "=" + quoted(p[0], p[1])
		}
	}
	return options
}

// quoted is a value in a string of options: those of SELinux may have commas, and the kernel takes
// the quotes away.
func quoted(name, value string) string {
	if name == "context" {
		return strconv.Quote(value)
	}
	return value
}

// numbered makes links to the lower directories, and goes to where they are.
func (o overlay) numbered() (names []string, remove func(), err error) {
	dir := filepath.Join(filepath.Dir(o.upper), "l")
	remove = func() { _ = os.RemoveAll(dir) } // what is left goes with the snapshot
	remove()
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, nil, err
	}
	for i, lower := range o.lower {
		names = append(names, strconv.Itoa(i))
		if err := os.Symlink(lower, filepath.Join(dir, names[i])); err != nil {
			return nil, nil, err
		}
	}
	if err := unix.Chdir(dir); err != nil {
		return nil, nil, fmt.Errorf("go to %s: %w", dir, err)
	}
	return names, remove, nil
}

// onOwnThread runs f on a thread with a working directory of its own, and throws it away.
func onOwnThread(f func() error) error {
	return ownthread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return err
		}
		return f()
	})
}

// unmountOverlay detaches the overlay mounted at target; none there is fine.
func unmountOverlay(target string) error {
	mounted, err := IsOverlayRoot(target)
	if err != nil || !mounted {
		return err
	}
	if err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount %s: %w", target, err)
	}
	return nil
}

// IsOverlayRoot reports whether path is the root of an overlay mount.
func IsOverlayRoot(path string) (bool, error) {
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
