package runtimetest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// CgroupParent is the parent of all cgroups that tests make: each test program's own, and that of
// the processes it starts, so that none takes it away while another makes a cgroup in it.
var CgroupParent = inherited("CORACLE_TEST_CGROUP", fmt.Sprintf("/coracle-runtimetest-%d", os.Getpid()))

// inherited is an environment variable of this process and those that it starts.
func inherited(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	_ = os.Setenv(name, otherwise) // fails for a bad name only
	return otherwise
}

// applets are the programs in a test root file system, all busybox.
var applets = []string{
	"sh", "true", "false", "cat", "sleep", "echo", "id", "stty", "kill", "hostname", "tty", "test", "env", "touch", "dd",
	"ls", "stat", "mkdir", "mount", "umount", "ln", "readlink", "grep", "wc", "chmod", "nice", "ionice", "uname", "pwd", "ps", "cut", "rm",
	"mknod", "tr", "head", "seq", "ip", "ipcrm", "awk",
}

// Bundle makes a bundle directory with a busybox root file system and no
// config.json, and returns its path.
func Bundle(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := MakeRootfs(filepath.Join(dir, "rootfs")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// MakeRootfs makes a root file system with busybox in dir.
func MakeRootfs(dir string) error {
	if os.Geteuid() != 0 {
		return errors.New("these tests make containers and need root")
	}
	for _, d := range []string{"bin", "tmp", "proc", "dev", "sys"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	data, err := busybox()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "bin", "busybox"), data, 0o755); err != nil {
		return err
	}
	for _, a := range applets {
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", a)); err != nil {
			return err
		}
	}
	return nil
}

func busybox() ([]byte, error) {
	for _, p := range []string{"/bin/busybox", "/usr/bin/busybox"} {
		if data, err := os.ReadFile(p); err == nil {
			return data, nil
		}
	}
	return nil, errors.New("no busybox here; install a static one: apt-get install -y busybox-static")
}

// Spec is a container's usual configuration: all namespaces but user and time,
// the usual mounts, Docker's default capabilities.
func Spec(id string, args ...string) *specs.Spec {
	caps := []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD", "CAP_NET_BIND_SERVICE",
		"CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
	}
	return &specs.Spec{
		Version:  specs.Version,
		Hostname: "boat",
		Root:     &specs.Root{Path: "rootfs"},
		Process: &specs.Process{
			Args: args, Cwd: "/",
			Env:             []string{"PATH=/bin", "HOME=/"},
			NoNewPrivileges: true,
			Capabilities:    &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{
				Destination: "/dev/pts", Type: "devpts", Source: "devpts",
				Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"},
			},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
			{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: CgroupParent + "/" + id,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace},
				{Type: specs.NetworkNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.MountNamespace},
				{Type: specs.CgroupNamespace},
			},
			Resources:     &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
			MaskedPaths:   []string{"/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
}
