/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp-generate: text or logits from a checkpoint or a Hugging Face folder. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data/line/text.h"
#include "generate/batch.h"
#include "generate_chat.h"
#include "generate_output.h"
#include "interrupt.h"
#include "options.h"

static const char usage[] =
    "Usage: fsdp-generate --model PATH --prompt TEXT [option...]\n"
    "       fsdp-generate --model PATH --tokens 1,2,3 [--logits] [option...]\n"
    "       fsdp-generate --model PATH --prompts FILE [-o FILE] [option...]\n"
    "       fsdp-generate --model PATH --chat [--prompt TEXT] [option...]\n"
    "\n"
    "Continues a text with a trained model, or chats with it. PATH is a Hugging Face\n"
    "folder, a .safetensors file next to its config.json, a checkpoint of\n"
    "fsdp-launch, or a folder of checkpoints (the newest is taken). It may be in a\n"
    "store (s3://...).\n"
    "\n"
    "  --model PATH       the weights\n"
    "  --prompt TEXT      the text to continue\n"
    "  --tokens LIST      token ids instead of a prompt; prints token ids\n"
    "  --prompts FILE     many prompts, JSON Lines; - is standard input. A line has\n"
    "                     \"prompt\", \"tokens\" (ids) or \"messages\" (a chat), and may\n"
    "                     have \"seed\" and \"max_tokens\". The output line also has\n"
    "                     \"completion\" (or \"completion_tokens\"), \"finish_reason\"\n"
    "                     and \"ntokens\"\n"
    "  -o, --output FILE  the output lines (standard output); FILE.part until all\n"
    "                     are written\n"
    "  --overwrite        replace FILE\n"
    "  --resume           continue FILE.part\n"
    "  --batch N          prompts at once (8)\n"
    "  --tokenizer KIND   auto (the model's tokenizer; bytes if there is none and\n"
    "                     the model has 256 tokens), bytes, or the path of a\n"
    "                     tokenizer (auto)\n"
    "  --max-tokens N     stop after N tokens (200; with --chat 1024), or at the\n"
    "                     model's last position\n"
    "  --ignore-eos       continue after the model's end-of-sequence token\n"
    "  --device KIND      auto (a GPU if there is one), cpu or cuda (auto)\n"
    "  --kv-dtype TYPE    type of the cache of keys and values: auto (the model's),\n"
    "                     float32, bfloat16 or float16 (auto)\n"
    "  -v, --verbose      print the device, and the memory of keys and values\n"
    "  -h, --help         print this help\n"
    "  --version          print the version\n"
    "\n"
    "The model's own template renders chats (chat_template.jinja, or chat_template in\n"
    "tokenizer_config.json):\n"
    "\n"
    "  --chat             a prompt is a message to the model, and only its answer is\n"
    "                     printed. Without --prompt or --prompts, each line of\n"
    "                     standard input is a turn of a conversation; Ctrl-C stops\n"
    "                     an answer, Ctrl-D ends the chat\n"
    "  --system TEXT      a system message, which comes first\n"
    "  --template-var NAME=VALUE\n"
    "                     a variable of the template, such as enable_thinking=false;\n"
    "                     VALUE is JSON or a text. May be given several times\n"
    "  --date YYYY-MM-DD  the date that the template sees (today)\n"
    "\n"
    "The model's generation_config.json sets the options that are not given:\n"
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
    "                     by R, and multiply negative ones by R (1)\n"
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

static int parse_variable(void *to, const char *text, struct fsdp_err *err)
{
    return generate_chat_variable(to, text, err);
}

static int parse_date(void *to, const char *text, struct fsdp_err *err)
{
    return generate_chat_date(to, text, err);
}

