/*
 * Common to the C programs of the tests: a condition that must hold; otherwise the program ends and
 * prints where.
 */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                          \
	do {                                                                      \
		if (!(condition)) {                                               \
			fprintf(stderr, "%d: %s: errno %d\n", __LINE__, #condition, errno); \
			exit(1);                                                  \
		}                                                                 \
	} while (0)

#endif
