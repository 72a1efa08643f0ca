/* SPDX-License-Identifier: Apache-2.0 */
/* tap.h: the Test Anything Protocol for C tests. A program's exit status is its verdict. */
#ifndef TAP_H
#define TAP_H

#include <stdbool.h>

/* Prints "ok N - text" or "not ok N - text (file:line)"; returns cond. */
#define ok(cond, ...) tap_ok((cond), __FILE__, __LINE__, __VA_ARGS__)
bool tap_ok(bool cond, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* One test that could not run here, and why. */
void tap_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void diag(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Does an emulator run this program, whose own memory counts as the program's? */
bool tap_emulated(void);
/* From now on SIGPROF ends the program after this many seconds of processor time; 0 takes the limit
 * away. It tells quadratic from linear on a machine that is busy with other work, too. */
void tap_limit_cpu(int seconds);
/* Prints the plan; returns main's exit code: 0 only if something ran and all of it passed. */
int tap_done(void);

#endif