#define AT(field) offsetof(struct generate_settings, field)
static const struct option_row rows[] = {
    {"model", OPTION_TEXT, AT(model), 0, 0, NULL, NULL},
    {"prompt", OPTION_TEXT, AT(prompt), 0, 0, NULL, NULL},
    {"tokens", OPTION_TEXT, AT(tokens), 0, 0, NULL, NULL},
    {"prompts", OPTION_TEXT, AT(prompts), 0, 0, NULL, NULL},
    {"output", OPTION_TEXT, AT(output), 0, 0, NULL, NULL},
    {"overwrite", OPTION_FLAG, AT(overwrite), 0, 0, NULL, NULL},
    {"resume", OPTION_FLAG, AT(resume), 0, 0, NULL, NULL},
    {"batch", OPTION_INT, AT(batch), 1, MODEL_MAX_SEQUENCES, NULL, NULL},
    {"kv-dtype", OPTION_WORD, AT(kv_dtype), 0, 0, generate_kv_dtypes, NULL},
    {"tokenizer", OPTION_TEXT, AT(tokenizer), 0, 0, NULL, NULL},
    {"chat", OPTION_FLAG, AT(chat), 0, 0, NULL, NULL},
    {"system", OPTION_TEXT, AT(system), 0, 0, NULL, NULL},
    {"template-var", OPTION_OWN, AT(variables), 0, 0, NULL, parse_variable},
    {"date", OPTION_OWN, AT(date), 0, 0, NULL, parse_date},
    {"logits", OPTION_FLAG, AT(logits), 0, 0, NULL, NULL},
    {"probabilities", OPTION_FLAG, AT(probabilities), 0, 0, NULL, NULL},
    {"max-tokens", OPTION_INT, AT(max_tokens), 1, 1 << 30, NULL, NULL},
    {"greedy", OPTION_FLAG, AT(greedy), 0, 0, NULL, NULL},
    {"sample", OPTION_FLAG, AT(sample), 0, 0, NULL, NULL},
    {"temperature", OPTION_NUMBER, AT(temperature), -HUGE_VAL, HUGE_VAL, NULL, NULL},
    {"top-k", OPTION_INT, AT(top_k), 0, 1 << 30, NULL, NULL},
    {"top-p", OPTION_NUMBER, AT(top_p), -HUGE_VAL, HUGE_VAL, NULL, NULL},
    {"min-p", OPTION_NUMBER, AT(min_p), -HUGE_VAL, HUGE_VAL, NULL, NULL},
    {"repetition-penalty", OPTION_NUMBER, AT(repetition_penalty), -HUGE_VAL, HUGE_VAL, NULL, NULL},
    {"seed", OPTION_SEED, AT(seed), 0, 0, NULL, NULL},
    {"ignore-eos", OPTION_FLAG, AT(ignore_eos), 0, 0, NULL, NULL},
    {"ignore-generation-config", OPTION_FLAG, AT(ignore_config), 0, 0, NULL, NULL},
    {"device", OPTION_NAME, AT(device), 0, 0, option_devices, NULL},
    {"verbose", OPTION_FLAG, AT(verbose), 0, 0, NULL, NULL},
};
static const struct option_table table = {"fsdp-generate", usage, rows,
                                          sizeof rows / sizeof rows[0], false};

/* What a prompt is, and what belongs to which kind; -1, or the exit code. */
static int check_prompt(const struct generate_settings *s)
{
    const int nprompts = !!s->prompt + !!s->tokens + !!s->prompts;

    if (s->chat && s->tokens)
        return options_refuse(&table, "--chat takes text, not --tokens");
    if (nprompts > 1 || (!nprompts && !s->chat))
        return options_refuse(&table, "give either --prompt or --tokens, or --prompts, or --chat");
    if (s->system && !s->chat)
        return options_refuse(&table, "--system belongs to --chat");
    if ((s->variables || s->date) && !s->chat && !s->prompts)
        return options_refuse(&table, "--template-var and --date belong to chats");
    if (!s->prompt && !s->tokens && (s->logits || s->probabilities))
        return options_refuse(&table, "--logits and --probabilities take one prompt");
    return -1;
}

static int check_output(const struct generate_settings *s)
{
    if (!s->prompts && (s->output || s->overwrite || s->resume))
        return options_refuse(&table, "--output, --overwrite and --resume belong to --prompts");
    if (!s->output && (s->overwrite || s->resume))
        return options_refuse(&table, "--overwrite and --resume need --output");
    if (s->overwrite && s->resume)
        return options_refuse(&table, "give either --overwrite or --resume");
    return -1;
}

/* -1, or the exit code where the program ends here. */
static int parse_options(struct generate_settings *s, int argc, char **argv)
{
    int rc = options_parse(&table, s, argc, argv);

    if (rc >= 0)
        return rc;
    if (!s->model)
        return options_refuse(&table, "--model is missing");
    if ((rc = check_prompt(s)) >= 0 || (rc = check_output(s)) >= 0)
        return rc;
    if (s->greedy && s->sample)
        return options_refuse(&table, "give either --greedy or --sample");
    if (s->logits && s->probabilities)
        return options_refuse(&table, "give either --logits or --probabilities");
    return -1;
}

/* ---- one run -------------------------------------------------------------------------------- */

