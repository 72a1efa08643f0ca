/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>

#include "rank.h"

static volatile sig_atomic_t nstops, is_single;

/* What comes within a tenth of a second is one request: timeout(1) signals the process and its
 * group. */
static void on_stop(int sig)
{
    static volatile double last;
    double now = fsdp_time_now();
    bool again = nstops && now - last > 0.1;
    last = now;
    nstops = nstops + 1;
    if (again && is_single && (sig == SIGINT || sig == SIGTERM)) {
        signal(sig, SIG_DFL);
        raise(sig);
    }
}

bool rank_stop_requested(void)
{
    return nstops > 0;
}

void rank_stop_install(bool single)
{
    static const int stops[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
    struct sigaction sa = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
    sigset_t set;
    is_single = single;
    sigemptyset(&sa.sa_mask);
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof stops / sizeof stops[0]; i++) {
        sigaction(stops[i], &sa, NULL);
        sigaddset(&set, stops[i]);
    }
    sigprocmask(SIG_UNBLOCK, &set, NULL); /* fsdp-launch has held them back until now */
}
