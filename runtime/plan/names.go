package plan

import "golang.org/x/sys/unix"

// callName names the system calls that plans are made of.
func callName(nr uint16) string { return callNames[nr] }

var callNames = map[uint16]string{
	unix.SYS_OPENAT: "openat", unix.SYS_OPENAT2: "openat2", unix.SYS_MKDIRAT: "mkdirat", unix.SYS_MKNODAT: "mknodat",
	unix.SYS_MOUNT: "mount", unix.SYS_MOVE_MOUNT: "move_mount", unix.SYS_OPEN_TREE: "open_tree", unix.SYS_MOUNT_SETATTR: "mount_setattr",
	unix.SYS_PIVOT_ROOT: "pivot_root", unix.SYS_CHROOT: "chroot", unix.SYS_UMOUNT2: "umount2", unix.SYS_FCHDIR: "fchdir",
	unix.SYS_CHDIR: "chdir",
	unix.SYS_SETNS: "setns", unix.SYS_UNSHARE: "unshare", unix.SYS_CLONE: "clone", unix.SYS_WRITE: "write", unix.SYS_READ: "read",
	unix.SYS_SENDTO: "send", unix.SYS_SENDMSG: "sendmsg", unix.SYS_IOCTL: "ioctl", unix.SYS_DUP3: "dup3", unix.SYS_FCNTL: "fcntl",
	unix.SYS_CLOSE_RANGE: "close_range", unix.SYS_PRCTL: "prctl", unix.SYS_CAPSET: "capset", unix.SYS_SETGROUPS: "setgroups",
	unix.SYS_SETRESUID: "setresuid", unix.SYS_SETRESGID: "setresgid", unix.SYS_PRLIMIT64: "prlimit", unix.SYS_SECCOMP: "seccomp",
	unix.SYS_EXECVE: "execve", unix.SYS_FACCESSAT2: "faccessat2", unix.SYS_SCHED_SETAFFINITY: "sched_setaffinity", unix.SYS_GETCWD: "getcwd",
	unix.SYS_STATX: "statx", unix.SYS_SYMLINKAT: "symlinkat", unix.SYS_FCHOWNAT: "fchownat",
	unix.SYS_FCHOWN: "fchown", unix.SYS_FSTATFS: "fstatfs", unix.SYS_KEYCTL: "keyctl", unix.SYS_SETHOSTNAME: "sethostname",
	unix.SYS_SETDOMAINNAME: "setdomainname", unix.SYS_SCHED_SETATTR: "sched_setattr", unix.SYS_IOPRIO_SET: "ioprio_set",
	unix.SYS_FCHMOD: "fchmod", unix.SYS_FSOPEN: "fsopen", unix.SYS_FSCONFIG: "fsconfig", unix.SYS_FSMOUNT: "fsmount",
	unix.SYS_FSETXATTR: "fsetxattr", unix.SYS_PERSONALITY: "personality", unix.SYS_SET_MEMPOLICY: "set_mempolicy", unix.SYS_SOCKET: "socket",
	unix.SYS_SETPGID: "setpgid",
	unix.SYS_SETSID:  "setsid",
}
