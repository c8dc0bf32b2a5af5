// The keeper: a tiny single-threaded process that holds descriptors for the shim
// and the daemon, and starts each again when it dies. It runs as a constructor,
// before the Go runtime: when argv[0] is "coracle-keeper" it never returns.
//
// Descriptor 3 is a listening SOCK_SEQPACKET socket. Each packet is a request and is
// answered by one packet; see keeper.h for the layout. The keeper allocates nothing:
// its tables are static, and their pages cost memory only once they are used.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "keeper.h"

// ---- tables ----

struct held { // descriptors under a key; free while key[0] == 0
	char key[KEEPER_MAX_KEY];
	char meta[KEEPER_MAX_META];
	uint32_t hash;
	uint32_t nfd;
	int32_t fd[KEEPER_MAX_FDS];
};

struct program { // a supervised program; free while name[0] == 0
	char name[KEEPER_MAX_KEY];
	uint16_t nargs, nenv;
	uint32_t len;    // of its strings in blob[]
	int32_t log;     // becomes stdout and stderr; -1: /dev/null
	int32_t pidfd;   // -1: not running
	int32_t pid;
	int64_t due;     // when to start it, in ms; 0: it runs
	int64_t starts[KEEPER_BURST]; // times of the latest starts, a ring
	uint32_t nstarts;
};

static struct held held[KEEPER_MAX_HELD];
static uint32_t nheld; // all used entries are below it
static struct program program[KEEPER_MAX_PROGRAMS];
static char blob[KEEPER_MAX_PROGRAMS][KEEPER_MAX_BLOB]; // path, argv, env
static uint32_t nprogram;

static char in[KEEPER_MAX_PACKET], out[KEEPER_MAX_PACKET];
static int epfd = -1;
static char oom_score[16];

enum { TAG_LISTEN, TAG_CONN, TAG_PROGRAM };

static int64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_BOOTTIME, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static uint32_t hash_of(const char *s)
{
	uint32_t h = 2166136261u;
	while (*s)
		h = (h ^ (unsigned char)*s++) * 16777619u;
	return h;
}

static void close_all(const int *fd, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		close(fd[i]);
}

static int watch(int fd, uint32_t tag, uint32_t value)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.u64 = (uint64_t)tag << 32 | value};
	return epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &ev);
}

// unwatch_close also works where another process has the same open file: epoll would
// go on reporting it after a mere close.
static void unwatch_close(int fd)
{
	if (fd < 0)
		return;
	epoll_ctl(epfd, EPOLL_CTL_DEL, fd, NULL);
	close(fd);
}

// ---- held descriptors ----

static struct held *find_held(const char *key)
{
	uint32_t h = hash_of(key);
	for (uint32_t i = 0; i < nheld; i++)
		if (held[i].hash == h && held[i].key[0] && strcmp(held[i].key, key) == 0)
			return &held[i];
	return NULL;
}

static void drop_held(struct held *e)
{
	close_all(e->fd, e->nfd);
	memset(e, 0, sizeof *e);
	while (nheld > 0 && !held[nheld - 1].key[0])
		nheld--;
}

static int put(const char *key, const char *meta, const int *fd, uint32_t n)
{
	struct held *e = find_held(key);
	for (uint32_t i = 0; !e && i < KEEPER_MAX_HELD; i++)
		if (!held[i].key[0]) {
			e = &held[i];
			if (i >= nheld)
				nheld = i + 1;
		}
	if (!e)
		return -ENOSPC;
	close_all(e->fd, e->nfd);
	strcpy(e->key, key);
	strcpy(e->meta, meta);
	e->hash = hash_of(key);
	e->nfd = n;
	memcpy(e->fd, fd, n * sizeof *fd);
	return 0;
}

static int del(const char *key, int prefix)
{
	if (!prefix) {
		struct held *e = find_held(key);
		if (e)
			drop_held(e);
		return 0;
	}
	size_t len = strlen(key);
	for (uint32_t i = 0, end = nheld; i < end; i++)
		if (held[i].key[0] && strncmp(held[i].key, key, len) == 0)
			drop_held(&held[i]);
	return 0;
}

