//go:build ignore
// (not a part of the Go package; see package program)

// The zygote is a small process of one thread that starts containers. It reads plans (see
// zygote.h) from a socket, descriptor 3, and clones a child for each. The child runs the plan,
// whose last operation executes the container's program. The zygote knows nothing of containers:
// Go code decides which system calls to make, and in which order.
//
// The code is freestanding: no libc, no data, no relocations. All of it is in the section
// coracle_zygote, which package zygote wraps in an ELF header and runs from a memfd. So it
// must not use anything that a compiler puts elsewhere: no global variables, no string
// literals, no tables. Its memory holds nothing that a container must not see.
#include "zygote.h"

#pragma GCC optimize("O2", "no-jump-tables", "no-tree-vectorize", "no-tree-loop-distribute-patterns", "no-stack-protector")
#pragma GCC target("general-regs-only")
#define CODE __attribute__((section("coracle_zygote"), used))
typedef unsigned long u64;
typedef unsigned int __attribute__((aligned(1), may_alias)) word; // of a plan's data
#ifdef ZYGOTE_TEST // which makes up what system calls return
static long call(long nr, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f);
#endif

// A signal's handler, if a plan asks for one: it ends the process with 128 and the signal's number.
// Its address is a constant of package plan.
#define HANDLER ".balign 16\n coracle_zygote_signal: .globl coracle_zygote_signal\n"

#if defined(__x86_64__)
enum { SYS_close = 3, SYS_mmap = 9, SYS_munmap = 11, SYS_rt_sigaction = 13, SYS_rt_sigprocmask = 14, SYS_recvmsg = 47, SYS_sendto = 44, SYS_exit = 60, SYS_exit_group = 231, SYS_clone3 = 435, SYS_openat2 = 437, SYS_read = 0, SYS_write = 1 };
#ifndef ZYGOTE_TEST
// Where the kernel starts the program. Must be first in the section: see mkprogram.
__asm__(".pushsection coracle_zygote,\"ax\",@progbits\n"
	"coracle_zygote_start: .globl coracle_zygote_start\n"
	"xor %ebp,%ebp\n and $-16,%rsp\n call coracle_zygote_main\n"
	HANDLER "lea 128(%rdi),%edi\n mov $231,%eax\n syscall\n ud2\n"
	".popsection");
