/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp-generate: text or logits from a checkpoint or a Hugging Face folder. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data/line/text.h"
#include "fsdp/sys/cli.h"
#include "generate/batch.h"
#include "generate_chat.h"
#include "generate_output.h"
#include "interrupt.h"

/* ---- settings ------------------------------------------------------------------------------- */

static int parse_variable(void *to, const char *text, struct fsdp_err *err)
{
    return generate_chat_variable(to, text, err);
}

static int parse_date(void *to, const char *text, struct fsdp_err *err)
{
    return generate_chat_date(to, text, err);
}

static int take_adapter(void *to, const char *text, struct fsdp_err *err)
{
    struct generate_settings *set = to;
    if (set->nadapters == GENERATE_MAX_ADAPTERS)
        return fsdp_err_set(err, FSDP_EINVAL, "there may be %d adapters", GENERATE_MAX_ADAPTERS);
    set->adapters[set->nadapters++] = text;
    return FSDP_OK;
}

#define AT(field) offsetof(struct generate_settings, field)
static const char *const tokenizers[] = {"auto", "bytes", NULL};
static const struct fsdp_cli_option prompt_rows[] = {
    {"model", .arg = "PATH", .kind = FSDP_CLI_FILE, .offset = AT(model), .help = "the weights"},
    {"adapter", .arg = "PATH[=WEIGHT]", .kind = FSDP_CLI_OWN, .parse = take_adapter,
     .is_file = true,
     .help = "add a LoRA adapter to them, times WEIGHT: PEFT's folder, or a checkpoint of a run "
             "with adapters; repeat it for more"},
    {"prompt", .arg = "TEXT", .kind = FSDP_CLI_TEXT, .offset = AT(prompt),
     .help = "the text to continue"},
    {"tokens", .arg = "LIST", .kind = FSDP_CLI_TEXT, .offset = AT(tokens),
     .help = "token ids instead of a prompt; prints token ids"},
    {"prompts", .arg = "FILE", .kind = FSDP_CLI_FILE, .offset = AT(prompts),
     .help = "many prompts, JSON Lines; - is standard input. A line has \"prompt\", \"tokens\" "
             "(ids) or \"messages\" (a chat), and may have \"seed\" and \"max_tokens\". The "
             "output line also has \"completion\" (or \"completion_tokens\"), "
             "\"finish_reason\" and \"ntokens\""},
    {"output", 'o', "FILE", FSDP_CLI_FILE, AT(output),
     .help = "the output lines (default: standard output); FILE.part until all are written"},
    {"overwrite", .offset = AT(overwrite), .help = "replace FILE"},
    {"resume", .offset = AT(resume), .help = "continue FILE.part"},
    {"batch", .arg = "N", .kind = FSDP_CLI_INT, .offset = AT(batch), .least = 1,
     .most = MODEL_MAX_SEQUENCES, .help = "prompts in a batch (default: 8)"},
    {"tokenizer", .arg = "KIND", .kind = FSDP_CLI_FILE, .offset = AT(tokenizer),
     .words = tokenizers,
     .help = "auto (the model's tokenizer; bytes if there is none and the model has 256 tokens), "
             "bytes, or the path of a tokenizer (default: auto)"},
    {"max-tokens", .arg = "N", .kind = FSDP_CLI_INT, .offset = AT(max_tokens), .least = 1,
     .most = 1 << 30,
     .help = "stop after N tokens (default: 200; with --chat 1024), or at the model's last "
             "position"},
    {"ignore-eos", .offset = AT(ignore_eos),
     .help = "continue after the model's end-of-sequence token"},
    {"device", .arg = "KIND", .kind = FSDP_CLI_NAME, .offset = AT(device),
     .words = fsdp_cli_devices,
     .help = "auto (a GPU if there is one), cpu or cuda (default: auto)"},
    {"kv-dtype", .arg = "TYPE", .kind = FSDP_CLI_WORD, .offset = AT(kv_dtype),
     .words = generate_kv_dtypes,
     .help = "type of the cache of keys and values: auto (the model's), float32, bfloat16 or "
             "float16 (default: auto)"},
    {"verbose", 'v', .offset = AT(verbose),
     .help = "print the device, and the memory of keys and values"},
    {.help = NULL}};
static const struct fsdp_cli_option chat_rows[] = {
    {"chat", .offset = AT(chat),
     .help = "a prompt is a message to the model, and only its answer is printed. Without --prompt "
             "or --prompts, each line of standard input is a turn of a conversation; Ctrl-C stops "
             "an answer, Ctrl-D ends the chat"},
    {"system", .arg = "TEXT", .kind = FSDP_CLI_TEXT, .offset = AT(system),
     .help = "a system message, which comes first"},
    {"template-var", .arg = "NAME=VALUE", .kind = FSDP_CLI_OWN, .offset = AT(variables),
     .parse = parse_variable,
     .help = "a variable of the template, such as enable_thinking=false; VALUE is JSON or a text. "
             "May be given several times"},
    {"date", .arg = "YYYY-MM-DD", .kind = FSDP_CLI_OWN, .offset = AT(date), .parse = parse_date,
     .help = "the date that the template sees (default: today)"},
    {.help = NULL}};
