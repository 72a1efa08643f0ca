/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fsdp/comm.h"
#include "hostlist.h"

struct walk {
    const char *list;
    hostlist_f *fn;
    void *ctx;
    struct fsdp_err *err;
    char name[FSDP_HOST_NBYTES];
    int count;
    bool ended; /* the callback has enough */
};

static int refuse_list(const struct walk *walk, const char *why)
{
    return fsdp_err_set(walk->err, FSDP_EINVAL, "list of nodes '%.200s': %s", walk->list, why);
}

static int expand(struct walk *walk, const char *rest, const char *end, size_t len);

/* The numbers lo..hi with the digits of lo, each followed by what is behind the bracket. */
static int expand_range(struct walk *walk, const char *lo, size_t digits, long hi, const char *rest,
                        const char *end, size_t len)
{
    for (long v = strtol(lo, NULL, 10); v <= hi && !walk->ended; v++) {
        int more = snprintf(walk->name + len, sizeof walk->name - len, "%0*ld", (int)digits, v);
        if (more < 0 || (size_t)more >= sizeof walk->name - len)
            return refuse_list(walk, "a name is too long");
        FSDP_TRY(expand(walk, rest, end, len + (size_t)more));
    }
    return FSDP_OK;
}

/* "0-3,7" and what is behind its bracket. */
static int expand_bracket(struct walk *walk, const char *in, const char *close, const char *end,
                          size_t len)
{
    while (in < close) {
        size_t digits = strspn(in, "0123456789");
        const char *lo = in;
        long hi;
        if (!digits || digits > 9)
            return refuse_list(walk, "expected a number in brackets");
        in += digits;
        hi = strtol(lo, NULL, 10);
        if (*in == '-') {
            size_t more = strspn(in + 1, "0123456789");
            if (!more || more > 9 || strtol(in + 1, NULL, 10) < hi)
                return refuse_list(walk, "a range that is none");
            hi = strtol(in + 1, NULL, 10);
            in += 1 + more;
        }
        if (in < close && *in++ != ',')
            return refuse_list(walk, "expected a comma in brackets");
        FSDP_TRY(expand_range(walk, lo, digits, hi, close + 1, end, len));
    }
    return FSDP_OK;
}

/* One item, from rest to end; len bytes of a name stand already. */
static int expand(struct walk *walk, const char *rest, const char *end, size_t len)
{
    while (rest < end && *rest != '[') {
        if (len + 1 >= sizeof walk->name)
            return refuse_list(walk, "a name is too long");
        walk->name[len++] = *rest++;
    }
    if (rest < end) {
        const char *close = memchr(rest, ']', (size_t)(end - rest));
        if (!close || close == rest + 1)
            return refuse_list(walk, "a bracket without its other one, or nothing between them");
        return expand_bracket(walk, rest + 1, close, end, len);
    }
    walk->name[len] = 0;
    if (++walk->count > HOSTLIST_MAX)
        return refuse_list(walk, "more nodes than any cluster has");
    walk->ended = !walk->fn(walk->ctx, walk->name);
    return FSDP_OK;
}

int hostlist_each(const char *list, hostlist_f *fn, void *ctx, struct fsdp_err *err)
{
    struct walk walk = {.list = list, .fn = fn, .ctx = ctx, .err = err};

    for (const char *item = list; !walk.ended;) {
        int depth = 0;
        const char *end = item;
        while (*end && (depth || *end != ',')) {
            depth += (*end == '[') - (*end == ']');
            end++;
        }
        if (end == item)
            return refuse_list(&walk, "an empty name");
        FSDP_TRY(expand(&walk, item, end, 0));
        if (!*end)
            break;
        item = end + 1;
    }
    return FSDP_OK;
}

struct pick {
    int left;
    char *out;
    size_t nbytes;
};

static bool pick_one(void *ctx, const char *name)
{
    struct pick *pick = ctx;
    if (pick->left-- > 0)
        return true;
    snprintf(pick->out, pick->nbytes, "%s", name);
    return false;
}

int hostlist_get(char *out, size_t nbytes, const char *list, int index, struct fsdp_err *err)
{
    struct pick pick = {index, out, nbytes};
    FSDP_TRY(hostlist_each(list, pick_one, &pick, err));
    if (pick.left >= 0)
        return fsdp_err_set(err, FSDP_ENOTFOUND, "list of nodes '%.200s' has no node %d", list,
                            index);
    return FSDP_OK;
}

int hostlist_counts(int *counts, int nnodes, const char *text, struct fsdp_err *err)
{
    const char *p = text;
    int have = 0;

    while (isdigit((unsigned char)*p)) {
        char *end;
        long count = strtol(p, &end, 10), times = 1;
        if (strncmp(end, "(x", 2) == 0) {
            times = strtol(end + 2, &end, 10);
            if (*end++ != ')')
                break;
        }
        if (count < 0 || count > 1 << 20 || times < 1 || times > nnodes - have)
            break;
        while (times--)
            counts[have++] = (int)count;
        p = end;
        if (*p != ',')
            break;
        p++;
    }
    if (*p || have != nnodes)
        return fsdp_err_set(err, FSDP_EINVAL, "'%.200s' is not a list of counts of %d nodes", text,
                            nnodes);
    return FSDP_OK;
}
