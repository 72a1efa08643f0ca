/* SPDX-License-Identifier: Apache-2.0 */
/* train.h: the training program that fsdp-launch runs: the members of its struct launch_program. */
#ifndef TRAIN_H
#define TRAIN_H

#include <stdbool.h>

struct boot;

/* Checks configuration and overrides; prints the error. Returns an exit code, 0 to go on. */
int train_check(const char *config, int noverrides, char *const *overrides);
/* Prints all settings as YAML. */
int train_print_config(const char *config, int noverrides, char *const *overrides);
/* Trains; runs in every rank. Returns an exit code. Collective. */
int train_run(struct boot *boot, const char *config, int noverrides, char *const *overrides,
              bool verbose);

#endif
