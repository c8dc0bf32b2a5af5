// Declarations shared by the keeper's own files: held.c, program.c, orphan.c and keeper.c.
#pragma once
#include <stdint.h>

#include "keeper.h"

// ---- held.c: descriptors under keys ----

struct held { // free while key[0] == 0
	char key[KEEPER_MAX_KEY];
	char meta[KEEPER_MAX_META];
	uint32_t hash;
	uint32_t nfd;
	int32_t fd[KEEPER_MAX_FDS];
};

// held_limit sets how many of the process's files (its limit) may be held descriptors.
void held_limit(uint64_t files);
struct held *held_find(const char *key);
// held_put takes ownership of the descriptors if it returns 0.
int held_put(const char *key, const char *meta, const int *fd, uint32_t n);
void held_del(const char *key, int prefix);
// held_list writes the keys with a prefix, starting at the table's entry from, as many as fit.
// *next is the entry to continue at, 0 at the end. It returns the bytes written.
uint32_t held_list(const char *prefix, uint32_t from, char *buf, uint32_t size, uint32_t *next);

// ---- program.c: programs that are restarted ----

struct program;
struct program *program_find(const char *name);
uint32_t program_pid(const struct program *p);
void program_status(const struct program *p, struct keeper_status *s);
// program_supervise takes ownership of the first *used descriptors, also if it fails.
int program_supervise(const struct keeper_request *r, const char *name, const char *strings, uint32_t len,
		      const int *fd, uint32_t nfd, uint32_t *used, struct program **res);
void program_forget(struct program *p);
// program_event handles the pidfd of the i-th program.
void program_event(uint32_t i);
// program_reap reaps children and orphans. It returns 1 if more may be left.
int program_reap(void);
// program_start_due starts the programs that are due. It returns the milliseconds until the next
// start, or -1.
int64_t program_start_due(void);

// ---- orphan.c: how processes ended that are not programs ----

// orphan_start returns the start time of a process that has not been reaped, or 0.
uint64_t orphan_start(int32_t pid);
void orphan_ended(int32_t pid, uint64_t start, int32_t status);
// orphan_status returns 1 if the status is known.
int orphan_status(int32_t pid, uint64_t start, int32_t *status);

// ---- keeper.c: the loop, requests ----

enum { TAG_LISTEN, TAG_CONN, TAG_PROGRAM, TAG_CHILD };

extern char oom_score[16]; // of the process before it became the keeper

int64_t now_ms(void);
void close_all(const int *fd, uint32_t n);
int watch(int fd, uint32_t tag, uint32_t value);
// watch_end waits for EPOLLHUP and EPOLLERR only.
int watch_end(int fd, uint32_t tag, uint32_t value);
// unwatch_close also works if another process shares the open file: after a plain close, epoll
// would keep reporting it.
void unwatch_close(int fd);
