/* SPDX-License-Identifier: Apache-2.0 */
/* terminal.h: a terminal that is drawn on as a whole, and given back as it was: also when the
 * program is interrupted, ended or suspended. By ANSI's control sequences alone. */
#ifndef TOP_TERMINAL_H
#define TOP_TERMINAL_H

#include "fsdp/base.h"

enum terminal_key {
    KEY_NONE,
    KEY_UP,
    KEY_DOWN,
    KEY_FIRST,
    KEY_LAST,
    KEY_PAGE_UP,
    KEY_PAGE_DOWN,
    KEY_ENTER,
    KEY_BACK,
    KEY_SORT,
    KEY_AGAIN, /* look for runs again */
    KEY_QUIT,
    KEY_REDRAW, /* the size has changed, or the terminal was away */
    KEY_SIGNAL, /* that ends the program: terminal_signal() */
    KEY_GONE,   /* there is no terminal any more */
};

/* Of standard output; 80 x 24 where that is not known. */
void terminal_size(int *columns, int *lines);
/* Takes standard output, and keys from standard input where that is a terminal. Once in a process.
 */
int terminal_open(struct fsdp_err *err);
/* Gives it back as it was. */
void terminal_close(void);
/* Shows these lines, and nothing else; what does not fit below is not shown. False: it is gone. */
bool terminal_draw(const char *text, int lines);
/* The next key, KEY_NONE after so many seconds. */
enum terminal_key terminal_key(double seconds);
/* The signal that ended it; 0: none. */
int terminal_signal(void);

#endif
