package nspin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

var someUsers = Users{
	UIDs: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 65536}},
	GIDs: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 200000, Size: 65536}},
}

// owner is the inode of the user namespace that a pinned namespace belongs to.
func owner(t *testing.T, pin string) uint64 {
	t.Helper()
	f, err := os.Open(pin)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_USERNS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

func TestCreateWithUsers(t *testing.T) {
	spec := all
	spec.Users, spec.Hostname = someUsers, "mapped"
	spec.Sysctls = map[string]string{
		"net.ipv4.ip_unprivileged_port_start": "0", "kernel.shm_rmid_forced": "1", "fs.mqueue.msg_max": "11", "kernel.domainname": "d",
	}
	dir := filepath.Join(root(t), "pod")
	set := create(t, dir, spec)
	users := inode(t, set.User)
	for _, pin := range []string{set.Net, set.IPC, set.UTS} {
		if owner(t, pin) != users {
			t.Errorf("%s does not belong to the pod's user namespace", pin)
		}
	}
	if users == inode(t, "/proc/self/ns/user") {
		t.Error("the user namespace is the host's")
	}
	// All but that of users: only a process of one thread enters that.
	entered := set
	entered.User = ""
	inside(t, entered, func() error {
		name, err := os.Hostname()
		if name != "mapped" {
			t.Errorf("host name %q", name)
		}
		for sys, want := range map[string]string{
			"net/ipv4/ip_unprivileged_port_start": "0", "kernel/shm_rmid_forced": "1", "fs/mqueue/msg_max": "11", "kernel/domainname": "d",
		} {
			if got, serr := sysctl(sys); got != want || serr != nil {
				t.Errorf("%s is %q, %v", sys, got, serr)
			}
		}
		return err
	})
	if again := create(t, dir, spec); again != set || inode(t, again.User) != users {
		t.Error("a second Create made others")
	}
	if err := Remove(context.WithoutCancel(t.Context()), dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left: %v", err)
	}
}

// TestUsersOnly is for a pod on the host's network and IPC.
func TestUsersOnly(t *testing.T) {
	set := create(t, filepath.Join(root(t), "pod"), Spec{Users: someUsers})
	if set.User == "" || set.Net != "" {
		t.Errorf("%+v", set)
	}
}

func TestUsersThatCannotBe(t *testing.T) {
	ids := func(m ...syscall.SysProcIDMap) Users { return Users{UIDs: m, GIDs: m} }
	for name, u := range map[string]Users{
		"no groups":    {UIDs: someUsers.UIDs},
		"no root":      ids(syscall.SysProcIDMap{ContainerID: 1, HostID: 1000, Size: 10}),
		"nothing":      ids(syscall.SysProcIDMap{ContainerID: 0, HostID: 1000, Size: 0}),
		"twice":        ids(syscall.SysProcIDMap{HostID: 1000, Size: 10}, syscall.SysProcIDMap{HostID: 2000, Size: 10}),
		"beyond 2³²":   ids(syscall.SysProcIDMap{HostID: 1<<32 - 5, Size: 10}),
		"negative ids": ids(syscall.SysProcIDMap{HostID: -5, Size: 10}),
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(root(t), "pod")
			spec := all
			spec.Users = u
			if _, err := maker.Create(t.Context(), dir, spec); !errors.Is(err, ErrInvalid) {
				t.Errorf("%v", err)
			}
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("left: %v", err)
			}
		})
	}
}
