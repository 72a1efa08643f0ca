/* SPDX-License-Identifier: Apache-2.0 */
/*
 * boot_env.h: what fsdp-launch tells a rank that it starts, by environment.
 *
 * The secret itself stays in an anonymous file that the rank inherits: an environment ends up in
 * logs, and the file can be read again by the next program of the same rank.
 */
#ifndef BOOT_ENV_H
#define BOOT_ENV_H

#define BOOT_ENV_RENDEZVOUS "BOOT_RENDEZVOUS" /* address[,address...]:port */
enum { BOOT_RENDEZVOUS_NBYTES = 420 };
#define BOOT_ENV_SECRET_FD "BOOT_SECRET_FD" /* open descriptor, BOOT_SECRET_NBYTES at offset 0 */
#define BOOT_ENV_RANK "BOOT_RANK"
#define BOOT_ENV_SIZE "BOOT_SIZE"
#define BOOT_ENV_NODE "BOOT_NODE" /* index of the (emulated) node */
#define BOOT_ENV_HOST "BOOT_HOST" /* as errors shall name it */
#define BOOT_ENV_JOB "BOOT_JOB"

/* What fsdp-launch --nnodes tells the method `nodes` in its own process. */
#define BOOT_ENV_NNODES "BOOT_NNODES"
#define BOOT_ENV_NODE_RANK "BOOT_NODE_RANK"
#define BOOT_ENV_MASTER_ADDR "BOOT_MASTER_ADDR"
#define BOOT_ENV_MASTER_PORT "BOOT_MASTER_PORT"

#endif
