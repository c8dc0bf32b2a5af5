package confine

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// refused are system calls that no program which reads files and writes one needs, and that reach
// beyond it, all the more with capabilities: other processes, namespaces, mounts, the network, the
// kernel's own programs, keys and modules.
var refused = []uint32{
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD, unix.SYS_KCMP,
	unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_CLONE3,
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE,
	unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR,
	unix.SYS_SOCKET, unix.SYS_SOCKETPAIR, unix.SYS_IO_URING_SETUP,
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_FANOTIFY_INIT,
	unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_REBOOT,
	unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_ACCT, unix.SYS_SYSLOG,
	unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME,
	unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_ADJTIMEX, unix.SYS_CLOCK_ADJTIME,
}

// architectures are the kernel's names of ours.
var architectures = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

// Places in struct seccomp_data.
const (
	numberAt     = 0
	archAt       = 4
	firstArgAt   = 16 // lower half, on little endian
	newNamespace = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID |
		unix.CLONE_NEWNET
	// x32 marks the calls of amd64's other interface, which would get around numbers.
	x32 = 0x40000000
)

// filterSyscalls refuses the calling thread, and what it starts, the refused calls. clone3 is
// said not to exist, since its flags are beyond a filter: libc then uses clone.
func filterSyscalls() error {
	arch, known := architectures[runtime.GOARCH]
	if !known {
		return nil
	}
	program := filter(arch)
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog))); errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	return nil
}

// filter is the program of classic BPF.
func filter(arch uint32) []unix.SockFilter {
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	give := func(verdict uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: verdict}
	}
	jump := func(test uint16, k uint32, ifTrue, ifFalse uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | test | unix.BPF_K, Jt: ifTrue, Jf: ifFalse, K: k}
	}
	const no = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	p := []unix.SockFilter{
		load(archAt), jump(unix.BPF_JEQ, arch, 1, 0), give(unix.SECCOMP_RET_KILL_PROCESS),
		load(numberAt), jump(unix.BPF_JGE, x32, 0, 1), give(no),
	}
	for _, nr := range refused {
		verdict := no
		if nr == unix.SYS_CLONE3 {
			verdict = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
		}
		p = append(p, jump(unix.BPF_JEQ, nr, 0, 1), give(verdict))
	}
	return append(p, jump(unix.BPF_JEQ, unix.SYS_CLONE, 0, 3),
		load(firstArgAt), jump(unix.BPF_JSET, newNamespace, 0, 1), give(no),
		give(unix.SECCOMP_RET_ALLOW))
}
