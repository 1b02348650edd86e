/*
 * What the C programs of the tests have in common: a condition that must hold, or the program ends
 * and says where.
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
