package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What Landlock can refuse, by the version of its interface
// (Documentation/userspace-api/landlock.rst).
const (
	readFile = unix.LANDLOCK_ACCESS_FS_READ_FILE
	read     = readFile | unix.LANDLOCK_ACCESS_FS_READ_DIR
	execute  = unix.LANDLOCK_ACCESS_FS_EXECUTE
	write    = read | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_MAKE_REG |
		unix.LANDLOCK_ACCESS_FS_REMOVE_FILE
	allBefore = unix.LANDLOCK_ACCESS_FS_MAKE_SYM<<1 - 1 // of version 1
)

// system is where programs and libraries are.
var system = []string{"/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache"}

// restrictFiles keeps the calling thread from all files but the system's, the program and those in
// a directory that it may write to, if that is not empty.
func restrictFiles(program, writable string) error {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno == unix.ENOSYS || errno == unix.EOPNOTSUPP {
		return nil
	}
	if errno != 0 {
		return fmt.Errorf("landlock: %w", errno)
	}
	attr := handled(int(version))
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return fmt.Errorf("landlock: make a ruleset: %w", errno)
	}
	rules := int(fd)
	defer unix.Close(rules)
	for _, path := range append([]string{program}, system...) {
		if err := allow(rules, path, read|execute); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("landlock: allow %s: %w", path, err)
		}
	}
	if writable != "" {
		if err := allow(rules, writable, attr.Access_fs&write); err != nil {
			return fmt.Errorf("landlock: allow %s: %w", writable, err)
		}
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(rules), 0, 0); errno != 0 {
		return fmt.Errorf("landlock: restrict: %w", errno)
	}
	return nil
}

// handled is all that a version of Landlock knows.
func handled(version int) unix.LandlockRulesetAttr {
	a := unix.LandlockRulesetAttr{Access_fs: allBefore}
	if version >= 2 {
		a.Access_fs |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if version >= 3 {
		a.Access_fs |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if version >= 4 {
		a.Access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	}
	if version >= 5 {
		a.Access_fs |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	if version >= 6 {
		a.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	return a
}

// allow lets a file, or all below a directory, be used.
func allow(rules int, path string, access uint64) error {
	f, err := os.OpenFile(path, unix.O_PATH, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if !st.IsDir() {
		access &^= unix.LANDLOCK_ACCESS_FS_READ_DIR
	}
	rule := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(f.Fd())}
	if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(rules), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
