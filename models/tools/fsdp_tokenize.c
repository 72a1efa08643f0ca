/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp-tokenize: text, JSON Lines and chats as token files; and the vocabulary for that. */
#include <getopt.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interrupt.h"
#include "options.h"
#include "remote/store_remote.h"
#include "text/chat/chat.h"
#include "tokenize.h"

static const char usage[] =
    "Usage: fsdp-tokenize IN... -o OUT.u16|OUT.u32 --tokenizer MODEL [option...]\n"
    "       fsdp-tokenize IN... -o FOLDER --train N [option...]\n"
    "       fsdp-tokenize --info FILE [--verify]\n"
    "       fsdp-tokenize --decode FILE [--tokenizer MODEL]\n"
    "                     [--document N | --tokens A:B]\n"
    "\n"
    "Turns text into token ids of 16 or 32 bits. OUT.u16.index holds the ends of the\n"
    "documents. For chats and prompts, OUT.u16.learned marks the tokens that are\n"
    "learned. IN is a file of text (one document) or JSON Lines (.jsonl, .ndjson,\n"
    ".json), a folder, or a pattern; .gz and .zst files are decompressed. - is\n"
    "standard input, s3://... a store.\n"
    "The same command, given again after it was stopped or killed, continues.\n"
    "\n"
    "  -o, --output OUT   the output, NAME.u16 or NAME.u32\n"
    "  --tokenizer MODEL  a model's folder, a tokenizer's file, or 'bytes'\n"
    "  --special WHICH    special tokens to add: none; model (those of the\n"
    "                     tokenizer); eos (the same, and the end token after each\n"
    "                     document) (eos)\n"
    "  --format KIND      of all inputs: auto (by name), text or jsonl (auto)\n"
    "  --text-key KEY     field of JSON Lines that holds the text (text)\n"
    "  --train-on TURNS   learned parts of a chat: assistant (its turns), last (the\n"
    "                     last of them) or all (assistant)\n"
    "  --date DATE        for a chat template that prints one: YYYY-MM-DD (today)\n"
    "  --on-bad-line DO   stop, or skip the line and count it (stop)\n"
    "  --threads N        number of threads (the processors that may be used)\n"
    "  --overwrite        replace OUT, and leftovers of a command that was stopped\n"
    "\n"
    "Learn a vocabulary from the inputs, by byte-level BPE:\n"
    "\n"
    "  --train N          number of tokens; OUT is a folder for tokenizer.json\n"
    "  --special-token T  a first token; may be given again (<|endoftext|>)\n"
    "  --pattern P        pattern of a word: gpt2, llama3 or a regex (gpt2)\n"
    "\n"
    "Read a token file:\n"
    "\n"
    "  --info FILE        print a summary\n"
    "  --verify           and check all of it\n"
    "  --decode FILE      print its text\n"
    "  --document N       of document N alone, from 0\n"
    "  --tokens A:B       of tokens A to B - 1\n"
    "\n"
    "  -h, --help         print this help\n"
    "  --version          print the version\n";

/* ---- settings -------------------------------------------------------------------------------- */

static int parse_number(uint64_t *out, const char **text)
{
    char *end;

    if (**text < '0' || **text > '9')
        return -1;
    *out = strtoull(*text, &end, 10);
    *text = end;
    return 0;
}

static int parse_range(void *to, const char *text, struct fsdp_err *err)
{
    struct tokenize_range *range = to;
    const char *at = text;

    range->is_given = true;
    if (parse_number(&range->first, &at) || *at++ != ':' || parse_number(&range->end, &at) || *at ||
        range->end < range->first)
        return fsdp_err_set(err, FSDP_EINVAL, "'%s' is not a range such as 0:100", text);
    return FSDP_OK;
}

static int parse_document(void *to, const char *text, struct fsdp_err *err)
{
    struct tokenize_range *range = to;
    const char *at = text;

    range->is_given = true;
    return parse_number(&range->first, &at) || *at
               ? fsdp_err_set(err, FSDP_EINVAL, "'%s' is not a number", text)
               : FSDP_OK;
}

