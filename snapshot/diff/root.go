package diff

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// LikeRoot gives the directory to the owner, mode, attributes and time of the one that a root
// starts with, in the order in which none undoes another.
func LikeRoot(to, top string) error {
	// O_PATH: opening the directory of a lazy layer for reading would call the process that shows
	// it.
	from, err := unix.Open(top, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: top, Err: err}
	}
	defer unix.Close(from)
	var st unix.Stat_t
	if err := unix.Fstat(from, &st); err != nil {
		return fmt.Errorf("stat %s: %w", top, err)
	}
	attrs, err := keptXattrs(from, ".")
	if err != nil {
		return fmt.Errorf("attributes of %s: %w", top, err)
	}
	fd, err := OpenRoot(to)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Fchown(fd, int(st.Uid), int(st.Gid)); err != nil {
		return fmt.Errorf("chown %s: %w", to, err)
	}
	for attr, value := range attrs {
		err := unix.Fsetxattr(fd, attr, []byte(value), 0)
		if err != nil && (!strings.HasPrefix(attr, "user.") || !errors.Is(err, unix.ENOTSUP)) {
			return fmt.Errorf("set attribute %s of %s: %w", attr, to, err)
		}
	}
	if err := unix.Fchmod(fd, st.Mode&0o7777); err != nil {
		return fmt.Errorf("chmod %s: %w", to, err)
	}
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, st.Mtim}
	if err := unix.UtimesNanoAt(fd, ".", times, 0); err != nil {
		return fmt.Errorf("set times of %s: %w", to, err)
	}
	return nil
}

// rootChanged compares owner, mode and attributes of a root with those of the directory that it
// began with.
func rootChanged(fd int, top string) (bool, error) {
	from, err := OpenRoot(top)
	if err != nil {
		return false, err
	}
	defer unix.Close(from)
	var now, was unix.Stat_t
	if err := errors.Join(unix.Fstat(fd, &now), unix.Fstat(from, &was)); err != nil {
		return false, err
	}
	nowAttrs, err := keptXattrs(fd, ".")
	if err != nil {
		return false, err
	}
	wasAttrs, err := keptXattrs(from, ".")
	if err != nil {
		return false, err
	}
	return now.Mode != was.Mode || now.Uid != was.Uid || now.Gid != was.Gid || !maps.Equal(nowAttrs, wasAttrs), nil
}
