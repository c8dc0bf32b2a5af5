#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

// How orphans ended. The containers of a dead shim become the keeper's children, and before Linux
// 6.15 only the parent can learn how they ended. A ring of the latest.
static struct orphan {
	uint64_t start; // in clock ticks since boot; with the pid it identifies the process
	int32_t pid;    // 0: free
	int32_t status;
} orphan[KEEPER_MAX_ORPHANS];
static uint32_t norphan; // number of all that have ended

uint64_t orphan_start(int32_t pid)
{
	char path[32], text[1024], *s;
	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	int f = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = f < 0 ? -1 : read(f, text, sizeof text - 1);
	close(f);
	if (n <= 0)
		return 0;
	text[n] = 0;
	// The second field is in parentheses and may contain anything. The start time is field 22.
	s = strrchr(text, ')');
	for (int field = 2; s && field < 22; field++)
		s = strchr(s + 1, ' ');
	return s ? strtoull(s + 1, NULL, 10) : 0;
}

void orphan_ended(int32_t pid, uint64_t start, int32_t status)
{
	if (start != 0)
		orphan[norphan++ % KEEPER_MAX_ORPHANS] = (struct orphan){start, pid, status};
}

int orphan_status(int32_t pid, uint64_t start, int32_t *status)
{
	for (uint32_t i = 0; i < KEEPER_MAX_ORPHANS && i < norphan; i++)
		if (orphan[i].pid == pid && orphan[i].start == start) {
			*status = orphan[i].status;
			return 1;
		}
	return 0;
}
