// The keeper's wire format and limits; shim/keeper (Go) is the other side, and
// shim/FORMATS.md the description. Integers are in the host's byte order.
#pragma once
#include <stdint.h>

enum {
	KEEPER_PUT = 1,   // key, meta; 1..8 descriptors          →
	KEEPER_GET,       // key                                  → meta; value: count; descriptors
	KEEPER_DEL,       // key (flag PREFIX: all that begin so) →
	KEEPER_LIST,      // prefix; arg: where to begin          → keys; value: where to go on, or 0
	KEEPER_SUPERVISE, // name, path, argv…, env…; log[, pidfd] → value: pid
	KEEPER_FORGET,    // name                                 →
	KEEPER_WHO,       // name                                 → value: pid, 0 between two starts
	KEEPER_QUIT,      // ""                                   →
	KEEPER_INFO,      // anything                             → version; pid, features…
	KEEPER_STATUS,    // name                                 → value: pid; keeper_status
	KEEPER_EXIT,      // start time; arg: pid                 → value: wait status
};

// Flags of DEL (PREFIX) and SUPERVISE.
enum { KEEPER_PREFIX = 1, KEEPER_ADOPT = 2, KEEPER_BOUND_LOG = 4 };

struct keeper_request { // followed by NUL-terminated strings
	uint32_t op, flags, arg; // arg: LIST first entry; SUPERVISE with ADOPT, EXIT: pid
	uint16_t nargs, nenv;
};

struct keeper_reply { // followed by NUL-terminated strings
	int32_t err; // 0 or -errno
	uint32_t value;
};

// States of a program.
enum {
	KEEPER_RUNNING = 1,
	KEEPER_WAITING, // it is started when next_ms have passed
	KEEPER_STAYED,  // not started before the next SUPERVISE: it exited with KEEPER_EXIT_STAY
};

struct keeper_status { // new fields are added at the end
	uint32_t state;
	uint32_t starts;  // by this keeper
	int32_t status;   // how it last ended, as in wait(2), or KEEPER_UNKNOWN
	uint32_t ends;    // seen by this keeper
	int64_t since_ms; // since the last start by this keeper; -1: never started
	int64_t next_ms;  // until the next start; -1: no start is due
};

#define KEEPER_VERSION 1
#define KEEPER_EXIT_STAY 78 // EX_CONFIG of sysexits.h: restarting the program cannot help
#define KEEPER_UNKNOWN (-1)

#define KEEPER_MAX_KEY 192
#define KEEPER_MAX_META 64
#define KEEPER_MAX_FDS 8
#define KEEPER_MAX_HELD 16384
#define KEEPER_MAX_PROGRAMS 1024
#define KEEPER_MAX_BLOB 8192
#define KEEPER_MAX_STRINGS 128
#define KEEPER_MAX_ORPHANS 4096
#define KEEPER_MAX_PACKET 65536
#define KEEPER_MAX_LOG (8 << 20) // bytes; with BOUND_LOG a larger log is emptied at a start
#define KEEPER_BURST 10          // starts within …
#define KEEPER_BURST_MS 10000    // … this time, after which it slows down to one per …
#define KEEPER_SLOW_MS 1000
#define KEEPER_REAP_MS 100   // how long the parent of an adopted program may take to reap it
#define KEEPER_ACCEPT_MS 100 // pause after a failed accept
