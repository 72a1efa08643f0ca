/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp-generate: text or logits from a checkpoint or a Hugging Face folder. */
#include <math.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/line/text.h"
#include "generate/batch.h"
#include "generate_output.h"
#include "options.h"

static const char usage[] =
    "Usage: fsdp-generate --model PATH --prompt TEXT [option...]\n"
    "       fsdp-generate --model PATH --tokens 1,2,3 [--logits] [option...]\n"
    "       fsdp-generate --model PATH --prompts FILE [-o FILE] [option...]\n"
    "\n"
    "Continues a text with a trained model. PATH is a Hugging Face folder, a\n"
    ".safetensors file next to its config.json, a checkpoint of fsdp-launch, or a\n"
    "folder of checkpoints (the newest is taken); here or in a store (s3://...).\n"
    "\n"
    "  --model PATH       the weights\n"
    "  --prompt TEXT      the text to continue\n"
    "  --tokens LIST      token ids instead of a prompt; prints token ids\n"
    "  --prompts FILE     many prompts, JSON Lines; - is standard input. A line has\n"
    "                     \"prompt\" or \"tokens\" (ids), perhaps \"seed\" and\n"
    "                     \"max_tokens\"; it comes out with \"completion\" (or\n"
    "                     \"completion_tokens\"), \"finish_reason\" and \"ntokens\"\n"
    "  -o, --output FILE  where the lines go (standard output); FILE.part until all\n"
    "                     are there\n"
    "  --overwrite        replace FILE\n"
    "  --resume           continue FILE.part\n"
    "  --batch N          prompts at once (8)\n"
    "  --tokenizer KIND   how text becomes tokens: auto (by the model's tokenizer;\n"
    "                     byte by byte where there is none and the model has 256\n"
    "                     tokens), bytes, or the path of a tokenizer (auto)\n"
    "  --max-tokens N     stop after N tokens (200), or at the model's last position\n"
    "  --ignore-eos       continue after the model's end-of-sequence token\n"
    "  --device KIND      auto (a GPU if there is one), cpu or cuda (auto)\n"
    "  --kv-dtype TYPE    of kept keys and values: auto (the model's), float32,\n"
    "                     bfloat16 or float16 (auto)\n"
    "  -v, --verbose      say which device is used, and the memory of keys and values\n"
    "  -h, --help         print this help\n"
    "  --version          print the version\n"
    "\n"
    "What is not given here is as the model's generation_config.json says:\n"
    "\n"
    "  --greedy           always take the most likely token\n"
    "  --sample           draw tokens (the default, unless the file says otherwise)\n"
    "  --temperature T    divide logits by T (1)\n"
    "  --top-k K          draw from the K most likely tokens (0: all)\n"
    "  --top-p P          draw from the most likely tokens that together have\n"
    "                     probability P (1)\n"
    "  --min-p P          draw from the tokens that are at least P times as likely as\n"
    "                     the most likely one (0)\n"
    "  --repetition-penalty R\n"
    "                     divide positive logits of tokens that the text already has\n"
    "                     by R, and multiply negative ones with R (1)\n"
    "  --seed S           seed of the random choice (0)\n"
    "  --ignore-generation-config\n"
    "                     do not read generation_config.json\n"
    "\n"
    "Instead of generating:\n"
    "\n"
    "  --logits           print the logits after each token, one line per token\n"
    "  --probabilities    print the tokens that may come next and their\n"
    "                     probabilities, one line per token\n";

/* ---- settings ------------------------------------------------------------------------------- */