static void on_log(void *ctx, enum fsdp_log_level level, const char *text)
{
    (void)ctx;
    fprintf(stderr, "fsdp-generate: %s%s\n", level == FSDP_LOG_WARN ? "warning: " : "", text);
}

struct run {
    struct generate_settings set;
    struct generate_session session;
    struct generate_words words;
    struct generate_chat chat;
    struct generate_opts opts;
    struct generate_sequence seq;
    int32_t *prompt;
    struct generate_batch *batch;
    struct generate_conversation *conversation;
};

/* A model that names no end token ends where its tokenizer says. */
static void take_end_token(struct run *r)
{
    const int eos = r->words.eos;

    if (!r->session.neos && eos >= 0 && eos < r->session.vocab)
        r->session.eos[r->session.neos++] = eos;
}

static int choose_words(struct run *r, struct fsdp_err *err)
{
    const char *kind = r->set.tokenizer;
    const bool is_auto = !strcmp(kind, "auto"), is_bytes = !strcmp(kind, "bytes");
    char *path = NULL;

    r->words.vocab = r->session.vocab;
    r->words.eos = -1;
    r->words.ops = r->set.tokens ? &generate_words_ids : &generate_words_bytes;
    if (r->set.tokens)
        return FSDP_OK;
    if (is_auto)
        FSDP_TRY(generate_session_tokenizer(&path, &r->session, err));
    if (!path && (is_auto || is_bytes))
        return text_check_vocab(r->session.vocab, is_bytes,
                                "put its tokenizer.json next to its config.json, name one with "
                                "--tokenizer, or give token ids with --tokens",
                                err);
    const int rc = generate_words_tokenizer(&r->words, path ? path : kind, err);
    fsdp_free(path);
    if (rc == FSDP_OK)
        take_end_token(r);
    return rc;
}

/* The template next to a tokenizer that was asked for is its own. */
static int open_chat(struct run *r, struct fsdp_err *err)
{
    const char *folder = r->set.tokenizer;
    struct stat st;

    r->chat.words = &r->words;
    r->chat.system = r->set.system;
    r->chat.date = r->set.date;
    r->chat.variables = r->set.variables;
    if (stat(folder, &st) || !S_ISDIR(st.st_mode))
        folder = NULL;
    return generate_chat_open(&r->chat, &r->session, folder, err);
}

static int encode_prompt(struct run *r, struct fsdp_err *err)
{
    const char *text = r->set.tokens ? r->set.tokens : r->set.prompt;

    if (!r->set.chat)
        return r->words.ops->encode(&r->prompt, &r->seq.nprompt, &r->words, text, strlen(text),
                                    true, err);
    FSDP_TRY(open_chat(r, err));
    return generate_chat_encode_prompt(&r->prompt, &r->seq.nprompt, &r->chat, text, strlen(text),
                                       err);
}

