/* SPDX-License-Identifier: Apache-2.0 */
/* rates.h: rates between the sizes at which they were measured. */
#ifndef PLAN_RATES_H
#define PLAN_RATES_H

#include "fsdp/clock.h"

/* The rate at a size, from the rates of the same type that were measured: along m, those of the
 * same n and k (which stand together) by their logarithms; over n and k, weighed by the inverse
 * square of the squared distance in the logarithms. 0: none of that type. */
double rates_at(const struct fsdp_rates *rates, enum fsdp_dtype type, double m, double n, double k);
/* Of attention over so many keys with heads of `size` elements: of the nearest size that was
 * measured, between two numbers of keys a straight line of logarithms. 0: not measured. */
double rates_attention(const struct fsdp_rates *rates, enum fsdp_dtype type, double keys,
                       double size, bool gradient);
/* Bytes/s of a pass over so many bytes, likewise; of its type where that was measured, else of any
 * other, and of copies where the pass was not. */
double rates_pass(const struct fsdp_rates *rates, enum fsdp_pass pass, bool gradient,
                  enum fsdp_dtype type, double nbytes);
/* Seconds of a collective of the same kind and group, likewise by its bytes: between two sizes a
 * straight line, above them at the rate of the largest two, below them as long as the smallest.
 * Negative: not measured. */
double rates_collective(const struct fsdp_net_clock *net, enum fsdp_collective kind,
                        struct fsdp_group group, double nbytes);

#endif
