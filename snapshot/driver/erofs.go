package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/confine"
	"github.com/coracle-project/coracle/internal/keylock"
	"github.com/coracle-project/coracle/snapshot/diff"
)

// erofsDriver keeps each layer as an EROFS image, mounts it from the file (Linux 6.12), and
// stacks the mounts with overlayfs. The images are made by mkfs.erofs: libraries in Go
// that write EROFS have no hard links.
//
// A layer is mounted once, at mounts/HEX, when the first snapshot needs it, so that all
// its users share what is cached of it, and stays so until it is removed.
type erofsDriver struct {
	overlayfs
	// discard has a directory deleted in the background.
	discard func(dir string) error
	busy    keylock.Lock // by mount point
}

const mkfsErofs = "mkfs.erofs"

const (
	// ImageFile is a layer's image in its directory.
	ImageFile = "layer.erofs"
	// MountsDir is where in a store layers are mounted.
	MountsDir = "mounts"
)

// Seal makes an image of what was unpacked, which is deleted.
func (d *erofsDriver) Seal(ctx context.Context, dir string) error {
	if err := makeErofs(ctx, filepath.Join(dir, ImageFile), FilesIn(dir)); err != nil {
		return err
	}
	return d.discard(FilesIn(dir))
}

// What making an image of the largest layer may take.
const (
	mkfsTime   = time.Hour
	mkfsMemory = 8 << 30  // bytes of addresses
	mkfsBytes  = 80 << 30 // of the image
	mkfsFiles  = 256      // open
)

// makeErofs makes an image of a directory. -x1 stores attributes that files share once,
// --chunksize equal parts of files, and so a bomb of zeros as one of them.
//
// The program reads untrusted files, so it runs confined. CAP_DAC_READ_SEARCH lets it read files of
// all owners, CAP_SYS_ADMIN the attributes trusted.overlay.*.
func makeErofs(ctx context.Context, image, dir string) error {
	scratch := image + ".scratch"
	if err := errors.Join(os.MkdirAll(filepath.Join(scratch, filepath.Base(confine.Files)), 0o700),
		os.Chown(scratch, confine.Nobody, confine.Nobody)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, mkfsTime, fmt.Errorf("%s took more than %s", mkfsErofs, mkfsTime))
	defer cancel()
	err := confine.Run(ctx, confine.Program{
		Name: mkfsErofs,
		Args: []string{
			"--quiet", "--preserve-mtime", "-x1", "--chunksize=65536", "-U00000000-0000-0000-0000-000000000000",
			filepath.Join(confine.Scratch, ImageFile), confine.Files,
		},
		Files:        dir,
		Scratch:      scratch,
		Capabilities: []uintptr{unix.CAP_DAC_READ_SEARCH, unix.CAP_SYS_ADMIN},
		Limits:       confine.Limits{CPU: mkfsTime, Memory: mkfsMemory, FileBytes: mkfsBytes, Files: mkfsFiles},
	})
	if err == nil {
		err = keepErofs(filepath.Join(scratch, ImageFile), image)
	}
	if errors.Is(err, exec.ErrNotFound) {
		err = fmt.Errorf("%w: %s is not installed; install erofs-utils, or set snapshot.driver to overlay", diff.ErrUnsupported, mkfsErofs)
	} else if err != nil {
		err = fmt.Errorf("make an image of %s: %w", dir, err)
	}
	return errors.Join(err, os.RemoveAll(scratch))
}

// keepErofs takes over what the program has made.
func keepErofs(made, image string) error {
	fd, err := unix.Open(made, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: made, Err: err}
	}
	f := os.NewFile(uintptr(fd), made)
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("%s is not a file", made)
	}
	return errors.Join(f.Chown(0, 0), f.Chmod(0o600), os.Rename(made, image))
}

// mountPoint is where a layer's image is mounted.
func (d *erofsDriver) mountPoint(dir string) string {
	return filepath.Join(d.root, MountsDir, filepath.Base(dir))
}