#define AT(field) offsetof(struct generate_settings, field)
static const struct option_row rows[] = {
    {"model", OPTION_TEXT, AT(model), 0, 0, NULL},
    {"prompt", OPTION_TEXT, AT(prompt), 0, 0, NULL},
    {"tokens", OPTION_TEXT, AT(tokens), 0, 0, NULL},
    {"prompts", OPTION_TEXT, AT(prompts), 0, 0, NULL},
    {"output", OPTION_TEXT, AT(output), 0, 0, NULL},
    {"overwrite", OPTION_FLAG, AT(overwrite), 0, 0, NULL},
    {"resume", OPTION_FLAG, AT(resume), 0, 0, NULL},
    {"batch", OPTION_INT, AT(batch), 1, MODEL_MAX_SEQUENCES, NULL},
    {"kv-dtype", OPTION_WORD, AT(kv_dtype), 0, 0, generate_kv_dtypes},
    {"tokenizer", OPTION_TEXT, AT(tokenizer), 0, 0, NULL},
    {"logits", OPTION_FLAG, AT(logits), 0, 0, NULL},
    {"probabilities", OPTION_FLAG, AT(probabilities), 0, 0, NULL},
    {"max-tokens", OPTION_INT, AT(max_tokens), 1, 1 << 30, NULL},
    {"greedy", OPTION_FLAG, AT(greedy), 0, 0, NULL},
    {"sample", OPTION_FLAG, AT(sample), 0, 0, NULL},
    {"temperature", OPTION_NUMBER, AT(temperature), -HUGE_VAL, HUGE_VAL, NULL},
    {"top-k", OPTION_INT, AT(top_k), 0, 1 << 30, NULL},
    {"top-p", OPTION_NUMBER, AT(top_p), -HUGE_VAL, HUGE_VAL, NULL},
    {"min-p", OPTION_NUMBER, AT(min_p), -HUGE_VAL, HUGE_VAL, NULL},
    {"repetition-penalty", OPTION_NUMBER, AT(repetition_penalty), -HUGE_VAL, HUGE_VAL, NULL},
    {"seed", OPTION_SEED, AT(seed), 0, 0, NULL},
    {"ignore-eos", OPTION_FLAG, AT(ignore_eos), 0, 0, NULL},
    {"ignore-generation-config", OPTION_FLAG, AT(ignore_config), 0, 0, NULL},
    {"device", OPTION_NAME, AT(device), 0, 0, option_devices},
    {"verbose", OPTION_FLAG, AT(verbose), 0, 0, NULL},
};
static const struct option_table table = {"fsdp-generate", usage, rows,
                                          sizeof rows / sizeof rows[0]};

/* -1, or the exit code where the program ends here. */
static int parse_options(struct generate_settings *s, int argc, char **argv)
{
    const int rc = options_parse(&table, s, argc, argv);

    if (rc >= 0)
        return rc;
    if (!s->model)
        return options_refuse(&table, "--model is missing");
    if (!!s->prompt + !!s->tokens + !!s->prompts != 1)
        return options_refuse(&table, "give either --prompt or --tokens, or --prompts");
    if (s->prompts && (s->logits || s->probabilities))
        return options_refuse(&table, "--logits and --probabilities take one prompt");
    if (!s->prompts && (s->output || s->overwrite || s->resume))
        return options_refuse(&table, "--output, --overwrite and --resume belong to --prompts");
    if (!s->output && (s->overwrite || s->resume))
        return options_refuse(&table, "--overwrite and --resume need --output");
    if (s->overwrite && s->resume)
        return options_refuse(&table, "give either --overwrite or --resume");
    if (s->greedy && s->sample)
        return options_refuse(&table, "give either --greedy or --sample");
    if (s->logits && s->probabilities)
        return options_refuse(&table, "give either --logits or --probabilities");
    return -1;
}

/* ---- one run -------------------------------------------------------------------------------- */

static volatile sig_atomic_t interrupted;

/* The second one ends the program at once. */
static void on_interrupt(int number)
{
    interrupted = 1;
    signal(number, SIG_DFL);
}

static void on_log(void *ctx, enum fsdp_log_level level, const char *text)
{
    (void)ctx;
    fprintf(stderr, "fsdp-generate: %s%s\n", level == FSDP_LOG_WARN ? "warning: " : "", text);
}

struct run {
    struct generate_settings set;
    struct generate_session session;
    struct generate_words words;
    struct generate_opts opts;
    struct generate_sequence seq;
    int32_t *prompt;
    struct generate_batch *batch;
};

static int choose_words(struct run *r, struct fsdp_err *err)
{
    const char *kind = r->set.tokenizer;
    const bool is_auto = !strcmp(kind, "auto"), is_bytes = !strcmp(kind, "bytes");
    char *path = NULL;

    r->words.vocab = r->session.vocab;
    r->words.ops = r->set.tokens ? &generate_words_ids : &generate_words_bytes;
    if (r->set.tokens)
        return FSDP_OK;
    if (is_auto)
        FSDP_TRY(generate_session_tokenizer(&path, &r->session, err));
    if (!path && (is_auto || is_bytes))
        return text_check_vocab(r->session.vocab, is_bytes, "give token ids with --tokens", err);
    const int rc = generate_words_tokenizer(&r->words, path ? path : kind, err);
    fsdp_free(path);
    return rc;
}

