/* SPDX-License-Identifier: Apache-2.0 */
#include "interrupt.h"

volatile sig_atomic_t interrupt_came;

static void on_interrupt(int number)
{
    interrupt_came = number;
}

static void watch(int number, int flags)
{
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND | flags};

    sigemptyset(&action.sa_mask);
    interrupt_came = 0;
    sigaction(number, &action, NULL);
}

void interrupt_watch(void)
{
    watch(SIGINT, SA_RESTART);
}

void interrupt_watch_read(void)
{
    watch(SIGINT, 0);
}

void interrupt_watch_end(void)
{
    watch(SIGINT, 0);
    watch(SIGTERM, 0);
}
