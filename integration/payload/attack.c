// Attacks from inside a container, each of which says how it ended: "NAME ok" or "NAME ERRNO".
//   attack process PID [UID]    on another process ("self": on a plain child, the positive control),
//                               as a user and group taken with setuid(2)
//   attack socketcall           sockets of families through i386's socketcall(2), by "int $0x80"
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

// say reports a result as system calls return it: -1 and errno.
static void say(const char *name, long result)
{
	if (result >= 0)
		printf("%s ok\n", name);
	else
		printf("%s %s\n", name, strerrorname_np(errno));
	fflush(stdout);
}

static long open_of(int pid, const char *what, int flags)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/%s", pid, what);
	return open(path, flags);
}

static long link_of(int pid, const char *what)
{
	char path[64], target[256];
	snprintf(path, sizeof path, "/proc/%d/%s", pid, what);
	return readlink(path, target, sizeof target);
}

#ifdef __x86_64__
// inject has a stopped process make a system call: where it is, in one, it makes another.
static long inject(int pid, long nr, long a, long b)
{
	struct user_regs_struct was, now;
	if (ptrace(PTRACE_GETREGS, pid, 0, &was) < 0)
		return -1;
	now = was;
	now.rip -= 2; // the instruction "syscall"
	now.rax = nr, now.orig_rax = -1;
	now.rdi = a, now.rsi = b, now.rdx = 0;
	if ((ptrace(PTRACE_PEEKTEXT, pid, now.rip, 0) & 0xffff) != 0x050f) {
		errno = ENOEXEC;
		return -1;
	}
	int status;
	if (ptrace(PTRACE_SETREGS, pid, 0, &now) < 0 || ptrace(PTRACE_SINGLESTEP, pid, 0, 0) < 0 ||
	    waitpid(pid, &status, __WALL) < 0 || !WIFSTOPPED(status) || ptrace(PTRACE_GETREGS, pid, 0, &now) < 0)
		return -1;
	if (ptrace(PTRACE_SETREGS, pid, 0, &was) < 0)
		return -1;
	long result = now.rax;
	if (result < 0) {
		errno = -result;
		return -1;
	}
	return result;
}

// await_sleep returns when a process waits in the kernel: inject needs it in a system call.
static void await_sleep(int pid)
{
	char path[64], stat[512] = "";
	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	while (!strstr(stat, ") S ")) {
		int fd = open(path, O_RDONLY);
		ssize_t n = read(fd, stat, sizeof stat - 1);
		if (fd < 0 || n <= 0)
			return;
		stat[n] = 0;
		close(fd);
	}
}

static void traced(int pid)
{
	static const struct { const char *name; long nr, a, b; } calls[] = {
		{ "inject-unshare", SYS_unshare, CLONE_NEWUSER, 0 },
		{ "inject-socket", SYS_socket, AF_UNIX, SOCK_STREAM },
		{ "inject-open", SYS_open, 0, O_RDONLY },
		{ "inject-memfd", SYS_memfd_create, 0, 0 },
		{ "inject-getpid", SYS_getpid, 0, 0 },
		{ "inject-dumpable", SYS_prctl, 4 /* PR_SET_DUMPABLE */, 1 },
	};
	await_sleep(pid);
	long attached = ptrace(PTRACE_ATTACH, pid, 0, 0);
	say("ptrace", attached);
	if (attached < 0)
		return;
	waitpid(pid, NULL, __WALL);
	for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++)
		say(calls[i].name, inject(pid, calls[i].nr, calls[i].a, calls[i].b));
	ptrace(PTRACE_DETACH, pid, 0, 0);
}

static long socketcall_socket(int *args)
{
	long result;
	__asm__ volatile("int $0x80" : "=a"(result) : "a"(102L), "b"(1L), "c"(args) : "memory", "r8", "r9", "r10", "r11");
	if (result < 0) {
		errno = -result;
		return -1;
	}
	return result;
}

static void socketcalls(void)
{
	static const struct { const char *name; int family, type; } sockets[] = {
		{ "unix", AF_UNIX, SOCK_STREAM }, { "inet", AF_INET, SOCK_STREAM },
		{ "alg", AF_ALG, SOCK_SEQPACKET }, { "vsock", AF_VSOCK, SOCK_STREAM },
	};
	int *args = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	char name[32];
	for (unsigned i = 0; i < sizeof sockets / sizeof *sockets; i++) {
		args[0] = sockets[i].family, args[1] = sockets[i].type, args[2] = 0;
		snprintf(name, sizeof name, "socketcall-%s", sockets[i].name);
		say(name, socketcall_socket(args));
		snprintf(name, sizeof name, "socket-%s", sockets[i].name);
		say(name, socket(sockets[i].family, sockets[i].type, 0));
	}
}
#else
static void traced(int pid) { (void)pid; }
static void socketcalls(void) { }
#endif

static int target;

static void process(int pid)
{
	int value = 1;
	struct iovec from = { &value, sizeof value }, to = { &target, sizeof target };
	say("vm_readv", process_vm_readv(pid, &from, 1, &to, 1, 0));
	say("vm_writev", process_vm_writev(pid, &from, 1, &to, 1, 0));
	say("mem", open_of(pid, "mem", O_RDWR));
	say("root", open_of(pid, "root/", O_RDONLY | O_DIRECTORY));
	say("cwd", open_of(pid, "cwd/", O_RDONLY | O_DIRECTORY));
	say("exe", link_of(pid, "exe"));
	say("fd", open_of(pid, "fd", O_RDONLY | O_DIRECTORY) < 0 ? -1 : link_of(pid, "fd/0"));
	say("maps", open_of(pid, "maps", O_RDONLY));
	say("environ", open_of(pid, "environ", O_RDONLY));
	say("ns-mnt", open_of(pid, "ns/mnt", O_RDONLY));
	say("ns-user", open_of(pid, "ns/user", O_RDONLY));
	int pidfd = syscall(SYS_pidfd_open, pid, 0);
	say("pidfd_getfd", pidfd < 0 ? -1 : syscall(SYS_pidfd_getfd, pidfd, 0, 0));
	say("signal", kill(pid, SIGTERM));
	traced(pid);
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "socketcall")) {
		socketcalls();
	} else if ((argc == 3 || argc == 4) && !strcmp(argv[1], "process")) {
		int pid = atoi(argv[2]);
		unsigned id = argc == 4 ? strtoul(argv[3], NULL, 10) : 0;
		// setuid(2) makes a process undumpable, and its children.
		if (argc == 4 && (setgid(id) < 0 || setuid(id) < 0 || prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) < 0)) {
			perror("setuid");
			return 1;
		}
		if (!strcmp(argv[2], "self")) {
			sigset_t all;
			sigfillset(&all);
			sigprocmask(SIG_BLOCK, &all, NULL);
			if ((pid = fork()) == 0)
				for (;;)
					sigwaitinfo(&all, NULL);
		}
		process(pid);
		if (!strcmp(argv[2], "self"))
			kill(pid, SIGKILL);
	} else {
		return 2;
	}
	puts("done");
	return 0;
}
