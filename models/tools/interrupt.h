/* SPDX-License-Identifier: Apache-2.0 */
/* interrupt.h: Ctrl-C, which ends a text where it is. */
#ifndef TOOLS_INTERRUPT_H
#define TOOLS_INTERRUPT_H

#include <signal.h>

extern volatile sig_atomic_t interrupt_came;

/* From here on the first interrupt sets interrupt_came, which is cleared; the second one ends the
 * program at once. */
void interrupt_watch(void);      /* a write in progress continues: a slow terminal loses no text */
void interrupt_watch_read(void); /* a read in progress fails with EINTR */
/* The last, for SIGTERM too. The signal's number is then interrupt_came. */
void interrupt_watch_end(void);

#endif
