/* SPDX-License-Identifier: Apache-2.0 */
/* train.h: the training program that fsdp-launch runs: the members of its struct launch_program. */
#ifndef TRAIN_H
#define TRAIN_H

#include <stdbool.h>

#include "train/fit.h" /* train_check_job */

struct boot;

/* Checks configuration and overrides; prints the error. Returns an exit code, 0 to continue. */
int train_check(const char *config, int noverrides, char *const *overrides);
/* The table of settings. */
const struct fsdp_tunable *train_keys(int *nkeys);
/* Prints all settings as YAML. */
int train_print_config(const char *config, int noverrides, char *const *overrides);
/* Prints what is reported of each step. */
int train_print_metrics(void);
/* Writes the planned schedule of nranks ranks on nnodes nodes, none of which is started: to file,
 * as a Chrome trace where its name ends in .json, else as text; NULL: text to standard output. */
int train_dump_schedule(const char *config, int noverrides, char *const *overrides, int nranks,
                        int nnodes, const char *file);
/* Is fsdp.backend mpi? False where the configuration cannot be read: the check says so. */
bool train_uses_mpi(const char *config, int noverrides, char *const *overrides);
/* The word of a setting that is an enumeration, such as "fsdp.device"; or checkpoint.path. */
bool train_setting(char *out, size_t nbytes, const char *key, const char *config, int noverrides,
                   char *const *overrides);
/* Warns of a model and of data that are not on this machine. */
void train_warn_missing(const char *config, int noverrides, char *const *overrides);
/* Refuses a global batch that leaves ranks without a row, and warns of one that needs padding. */
int train_check_ranks(const char *config, int noverrides, char *const *overrides, int nranks);
/* fsdp_comm_begin_mpi, for the launcher. */
int train_begin_mpi(struct fsdp_err *err);
/* Trains; runs in every rank. Returns an exit code. Collective. */
int train_run(struct boot *boot, const char *config, int noverrides, char *const *overrides,
              bool verbose);
#endif