static int add_special_token(void *to, const char *text, struct fsdp_err *err)
{
    struct tokenize_settings *set =
        (void *)((char *)to - offsetof(struct tokenize_settings, special_tokens));

    if (set->nspecial_tokens == TOKENIZE_MAX_SPECIAL)
        return fsdp_err_set(err, FSDP_EINVAL, "more than %d special tokens", TOKENIZE_MAX_SPECIAL);
    set->special_tokens[set->nspecial_tokens++] = text;
    return FSDP_OK;
}

static int take_date(void *to, const char *text, struct fsdp_err *err)
{
    if (!chat_date_is_valid(text))
        return fsdp_err_set(err, FSDP_EINVAL, "'%s' is no date, such as 2026-01-31", text);
    *(const char **)to = text;
    return FSDP_OK;
}

static const char *const specials[] = {"none", "model", "eos", NULL};
static const char *const formats[] = {"auto", "text", "jsonl", NULL};
static const char *const trains[] = {"assistant", "last", "all", NULL};
static const char *const on_bad_lines[] = {"stop", "skip", NULL};

#define AT(field) offsetof(struct tokenize_settings, field)
static const struct option_row rows[] = {
    {"output", OPTION_TEXT, AT(output), 0, 0, NULL, NULL},
    {"tokenizer", OPTION_TEXT, AT(tokenizer), 0, 0, NULL, NULL},
    {"special", OPTION_WORD, AT(special), 0, 0, specials, NULL},
    {"format", OPTION_WORD, AT(format), 0, 0, formats, NULL},
    {"text-key", OPTION_TEXT, AT(text_key), 0, 0, NULL, NULL},
    {"train-on", OPTION_WORD, AT(train_on), 0, 0, trains, NULL},
    {"date", OPTION_OWN, AT(date), 0, 0, NULL, take_date},
    {"on-bad-line", OPTION_WORD, AT(on_bad_line), 0, 0, on_bad_lines, NULL},
    {"threads", OPTION_INT, AT(threads), 1, 256, NULL, NULL},
    {"overwrite", OPTION_FLAG, AT(overwrite), 0, 0, NULL, NULL},
    {"train", OPTION_INT, AT(train), 1, 1 << 24, NULL, NULL},
    {"special-token", OPTION_OWN, AT(special_tokens), 0, 0, NULL, add_special_token},
    {"pattern", OPTION_TEXT, AT(pattern), 0, 0, NULL, NULL},
    {"info", OPTION_TEXT, AT(info), 0, 0, NULL, NULL},
    {"verify", OPTION_FLAG, AT(verify), 0, 0, NULL, NULL},
    {"decode", OPTION_TEXT, AT(decode), 0, 0, NULL, NULL},
    {"document", OPTION_OWN, AT(document), 0, 0, NULL, parse_document},
    {"tokens", OPTION_OWN, AT(tokens), 0, 0, NULL, parse_range},
};
static const struct option_table table = {"fsdp-tokenize", usage, rows,
                                          sizeof rows / sizeof rows[0], true};

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n > m && !strcmp(text + n - m, end);
}

/* What belongs together. */
static const char *check_show(const struct tokenize_settings *s)
{
    if (s->npaths || s->output || s->train || (s->info && s->decode))
        return "--info and --decode are given alone";
    if (s->verify && !s->info)
        return "--verify belongs to --info";
    if ((s->document.is_given || s->tokens.is_given) && !s->decode)
        return "--document and --tokens belong to --decode";
    if (s->document.is_given && s->tokens.is_given)
        return "give either --document or --tokens";
    return NULL;
}

static const char *check_make(const struct tokenize_settings *s)
{
    if (s->verify || s->document.is_given || s->tokens.is_given)
        return "--verify belongs to --info, --document and --tokens to --decode";
    if (!s->npaths)
        return "no input is given (- is standard input)";
    if (!s->output)
        return "--output is missing";
    if (!s->train && (s->nspecial_tokens || s->pattern))
        return "--special-token and --pattern belong to --train";
    if (s->train)
        return NULL;
    if (!s->tokenizer)
        return "--tokenizer is missing: a model's folder, a tokenizer's file, or bytes";
    return ends_with(s->output, ".u16") || ends_with(s->output, ".u32")
               ? NULL
               : "the output's name must end with .u16 or .u32";
}

