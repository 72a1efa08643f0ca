/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp-tokenize: text, JSON Lines and chats as token files; and the vocabulary for that. */
#include <inttypes.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fsdp/sys/cli.h"
#include "interrupt.h"
#include "remote/store_remote.h"
#include "text/chat/chat.h"
#include "tokenize.h"

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

static const char *const bytes[] = {"bytes", NULL};
static const char *const patterns[] = {"gpt2", "llama3", NULL};
static const char *const specials[] = {"none", "model", "eos", NULL};
static const char *const formats[] = {"auto", "text", "jsonl", NULL};
static const char *const trains[] = {"assistant", "last", "all", NULL};
static const char *const on_bad_lines[] = {"stop", "skip", NULL};

#define AT(field) offsetof(struct tokenize_settings, field)
static const struct fsdp_cli_option make_rows[] = {
    {"output", 'o', "OUT", FSDP_CLI_FILE, AT(output), .help = "the output, NAME.u16 or NAME.u32"},
    {"tokenizer", .arg = "MODEL", .kind = FSDP_CLI_FILE, .offset = AT(tokenizer), .words = bytes,
     .help = "a model's folder, a tokenizer's file, or 'bytes'"},
    {"special", .arg = "WHICH", .kind = FSDP_CLI_WORD, .offset = AT(special), .words = specials,
     .help = "special tokens to add: none; model (those of the tokenizer); eos (the same, and the "
             "end token after each document) (default: eos)"},
    {"format", .arg = "KIND", .kind = FSDP_CLI_WORD, .offset = AT(format), .words = formats,
     .help = "of all inputs: auto (by name), text or jsonl (default: auto)"},
    {"text-key", .arg = "KEY", .kind = FSDP_CLI_TEXT, .offset = AT(text_key),
     .help = "field of JSON Lines that holds the text (default: text)"},
    {"train-on", .arg = "TURNS", .kind = FSDP_CLI_WORD, .offset = AT(train_on), .words = trains,
     .help = "parts of a chat that count in the loss: assistant (its turns), last (the last of "
             "them) or all (default: assistant)"},
    {"date", .arg = "DATE", .kind = FSDP_CLI_OWN, .offset = AT(date), .parse = take_date,
     .help = "for a chat template that prints one: YYYY-MM-DD (default: today)"},
    {"on-bad-line", .arg = "DO", .kind = FSDP_CLI_WORD, .offset = AT(on_bad_line),
     .words = on_bad_lines, .help = "stop, or skip the line and count it (default: stop)"},
    {"threads", .arg = "N", .kind = FSDP_CLI_INT, .offset = AT(threads), .least = 1, .most = 256,
     .help = "number of threads (default: the processors that may be used)"},
    {"overwrite", .offset = AT(overwrite),
     .help = "replace OUT, and leftovers of a command that was stopped"},
    {.help = NULL}};
static const struct fsdp_cli_option train_rows[] = {
    {"train", .arg = "N", .kind = FSDP_CLI_INT, .offset = AT(train), .least = 1, .most = 1 << 24,
     .help = "number of tokens; OUT is a folder for tokenizer.json"},
    {"special-token", .arg = "T", .kind = FSDP_CLI_OWN, .offset = AT(special_tokens),
     .parse = add_special_token,
     .help = "a special token, which comes first; repeat it for more (default: "
             "<|endoftext|>)"},
    {"pattern", .arg = "P", .kind = FSDP_CLI_TEXT, .offset = AT(pattern), .words = patterns,
     .help = "pattern of a word: gpt2, llama3 or a regex (default: gpt2)"},
    {.help = NULL}};
