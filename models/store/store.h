/* SPDX-License-Identifier: Apache-2.0 */
/* store.h: data in stores, which the checkpoint library reads, for those who read data. */
#ifndef MODELS_STORE_H
#define MODELS_STORE_H

#include "data/source/remote.h"

extern const struct data_remote store_remote;

#endif
