package copyup

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// asOwner runs a function with the owner of a directory as the user and group of new files. A
// file system that was mounted in a user namespace takes no files of users which that does not
// know, such as the host's root.
func asOwner(dir int, do func() error) error {
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return fmt.Errorf("look at the new file system: %w", err)
	}
	uid, gid := unix.Geteuid(), unix.Getegid()
	if int(st.Uid) == uid && int(st.Gid) == gid {
		return do()
	}
	runtime.LockOSThread() // the ids of file systems, and capabilities, are a thread's own
	err := become(int(st.Uid), int(st.Gid))
	if err == nil {
		err = do()
	}
	if restored := become(uid, gid); restored != nil {
		return errors.Join(err, restored) // and the thread ends with this goroutine
	}
	runtime.UnlockOSThread()
	return err
}

// become changes the thread's user and group of file systems, and takes the capabilities back
// that it loses thereby (capabilities(7)).
func become(uid, gid int) error {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&h, &caps[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	if err := unix.Setfsgid(gid); err != nil {
		return fmt.Errorf("setfsgid %d: %w", gid, err)
	}
	if err := unix.Setfsuid(uid); err != nil {
		return fmt.Errorf("setfsuid %d: %w", uid, err)
	}
	if err := unix.Capset(&h, &caps[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	return nil
}
