/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt-merge: full weights from a sharded checkpoint. Flags and one call. */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/ckpt.h"

static const char usage[] =
    "Usage: ckpt-merge [options] CHECKPOINT -o OUTPUT\n"
    "\n"
    "Writes the full weights of a checkpoint (a step-* folder, a folder of them: the newest, a "
    "Hugging\n"
    "Face folder, or a .safetensors file). OUTPUT is a file if it ends in .safetensors, else a "
    "Hugging\n"
    "Face folder. It appears when it is complete, or not at all.\n"
    "\n"
    "  -o, --output OUTPUT        what to write\n"
    "      --dtype TYPE           cast floating tensors: float32, bfloat16, float16, ... (default: "
    "as\n"
    "                             stored)\n"
    "      --mem SIZE             memory for buffers (default: 256M)\n"
    "      --max-shard-size SIZE  start a new file of a folder at this size (default: 5GB; 0: "
    "never)\n"
    "      --all                  the optimizer's tensors too\n"
    "      --overwrite            replace an existing output\n"
    "  -q, --quiet                print nothing but errors\n"
    "  -h, --help                 this text\n"
    "      --version\n"
    "\n"
    "Sizes: 5GB is 5 * 1000^3, 5G is 5 * 1024^3. Exit status: 0 done, 1 failed, 2 wrong usage.\n";

static volatile sig_atomic_t stop;

static void on_signal(int number)
{
    stop = number;
}

struct meter {
    bool draw;
    int percent; /* drawn last */
    double begun;
};

static int progress(void *ctx, uint64_t done, uint64_t total)
{
    struct meter *meter = ctx;
    int percent = total ? (int)(100.0 * (double)done / (double)total) : 100;
    if (meter->draw && percent != meter->percent) {
        double seconds = fsdp_time_now() - meter->begun;
        meter->percent = percent;
        fprintf(stderr, "\r%3d %%  %.1f of %.1f MB, %.0f MB/s ", percent, 1e-6 * (double)done,
                1e-6 * (double)total, seconds > 0 ? 1e-6 * (double)done / seconds : 0.0);
    }
    return stop != 0;
}

static int fail(int status, const char *text)
{
    fprintf(stderr, "ckpt-merge: %s\n", text);
    if (status == 2)
        fprintf(stderr, "Try 'ckpt-merge --help'.\n");
    return status;
}

/* 0: go on; else exit with *status. */
static int parse(int argc, char **argv, struct ckpt_merge_args *args, bool *quiet, int *status)
{
    enum { DTYPE = 256, MEM, SHARD, ALL, OVERWRITE, VERSION };
    static const struct option options[] = {
        {"output", required_argument, NULL, 'o'},
        {"dtype", required_argument, NULL, DTYPE},
        {"mem", required_argument, NULL, MEM},
        {"max-shard-size", required_argument, NULL, SHARD},
        {"all", no_argument, NULL, ALL},
        {"overwrite", no_argument, NULL, OVERWRITE},
        {"quiet", no_argument, NULL, 'q'},
        {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, VERSION},
        {NULL, 0, NULL, 0},
    };
    struct fsdp_err err = FSDP_ERR_INIT;
    int option, rc = FSDP_OK;

    while (rc == FSDP_OK && (option = getopt_long(argc, argv, "o:qh", options, NULL)) != -1) {
        switch (option) {
        case 'o':
            args->out = optarg;
            break;
        case DTYPE:
            args->dtype = optarg;
            break;
        case MEM:
            rc = ckpt_nbytes_parse(&args->mem_nbytes, optarg, &err);
            break;
        case SHARD:
            rc = ckpt_nbytes_parse(&args->max_shard_nbytes, optarg, &err);
            break;
        case ALL:
            args->all = true;
            break;
        case OVERWRITE:
            args->overwrite = true;
            break;
        case 'q':
            *quiet = true;
            break;
        case 'h':
            fputs(usage, stdout);
            *status = 0;
            return 1;
        case VERSION:
            puts("ckpt-merge " FSDP_VERSION_STRING);
            *status = 0;
            return 1;
        default:
            *status = fail(2, "wrong usage");
            return 1;
        }
    }
    enum fsdp_dtype dtype;
    if (rc == FSDP_OK && args->dtype)
        rc = fsdp_dtype_parse(&dtype, args->dtype, &err);
    if (rc)
        *status = fail(2, err.text);
    else if (optind != argc - 1)
        *status = fail(2, optind == argc ? "no checkpoint is named" : "more than one checkpoint");
    else if (!args->out)
        *status = fail(2, "no output is named (-o)");
    else
        return 0;
    return 1;
}

int main(int argc, char **argv)
{
    struct ckpt_merge_args args = CKPT_MERGE_ARGS_INIT;
    struct ckpt_merge_result result;
    struct meter meter = {.percent = -1, .begun = fsdp_time_now()};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *ckpt = NULL;
    bool quiet = false;
    int status = 0;

    args.max_shard_nbytes = UINT64_C(5000000000);
    if (parse(argc, argv, &args, &quiet, &status))
        return status;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    meter.draw = !quiet && isatty(STDERR_FILENO);
    args.progress = progress;
    args.progress_ctx = &meter;
    int rc = ckpt_open(&ckpt, argv[optind], &err);
    if (rc == FSDP_OK)
        rc = ckpt_merge(&result, ckpt, &args, &err);
    if (meter.percent >= 0)
        fputc('\n', stderr);
    if (rc)
        status = fail(1, err.text);
    else if (!quiet)
        printf("%s: %d tensors, %llu bytes in %d file%s, %.2f s\n", args.out, result.ntensors,
               (unsigned long long)result.nbytes, result.nfiles, result.nfiles == 1 ? "" : "s",
               result.seconds);
    ckpt_close(ckpt);
    if (stop && status) {
        signal(stop, SIG_DFL);
        raise(stop); /* so that a shell sees why */
    }
    return status;
}