static const struct fsdp_cli_option sampling_rows[] = {
    {"greedy", .offset = AT(greedy), .help = "always take the most likely token"},
    {"sample", .offset = AT(sample),
     .help = "draw tokens at random (the default, unless that file says otherwise)"},
    {"temperature", .arg = "T", .kind = FSDP_CLI_NUMBER, .offset = AT(temperature),
     .least = -HUGE_VAL, .most = HUGE_VAL, .help = "divide logits by T (default: 1)"},
    {"top-k", .arg = "K", .kind = FSDP_CLI_INT, .offset = AT(top_k), .least = 0, .most = 1 << 30,
     .help = "draw from the K most likely tokens (default: 0, all)"},
    {"top-p", .arg = "P", .kind = FSDP_CLI_NUMBER, .offset = AT(top_p), .least = -HUGE_VAL,
     .most = HUGE_VAL,
     .help = "draw from the most likely tokens that together have probability P (default: 1)"},
    {"min-p", .arg = "P", .kind = FSDP_CLI_NUMBER, .offset = AT(min_p), .least = -HUGE_VAL,
     .most = HUGE_VAL,
     .help = "draw from the tokens that are at least P times as likely as the most likely one "
             "(default: 0)"},
    {"repetition-penalty", .arg = "R", .kind = FSDP_CLI_NUMBER, .offset = AT(repetition_penalty),
     .least = -HUGE_VAL, .most = HUGE_VAL,
     .help = "divide positive logits of tokens that the text already has by R, and multiply "
             "negative ones by R (default: 1)"},
    {"seed", .arg = "S", .kind = FSDP_CLI_SEED, .offset = AT(seed),
     .help = "seed of the random choice (default: 0)"},
    {"ignore-generation-config", .offset = AT(ignore_config),
     .help = "do not read generation_config.json, the model's own values of these options"},
    {.help = NULL}};
static const struct fsdp_cli_option instead_rows[] = {
    {"logits", .offset = AT(logits),
     .help = "print the logits after each token, one line per token"},
    {"probabilities", .offset = AT(probabilities),
     .help = "print the tokens that may come next and their probabilities, one line per token"},
    {.help = NULL}};
static const struct fsdp_cli_group groups[] = {
    {"Model, prompt and output", prompt_rows},
    {"Chat, by the model's own template", chat_rows},
    {"Choice of tokens, where the model's generation_config.json sets the defaults", sampling_rows},
    {"Instead of generating", instead_rows},
    {NULL, NULL}};
static const struct fsdp_cli_note exits[] = {
    {"0", "done"}, {"1", "failed"}, {"2", "wrong usage"}, {"130", "interrupted"}, {NULL, NULL}};
static const struct fsdp_cli_program program = {
    .name = "fsdp-generate",
    .usage = "--model PATH --prompt TEXT [options]\n"
             "--model PATH --tokens 1,2,3 [--logits] [options]\n"
             "--model PATH --prompts FILE [-o FILE] [options]\n"
             "--model PATH --chat [--prompt TEXT] [options]",
    .purpose =
        "Continues a text with a trained model, or chats with it. PATH is a Hugging Face folder, a "
        ".safetensors file next to its config.json, a checkpoint of fsdp-launch, or a folder of "
        "checkpoints (the newest is taken). It may be in a store (s3://...).",
    .groups = groups,
    .operands = "--prompt before a text, --model before a model",
    .examples = "fsdp-generate --model merged --prompt 'Once upon a time'\n"
                "fsdp-generate --model merged --chat --system 'Answer in one sentence.'\n"
                "fsdp-generate --model merged --prompts in.jsonl -o out.jsonl --greedy",
    .exits = exits,
};

/* What a prompt is, and what belongs to which kind; -1, or the exit code. */
static int check_prompt(const struct generate_settings *s)
{
    const int nprompts = !!s->prompt + !!s->tokens + !!s->prompts;

    if (s->chat && s->tokens)
        return fsdp_cli_refuse(stderr, &program, "--chat takes text, not --tokens");
    if (nprompts > 1 || (!nprompts && !s->chat))
        return fsdp_cli_refuse(stderr, &program,
                               "give either --prompt or --tokens, or --prompts, or --chat");
    if (s->system && !s->chat)
        return fsdp_cli_refuse(stderr, &program, "--system belongs to --chat");
    if ((s->variables || s->date) && !s->chat && !s->prompts)
        return fsdp_cli_refuse(stderr, &program, "--template-var and --date belong to chats");
    if (!s->prompt && !s->tokens && (s->logits || s->probabilities))
        return fsdp_cli_refuse(stderr, &program, "--logits and --probabilities take one prompt");
    return -1;
}

static int check_output(const struct generate_settings *s)
{
    if (!s->prompts && (s->output || s->overwrite || s->resume))
        return fsdp_cli_refuse(stderr, &program,
                               "--output, --overwrite and --resume belong to --prompts");
    if (!s->output && (s->overwrite || s->resume))
        return fsdp_cli_refuse(stderr, &program, "--overwrite and --resume need --output");
    if (s->overwrite && s->resume)
        return fsdp_cli_refuse(stderr, &program, "give either --overwrite or --resume");
    return -1;
}

/* -1, or the exit code where the program ends here. */
static int parse_options(struct generate_settings *s, int argc, char **argv)
{
    struct fsdp_cli_line line;
    int rc = fsdp_cli_begin(&line, &program, s, argc, argv, stderr);

    if (rc >= 0)
        return rc;
    if (!s->model)
        return fsdp_cli_refuse(stderr, &program, "give the model: --model PATH");
    if ((rc = check_prompt(s)) >= 0 || (rc = check_output(s)) >= 0)
        return rc;
    if (s->greedy && s->sample)
        return fsdp_cli_refuse(stderr, &program, "give either --greedy or --sample");
    if (s->logits && s->probabilities)
        return fsdp_cli_refuse(stderr, &program, "give either --logits or --probabilities");
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
