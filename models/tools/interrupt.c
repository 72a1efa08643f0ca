/* SPDX-License-Identifier: Apache-2.0 */
#include "interrupt.h"

volatile sig_atomic_t interrupt_came;

static void on_interrupt(int number)
{
    (void)number;
    interrupt_came = 1;
}

void interrupt_watch(void)
{
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};

    sigemptyset(&action.sa_mask);
    interrupt_came = 0;
    sigaction(SIGINT, &action, NULL);
}
