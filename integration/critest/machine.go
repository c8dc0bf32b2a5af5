package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// machine is what the outcome depends on.
type machine struct {
	kernel, arch            string
	peer                    string // who runs instead of Coracle
	unified, systemd, armor bool   // only the unified hierarchy of cgroups; made by systemd; AppArmor is on
}

// describe looks at the machine.
func describe(systemd bool) (machine, error) {
	m := machine{arch: runtime.GOARCH, systemd: systemd}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return m, fmt.Errorf("uname: %w", err)
	}
	m.kernel = unix.ByteSliceToString(u.Release[:])
	var st unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &st); err != nil {
		return m, fmt.Errorf("statfs /sys/fs/cgroup: %w", err)
	}
	m.unified = st.Type == unix.CGROUP2_SUPER_MAGIC
	on, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return m, err
	}
	m.armor = strings.HasPrefix(string(on), "Y")
	return m, nil
}

// String is the heading of the machine's part of the page. It stays the same as kernels change.
func (m machine) String() string {
	cgroups, driver, armor := "cgroup v1", "cgroupfs", "no AppArmor"
	if m.unified {
		cgroups = "cgroup v2"
	}
	if m.systemd {
		driver = "systemd"
	}
	if m.armor {
		armor = "AppArmor"
	}
	kind := fmt.Sprintf("%s, driver %s, %s", cgroups, driver, armor)
	if m.peer != "" {
		name, _, _ := strings.Cut(m.peer, " ")
		kind += ": " + name + ", to compare with"
	}
	return kind
}
