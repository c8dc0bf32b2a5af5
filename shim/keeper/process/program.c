#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "internal.h"

enum { ENDING = KEEPER_STAYED + 1 }; // dead, but its parent has not reaped it; until due

struct program { // free while name[0] == 0
	char name[KEEPER_MAX_KEY];
	uint16_t nargs, nenv;
	uint32_t len;      // of the strings in blob[]
	int32_t log;       // becomes stdout and stderr
	int32_t bound_log; // the keeper may empty the log
	int32_t state;     // KEEPER_RUNNING… or ENDING
	int32_t pid;       // while it runs
	int32_t pidfd;     // of an adopted program, which may not be our child; else -1
	int32_t status;    // how it last ended
	uint32_t ends;
	int64_t due; // when WAITING or ENDING: until this time, in ms
	int64_t starts[KEEPER_BURST]; // times of the latest starts, a ring
	uint32_t nstarts, burst; // burst: nstarts when the current burst began
};

static struct program program[KEEPER_MAX_PROGRAMS];
static char blob[KEEPER_MAX_PROGRAMS][KEEPER_MAX_BLOB]; // path, argv, env
static uint32_t nprogram;

struct program *program_find(const char *name)
{
	for (uint32_t i = 0; i < nprogram; i++)
		if (program[i].name[0] && strcmp(program[i].name, name) == 0)
			return &program[i];
	return NULL;
}

uint32_t program_pid(const struct program *p)
{
	return (uint32_t)p->pid;
}

void program_status(const struct program *p, struct keeper_status *s)
{
	int64_t now = now_ms(), latest = p->starts[(p->nstarts + KEEPER_BURST - 1) % KEEPER_BURST];
	memset(s, 0, sizeof *s);
	s->state = p->state == ENDING ? KEEPER_WAITING : (uint32_t)p->state;
	s->starts = p->nstarts;
	s->status = p->status;
	s->ends = p->ends;
	s->since_ms = p->nstarts > 0 ? now - latest : -1;
	s->next_ms = s->state != KEEPER_WAITING ? -1 : p->due > now ? p->due - now : 0;
}

// ---- start ----

// close_others closes all descriptors but the n in keep, which is sorted. A child at its descriptor
// limit could not open the files it needs.
static void close_others(const int *keep, int n)
{
	unsigned int from = 0;
	for (int i = 0; i < n; i++) {
		if ((unsigned int)keep[i] > from)
			syscall(SYS_close_range, from, keep[i] - 1, 0);
		from = keep[i] + 1;
	}
	syscall(SYS_close_range, from, ~0U, 0);
}

// run_child runs in the child between fork and exec.
static void run_child(struct program *p)
{
	char *strings = blob[p - program], *path = strings;
	char *argv[KEEPER_MAX_STRINGS + 1], *env[KEEPER_MAX_STRINGS + 1];
	char *s = strings + strlen(strings) + 1;
	for (int i = 0; i < p->nargs; i++, s += strlen(s) + 1)
		argv[i] = s;
	argv[p->nargs] = NULL;
	for (int i = 0; i < p->nenv; i++, s += strlen(s) + 1)
		env[i] = s;
	env[p->nenv] = NULL;

	// Descriptors held under "pass/<name>" (a listening socket) become 3, 4, ….
	char key[sizeof "pass/" + KEEPER_MAX_KEY] = "pass/";
	strcat(key, p->name);
	struct held *pass = held_find(key);
	int fds[3 + KEEPER_MAX_FDS], sorted[1 + KEEPER_MAX_FDS], n = 3, nsorted = 0;
	fds[1] = fds[2] = p->log;
	for (uint32_t i = 0; pass && i < pass->nfd; i++)
		fds[n++] = pass->fd[i];
	for (int i = 2; i < n; i++) {
		int at = nsorted++;
		for (; at > 0 && sorted[at - 1] > fds[i]; at--)
			sorted[at] = sorted[at - 1];
		sorted[at] = fds[i];
	}
	close_others(sorted, nsorted);
	fds[0] = open("/dev/null", O_RDWR | O_CLOEXEC);
	for (int i = 0; i < n; i++) // first move them away from 0..n-1
		if ((fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 64)) < 0)
			_exit(126);
	for (int i = 0; i < n; i++)
		if (dup2(fds[i], i) < 0)
			_exit(126);
	syscall(SYS_close_range, n, ~0U, 0);

	int f = open("/proc/self/oom_score_adj", O_WRONLY);
	if (f >= 0) {
		if (write(f, oom_score, strlen(oom_score)) < 0)
			errno = 0; // not permitted: the score stays as it is
		close(f);
	}
	for (int sig = 1; sig < 65; sig++)
		signal(sig, SIG_DFL);
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	setsid();
	execve(path, argv, env);
	_exit(127);
}

