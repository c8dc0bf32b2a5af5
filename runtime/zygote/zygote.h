// What a plan looks like to the process that carries it out. Package plan writes it; the
// two are kept in step by TestLayout.
#ifndef CORACLE_ZYGOTE_H
#define CORACLE_ZYGOTE_H

// Where the running plan lies in memory: the slots, then the operations, then their data.
// Addresses in a plan are absolute, so nothing is relocated. Below 2^39, where arm64 may end.
#define PLAN_BASE 0x100000000UL
#define PLAN_SLOTS 1024UL // values that operations leave to each other; the first are descriptors
#define PLAN_HEAD (PLAN_SLOTS * 8)
#define PLAN_MAX (8UL << 20)  // of operations and data, in bytes
#define PLAN_FDS 768UL        // most descriptors of a request
#define PLAN_FDS_MESSAGE 250  // most descriptors of one message, below the kernel's SCM_MAX_FD
#define REQUEST_MAGIC 0x315a4f43U

// Operations that are no system calls.
enum {
	OP_POKE32 = 0xf000, // store a[1] at address a[0]
	OP_IF_EQ,           // if a[0] == a[1]: skip `ok` operations
	OP_IF_MEM32_EQ,     // if the word at address a[0] == a[1]: skip `ok` operations
	OP_FAIL,            // fail with error a[0]
	OP_SET,             // the result is a[0]
	OP_LOAD32,          // the result is the word at address a[0]
	OP_ERRNO,           // the result is the last error number that was forgiven
};

struct op {
	unsigned short nr;    // a system call's number or one of the above
	unsigned char slots;  // bit i: a[i] is not a value, but the number of the slot that has it
	unsigned char has_out;
	unsigned short out;   // slot for the result
	unsigned short ok;    // how many operations to skip after success
	unsigned long forgive; // bit e: error number e (below 64) is none,
	unsigned short skip;   // and this many operations are skipped after it
	unsigned short also;   // one more error number, of any size, that is none; 0: no other
	unsigned short spare[2];
	unsigned long a[6];
};

// A request, on a stream socket: this header with the first descriptors, messages of one
// byte with more of them, then `size` bytes of operations and data.
struct request {
	unsigned int magic, size, nops, nfds;
	unsigned long clone_flags; // 0: the zygote runs the plan itself
	unsigned int cgroup_slot;  // for CLONE_INTO_CGROUP
	unsigned int sync_slot;    // where the child reports to; see struct report
};

struct reply {
	long result; // the child's pid, or an error number, negated
	long op;     // of a plan run by the zygote itself: where it failed
};

// What a child reports, on its sync socket.
struct report {
	unsigned int kind, a, b, spare;
};
enum { REPORT_ERROR = 1 }; // a: which operation, b: the error number; other kinds are the plan's

#endif
