/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include "fsdp/sys/thread.h"
#include "serve.h"

static void *serve_thread(void *arg)
{
    enum { TICK_MS = 250 };
    struct boot_serve *s = arg;
    struct pollfd pf[3] = {{s->stop[0], POLLIN, 0},
                           {boot_kvs_server_fd(s->server), POLLIN, 0},
                           {s->other_fd, POLLIN, 0}};
    while (poll(pf, 3, TICK_MS) >= 0 || errno == EINTR) {
        if (pf[0].revents)
            break;
        boot_kvs_server_step(s->server);
        if (s->other_step)
            s->other_step(s->ctx);
    }
    return NULL;
}

int boot_serve_start(struct boot_serve *s, struct fsdp_err *err)
{
    if (pipe(s->stop))
        return fsdp_err_sys(err, errno, "pipe");
    int why = fsdp_thread_start(&s->thread, serve_thread, s);
    if (why) {
        close(s->stop[0]);
        close(s->stop[1]);
        s->stop[1] = -1;
        return fsdp_err_sys(err, why, "cannot start a thread for the rendezvous");
    }
    return FSDP_OK;
}

void boot_serve_stop(struct boot_serve *s)
{
    if (s->stop[1] >= 0) {
        close(s->stop[1]);
        pthread_join(s->thread, NULL);
        close(s->stop[0]);
        s->stop[1] = -1;
    }
    boot_kvs_server_destroy(s->server);
    s->server = NULL;
}