static int read_prompt(struct run *r, struct fsdp_err *err)
{
    const int bos = r->session.bos;

    FSDP_TRY(choose_words(r, err));
    FSDP_TRY(encode_prompt(r, err));
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

/* What --kv-dtype says; -1: the model's own. */
static int kv_dtype(const struct run *r)
{
    static const int dtypes[] = {-1, FSDP_F32, FSDP_BF16, FSDP_F16};
    return dtypes[r->set.kv_dtype];
}

static struct generate_loop loop_of(struct run *r)
{
    return (struct generate_loop){.session = &r->session,
                                  .opts = r->opts,
                                  .ignore_eos = r->set.ignore_eos,
                                  .stop = &interrupt_came};
}

static int generate(struct run *r, struct generate_source source, struct fsdp_err *err)
{
    struct generate_loop loop = loop_of(r);

    loop.source = source;
    interrupt_watch();
    FSDP_TRY(generate_loop(&loop, err));
    generate_print_speed(&loop);
    return FSDP_OK;
}

static int print_text(struct run *r, struct fsdp_err *err)
{
    /* An answer is a text of its own. */
    struct generate_sequence begin = r->seq;
    struct generate_printer printer = {0};

    if (r->set.chat)
        begin.nprompt = 0;
    int rc = generate_printer_open(&printer, &r->words, &begin, err);
    printer.seq = &r->seq;
    if (rc == FSDP_OK && r->words.ops->is_text && !r->set.chat)
        fputs(r->set.prompt, stdout);
    if (rc == FSDP_OK)
        rc = generate(r, generate_printer_source(&printer), err);
    generate_printer_close(&printer);
    if (rc == FSDP_OK && (r->set.chat || printer.finish == GENERATE_POSITIONS))
        generate_print_finish(&r->session, printer.finish, r->seq.max_tokens);
    return rc;
}

static int run_one(struct run *r, struct fsdp_err *err)
{
    int room;

    FSDP_TRY(read_prompt(r, err));
    FSDP_TRY(generate_room(&room, &r->session, &r->seq, err));
    const bool prompt_only = r->set.logits || r->set.probabilities;
    FSDP_TRY(generate_session_decoder(&r->session, prompt_only ? r->seq.nprompt : room, 1,
                                      kv_dtype(r), err));
    if (r->set.logits)
        return generate_print_logits(&r->session, &r->seq, err);
    if (r->set.probabilities)
        return generate_print_probabilities(&r->session, &r->seq, &r->opts, err);
    return print_text(r, err);
}

/* Words and a template are needed only where a line needs them, unless a chat was asked for. */
static int open_batch(struct run *r, struct fsdp_err *words_err, struct fsdp_err *chat_err,
                      struct fsdp_err *err)
{
    if (choose_words(r, words_err))
        r->words.refusal = words_err->text;
    if (r->set.chat)
        FSDP_TRY(open_chat(r, err));
    else if (open_chat(r, chat_err))
        r->chat.refusal = chat_err->text;
    const struct generate_batch_opts opts = {.session = &r->session,
                                             .words = &r->words,
                                             .chat = &r->chat,
                                             .prompts_are_chats = r->set.chat,
                                             .defaults = r->seq};
    FSDP_TRY(generate_batch_open(&r->batch, r->set.prompts, &opts, err));
    return generate_batch_output(r->batch, r->set.output, r->set.overwrite, r->set.resume, err);
}

static int run_batch(struct run *r, struct fsdp_err *err)
{
    struct fsdp_err words_err = FSDP_ERR_INIT, chat_err = FSDP_ERR_INIT;

    FSDP_TRY(open_batch(r, &words_err, &chat_err, err));
    FSDP_TRY(generate_session_decoder(&r->session, generate_batch_room(r->batch), r->set.batch,
                                      kv_dtype(r), err));
    FSDP_TRY(generate(r, generate_batch_source(r->batch), err));
    return generate_batch_finish(r->batch, err);
}

static int run_chat(struct run *r, struct fsdp_err *err)
{
    struct generate_loop loop = loop_of(r);

    FSDP_TRY(choose_words(r, err));
    FSDP_TRY(open_chat(r, err));
    FSDP_TRY(generate_conversation_create(&r->conversation, &r->session, &r->chat,
                                          r->seq.max_tokens, kv_dtype(r), err));
    FSDP_TRY(generate_chat_talk(r->conversation, &loop, r->set.verbose, err));
    generate_print_speed(&loop);
    return FSDP_OK;
}

static int choose_opts(struct run *r, const struct generate_config *config, struct fsdp_err *err)
{
    generate_choose(&r->opts, &r->seq.max_tokens, &r->set, config);
    return generate_opts_check(&r->opts, err);
}

static int run(struct run *r, struct fsdp_err *err)
{
    /* What was asked for is checked before weights are read. */
    FSDP_TRY(choose_opts(r, &generate_config_none, err));
    FSDP_TRY(generate_session_open(&r->session, &r->set, err));
    FSDP_TRY(choose_opts(r, &r->session.config, err));
    r->seq.seed = r->set.seed;
    if (r->set.prompts)
        return run_batch(r, err);
    return r->set.prompt || r->set.tokens ? run_one(r, err) : run_chat(r, err);
}

int main(int argc, char **argv)
{
    struct run r = {.set = generate_settings_default};
    struct fsdp_err err = FSDP_ERR_INIT;

    fsdp_std_fill();
    int rc = parse_options(&r.set, argc, argv);
    if (rc >= 0) {
        json_decref(r.set.variables);
        return rc;
    }
    fsdp_log_set(on_log, NULL, r.set.verbose ? FSDP_LOG_INFO : FSDP_LOG_WARN);
    rc = run(&r, &err);
    if (rc)
        fprintf(stderr, "fsdp-generate: %s\n", err.text);
    fsdp_free(r.prompt);
    generate_batch_close(r.batch);
    generate_conversation_destroy(r.conversation);
    generate_chat_close(&r.chat);
    json_decref(r.set.variables);
    generate_words_close(&r.words);
    generate_session_close(&r.session);
    return rc ? 1 : interrupt_came ? 130 : 0;
}
