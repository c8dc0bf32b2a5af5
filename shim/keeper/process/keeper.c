// The keeper: a tiny single-threaded process that holds descriptors for the shim
// and the daemon, and starts each again when it dies. It runs as a constructor,
// before the Go runtime: when argv[0] is "coracle-keeper" it never returns.
//
// Descriptor 3 is a listening SOCK_SEQPACKET socket. Each packet is a request and is
// answered by one packet; see keeper.h for the layout. The keeper allocates nothing:
// its tables are static, and their pages cost memory only once they are used. It blocks only in
// epoll.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

// The features that INFO returns after the pid. Clients check features, not versions.
static const char features[] = "status\0stay\0bound-log\0exit";

char oom_score[16];

static char in[KEEPER_MAX_PACKET], out[KEEPER_MAX_PACKET];
static int epfd = -1;
static int64_t accept_due; // when to listen again after a failed accept; 0: listening

// Time while the machine is suspended does not count: nothing runs, so nothing is late.
int64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

void close_all(const int *fd, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		close(fd[i]);
}

static int control(int op, int fd, uint32_t events, uint32_t tag, uint32_t value)
{
	struct epoll_event ev = {.events = events, .data.u64 = (uint64_t)tag << 32 | value};
	return epoll_ctl(epfd, op, fd, &ev);
}

int watch(int fd, uint32_t tag, uint32_t value)
{
	return control(EPOLL_CTL_ADD, fd, EPOLLIN, tag, value);
}

int watch_end(int fd, uint32_t tag, uint32_t value)
{
	return control(EPOLL_CTL_MOD, fd, 0, tag, value);
}

void unwatch_close(int fd)
{
	if (fd < 0)
		return;
	epoll_ctl(epfd, EPOLL_CTL_DEL, fd, NULL);
	close(fd);
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
	if (sendmsg(conn, &m, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
		return;
	if (nfd > 0 && errno != EAGAIN && errno != EPIPE) // descriptors cannot be passed now
		reply(conn, -errno, 0, 0, NULL, 0);
	else
		shutdown(conn, SHUT_RDWR); // a client that does not read its answers
}

// info writes the pid and the features.
static uint32_t info(char *body)
{
	char digits[16];
	int n = sizeof digits;
	digits[--n] = 0;
	for (unsigned int pid = (unsigned int)getpid(); pid > 0; pid /= 10)
		digits[--n] = (char)('0' + pid % 10);
	uint32_t len = (uint32_t)(sizeof digits - n);
	memcpy(body, digits + n, len);
	memcpy(body + len, features, sizeof features);
	return len + sizeof features;
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
		else if ((err = held_put(key, meta, fd, nfd)) == 0)
			used = nfd;
		break;
	}
	case KEEPER_GET:
		if (!(e = held_find(key))) {
			err = -ENOENT;
			break;
		}
		n = (uint32_t)strlen(e->meta) + 1;
		memcpy(body, e->meta, n);
		reply(conn, 0, e->nfd, n, e->fd, e->nfd);
		return 0;
	case KEEPER_DEL:
		held_del(key, (r.flags & KEEPER_PREFIX) != 0);
		break;
	case KEEPER_LIST:
		n = held_list(key, r.arg, body, room, &value);
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
			err = program_supervise(&r, key, in + from, len - from, fd, nfd, &used, &p);
		if (p)
			value = program_pid(p);
		break;
	}
	case KEEPER_FORGET:
		if ((p = program_find(key)))
			program_forget(p);
		break;
	case KEEPER_WHO:
		if ((p = program_find(key)))
			value = program_pid(p);
		else
			err = -ENOENT;
		break;
	case KEEPER_STATUS:
		if ((p = program_find(key))) {
			struct keeper_status s;
			program_status(p, &s);
			value = program_pid(p);
			memcpy(body, &s, n = sizeof s);
		} else
			err = -ENOENT;
		break;
	case KEEPER_EXIT: {
		int32_t status;
		for (int i = 0; i < KEEPER_MAX_ORPHANS / 64 && program_reap(); i++)
			; // it may be dead but not reaped yet
		if (orphan_status((int32_t)r.arg, strtoull(key, NULL, 10), &status))
			value = (uint32_t)status;
		else
			err = -ENOENT;
		break;
	}
	case KEEPER_INFO:
		value = KEEPER_VERSION;
		n = info(body);
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
	if ((m.msg_flags & MSG_CTRUNC) && nfd < KEEPER_MAX_FDS) // no free descriptor in this process
		reply(conn, -EMFILE, 0, 0, NULL, 0);
	else if (m.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
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
	if (conn < 0) {
		// The client stays in the queue, and epoll would report it again at once (EMFILE, ENFILE,
		// ENOMEM…). ECONNABORTED and EINTR concern one connection only.
		if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR && watch_end(listener, TAG_LISTEN, 0) == 0)
			accept_due = now_ms() + KEEPER_ACCEPT_MS;
		return;
	}
	if (getsockopt(conn, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0 || peer.uid != geteuid() ||
	    watch(conn, TAG_CONN, (uint32_t)conn) < 0)
		close(conn);
}

// listen_again ends the pause after a failed accept when it is over. It returns the milliseconds
// until then, or -1.
static int64_t listen_again(int listener)
{
	if (accept_due == 0)
		return -1;
	int64_t left = accept_due - now_ms();
	if (left > 0)
		return left;
	if (control(EPOLL_CTL_MOD, listener, EPOLLIN, TAG_LISTEN, 0) < 0)
		return KEEPER_ACCEPT_MS;
	accept_due = 0;
	return -1;
}

// ---- start ----

static void settle(void)
{
	struct rlimit files;
	prctl(PR_SET_NAME, "coracle-keeper");
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	signal(SIGCHLD, SIG_DFL);
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
		held_limit(files.rlim_cur);
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
	sigset_t chld;
	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	sigprocmask(SIG_BLOCK, &chld, NULL);
	int children = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK);
	if (epfd < 0 || children < 0 || watch(3, TAG_LISTEN, 0) < 0 || watch(children, TAG_CHILD, 0) < 0)
		_exit(1);
	for (int more = 0;;) {
		struct epoll_event ev;
		struct signalfd_siginfo si;
		if (more)
			more = program_reap();
		int64_t next = program_start_due(), accept = listen_again(3);
		if (accept >= 0 && (next < 0 || accept < next))
			next = accept;
		if (epoll_wait(epfd, &ev, 1, more ? 0 : (int)next) != 1)
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
			program_event(value);
			break;
		case TAG_CHILD:
			if (read(children, &si, sizeof si) < 0)
				errno = 0; // nothing to read; the signal only means that there may be children
			more = 1;
			break;
		}
	}
}