/* -1, or the exit code where the program ends here. */
static int parse_options(struct tokenize_settings *s, int argc, char **argv)
{
    const int rc = options_parse(&table, s, argc, argv);

    if (rc >= 0)
        return rc;
    s->npaths = argc - optind;
    s->paths = (const char *const *)argv + optind;
    const char *what = s->info || s->decode ? check_show(s) : check_make(s);
    if (what)
        return options_refuse(&table, what);
    if (!s->pattern)
        s->pattern = "gpt2";
    return -1;
}

/* ---- one run --------------------------------------------------------------------------------- */

static void on_log(void *ctx, enum fsdp_log_level level, const char *text)
{
    tokenize_progress_end(ctx);
    fprintf(stderr, "fsdp-tokenize: %s%s\n", level == FSDP_LOG_WARN ? "warning: " : "", text);
}

static int print_summary(const struct tokenize_settings *set, const struct tokens_info *info,
                         double seconds, struct fsdp_err *err)
{
    uint64_t nlearned;

    fprintf(stderr, "fsdp-tokenize: %s: %" PRIu64 " documents, %" PRIu64 " tokens, ", set->output,
            info->ndocuments, info->ntokens);
    if (info->nbytes && info->ntokens)
        fprintf(stderr, "%.2f bytes per token, ", (double)info->nbytes / (double)info->ntokens);
    if (info->has_learned) {
        FSDP_TRY(tokenize_count_learned(&nlearned, set->output, err));
        fprintf(stderr, "%.1f%% learned, ",
                info->ntokens ? 100 * (double)nlearned / (double)info->ntokens : 0);
    }
    if (info->nbad)
        fprintf(stderr, "%" PRIu64 " lines left out, ", info->nbad);
    fprintf(stderr, "%.1f s\n", seconds);
    return FSDP_OK;
}

static struct encode_opts encode_opts(const struct tokenize_settings *set,
                                      const struct tokenize_text *text,
                                      struct tokenize_progress *progress)
{
    return (struct encode_opts){
        .version = ENCODE_OPTS_VERSION,
        .npaths = set->npaths,
        .paths = set->paths,
        .format = (enum encode_format)set->format,
        .remote = &store_remote,
        .text = &text->text,
        .text_key = set->text_key,
        .skip_bad_lines = set->on_bad_line != 0,
        .token_nbytes = ends_with(set->output, ".u16") ? 2 : 4,
        .nthreads = set->threads,
        .resume = !set->overwrite,
        .overwrite = set->overwrite,
        .progress = tokenize_progress_tell,
        .progress_ctx = progress,
    };
}

static int make_output(const struct tokenize_settings *set, struct tokenize_progress *progress,
                       struct fsdp_err *err)
{
    const double begun = fsdp_time_now();
    struct tokenize_settings as_bytes = *set;
    struct tokenize_text text;
    struct tokens_info info;

    if (set->train)
        as_bytes.tokenizer = "bytes";
    FSDP_TRY(tokenize_text_open(&text, &as_bytes, err));
    const struct encode_opts opts = encode_opts(set, &text, progress);
    interrupt_watch_end();
    int rc =
        set->train ? tokenize_train(set, &opts, err) : encode_run(&info, set->output, &opts, err);
    tokenize_progress_end(progress);
    if (rc == FSDP_OK && !set->train)
        rc = print_summary(set, &info, fsdp_time_now() - begun, err);
    tokenize_text_close(&text);
    return rc;
}

int main(int argc, char **argv)
{
    struct tokenize_settings set = {.special = DATA_SPECIAL_EOS};
    struct tokenize_progress progress;
    struct fsdp_err err = FSDP_ERR_INIT;

    fsdp_std_fill();
    int rc = parse_options(&set, argc, argv);
    if (rc >= 0)
        return rc;
    tokenize_progress_begin(&progress);
    fsdp_log_set(on_log, &progress, FSDP_LOG_INFO);
    if (set.info)
        rc = tokenize_show_info(&set, &err);
    else if (set.decode)
        rc = tokenize_show_text(&set, &err);
    else
        rc = make_output(&set, &progress, &err);
    if (rc)
        fprintf(stderr, "fsdp-tokenize: %s\n", err.text);
    return !rc ? 0 : rc == FSDP_ECANCELED && interrupt_came ? 128 + (int)interrupt_came : 1;
}
