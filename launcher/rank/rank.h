/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank.h: what every rank needs besides the bootstrap, be it fsdp-launch's own or a program that
 * uses fsdp/launch.h.
 *
 *     launch.c     fsdp/launch.h
 *     stop.c       signals that request a stop
 *     loss.c       which rank is lost: one rank prints it; a watchdog for a rank that does not look
 */
#ifndef RANK_H
#define RANK_H

#include "boot.h"

/* ---- stop.c ---- */

/* From now on SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 request a stop. single: no launcher forwards
 * signals to this process, so that a second SIGINT or SIGTERM ends it. */
void rank_stop_install(bool single);
bool rank_stop_requested(void);

/* ---- loss.c ---- */

/* Does fsdp-launch watch over this rank and print who is lost? */
bool rank_is_watched(void);
/* Prints "program: rank 3 on HOST is lost ..." on one rank of the job: rank 0, or rank 1 where
 * rank 0 is lost. heard: a rank that gave up for an error of its own has printed it. */
void rank_print_loss(struct fsdp_oob *oob, const char *program, bool heard);

/* A thread that ends this process some seconds after another rank was lost, for a rank that
 * computes for long or hangs and does not look at its channel. */
struct rank_watchdog;
/* The arguments are rank_print_loss's. NULL: there is no memory or thread for it; the rank runs
 * without. */
struct rank_watchdog *rank_watchdog_start(struct fsdp_oob *oob, const char *program, bool heard);
void rank_watchdog_stop(struct rank_watchdog *dog); /* NULL is allowed */

#endif
