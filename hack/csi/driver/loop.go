package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The file system is btrfs: it grows while it is mounted without CAP_SYS_RESOURCE, which root does
// not have everywhere and ext4 asks for.
const (
	fileSystem = "btrfs"
	// superblock is the mark of one, at a place in the device.
	superblock, superblockAt = "_BHRfS_M", 64<<10 + 0x40
	// resizeBtrfs is BTRFS_IOC_RESIZE of linux/btrfs.h; its argument is a btrfs_ioctl_vol_args.
	resizeBtrfs = 0x50009403
)

type resizeArgs struct {
	_    int64
	size [4088]byte
}

// attachLoop returns a loop device of an image, open. With flags LO_FLAGS_AUTOCLEAR it ends with
// the last user, so that a crash before the mount leaves none.
func attachLoop(image string, flags uint32) (*os.File, error) {
	backing, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer backing.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	for {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		device, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		config := unix.LoopConfig{Fd: uint32(backing.Fd()), Info: unix.LoopInfo64{Flags: flags}}
		copy(config.Info.File_name[:len(config.Info.File_name)-1], image)
		err = unix.IoctlLoopConfigure(int(device.Fd()), &config)
		if err == nil {
			return device, nil
		}
		device.Close()
		if !errors.Is(err, unix.EBUSY) { // another process was faster
			return nil, fmt.Errorf("%s: use %s: %w", device.Name(), image, err)
		}
	}
}

// findLoops are the loop devices of an image. They are compared by inode: a path of another mount
// namespace says nothing.
func findLoops(image string) ([]string, error) {
	var want unix.Stat_t
	if err := unix.Stat(image, &want); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil, nil
		}
		return nil, fmt.Errorf("stat %s: %w", image, err)
	}
	devices, err := filepath.Glob("/dev/loop[0-9]*")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, name := range devices {
		device, err := os.OpenFile(name, os.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		info, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
		device.Close()
		if err == nil && info.Inode == want.Ino && info.Device == want.Dev {
			found = append(found, name)
		}
	}
	return found, nil
}

// detachLoops ends the loop devices of an image.
func detachLoops(image string) error {
	names, err := findLoops(image)
	for _, name := range names {
		device, e := os.OpenFile(name, os.O_RDWR|unix.O_CLOEXEC, 0)
		if e == nil {
			if e = unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0); errors.Is(e, unix.ENXIO) {
				e = nil // it has ended
			}
			device.Close()
		}
		err = errors.Join(err, e)
	}
	return err
}

// growLoops tells loop devices that their image has grown.
func growLoops(image string) error {
	names, err := findLoops(image)
	for _, name := range names {
		device, e := os.OpenFile(name, os.O_RDWR|unix.O_CLOEXEC, 0)
		if e == nil {
			e = unix.IoctlSetInt(int(device.Fd()), unix.LOOP_SET_CAPACITY, 0)
			device.Close()
		}
		err = errors.Join(err, e)
	}
	return err
}

// growImage makes an image larger, and never smaller.
func growImage(image string, bytes int64) error {
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() >= bytes {
		return err
	}
	return errors.Join(f.Truncate(bytes), f.Sync())
}

// hasFileSystem says whether an image has one.
func hasFileSystem(image string) (bool, error) {
	f, err := os.Open(image)
	if err != nil {
		return false, err
	}
	defer f.Close()
	mark := make([]byte, len(superblock))
	if _, err := f.ReadAt(mark, superblockAt); err != nil {
		return false, err
	}
	return string(mark) == superblock, nil
}

// growFileSystem makes a mounted file system as large as its device.
func growFileSystem(mountpoint string) error {
	dir, err := os.Open(mountpoint)
	if err != nil {
		return err
	}
	defer dir.Close()
	var args resizeArgs
	copy(args.size[:], "max")
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), resizeBtrfs, uintptr(unsafe.Pointer(&args))); e != 0 {
		return fmt.Errorf("grow the file system at %s: %w", mountpoint, e)
	}
	return nil
}