// list writes the keys with a prefix, from the from-th entry of the table on, as
// many as fit; *next is where to go on, 0 at the end.
static uint32_t list(const char *prefix, uint32_t from, char *buf, uint32_t size, uint32_t *next)
{
	uint32_t used = 0;
	size_t len = strlen(prefix);
	*next = 0;
	for (uint32_t i = from; i < nheld; i++) {
		if (!held[i].key[0] || strncmp(held[i].key, prefix, len) != 0)
			continue;
		uint32_t n = (uint32_t)strlen(held[i].key) + 1;
		if (n > size - used) {
			*next = i;
			break;
		}
		memcpy(buf + used, held[i].key, n);
		used += n;
	}
	return used;
}

// ---- supervised programs ----

static struct program *find_program(const char *name)
{
	for (uint32_t i = 0; i < nprogram; i++)
		if (program[i].name[0] && strcmp(program[i].name, name) == 0)
			return &program[i];
	return NULL;
}

// run_child is what the child does between clone and exec.
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
	struct held *pass = find_held(key);
	int fds[3 + KEEPER_MAX_FDS], n = 3;
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	fds[0] = null;
	fds[1] = fds[2] = p->log >= 0 ? p->log : null;
	for (uint32_t i = 0; pass && i < pass->nfd; i++)
		fds[n++] = pass->fd[i];
	for (int i = 0; i < n; i++) // first out of the way of 0..n-1
		if ((fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 64)) < 0)
			_exit(126);
	for (int i = 0; i < n; i++)
		if (dup2(fds[i], i) < 0)
			_exit(126);
	syscall(SYS_close_range, n, ~0U, 0);

	int f = open("/proc/self/oom_score_adj", O_WRONLY);
	if (f >= 0) {
		if (write(f, oom_score, strlen(oom_score)) < 0)
			errno = 0; // not permitted: it stays as it is
		close(f);
	}
	for (int sig = 1; sig < 65; sig++)
		signal(sig, SIG_DFL);
	setsid();
	execve(path, argv, env);
	_exit(127);
}

static void schedule(struct program *p)
{
	int64_t now = now_ms(), oldest = p->starts[p->nstarts % KEEPER_BURST];
	unwatch_close(p->pidfd);
	p->pidfd = -1;
	p->pid = 0;
	p->due = now;
	if (p->nstarts >= KEEPER_BURST && now - oldest < KEEPER_BURST_MS)
		p->due = now + KEEPER_SLOW_MS;
}

static int start(struct program *p)
{
	int pidfd = -1;
	p->starts[p->nstarts++ % KEEPER_BURST] = now_ms();
	// A plain fork that also gives the pidfd: SIGCHLD is ignored, so a pid alone could be reused at once.
	long pid = syscall(SYS_clone, CLONE_PIDFD | SIGCHLD, 0, &pidfd, 0, 0);
	if (pid == 0)
		run_child(p);
	if (pid < 0) {
		int err = errno;
		p->due = now_ms() + KEEPER_SLOW_MS;
		return -err;
	}
	fcntl(pidfd, F_SETFD, FD_CLOEXEC);
	p->pid = (int)pid;
	p->pidfd = pidfd;
	p->due = 0;
	watch(pidfd, TAG_PROGRAM, (uint32_t)(p - program));
	return 0;
}

static void forget(struct program *p)
{
	unwatch_close(p->pidfd);
	if (p->log >= 0)
		close(p->log);
	memset(p, 0, sizeof *p);
	while (nprogram > 0 && !program[nprogram - 1].name[0])
		nprogram--;
}

// supervise takes over the descriptors it uses and says how many in *used.
static int supervise(const struct keeper_request *r, const char *name, const char *strings, uint32_t len,
		     const int *fd, uint32_t nfd, uint32_t *used, struct program **res)
{
	int adopt = (r->flags & KEEPER_ADOPT) != 0;
	if (nfd != (adopt ? 2u : 1u) || len > KEEPER_MAX_BLOB || r->nargs == 0)
		return -EINVAL;
	struct program *p = find_program(name);
	if (!p) {
		uint32_t i = 0;
		while (i < KEEPER_MAX_PROGRAMS && program[i].name[0])
			i++;
		if (i == KEEPER_MAX_PROGRAMS)
			return -ENOSPC;
		if (i >= nprogram)
			nprogram = i + 1;
		p = &program[i];
		memset(p, 0, sizeof *p);
		p->log = p->pidfd = -1;
		strcpy(p->name, name);
	}
	memcpy(blob[p - program], strings, len);
	p->len = len;
	p->nargs = r->nargs;
	p->nenv = r->nenv;
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
		p->due = 0;
		return watch(p->pidfd, TAG_PROGRAM, (uint32_t)(p - program)) < 0 ? -errno : 0;
	}
	return p->pidfd >= 0 ? 0 : start(p);
}

