/* SPDX-License-Identifier: Apache-2.0 */
/* keys.h: how the known keys of metrics are shown. */
#ifndef CURVES_KEYS_H
#define CURVES_KEYS_H

#include <stdbool.h>

struct curves_key {
    const char *key, *title;
    bool from_zero; /* its axis begins at 0 */
    bool likes_log; /* a logarithmic axis where values are far apart */
};

/* A key that is not known has its name as its title. */
struct curves_key curves_key(const char *key);

#endif
