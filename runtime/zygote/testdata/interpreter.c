// Runs the zygote's interpreter on plans that are random, or real ones spoilt, with system calls
// that return anything. It must come to an end and touch nothing but the plan: what lies behind
// the plan cannot be accessed. Usage: interpreter SEED ROUNDS [NOPS:FILE]...
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#define ZYGOTE_TEST
#include "zygote.c"

static uint64_t state;
static unsigned long calls;

static uint64_t any(void)
{
	state ^= state << 13, state ^= state >> 7, state ^= state << 17;
	return state;
}

static long call(long nr, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f)
{
	(void)nr, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
	calls++;
	switch (any() % 12) {
	case 0:
		return -(long)(any() % 64);
	case 1:
		return -(long)(any() % 5000);
	case 2:
		return (long)any();
	}
	return (long)(any() % 8);
}

static u64 number(u64 size)
{
	switch (any() % 6) {
	case 0:
		return any();
	case 1:
		return any() % (PLAN_SLOTS + 8);
	case 2:
		return PLAN_BASE + PLAN_HEAD + any() % (size + 8);
	case 3:
		return PLAN_BASE + PLAN_HEAD + size - any() % 8;
	case 4:
		return PLAN_BASE + any() % PLAN_HEAD;
	}
	return any() % 4;
}

// spoil changes an operation.
static void spoil(struct op *o, u64 size)
{
	switch (any() % 7) {
	case 0:
		o->nr = any() % 2 ? OP_POKE32 + any() % 6 : any();
		break;
	case 1:
		o->slots = any();
		break;
	case 2:
		o->out = number(size), o->has_out = any() % 2;
		break;
	case 3:
		o->ok = any() % 2 ? any() : any() % 4;
		break;
	case 4:
		o->forgive = any(), o->also = any() % 4096, o->skip = any() % 2 ? any() : any() % 4;
		break;
	default:
		o->a[any() % 6] = number(size);
	}
}

// forgiven says whether an operation that fails with an error does not end the plan.
static int forgiven(u64 error, u64 forgive, unsigned short also)
{
	struct op *o = (struct op *)(PLAN_BASE + PLAN_HEAD);
	struct request q;
	u64 at = 0;
	memset(&q, 0, sizeof q);
	memset(o, 0, sizeof *o);
	o->nr = OP_FAIL, o->a[0] = error, o->forgive = forgive, o->also = also;
	q.size = sizeof *o, q.nops = 1;
	return run(&q, &at) == 0;
}

// forgives tries each error number.
static int forgives(void)
{
	for (u64 e = 1; e < 4096; e++) {
		if (!forgiven(e, 0, (unsigned short)e) || forgiven(e, 0, 0) || forgiven(e, 0, (unsigned short)(e + 1)))
			return 0;
		if (forgiven(e, ~0UL, 0) != (e < 64) || (e < 64 && !forgiven(e, 1UL << e, 0)))
			return 0;
	}
	return 1;
}

int main(int argc, char **argv)
{
	const unsigned long page = 1 << 16, most = 1 << 20;
	if (argc < 3)
		return 2;
	state = strtoul(argv[1], 0, 10) * 0x9e3779b97f4a7c15UL + 1;
	if (mmap((void *)PLAN_BASE, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != (void *)PLAN_BASE)
		return 4;
	if (!forgives()) {
		fprintf(stderr, "an error is forgiven that must not be, or is not that must be\n");
		return 1;
	}
	munmap((void *)PLAN_BASE, page);
	unsigned long rounds = strtoul(argv[2], 0, 10), ended[2] = {0, 0};
	for (unsigned long round = 0; round < rounds; round++) {
		char *real = 0;
		u64 nops = any() % 40, size = nops * sizeof(struct op) + any() % 200;
		FILE *file = 0;
		if (argc > 3 && any() % 2) {
			nops = strtoul(argv[3 + any() % (argc - 3)], &real, 10);
			file = fopen(real + 1, "r");
			if (!file || fseek(file, 0, SEEK_END))
				return 3;
			size = (u64)ftell(file);
			rewind(file);
		}
		u64 all = (PLAN_HEAD + size + page - 1) / page * page;
		if (size > most || mmap((void *)PLAN_BASE, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != (void *)PLAN_BASE)
			return 4;
		struct op *ops = (struct op *)(PLAN_BASE + PLAN_HEAD);
		if (file) {
			if (fread(ops, 1, size, file) != size)
				return 5;
			fclose(file);
			for (u64 n = any() % 8; n > 0; n--)
				spoil(ops + any() % nops, size);
		} else {
			for (u64 i = 0; i < nops; i++)
				for (int n = 0; n < 12; n++)
					spoil(ops + i, size);
		}
		// What the interpreter must leave alone within the last page.
		u64 used = PLAN_HEAD + size;
		memset((char *)PLAN_BASE + used, 0x5a, all - used);
		struct request q;
		memset(&q, 0, sizeof q);
		q.size = (unsigned)size, q.nops = (unsigned)nops;
		u64 at = 0;
		long err = run(&q, &at);
		if (err > 0 || err <= -4096 || (nops && at >= nops)) {
			fprintf(stderr, "round %lu: result %ld at %lu of %lu\n", round, err, at, nops);
			return 1;
		}
		for (char *p = (char *)PLAN_BASE + used; p < (char *)PLAN_BASE + all; p++)
			if (*p != 0x5a) {
				fprintf(stderr, "round %lu: wrote %ld bytes behind the plan\n", round, (long)(p - (char *)PLAN_BASE - used));
				return 1;
			}
		ended[err != 0]++;
		munmap((void *)PLAN_BASE, all);
	}
	printf("%lu plans came to their end, %lu failed, %lu calls\n", ended[0], ended[1], calls);
	return 0;
}
