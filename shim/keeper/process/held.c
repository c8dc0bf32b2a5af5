#include <errno.h>
#include <string.h>

#include "internal.h"

static struct held held[KEEPER_MAX_HELD];
static uint32_t nheld;     // all used entries have a lower index
static uint64_t nfiles;    // number of descriptors in them
static uint64_t max_files; // most descriptors in them

// A quarter is reserved for connections, and for descriptors that are received and then refused. A
// keeper that cannot accept connections would look hung.
void held_limit(uint64_t files)
{
	max_files = files - files / 4;
}

static uint32_t hash_of(const char *s)
{
	uint32_t h = 2166136261u;
	while (*s)
		h = (h ^ (unsigned char)*s++) * 16777619u;
	return h;
}

struct held *held_find(const char *key)
{
	uint32_t h = hash_of(key);
	for (uint32_t i = 0; i < nheld; i++)
		if (held[i].hash == h && held[i].key[0] && strcmp(held[i].key, key) == 0)
			return &held[i];
	return NULL;
}

static void drop(struct held *e)
{
	close_all(e->fd, e->nfd);
	nfiles -= e->nfd;
	memset(e, 0, sizeof *e);
	while (nheld > 0 && !held[nheld - 1].key[0])
		nheld--;
}

int held_put(const char *key, const char *meta, const int *fd, uint32_t n)
{
	struct held *e = held_find(key);
	if (nfiles + n - (e ? e->nfd : 0) > max_files)
		return -EMFILE;
	for (uint32_t i = 0; !e && i < KEEPER_MAX_HELD; i++)
		if (!held[i].key[0]) {
			e = &held[i];
			if (i >= nheld)
				nheld = i + 1;
		}
	if (!e)
		return -ENOSPC;
	close_all(e->fd, e->nfd);
	nfiles = nfiles - e->nfd + n;
	strcpy(e->key, key);
	strcpy(e->meta, meta);
	e->hash = hash_of(key);
	e->nfd = n;
	memcpy(e->fd, fd, n * sizeof *fd);
	return 0;
}

void held_del(const char *key, int prefix)
{
	if (!prefix) {
		struct held *e = held_find(key);
		if (e)
			drop(e);
		return;
	}
	size_t len = strlen(key);
	for (uint32_t i = 0, end = nheld; i < end; i++)
		if (held[i].key[0] && strncmp(held[i].key, key, len) == 0)
			drop(&held[i]);
}

uint32_t held_list(const char *prefix, uint32_t from, char *buf, uint32_t size, uint32_t *next)
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
