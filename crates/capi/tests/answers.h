/*
 * Compares the kernel and an instance: both get the same calls, and the results and errno of each
 * are recorded and compared. For programs that have a `struct end`.
 */
#ifndef ANSWERS_H
#define ANSWERS_H

#include "tap.h"

/* The answers of one side: the result and errno of each call. */
#define ANSWERS_MAX 512
struct answers {
	int count;
	struct { int line, value, error; } said[ANSWERS_MAX];
};

#define SAY(call)                                                                          \
	do {                                                                               \
		errno = 0;                                                                 \
		int value = (call);                                                        \
		CHECK(answers->count < ANSWERS_MAX);                                       \
		answers->said[answers->count].line = __LINE__;                             \
		answers->said[answers->count].value = value;                               \
		answers->said[answers->count++].error = value < 0 ? errno : 0;             \
	} while (0)

static int option(struct end *end, int fd, int level, int name)
{
	int value = -77;
	socklen_t len = sizeof(value);

	return CALL(end, getsockopt, fd, level, name, &value, &len) < 0 ? -1 : value;
}

static int setting(struct end *end, int fd, int level, int name, int value)
{
	return CALL(end, setsockopt, fd, level, name, &value, sizeof(value));
}

/* Fails if they differ, and prints where. */
static void compare(const struct answers *kernel, const struct answers *ours, const char *what)
{
	int wrong = 0;

	CHECK(kernel->count == ours->count);
	for (int i = 0; i < kernel->count; i++) {
		if (kernel->said[i].value == ours->said[i].value &&
		    kernel->said[i].error == ours->said[i].error)
			continue;
		fprintf(stderr, "%d (%s, answer %d): kernel %d errno %d, towpath %d errno %d\n",
			kernel->said[i].line, what, i, kernel->said[i].value,
			kernel->said[i].error, ours->said[i].value, ours->said[i].error);
		wrong++;
	}
	CHECK(wrong == 0);
}

#endif