static int read_prompt(struct run *r, struct fsdp_err *err)
{
    const char *text = r->set.tokens ? r->set.tokens : r->set.prompt;
    const int bos = r->session.bos;

    FSDP_TRY(choose_words(r, err));
    FSDP_TRY(r->words.ops->encode(&r->prompt, &r->seq.nprompt, &r->words, text, strlen(text), err));
    r->seq.prompt = r->prompt;
    if (r->seq.nprompt)
        return FSDP_OK;
    if (bos < 0 || bos >= r->session.vocab)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "the prompt is empty, and the model names no token to begin with");
    fsdp_free(r->prompt);
    r->seq.prompt = r->prompt = fsdp_alloc(1, sizeof *r->prompt, "prompt", err);
    if (!r->prompt)
        return FSDP_ENOMEM;
    r->prompt[r->seq.nprompt++] = bos;
    return FSDP_OK;
}

static int open_decoder(struct run *r, int room, int nsequences, struct fsdp_err *err)
{
    static const int dtypes[] = {-1, FSDP_F32, FSDP_BF16, FSDP_F16};
    return generate_session_decoder(&r->session, room, nsequences, dtypes[r->set.kv_dtype], err);
}

static int generate(struct run *r, struct generate_source source, struct fsdp_err *err)
{
    struct generate_loop loop = {.session = &r->session,
                                 .opts = r->opts,
                                 .source = source,
                                 .ignore_eos = r->set.ignore_eos,
                                 .stop = &interrupted};

    signal(SIGINT, on_interrupt);
    FSDP_TRY(generate_loop(&loop, err));
    generate_print_speed(&loop);
    return FSDP_OK;
}

static int print_text(struct run *r, struct fsdp_err *err)
{
    struct generate_printer printer = {0};
    int rc = generate_printer_open(&printer, &r->words, &r->seq, err);

    if (rc == FSDP_OK && r->words.ops->is_text)
        fputs(r->set.prompt, stdout);
    if (rc == FSDP_OK)
        rc = generate(r, generate_printer_source(&printer), err);
    generate_printer_close(&printer);
    if (rc == FSDP_OK && printer.finish == GENERATE_POSITIONS)
        fprintf(stderr, "fsdp-generate: stopped at the model's %d positions\n",
                r->session.max_seq_len);
    return rc;
}

static int run_one(struct run *r, struct fsdp_err *err)
{
    int room;

    FSDP_TRY(read_prompt(r, err));
    FSDP_TRY(generate_room(&room, &r->session, &r->seq, err));
    const bool prompt_only = r->set.logits || r->set.probabilities;
    FSDP_TRY(open_decoder(r, prompt_only ? r->seq.nprompt : room, 1, err));
    if (r->set.logits)
        return generate_print_logits(&r->session, &r->seq, err);
    if (r->set.probabilities)
        return generate_print_probabilities(&r->session, &r->seq, &r->opts, err);
    return print_text(r, err);
}

static int run_batch(struct run *r, struct fsdp_err *err)
{
    struct fsdp_err refusal = FSDP_ERR_INIT;

    if (choose_words(r, &refusal))
        r->words.refusal = refusal.text;
    FSDP_TRY(generate_batch_open(&r->batch, r->set.prompts, &r->session, &r->words, &r->seq, err));
    FSDP_TRY(generate_batch_output(r->batch, r->set.output, r->set.overwrite, r->set.resume, err));
    FSDP_TRY(open_decoder(r, generate_batch_room(r->batch), r->set.batch, err));
    FSDP_TRY(generate(r, generate_batch_source(r->batch), err));
    return generate_batch_finish(r->batch, err);
}

static int run(struct run *r, struct fsdp_err *err)
{
    FSDP_TRY(generate_session_open(&r->session, &r->set, err));
    generate_choose(&r->opts, &r->seq.max_tokens, &r->set, &r->session.config);
    r->seq.seed = r->set.seed;
    return r->set.prompts ? run_batch(r, err) : run_one(r, err);
}

int main(int argc, char **argv)
{
    struct run r = {.set = generate_settings_default};
    struct fsdp_err err = FSDP_ERR_INIT;

    int rc = parse_options(&r.set, argc, argv);
    if (rc >= 0)
        return rc;
    fsdp_log_set(on_log, NULL, r.set.verbose ? FSDP_LOG_INFO : FSDP_LOG_WARN);
    rc = run(&r, &err);
    if (rc)
        fprintf(stderr, "fsdp-generate: %s\n", err.text);
    fsdp_free(r.prompt);
    generate_batch_close(r.batch);
    generate_words_close(&r.words);
    generate_session_close(&r.session);
    return rc ? 1 : interrupted ? 130 : 0;
}
