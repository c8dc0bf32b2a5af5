package oci

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// outputs are for those outputs of a command that its caller does not want, and keep what the
// command says.
type outputs struct {
	stdout, stderr *os.File
}

const (
	// maxSaid bounds what is read of what a command writes. "state" repeats the container's
	// annotations, of which Kubernetes allows 256 KiB; in JSON a byte may take six.
	maxSaid = 4 << 20
	// maxKept bounds what a process may leave on the host by an output that no one wants.
	maxKept = 64 << 10
)

// listen makes the outputs of a command that starts no process, in the container's directory. They
// are files, not pipes: whatever holds one open must not hold us up.
func (k *command) listen() (*outputs, error) {
	f, err := os.Create(k.file("said"))
	if err != nil {
		return nil, err
	}
	return &outputs{f, f}, nil
}

// keepLittle makes the outputs of a command that starts a process, which has them as long as it
// lives. What it writes to its standard output is dropped. Its standard error, where the command
// may say why it has failed, is a file on a file system of its own, which is full soon: a file in
// the container's directory would fill the state directory's file system, for all pods of the node.
//
// The null device is on that file system, too: until its pull request 1847 crun makes all streams
// the property of the process's user, and the host has one /dev/null.
func keepLittle() (_ *outputs, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("make outputs: %w", err)
		}
	}()
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fs)
	if err := errors.Join(
		unix.FsconfigSetString(fs, "size", strconv.Itoa(maxKept)), unix.FsconfigSetString(fs, "nr_inodes", "8"), // of extended attributes, too
		unix.FsconfigCreate(fs),
	); err != nil {
		return nil, err
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, err
	}
	defer unix.Close(mount) // the file system goes with the last of its files that is open
	if err := unix.Mknodat(mount, "null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		return nil, err
	}
	null, err := openIn(mount, "null", 0)
	if err != nil {
		return nil, err
	}
	said, err := openIn(mount, "said", unix.O_CREAT)
	if err != nil {
		null.Close()
		return nil, err
	}
	return &outputs{null, said}, nil
}

func openIn(dir int, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDWR|unix.O_CLOEXEC|flags, 0o600)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// read returns what the command has said, and an error if that is too much to be read.
func (o *outputs) read() ([]byte, error) {
	b, err := io.ReadAll(io.NewSectionReader(o.stderr, 0, maxSaid+1))
	if err == nil && len(b) > maxSaid {
		return b[:maxSaid], fmt.Errorf("its output is longer than %d bytes", maxSaid)
	}
	return b, err
}

func (o *outputs) close() {
	o.stdout.Close()
	o.stderr.Close()
}