// empty_log empties a log that is too long. It protects the file system from a program that fails
// before it limits its log itself.
static void empty_log(const struct program *p)
{
	struct stat st;
	if (p->bound_log && fstat(p->log, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > KEEPER_MAX_LOG &&
	    ftruncate(p->log, 0) < 0)
		errno = 0; // the log keeps growing
}

static void wait_until(struct program *p, int state, int64_t due)
{
	p->state = state;
	p->due = due;
	p->pid = 0;
}

static void start(struct program *p)
{
	int64_t now = now_ms();
	empty_log(p);
	pid_t pid = fork();
	if (pid == 0)
		run_child(p);
	if (pid < 0) { // out of processes or memory
		wait_until(p, KEEPER_WAITING, now + KEEPER_SLOW_MS);
		return;
	}
	p->starts[p->nstarts++ % KEEPER_BURST] = now;
	p->state = KEEPER_RUNNING;
	p->pid = pid; // its pid is not reused until we reap it
}

// ---- end ----

static void ended(struct program *p, int32_t status)
{
	int64_t now = now_ms(), oldest = p->starts[p->nstarts % KEEPER_BURST];
	int slow = p->nstarts - p->burst >= KEEPER_BURST && now - oldest < KEEPER_BURST_MS;
	unwatch_close(p->pidfd);
	p->pidfd = -1;
	p->status = status;
	p->ends++;
	if (status != KEEPER_UNKNOWN && WIFEXITED(status) && WEXITSTATUS(status) == KEEPER_EXIT_STAY)
		wait_until(p, KEEPER_STAYED, 0);
	else
		wait_until(p, KEEPER_WAITING, slow ? now + KEEPER_SLOW_MS : now);
}

static int32_t wait_status(const siginfo_t *si)
{
	return si->si_code == CLD_EXITED ? (si->si_status & 0xff) << 8 : si->si_status & 0x7f;
}

int program_reap(void)
{
	for (int n = 0; n < 64; n++) { // per call: a flood of orphans must not delay requests
		siginfo_t si = {0};
		if (waitid(P_ALL, 0, &si, WEXITED | WNOHANG | WNOWAIT | __WALL) < 0 || si.si_pid == 0)
			return 0;
		uint64_t began = orphan_start(si.si_pid);
		int known = 0;
		for (uint32_t i = 0; i < nprogram; i++) {
			struct program *p = &program[i];
			if (!p->name[0] || p->state != KEEPER_RUNNING || p->pid != si.si_pid)
				continue;
			struct pollfd end = {.fd = p->pidfd, .events = POLLIN};
			if (p->pidfd >= 0 && poll(&end, 1, 0) != 1)
				continue;
			known = 1;
			ended(p, wait_status(&si));
		}
		if (!known)
			orphan_ended(si.si_pid, began, wait_status(&si));
		if (waitid(P_PID, (id_t)si.si_pid, NULL, WEXITED | WNOHANG | __WALL) < 0)
			return 0; // should not happen; it must not become a busy loop
	}
	return 1;
}

// pidfd_info is struct pidfd_info of linux/pidfd.h in its first published size.
struct pidfd_info {
	uint64_t mask, cgroup;
	uint32_t pid, tgid, ppid, ruid, rgid, euid, egid, suid, sgid, fsuid, fsgid;
	int32_t exit_code;
};
#define INFO_EXIT (1 << 3)
#define GET_INFO _IOWR(0xff, 11, struct pidfd_info)

// program_event handles the death of an adopted program. If it is not our child, the kernel (Linux
// 6.15) reports its status once its parent has reaped it, usually at once. A traced child becomes
// ours to reap when its tracer has reaped it. Either may take for ever.
void program_event(uint32_t i)
{
	struct program *p = &program[i];
	if (i >= nprogram || !p->name[0] || p->pidfd < 0)
		return;
	siginfo_t si = {0};
	struct pidfd_info info = {.mask = INFO_EXIT};
	int ours = waitid((idtype_t)3 /* P_PIDFD */, (id_t)p->pidfd, &si, WEXITED | WNOHANG | __WALL) == 0;
	int told = !ours && ioctl(p->pidfd, GET_INFO, &info) == 0;
	if (ours && si.si_pid != 0)
		ended(p, wait_status(&si));
	else if (told && (info.mask & INFO_EXIT) != 0)
		ended(p, info.exit_code);
	else if ((ours || told) && p->state != ENDING && watch_end(p->pidfd, TAG_PROGRAM, i) == 0)
		wait_until(p, ENDING, now_ms() + KEEPER_REAP_MS);
	else
		ended(p, KEEPER_UNKNOWN);
}

// ---- requests ----

void program_forget(struct program *p)
{
	unwatch_close(p->pidfd);
	close(p->log);
	memset(p, 0, sizeof *p);
	while (nprogram > 0 && !program[nprogram - 1].name[0])
		nprogram--;
}

int program_supervise(const struct keeper_request *r, const char *name, const char *strings, uint32_t len,
		      const int *fd, uint32_t nfd, uint32_t *used, struct program **res)
{
	int adopt = (r->flags & KEEPER_ADOPT) != 0;
	if (nfd != (adopt ? 2u : 1u) || len > KEEPER_MAX_BLOB || r->nargs == 0)
		return -EINVAL;
	struct program *p = program_find(name);
	uint32_t i = p ? (uint32_t)(p - program) : 0;
	while (!p && i < KEEPER_MAX_PROGRAMS && program[i].name[0])
		i++;
	if (i == KEEPER_MAX_PROGRAMS)
		return -ENOSPC;
	// First, before any change: a program whose end is not watched would never be restarted.
	if (adopt && watch(fd[1], TAG_PROGRAM, i) < 0)
		return -errno;
	int changed = !p || p->len != len || p->nargs != r->nargs || p->nenv != r->nenv || memcmp(blob[i], strings, len) != 0;
	if (!p) {
		p = &program[i];
		memset(p, 0, sizeof *p);
		p->log = p->pidfd = -1;
		p->status = KEEPER_UNKNOWN;
		strcpy(p->name, name);
		wait_until(p, KEEPER_STAYED, 0);
		if (i >= nprogram)
			nprogram = i + 1;
	}
	memcpy(blob[i], strings, len);
	p->len = len;
	p->nargs = r->nargs;
	p->nenv = r->nenv;
	p->bound_log = (r->flags & KEEPER_BOUND_LOG) != 0;
	if (p->log >= 0)
		close(p->log);
	p->log = fd[0];
	*used = 1;
	*res = p;
	if (adopt) {
		unwatch_close(p->pidfd);
		*used = 2;
		p->pidfd = fd[1];
		p->pid = (int)r->arg;
		p->state = KEEPER_RUNNING;
	} else if (p->state == KEEPER_STAYED || (p->state == KEEPER_WAITING && changed)) {
		p->burst = p->nstarts;
		start(p);
	}
	return 0;
}

int64_t program_start_due(void)
{
	int64_t now = now_ms(), next = -1;
	for (uint32_t i = 0; i < nprogram; i++) {
		struct program *p = &program[i];
		if (!p->name[0])
			continue;
		if (p->state == ENDING && p->due <= now)
			ended(p, KEEPER_UNKNOWN);
		if (p->state == KEEPER_WAITING && p->due <= now)
			start(p);
		if ((p->state == KEEPER_WAITING || p->state == ENDING) && (next < 0 || p->due - now < next))
			next = p->due > now ? p->due - now : 0;
	}
	return next;
}