static void exited(uint32_t i)
{
	if (i < nprogram && program[i].name[0] && program[i].pidfd >= 0)
		schedule(&program[i]);
}

// start_due starts what is due and returns epoll's next timeout.
static int start_due(void)
{
	int64_t now = now_ms(), next = -1;
	for (uint32_t i = 0; i < nprogram; i++) {
		struct program *p = &program[i];
		if (!p->name[0] || !p->due)
			continue;
		if (p->due <= now && start(p) == 0)
			continue;
		if (next < 0 || p->due - now < next)
			next = p->due > now ? p->due - now : 0;
	}
	return (int)next;
}

// ---- requests ----

// next_string returns the string at *at and moves *at past it; NULL if there is none.
static const char *next_string(uint32_t *at, uint32_t len)
{
	const char *s = in + *at, *end;
	if (*at >= len || !(end = memchr(s, 0, len - *at)))
		return NULL;
	*at += (uint32_t)(end - s) + 1;
	return s;
}

static void reply(int conn, int err, uint32_t value, uint32_t len, const int *fd, uint32_t nfd)
{
	struct keeper_reply head = {.err = err, .value = value};
	memcpy(out, &head, sizeof head);
	char control[CMSG_SPACE(sizeof(int) * KEEPER_MAX_FDS)] = {0};
	struct iovec iov = {.iov_base = out, .iov_len = sizeof head + len};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	if (nfd > 0) {
		m.msg_control = control;
		m.msg_controllen = CMSG_SPACE(sizeof(int) * nfd);
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * nfd);
		memcpy(CMSG_DATA(c), fd, sizeof(int) * nfd);
	}
	if (sendmsg(conn, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		shutdown(conn, SHUT_RDWR); // a client that does not read its answers
}

// handle answers the request of len bytes in in[]. It returns how many of the nfd
// descriptors it keeps (always the first ones).
static uint32_t handle(int conn, uint32_t len, const int *fd, uint32_t nfd)
{
	struct keeper_request r;
	uint32_t at = sizeof r, used = 0, value = 0, n = 0, room = sizeof out - sizeof(struct keeper_reply);
	char *body = out + sizeof(struct keeper_reply);
	if (len < sizeof r) {
		reply(conn, -EINVAL, 0, 0, NULL, 0);
		return 0;
	}
	memcpy(&r, in, sizeof r);
	const char *key = next_string(&at, len);
	if (!key || strlen(key) >= KEEPER_MAX_KEY || (r.op != KEEPER_LIST && r.op != KEEPER_QUIT && !key[0])) {
		reply(conn, -EINVAL, 0, 0, NULL, 0);
		return 0;
	}
	int err = 0;
	struct held *e = NULL;
	struct program *p = NULL;
	switch (r.op) {
	case KEEPER_PUT: {
		const char *meta = next_string(&at, len);
		if (!meta || strlen(meta) >= KEEPER_MAX_META || nfd == 0 || at != len)
			err = -EINVAL;
		else if ((err = put(key, meta, fd, nfd)) == 0)
			used = nfd;
		break;
	}
	case KEEPER_GET:
		if (!(e = find_held(key))) {
			err = -ENOENT;
			break;
		}
		n = (uint32_t)strlen(e->meta) + 1;
		memcpy(body, e->meta, n);
		reply(conn, 0, e->nfd, n, e->fd, e->nfd);
		return 0;
	case KEEPER_DEL:
		err = del(key, (r.flags & KEEPER_PREFIX) != 0);
		break;
	case KEEPER_LIST:
		n = list(key, r.arg, body, room, &value);
		break;
	case KEEPER_SUPERVISE: {
		uint32_t from = at, count = 1u + r.nargs + r.nenv;
		if (r.nargs > KEEPER_MAX_STRINGS || r.nenv > KEEPER_MAX_STRINGS)
			err = -E2BIG;
		for (uint32_t i = 0; !err && i < count; i++)
			if (!next_string(&at, len))
				err = -EINVAL;
		if (!err && at != len)
			err = -EINVAL;
		if (!err)
			err = supervise(&r, key, in + from, len - from, fd, nfd, &used, &p);
		if (p)
			value = (uint32_t)p->pid;
		break;
	}
	case KEEPER_FORGET:
		if ((p = find_program(key)))
			forget(p);
		break;
	case KEEPER_WHO:
		if ((p = find_program(key)))
			value = (uint32_t)p->pid;
		else
			err = -ENOENT;
		break;
	case KEEPER_QUIT:
		close(3); // who has the answer connects to this keeper no more
		reply(conn, 0, 0, 0, NULL, 0);
		_exit(0);
	default:
		err = -ENOSYS;
	}
	reply(conn, err, value, n, NULL, 0);
	return used;
}

static void receive(int conn)
{
	char control[CMSG_SPACE(sizeof(int) * KEEPER_MAX_FDS)];
	struct iovec iov = {.iov_base = in, .iov_len = sizeof in};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	ssize_t len = recvmsg(conn, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	if (len < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (len <= 0) { // an empty packet counts as the end
		unwatch_close(conn); // a child on its way to exec may have it open, too
		return;
	}
	int fd[KEEPER_MAX_FDS];
	uint32_t nfd = 0, used = 0;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		uint32_t n = (uint32_t)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		for (uint32_t i = 0; i < n; i++) {
			int got;
			memcpy(&got, CMSG_DATA(c) + i * sizeof got, sizeof got);
			if (nfd < KEEPER_MAX_FDS)
				fd[nfd++] = got;
			else
				close(got);
		}
	}
	if (m.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
		reply(conn, -EMSGSIZE, 0, 0, NULL, 0);
	else
		used = handle(conn, (uint32_t)len, fd, nfd);
	close_all(fd + used, nfd - used);
}

static void accept_one(int listener)
{
	struct ucred peer;
	socklen_t len = sizeof peer;
	int conn = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (conn < 0)
		return;
	if (getsockopt(conn, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0 || peer.uid != geteuid() ||
	    watch(conn, TAG_CONN, (uint32_t)conn) < 0)
		close(conn);
}

// ---- start ----

static void settle(void)
{
	struct rlimit files;
	prctl(PR_SET_NAME, "coracle-keeper");
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	signal(SIGCHLD, SIG_IGN); // children and orphans are reaped by the kernel
	signal(SIGHUP, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	setsid();
	if (chdir("/") < 0)
		_exit(1);
	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	int f = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
	if (f >= 0) {
		ssize_t n = read(f, oom_score, sizeof oom_score - 1);
		oom_score[n > 0 ? n : 0] = 0;
		if (pwrite(f, "-999", 4, 0) < 0)
			errno = 0; // needs CAP_SYS_RESOURCE
		close(f);
	}
	syscall(SYS_close_range, 4, ~0U, 0);
}

__attribute__((constructor)) static void keeper(int argc, char **argv)
{
	if (argc < 1 || strcmp(argv[0], "coracle-keeper") != 0)
		return;
	// A fork in between, so that the daemon is not its parent.
	pid_t pid = fork();
	if (pid != 0)
		_exit(pid < 0);
	settle();
	fcntl(3, F_SETFD, FD_CLOEXEC);
	fcntl(3, F_SETFL, O_NONBLOCK); // a peer that left the queue must not block accept
	epfd = epoll_create1(EPOLL_CLOEXEC);
	if (epfd < 0 || watch(3, TAG_LISTEN, 3) < 0)
		_exit(1);
	for (;;) {
		struct epoll_event ev;
		int timeout = start_due();
		if (epoll_wait(epfd, &ev, 1, timeout) != 1)
			continue;
		uint32_t value = (uint32_t)ev.data.u64;
		switch (ev.data.u64 >> 32) {
		case TAG_LISTEN:
			accept_one(3);
			break;
		case TAG_CONN:
			receive((int)value);
			break;
		case TAG_PROGRAM:
			exited(value);
			break;
		}
	}
}
