/* SPDX-License-Identifier: Apache-2.0 */
/* Slurm's compressed lists of nodes and counts. */
#include <stdio.h>
#include <string.h>

#include "../../launcher/boot/hostlist.h"
#include "tap.h"

static bool join(void *ctx, const char *name)
{
    char *out = ctx;
    size_t len = strlen(out);
    snprintf(out + len, 400 - len, "%s%s", len ? " " : "", name);
    return true;
}

static void expands(const char *list, const char *want)
{
    char got[400] = "";
    int rc = hostlist_each(list, join, got, NULL);
    ok(rc == FSDP_OK && strcmp(got, want) == 0, "%s is %s (got %s)", list, want, got);
}

static void refuses(const char *list)
{
    char got[400] = "";
    struct fsdp_err err = FSDP_ERR_INIT;
    int rc = hostlist_each(list, join, got, &err);
    ok(rc == FSDP_EINVAL && strstr(err.text, "list of nodes"), "'%s' is refused: %s", list,
       err.text);
}

static void counts(const char *text, int nnodes, const char *want)
{
    int got[8] = {0};
    char line[80] = "";
    int rc = hostlist_counts(got, nnodes, text, NULL);
    for (int i = 0; rc == FSDP_OK && i < nnodes; i++)
        snprintf(line + strlen(line), sizeof line - strlen(line), "%s%d", i ? " " : "", got[i]);
    ok(strcmp(line, want) == 0, "%s of %d nodes: %s", text, nnodes, line[0] ? line : "refused");
}

int main(void)
{
    char name[64];

    expands("n0", "n0");
    expands("n[0-3,7]", "n0 n1 n2 n3 n7");
    expands("gpu[008-011]-ib,login", "gpu008-ib gpu009-ib gpu010-ib gpu011-ib login");
    expands("a,b[1-2],c", "a b1 b2 c");
    expands("r[0-1]n[1-2]", "r0n1 r0n2 r1n1 r1n2");
    refuses("");
    refuses("a,,b");
    refuses("a,");
    refuses("n[0-3");
    refuses("n[]");
    refuses("n[3-1]");
    refuses("n[1-x]");
    refuses("n[1;2]");
    refuses("n[0-999999999]");
    refuses("n[99999999999]");

    ok(hostlist_get(name, sizeof name, "n[0-3,7]", 4, NULL) == FSDP_OK && !strcmp(name, "n7"),
       "the fifth");
    ok(hostlist_get(name, sizeof name, "n[0-3,7]", 5, NULL) == FSDP_ENOTFOUND, "there is no sixth");

    counts("4(x3),2", 4, "4 4 4 2");
    counts("1", 1, "1");
    counts("2,2,1", 3, "2 2 1");
    counts("2(x3)", 2, "");
    counts("2(x3)", 4, "");
    counts("2(x", 1, "");
    counts("2;1", 2, "");
    counts("", 1, "");
    return tap_done();
}