// ensure mounts a layer's image, if it is not yet, and returns where.
func (d *erofsDriver) ensure(ctx context.Context, dir string) (string, error) {
	at := d.mountPoint(dir)
	release, err := d.busy.Acquire(ctx, at)
	if err != nil {
		return "", fmt.Errorf("mount layer %w", err)
	}
	defer release()
	if mounted, err := IsMountRoot(at); err != nil || mounted {
		return at, err
	}
	if err := os.MkdirAll(at, 0o700); err != nil {
		return "", err
	}
	fd, err := detachedErofs(filepath.Join(dir, ImageFile))
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EBADMSG) || errors.Is(err, unix.EUCLEAN) {
		err = fmt.Errorf("%w: %w", ErrDamaged, err) // probe has seen that images can be mounted
	}
	if err != nil {
		return "", err
	}
	return at, attachErofs(fd, at)
}

// detachedErofs mounts an image file in no place yet.
func detachedErofs(image string) (int, error) {
	fs, err := unix.Fsopen("erofs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("%w: the kernel has no EROFS: %w", diff.ErrUnsupported, err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigSetString(fs, "source", image); err != nil {
		return -1, explain(fs, "erofs", "source="+image, err)
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		if err == unix.ENOTBLK {
			return -1, fmt.Errorf("%w: mounting EROFS from a file needs Linux 6.12: %w", diff.ErrUnsupported, err)
		}
		return -1, explain(fs, "erofs", "create", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return -1, explain(fs, "erofs", "fsmount", err)
	}
	return fd, nil
}

// attachErofs puts a detached mount in its place, and closes it.
func attachErofs(fd int, at string) error {
	defer unix.Close(fd)
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach layer at %s: %w", at, err)
	}
	return nil
}

func (d *erofsDriver) View(ctx context.Context, dir string) (string, error) {
	return d.ensure(ctx, dir)
}

// Free unmounts a layer. Roots that were made of it hold what they need of it.
func (d *erofsDriver) Free(dir string) error {
	at := d.mountPoint(dir)
	release, err := d.busy.Acquire(context.Background(), at) // no one holds it for long
	if err != nil {
		return err
	}
	defer release()
	mounted, err := IsMountRoot(at)
	if err != nil {
		return err
	}
	if mounted {
		if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", at, err)
		}
	}
	if err := unix.Rmdir(at); err != nil && err != unix.ENOENT {
		return fmt.Errorf("remove %s: %w", at, err)
	}
	return nil
}

func (d *erofsDriver) Mount(ctx context.Context, r Rootfs) error {
	lower := make([]string, 0, len(r.Layers))
	for _, dir := range slices.Backward(r.Layers) {
		at, err := d.ensure(ctx, dir)
		if err != nil {
			return err
		}
		lower = append(lower, at)
	}
	return d.stack(lower, r)
}

// Probe makes, mounts and stacks an image.
func (d *erofsDriver) Probe(dir string) error {
	if err := d.overlayfs.Probe(dir); err != nil {
		return err
	}
	image, from, at := filepath.Join(dir, ImageFile), filepath.Join(dir, "from"), filepath.Join(dir, "at")
	for _, path := range []string{from, at} {
		if err := os.Mkdir(path, 0o700); err != nil {
			return err
		}
	}
	if err := makeErofs(context.Background(), image, from); err != nil {
		return err
	}
	fd, err := detachedErofs(image)
	if err != nil {
		return err
	}
	if err := attachErofs(fd, at); err != nil {
		return err
	}
	return unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
}

func (d *erofsDriver) Changes(ctx context.Context, r Rootfs, to *diff.Writer) error {
	top := filepath.Join(d.root, EmptyDir)
	if n := len(r.Layers); n > 0 {
		at, err := d.ensure(ctx, r.Layers[n-1])
		if err != nil {
			return err
		}
		top = at
	}
	return to.Upper(ctx, r.upper(), top)
}
