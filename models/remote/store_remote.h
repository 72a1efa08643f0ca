/* SPDX-License-Identifier: Apache-2.0 */
/* store_remote.h: reads data in stores through the checkpoint library. */
#ifndef STORE_REMOTE_H
#define STORE_REMOTE_H

#include "data/source/remote.h"

extern const struct data_remote store_remote;

#endif
