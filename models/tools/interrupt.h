/* SPDX-License-Identifier: Apache-2.0 */
/* interrupt.h: Ctrl-C, which ends a text where it is. */
#ifndef TOOLS_INTERRUPT_H
#define TOOLS_INTERRUPT_H

#include <signal.h>

extern volatile sig_atomic_t interrupt_came;

/* From here on the first interrupt sets interrupt_came, which is cleared, and ends a blocking read;
 * the second one ends the program at once. */
void interrupt_watch(void);
/* The same for SIGTERM, too. The signal's number is then interrupt_came. */
void interrupt_watch_end(void);

#endif
