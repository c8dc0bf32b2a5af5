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
};

enum { KEEPER_PREFIX = 1, KEEPER_ADOPT = 2 }; // flags

struct keeper_request { // followed by NUL-terminated strings
	uint32_t op, flags, arg; // arg: LIST where to begin; SUPERVISE with ADOPT: pid
	uint16_t nargs, nenv;
};

struct keeper_reply { // followed by NUL-terminated strings
	int32_t err; // 0 or -errno
	uint32_t value;
};

#define KEEPER_MAX_KEY 192
#define KEEPER_MAX_META 64
#define KEEPER_MAX_FDS 8
#define KEEPER_MAX_HELD 16384
#define KEEPER_MAX_PROGRAMS 1024
#define KEEPER_MAX_BLOB 8192
#define KEEPER_MAX_STRINGS 128
#define KEEPER_MAX_PACKET 65536
#define KEEPER_BURST 10       // starts in …
#define KEEPER_BURST_MS 10000 // … this time, before it slows down to one per …
#define KEEPER_SLOW_MS 1000