CODE static long call(long nr, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f)
{
	register u64 r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	long r;
	__asm__ volatile("syscall" : "=a"(r) : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return r;
}
#endif
#elif defined(__aarch64__)
enum { SYS_close = 57, SYS_mmap = 222, SYS_munmap = 215, SYS_rt_sigaction = 134, SYS_rt_sigprocmask = 135, SYS_recvmsg = 212, SYS_sendto = 206, SYS_exit = 93, SYS_exit_group = 94, SYS_clone3 = 435, SYS_openat2 = 437, SYS_read = 63, SYS_write = 64 };
#ifndef ZYGOTE_TEST
__asm__(".pushsection coracle_zygote,\"ax\",@progbits\n"
	"coracle_zygote_start: .globl coracle_zygote_start\n"
	"mov x29,#0\n mov x30,#0\n b coracle_zygote_main\n"
	HANDLER "add w0,w0,#128\n mov x8,#94\n svc 0\n brk 0\n"
	".popsection");
CODE static long call(long nr, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f)
{
	register long x8 __asm__("x8") = nr;
	register u64 x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
	register u64 x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return (long)x0;
}
#endif
#else
#error "the zygote is not written for this architecture; build with CGO_ENABLED=0 to use libcontainer alone"
#endif

enum { EAGAIN = 11, EINTR = 4, EFAULT = 14, EMFILE = 24, EBADMSG = 74, SIGCHLD = 17 };
#define CLONE_PARENT 0x8000UL
#define CLONE_INTO_CGROUP 0x200000000UL

CODE __attribute__((noreturn)) static void quit(int status)
{
	call(SYS_exit_group, (u64)status, 0, 0, 0, 0, 0);
	call(SYS_exit, (u64)status, 0, 0, 0, 0, 0);
	for (;;) // a seccomp filter may have refused both
		__builtin_trap();
}

// inside says whether n bytes at an address are the plan's own.
CODE static int inside(u64 addr, u64 n, u64 size)
{
	u64 first = PLAN_BASE + PLAN_HEAD;
	return addr >= first && addr - first <= size && n <= size - (addr - first);
}

// run carries out a plan. 0 is success; else the error number, negated, and *at is where.
CODE static long run(const struct request *q, u64 *at)
{
	u64 *slot = (u64 *)PLAN_BASE;
	const struct op *ops = (const struct op *)(PLAN_BASE + PLAN_HEAD);
	long forgiven = 0;
	for (u64 i = 0; i < q->nops; i++) {
		const struct op *o = ops + i;
		u64 a[6];
		*at = i;
		for (int k = 0; k < 6; k++) {
			a[k] = o->a[k];
			if (o->slots >> k & 1) {
				if (a[k] >= PLAN_SLOTS)
					return -EBADMSG;
				a[k] = slot[a[k]];
			}
		}
		long r = 0;
		switch (o->nr) {
		case OP_POKE32:
			if (!inside(a[0], 4, q->size))
				return -EFAULT;
			*(word *)a[0] = (word)a[1];
			break;
		case OP_IF_EQ:
			if (a[0] == a[1])
				i += o->ok;
			continue;
		case OP_IF_MEM32_EQ:
			if (!inside(a[0], 4, q->size))
				return -EFAULT;
			if (*(word *)a[0] == (word)a[1])
				i += o->ok;
			continue;
		case OP_FAIL:
			r = (long)(0 - a[0]);
			break;
		case OP_SET:
			r = (long)a[0];
			break;
		case OP_LOAD32:
			if (!inside(a[0], 4, q->size))
				return -EFAULT;
			r = (long)*(word *)a[0];
			break;
		case OP_ERRNO:
			r = forgiven;
			break;
		default: {
			// openat2(2): a lookup below a root fails while another process renames.
			int tries = o->nr == SYS_openat2 ? 256 : 1;
			do
				r = call(o->nr, a[0], a[1], a[2], a[3], a[4], a[5]);
			while (r == -EINTR || (r == -EAGAIN && --tries > 0));
		}
		}
		if (r < 0 && r > -4096) {
			if ((-r < 64 && o->forgive >> -r & 1) || -r == o->also) {
				forgiven = -r;
				i += o->skip;
				continue;
			}
			return r;
		}
		if (o->has_out) {
			if (o->out >= PLAN_SLOTS)
				return -EBADMSG;
			slot[o->out] = (u64)r;
		}
		i += o->ok;
	}
	return 0;
}

// ignored is the set of signals that this process ignores. It never changes, so the process asks
// once, while its parent does other work, and a child need not reset 64 signals (11 us).
CODE static u64 ignored(void)
{
	u64 now[4], set = 0; // struct sigaction
	for (u64 sig = 1; sig <= 64; sig++)
		if (call(SYS_rt_sigaction, sig, 0, (u64)now, 8, 0, 0) == 0 && now[0] == 1 /* SIG_IGN */)
			set |= 1UL << (sig - 1);
	return set;
}

// freshSignals gives these signals their default actions and unblocks all. Ignored and blocked
// signals survive execve(2), so a container would inherit what nohup(1), a shell or a service
// manager left to our parent. CLONE_CLEAR_SIGHAND keeps ignored signals.
CODE static void freshSignals(u64 set)
{
	u64 nothing[4]; // struct sigaction with SIG_DFL, or an empty mask
	for (int i = 0; i < 4; i++)
		nothing[i] = 0;
	for (u64 sig = 1; set; sig++, set >>= 1)
		if (set & 1)
			call(SYS_rt_sigaction, sig, (u64)nothing, 0, 8, 0, 0);
	call(SYS_rt_sigprocmask, 2 /* SIG_SETMASK */, (u64)nothing, 0, 8, 0, 0);
}

// child runs the plan and never returns: after the end of a plan it exits.
CODE __attribute__((noreturn)) static void child(const struct request *q, u64 deaf)
{
	u64 at = 0;
	freshSignals(deaf);
	long err = run(q, &at);
	if (err == 0)
		quit(0);
	struct report r;
	r.kind = REPORT_ERROR, r.a = (unsigned int)at, r.b = (unsigned int)-err, r.spare = 0;
	if (q->sync_slot < PLAN_SLOTS)
		call(SYS_write, ((u64 *)PLAN_BASE)[q->sync_slot], (u64)&r, sizeof r, 0, 0, 0);
	// As in shells: 127 for a program that is not there, 126 for one that cannot be run.
	quit(err == -2 ? 127 : 126);
}

CODE static long start(const struct request *q, u64 deaf)
{
	u64 args[11]; // struct clone_args, clone(2)
	for (int i = 0; i < 11; i++)
		args[i] = 0;
	args[0] = q->clone_flags;
	if (!(q->clone_flags & CLONE_PARENT))
		args[4] = SIGCHLD;
	if (q->clone_flags & CLONE_INTO_CGROUP) {
		if (q->cgroup_slot >= PLAN_SLOTS)
			return -EBADMSG;
		args[10] = ((u64 *)PLAN_BASE)[q->cgroup_slot];
	}
	long pid = call(SYS_clone3, (u64)args, sizeof args, 0, 0, 0, 0);
	if (pid == 0)
		child(q, deaf);
	return pid;
}

// receive fills a buffer and takes descriptors that come with it. It ends the process when
// the other side is gone: no one needs it then.
CODE static u64 receive(void *buf, u64 size, u64 nfds)
{
	struct { u64 len; int level, type, fd[PLAN_FDS_MESSAGE]; } c;
	struct { void *base; u64 len; } iov;
	struct { void *name; u64 namelen; void *iov; u64 niov; void *control; u64 controllen; u64 flags; } h;
	iov.base = buf, iov.len = size;
	h.name = 0, h.namelen = 0, h.iov = &iov, h.niov = 1, h.control = &c, h.controllen = sizeof c, h.flags = 0;
	long n;
	do
		n = call(SYS_recvmsg, 3, (u64)&h, 0x40000000 /* MSG_CMSG_CLOEXEC */, 0, 0, 0);
	while (n == -EINTR);
	if (n != (long)size)
		quit(n != 0);
	u64 got = h.controllen >= 20 ? (c.len - 16) / 4 : 0;
	for (u64 i = 0; i < got; i++, nfds++) {
		if (nfds >= PLAN_FDS)
			quit(1);
		((u64 *)PLAN_BASE)[nfds] = (u64)c.fd[i];
	}
	return nfds;
}

CODE static struct reply serve(u64 deaf)
{
	struct reply reply;
	struct request q;
	reply.result = 0, reply.op = 0;
	// The plan is this process's own memory; a child has a copy, and no other child sees it.
	if (call(SYS_mmap, PLAN_BASE, PLAN_HEAD + PLAN_MAX, 3, 0x104022 /* PRIVATE|ANONYMOUS|NORESERVE|FIXED_NOREPLACE */, (u64)-1, 0) != (long)PLAN_BASE)
		quit(1);
	u64 nfds = receive(&q, sizeof q, 0);
	if (q.magic != REQUEST_MAGIC || q.size > PLAN_MAX || q.nfds > PLAN_FDS || q.nops > q.size / sizeof(struct op))
		quit(1);
	for (u64 messages = 1; messages * PLAN_FDS_MESSAGE < q.nfds; messages++) {
		char more;
		nfds = receive(&more, 1, nfds);
	}
	for (u64 have = 0; have < q.size;) {
		long n = call(SYS_read, 3, PLAN_BASE + PLAN_HEAD + have, q.size - have, 0, 0, 0);
		if (n == -EINTR)
			continue;
		if (n <= 0)
			quit(1);
		have += (u64)n;
	}
	if (nfds != q.nfds) { // the kernel drops those beyond RLIMIT_NOFILE
		reply.result = -EMFILE;
	} else if (q.clone_flags) {
		reply.result = start(&q, deaf);
	} else {
		u64 at = 0;
		reply.result = run(&q, &at);
		reply.op = (long)at;
	}
	for (u64 i = 0; i < nfds; i++)
		call(SYS_close, ((u64 *)PLAN_BASE)[i], 0, 0, 0, 0, 0);
	call(SYS_munmap, PLAN_BASE, PLAN_HEAD + PLAN_MAX, 0, 0, 0, 0);
	return reply;
}

CODE __attribute__((noreturn)) void coracle_zygote_main(void)
{
	u64 deaf = ignored();
	for (;;) {
		struct reply reply = serve(deaf);
		if (call(SYS_sendto, 3, (u64)&reply, sizeof reply, 0x4000 /* MSG_NOSIGNAL */, 0, 0) != sizeof reply)
			quit(1);
	}
}
