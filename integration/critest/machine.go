package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// machine is what the outcome depends on: the one that the tests ran on, and who ran the
// containers.
type machine struct {
	kernel, arch            string
	runtime                 string // with its version, whose commit is what was measured
	peer                    bool   // it is another than Coracle
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
	if m.peer {
		name, _, _ := strings.Cut(m.runtime, " ")
		kind += ": " + name + ", to compare with"
	}
	return kind
}

// version is the word of a program's first line that looks like one.
func version(exe, name string) string {
	out, _ := exec.Command(exe, "--version").Output()
	line, _, _ := strings.Cut(string(out), "\n")
	for _, word := range strings.Fields(line) {
		if digits := strings.TrimPrefix(word, "v"); digits != "" && digits[0] >= '0' && digits[0] <= '9' {
			return name + " " + digits
		}
	}
	return name
}
