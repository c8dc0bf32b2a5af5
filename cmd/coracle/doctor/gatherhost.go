package doctor

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/apparmor"
)

func readKernel() Kernel {
	k := Kernel{Seccomp: exists("/proc/sys/kernel/seccomp/actions_avail")}
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		k.Release = unix.ByteSliceToString(u.Release[:])
	}
	filesystems, _ := os.ReadFile("/proc/filesystems")
	k.Overlay = slices.Contains(strings.Fields(string(filesystems)), "overlay") || hasModule(k.Release, "overlay")
	k.NFTables = answersNetfilter() || hasModule(k.Release, "nf_tables")
	k.WireGuard = exists("/sys/module/wireguard") || hasModule(k.Release, "wireguard")
	kinds, _ := os.ReadDir("/proc/self/ns")
	for _, e := range kinds {
		k.Namespaces = append(k.Namespaces, e.Name())
	}
	return k
}

// hasModule says whether the kernel can load a module when it is wanted.
func hasModule(release, name string) bool {
	for _, list := range []string{"modules.dep", "modules.builtin"} {
		data, _ := os.ReadFile(filepath.Join("/lib/modules", release, list))
		if strings.Contains(string(data), "/"+name+".ko") {
			return true
		}
	}
	return false
}

// answersNetfilter says whether the kernel has netlink's netfilter, without asking it anything.
func answersNetfilter() bool {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return false
	}
	_ = unix.Close(fd)
	return true
}

func readLimits() Limits {
	return Limits{
		InotifyInstances: number("/proc/sys/fs/inotify/max_user_instances"),
		UserNamespaces:   number("/proc/sys/user/max_user_namespaces"),
	}
}

// number reads a setting; one that the kernel does not have limits nothing.
func number(path string) int {
	data, err := os.ReadFile(path)
	if err != nil {
		return math.MaxInt
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return math.MaxInt
	}
	return n
}

func readSecurity() Security {
	return Security{AppArmor: apparmor.Enabled(), AppArmorParser: apparmor.HasParser()}
}

func readCgroups(driver string) Cgroups {
	c := Cgroups{Driver: driver, Systemd: exists("/run/systemd/system")}
	if v2, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		c.Version, c.Controllers = 2, strings.Fields(string(v2))
		return c
	}
	dirs, err := os.ReadDir("/sys/fs/cgroup")
	if err != nil || len(dirs) == 0 {
		return c
	}
	c.Version = 1
	for _, d := range dirs {
		// A hierarchy with several controllers is called cpu,cpuacct; its links are called as each
		// is.
		for _, name := range strings.Split(d.Name(), ",") {
			if exists(filepath.Join("/sys/fs/cgroup", d.Name(), "cgroup.procs")) && !slices.Contains(c.Controllers, name) &&
				name != "systemd" && name != "unified" {
				c.Controllers = append(c.Controllers, name)
			}
		}
	}
	return c
}

// fsTypes names the file systems that directories of containers are on (statfs(2)).
var fsTypes = map[int64]string{
	unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.TMPFS_MAGIC: "tmpfs",
	unix.RAMFS_MAGIC: "ramfs", unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.NFS_SUPER_MAGIC: "nfs", unix.F2FS_SUPER_MAGIC: "f2fs",
	0x2fc12fc1: "zfs", unix.SQUASHFS_MAGIC: "squashfs", unix.FUSE_SUPER_MAGIC: "fuse",
}

// readDisk looks at path or, if it is not there yet, at where it would be made.
func readDisk(purpose, path string) Disk {
	d := Disk{Purpose: purpose, Path: path}
	var st unix.Statfs_t
	at := path
	err := unix.Statfs(at, &st)
	for err == unix.ENOENT && at != "/" {
		at = filepath.Dir(at)
		err = unix.Statfs(at, &st)
	}
	if err != nil {
		d.Err = fmt.Sprintf("look at file system: %v", err)
		return d
	}
	size := uint64(st.Frsize)
	d.Total, d.Free = st.Blocks*size, st.Bfree*size
	d.Inodes, d.InodesFree = st.Files, st.Ffree
	d.ReadOnly = st.Flags&unix.ST_RDONLY != 0
	if d.Type = fsTypes[int64(st.Type)]; d.Type == "" {
		d.Type = fmt.Sprintf("%#x", st.Type)
	}
	return d
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
