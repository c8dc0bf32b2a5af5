package safepath

import (
	"time"

	"golang.org/x/sys/unix"
)

// The methods here act on the open directory itself, for callers that cannot name
// it in a parent: the root.

// SetOwner sets the directory's own owner and group.
func (d *Dir) SetOwner(uid, gid int) error {
	return d.fail("chown", ".", unix.Fchown(d.fd, uid, gid))
}

// SetMode sets the directory's own mode.
func (d *Dir) SetMode(mode uint32) error {
	return d.fail("chmod", ".", unix.Fchmod(d.fd, mode&0o7777))
}

// SetXattr sets an extended attribute of the directory itself.
func (d *Dir) SetXattr(attr string, value []byte) error {
	return d.fail("set attribute "+attr+" of", ".", unix.Fsetxattr(d.fd, attr, value, 0))
}

// SetTimes sets the directory's own times; a zero time leaves one as it is.
func (d *Dir) SetTimes(atime, mtime time.Time) error {
	ts := []unix.Timespec{timespec(atime), timespec(mtime)}
	return d.fail("set times of", ".", unix.UtimesNanoAt(d.fd, ".", ts, unix.AT_SYMLINK_NOFOLLOW))
}
