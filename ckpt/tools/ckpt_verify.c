/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt-verify: proves a checkpoint whole. */
#include <getopt.h>
#include <stdio.h>

#include "ckpt/ckpt.h"

static const char usage[] =
    "Usage: ckpt-verify [options] CHECKPOINT\n"
    "\n"
    "Proves that the files of a checkpoint are those that were saved: nothing missing, truncated, "
    "stray or\n"
    "overlapping, every checksum and every tensor's fingerprint right. Prints a line per fault.\n"
    "\n"
    "  -q, --quiet  print nothing but errors\n"
    "  -h, --help   this text\n"
    "      --version\n"
    "\n"
    "Exit status: 0 whole, 1 damaged or unreadable, 2 wrong usage.\n";

static void report(void *ctx, const char *text)
{
    (void)ctx;
    fprintf(stderr, "%s\n", text);
}

static void summary(const struct ckpt *ckpt)
{
    uint64_t nbytes = 0;
    bool checked = true;
    for (int i = 0; i < ckpt_nfiles(ckpt); i++) {
        nbytes += ckpt_file_at(ckpt, i).nbytes;
        checked &= ckpt_file_at(ckpt, i).has_crc;
    }
    printf("%s: %d tensors in %d files, %llu bytes: %s\n", ckpt_path(ckpt), ckpt_ntensors(ckpt),
           ckpt_nfiles(ckpt), (unsigned long long)nbytes,
           checked ? "whole" : "complete and readable (this format has no checksums)");
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"quiet", no_argument, NULL, 'q'},
        {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'V'},
        {NULL, 0, NULL, 0},
    };
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *ckpt = NULL;
    bool quiet = false;
    int option;

    while ((option = getopt_long(argc, argv, "qh", options, NULL)) != -1) {
        switch (option) {
        case 'q':
            quiet = true;
            break;
        case 'h':
            fputs(usage, stdout);
            return 0;
        case 'V':
            puts("ckpt-verify " FSDP_VERSION_STRING);
            return 0;
        default:
            fprintf(stderr, "Try 'ckpt-verify --help'.\n");
            return 2;
        }
    }
    if (optind != argc - 1) {
        fprintf(stderr, "ckpt-verify: name one checkpoint. Try 'ckpt-verify --help'.\n");
        return 2;
    }
    int rc = ckpt_open(&ckpt, argv[optind], &err);
    if (rc == FSDP_OK)
        rc = ckpt_verify(ckpt, report, NULL, &err);
    if (rc)
        fprintf(stderr, "ckpt-verify: %s\n", err.text);
    else if (!quiet)
        summary(ckpt);
    ckpt_close(ckpt);
    return rc ? 1 : 0;
}
