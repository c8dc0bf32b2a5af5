// The init of a pod with a shared PID namespace: it reaps what is orphaned there.
// A constructor, like the keeper: when argv[0] is "/coracle-pod-init" the Go runtime
// never starts.
//
// The pod's containers see this process, and one of them may run as the same user. So it is
// not dumpable, which leaves ptrace(2) and most of /proc/1 to holders of CAP_SYS_PTRACE, and
// its own system calls are all that it may make: those who trace it gain nothing.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#else
#error "name the AUDIT_ARCH of this architecture"
#endif

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define EQUAL(value, then, otherwise) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, then, otherwise)
#define RETURN(action) BPF_STMT(BPF_RET | BPF_K, action)

// confine leaves only the system calls of reap. Others fail rather than kill: the end of this
// process is the end of the pod. The numbers of x32 differ from those here.
static int confine(void)
{
	static const struct sock_filter rules[] = {
		LOAD(arch),
		EQUAL(ARCH, 0, 4),
		LOAD(nr),
		EQUAL(SYS_rt_sigtimedwait, 3, 0),
		EQUAL(SYS_wait4, 2, 0),
		EQUAL(SYS_exit_group, 1, 0),
		RETURN(SECCOMP_RET_ERRNO | EPERM),
		RETURN(SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog filter = { sizeof rules / sizeof *rules, (struct sock_filter *)rules };
	if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return -1;
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0);
}

// reap returns when a process outside of the PID namespace asks for the end. The kernel gives
// the sender 0 then. Processes inside cannot forge that: their si_code is another (rt_sigqueueinfo(2)).
static void reap(const sigset_t *set)
{
	// Orphans that ended before the mask was set have no signal pending: reap first, then wait.
	for (;;) {
		siginfo_t from;
		pid_t reaped;
		while ((reaped = waitpid(-1, NULL, WNOHANG)) > 0)
			;
		if (reaped < 0 && errno != ECHILD)
			_exit(1); // the sandbox's filter denies it
		int sig = sigwaitinfo(set, &from);
		if (sig < 0 && errno != EINTR)
			_exit(1); // likewise: the next call would fail, too
		if ((sig == SIGTERM || sig == SIGINT) && from.si_code == SI_USER && from.si_pid == 0)
			return;
	}
}

__attribute__((constructor)) static void pod_init(int argc, char **argv)
{
	if (argc < 1 || strcmp(argv[0], "/coracle-pod-init") != 0)
		return;
	sigset_t set;
	prctl(PR_SET_NAME, "pod-init");
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_SETMASK, &set, NULL);
	if (confine() < 0)
		_exit(1); // unconfined it does not start
	reap(&set);
	_exit(0);
}
