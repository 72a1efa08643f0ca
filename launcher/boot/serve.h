/* SPDX-License-Identifier: Apache-2.0 */
/* serve.h: a thread that serves the rendezvous, for methods whose first process holds it. */
#ifndef BOOT_SERVE_H
#define BOOT_SERVE_H

#include <pthread.h>

#include "kvs.h"

typedef void boot_serve_step_f(void *ctx);

struct boot_serve {
    struct boot_kvs_server *server;
    /* (optional) Something else that the thread steps when its descriptor is readable. */
    int other_fd;
    boot_serve_step_f *other_step;
    void *ctx;
    pthread_t thread;
    int stop[2]; /* a pipe: its end stops the thread */
};
#define BOOT_SERVE_INIT                                                                            \
    {                                                                                              \
        .other_fd = -1, .stop = { -1, -1 }                                                         \
    }

/* server, and other_* where they are used, are set. It stays where it is until boot_serve_stop. */
int boot_serve_start(struct boot_serve *s, struct fsdp_err *err);
/* Ends the thread and closes the server; harmless where nothing has started. */
void boot_serve_stop(struct boot_serve *s);

#endif
