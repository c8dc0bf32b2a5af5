package snapshot

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/snapshot/driver"
)

// asUser runs f on a thread with other ids and no capabilities over files, and throws the
// thread away.
func asUser(uid, gid int, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		for _, call := range [][2]uintptr{{unix.SYS_SETGROUPS, 0}, {unix.SYS_SETFSGID, uintptr(gid)}, {unix.SYS_SETFSUID, uintptr(uid)}} {
			_, _, _ = unix.RawSyscall(call[0], call[1], 0, 0) // fail for no process of root
		}
		done <- f()
	}()
	return <-done
}

func TestUsersRefused(t *testing.T) {
	s := started(t, t.TempDir())
	one := []IDMap{{Length: 1}}
	for name, tc := range map[string]struct {
		users Users
		says  string
	}{
		"no groups":         {Users{UIDs: one}, "0 ranges of group ids"},
		"empty range":       {Users{UIDs: []IDMap{{}}, GIDs: one}, "is empty"},
		"beyond the last":   {Users{UIDs: one, GIDs: []IDMap{{Host: 1 << 31, Length: 1 << 31}}}, "ends beyond"},
		"overlap":           {Users{UIDs: []IDMap{{Length: 10}, {Container: 20, Host: 9, Length: 1}}, GIDs: one}, "overlap"},
		"more than kernels": {Users{UIDs: make([]IDMap, driver.MaxIDMaps+1), GIDs: one}, "341 ranges"},
	} {
		_, err := s.Prepare(t.Context(), "c", PrepareOptions{Target: t.TempDir() + "/x", Users: tc.users})
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