static const struct fsdp_cli_option show_rows[] = {
    {"info", .arg = "FILE", .kind = FSDP_CLI_FILE, .offset = AT(info), .help = "print a summary"},
    {"verify", .offset = AT(verify), .help = "with --info: check all of it"},
    {"decode", .arg = "FILE", .kind = FSDP_CLI_FILE, .offset = AT(decode),
     .help = "print its text"},
    {"document", .arg = "N", .kind = FSDP_CLI_OWN, .offset = AT(document), .parse = parse_document,
     .help = "of document N alone, from 0"},
    {"tokens", .arg = "A:B", .kind = FSDP_CLI_OWN, .offset = AT(tokens), .parse = parse_range,
     .help = "of tokens A to B - 1"},
    {.help = NULL}};
static const struct fsdp_cli_group groups[] = {
    {"Make a token file", make_rows},
    {"Learn a vocabulary from the inputs, by byte-level BPE", train_rows},
    {"Read a token file", show_rows},
    {NULL, NULL}};
static const struct fsdp_cli_note exits[] = {
    {"0", "done"},
    {"1", "failed"},
    {"2", "wrong usage"},
    {"130, 143", "interrupted: the same command continues"},
    {NULL, NULL}};
static const struct fsdp_cli_program program = {
    .name = "fsdp-tokenize",
    .usage = "IN... -o OUT.u16|OUT.u32 --tokenizer MODEL [options]\n"
             "IN... -o FOLDER --train N [options]\n"
             "--info FILE [--verify]\n"
             "--decode FILE [--document N | --tokens A:B] [options]",
    .purpose =
        "Turns text into token ids of 16 or 32 bits. OUT.u16.index holds the ends of the "
        "documents. For chats and prompts, OUT.u16.learned marks the tokens that count in the "
        "loss.\n"
        "\nIN is a file of text (one document) or JSON Lines (.jsonl, .ndjson, .json), a folder, "
        "or a pattern; .gz and .zst files are decompressed. - is standard input, s3://... a "
        "store. If the command is stopped or killed, type it again: it continues.",
    .groups = groups,
    .examples = "fsdp-tokenize corpus -o corpus.u16 --tokenizer models/gpt2\n"
                "fsdp-tokenize corpus -o vocabulary --train 32000\n"
                "fsdp-tokenize --decode corpus.u16 --tokenizer models/gpt2 --document 0",
    .exits = exits,
    .most = INT_MAX,
};

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
        return "give the inputs: files, folders, or - for standard input";
    if (!s->output)
        return "give the output: -o OUT.u16, or a folder with --train";
    if (!s->train && (s->nspecial_tokens || s->pattern))
        return "--special-token and --pattern belong to --train";
    if (s->train)
        return NULL;
    if (!s->tokenizer)
        return "give the tokenizer: --tokenizer MODEL, a model's folder, a tokenizer's file, or "
               "bytes";
    return fsdp_text_ends(s->output, ".u16") || fsdp_text_ends(s->output, ".u32")
               ? NULL
               : "the output's name must end with .u16 or .u32: -o OUT.u16";
}

/* -1, or the exit code where the program ends here. */
static int parse_options(struct tokenize_settings *s, int argc, char **argv)
{
    struct fsdp_cli_line line;
    const int rc = fsdp_cli_begin(&line, &program, s, argc, argv, stderr);

    if (rc >= 0)
        return rc;
    s->npaths = line.noperands;
    s->paths = (const char *const *)line.operands;
    const char *what = s->info || s->decode ? check_show(s) : check_make(s);
    if (what)
        return fsdp_cli_refuse(stderr, &program, what);
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
    uint64_t nlearned = 0;

    fprintf(stderr, "fsdp-tokenize: %s: %" PRIu64 " document%s, %" PRIu64 " tokens, ", set->output,
            info->ndocuments, info->ndocuments == 1 ? "" : "s", info->ntokens);
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
    if (info->has_learned && !nlearned)
        fprintf(stderr,
                "fsdp-tokenize: warning: no token counts in the loss, so training would learn "
                "nothing: a chat needs a message with the role \"assistant\" that is not "
                "empty, a prompt a completion, and labels one that is not -100\n");
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
        .token_nbytes = fsdp_text_ends(set->output, ".u16") ? 2 : 4,
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
