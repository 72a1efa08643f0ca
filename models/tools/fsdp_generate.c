/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp-generate: text or logits from a checkpoint or a Hugging Face folder. */
#include <errno.h>
#include <libgen.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/ckpt.h"
#include "family/generate.h"
#include "family/model.h"
#include "data/text.h"
#include "options.h"

static const char usage[] =
    "Usage: fsdp-generate --model PATH --prompt TEXT [option...]\n"
    "       fsdp-generate --model PATH --tokens 1,2,3 [--logits] [option...]\n"
    "\n"
    "Continues a text with a trained model. PATH is a Hugging Face folder, a\n"
    ".safetensors file next to its config.json, a checkpoint of fsdp-launch, or a\n"
    "folder of checkpoints (the newest is taken).\n"
    "\n"
    "  --model PATH       the weights\n"
    "  --prompt TEXT      the text to continue; its bytes are the tokens\n"
    "  --tokens LIST      token ids instead of a prompt; prints token ids\n"
    "  --tokenizer KIND   how the prompt becomes tokens: auto (byte by byte, for a\n"
    "                     model with 256 tokens) or bytes (for any model) (auto)\n"
    "  --logits           print the logits after each token, one line per token,\n"
    "                     instead of generating\n"
    "  --max-tokens N     stop after N tokens (200), or at the model's last position\n"
    "  --greedy           always take the most likely token\n"
    "  --temperature T    divide logits by T (1)\n"
    "  --top-k K          draw from the K most likely tokens (0: all)\n"
    "  --top-p P          draw from the most likely tokens that together have\n"
    "                     probability P (1)\n"
    "  --seed S           seed of the random choice (0)\n"
    "  --ignore-eos       continue after the model's end-of-sequence token\n"
    "  --device KIND      auto (a GPU if there is one), cpu or cuda (auto)\n"
    "  -h, --help         print this help\n"
    "  --version          print the version\n";

struct settings {
    const char *model, *prompt, *tokens, *device;
    bool logits, ignore_eos;
    int max_tokens;
    int tokenizer; /* enum data_tokenizer */
    struct generate_opts sampling;
};

/* Everything loaded. */
struct session {
    struct ckpt *ckpt;
    const struct model_ops *ops;
    struct model *model;
    struct fsdp_module_tree *tree;
    float **param; /* each on the device */
    struct fsdp_device *device;
    struct fsdp_lane *lane;
    struct model_decoder *decoder;
    struct generate_sampler *sampler;
    int32_t *prompt;
    int nprompt, vocab;
    float *row; /* logits of one position, on the host */
};

/* ---- settings ------------------------------------------------------------------------------- */

static const char *const tokenizers[] = {
    [DATA_TOKENIZER_AUTO] = "auto", [DATA_TOKENIZER_BYTES] = "bytes", NULL};

#define AT(field) offsetof(struct settings, field)
static const struct option_row rows[] = {
    {"model", OPTION_TEXT, AT(model), 0, 0, NULL},
    {"prompt", OPTION_TEXT, AT(prompt), 0, 0, NULL},
    {"tokens", OPTION_TEXT, AT(tokens), 0, 0, NULL},
    {"tokenizer", OPTION_WORD, AT(tokenizer), 0, 0, tokenizers},
    {"logits", OPTION_FLAG, AT(logits), 0, 0, NULL},
    {"max-tokens", OPTION_INT, AT(max_tokens), 1, 1 << 30, NULL},
    {"greedy", OPTION_FLAG, AT(sampling.greedy), 0, 0, NULL},
    {"temperature", OPTION_NUMBER, AT(sampling.temperature), -HUGE_VAL, HUGE_VAL, NULL},
    {"top-k", OPTION_INT, AT(sampling.top_k), 0, 1 << 30, NULL},
    {"top-p", OPTION_NUMBER, AT(sampling.top_p), -HUGE_VAL, HUGE_VAL, NULL},
    {"seed", OPTION_SEED, AT(sampling.seed), 0, 0, NULL},
    {"ignore-eos", OPTION_FLAG, AT(ignore_eos), 0, 0, NULL},
    {"device", OPTION_NAME, AT(device), 0, 0, option_devices},
};
static const struct option_table table = {"fsdp-generate", usage, rows,
                                          sizeof rows / sizeof rows[0]};

/* -1, or the exit code where the program ends here. */
static int parse_options(struct settings *s, int argc, char **argv)
{
    const int rc = options_parse(&table, s, argc, argv);

    if (rc >= 0)
        return rc;
    if (!s->model)
        return options_refuse(&table, "--model is missing");
    if (!s->prompt == !s->tokens)
        return options_refuse(&table, "give either --prompt or --tokens");
    return -1;
}

/* ---- loading -------------------------------------------------------------------------------- */

static void on_log(void *ctx, enum fsdp_log_level level, const char *text)
{
    (void)ctx;
    fprintf(stderr, "fsdp-generate: %s%s\n", level == FSDP_LOG_WARN ? "warning: " : "", text);
}

/* Which device `auto` took is said once; of what the device does later only warnings are logged. */
static int open_device(struct session *s, const char *kind, struct fsdp_err *err)
{
    fsdp_log_set(on_log, NULL, FSDP_LOG_INFO);
    FSDP_TRY(fsdp_device_open(&s->device, kind, 0, err));
    if (!strcmp(kind, "auto") && !fsdp_device_is_host(s->device))
        fsdp_log(FSDP_LOG_INFO, "device auto: the first GPU is used (--device cpu for the CPU)");
    fsdp_log_set(on_log, NULL, FSDP_LOG_WARN);
    return fsdp_lane_create(&s->lane, s->device, "compute", err);
}

struct destination {
    struct fsdp_lane *lane;
    char *at;
};

/* The reader uses src again when this returns. */
static int write_param(void *ctx, uint64_t pos, const void *src, size_t nbytes,
                       struct fsdp_err *err)
{
    const struct destination *to = ctx;
    FSDP_TRY(fsdp_copy(to->lane, to->at + pos, src, nbytes, err));
    return fsdp_lane_sync(to->lane, err);
}

static int load_param(struct session *s, int i, struct fsdp_err *err)
{
    struct fsdp_slice slice = {.tensor = fsdp_param_tensor(s->tree, i), .nreplica = 1};
    const size_t nbytes = fsdp_tensor_nelem(&slice.tensor) * sizeof(float);
    memcpy(slice.box.length, slice.tensor.shape, sizeof slice.box.length);
    s->param[i] = fsdp_device_alloc(s->device, nbytes, slice.tensor.name, err);
    if (!s->param[i])
        return FSDP_ENOMEM;
    struct destination to = {s->lane, (char *)s->param[i]};
    struct fsdp_slice_io io = {.ctx = &to, .write = write_param};
    return ckpt_read_slice(s->ckpt, &slice, &io, err);
}

/* Full path of a small file of the model, or NULL; freed by the caller. */
static char *find_extra(const struct session *s, const char *path, const char *name)
{
    const char *known = ckpt_extra_path(s->ckpt, name);
    if (known)
        return fsdp_strdup(known, NULL);
    char *copy = fsdp_strdup(path, NULL);
    char *copied = copy ? fsdp_sprintf(NULL, "%s/%s", dirname(copy), name) : NULL;
    fsdp_free(copy);
    if (copied && access(copied, R_OK) == 0)
        return copied;
    fsdp_free(copied);
    return NULL;
}

static int load_model(struct session *s, const char *path, const char *device, struct fsdp_err *err)
{
    FSDP_TRY(ckpt_open(&s->ckpt, path, err));
    char *config = find_extra(s, path, "config.json");
    if (!config)
        return fsdp_err_set(err, FSDP_ENOTFOUND,
                            "%s: no config.json with it, which says what model this is", path);
    int rc = model_find(&s->ops, config, err);
    if (!rc)
        rc = s->ops->create(&s->model, config, err);
    fsdp_free(config);
    if (rc)
        return rc;
    FSDP_TRY(open_device(s, device, err));
    FSDP_TRY(s->ops->set_device(s->model, s->device, err));
    FSDP_TRY(fsdp_module_tree_create(&s->tree, err));
    FSDP_TRY(s->ops->describe(s->model, s->tree, 1, 1, err));
    s->vocab = s->ops->vocab_size(s->model);
    s->param = fsdp_alloc((size_t)fsdp_param_count(s->tree), sizeof *s->param, "weights", err);
    if (!s->param)
        return FSDP_ENOMEM;
    for (int i = 0; i < fsdp_param_count(s->tree); i++)
        FSDP_TRY(load_param(s, i, err));
    return ckpt_unchanged(s->ckpt, err);
}

static int read_prompt(struct session *s, const struct settings *set, struct fsdp_err *err)
{
    struct model_info info;
    s->ops->info(s->model, &info);
    if (set->tokens)
        return generate_list(&s->prompt, &s->nprompt, set->tokens, s->vocab, err);
    FSDP_TRY(text_check_vocab(s->vocab, (enum data_tokenizer)set->tokenizer,
                              "give token ids with --tokens", err));
    FSDP_TRY(generate_bytes(&s->prompt, &s->nprompt, set->prompt, s->vocab, err));
    if (s->nprompt)
        return FSDP_OK;
    if (info.bos < 0 || info.bos >= s->vocab)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "the prompt is empty, and the model names no token to begin with");
    fsdp_free(s->prompt);
    s->nprompt = 1;
    s->prompt = fsdp_alloc(1, sizeof *s->prompt, "prompt", err);
    if (!s->prompt)
        return FSDP_ENOMEM;
    s->prompt[0] = info.bos;
    return FSDP_OK;
}

static int open_session(struct session *s, const struct settings *set, struct fsdp_err *err)
{
    FSDP_TRY(load_model(s, set->model, set->device, err));
    FSDP_TRY(read_prompt(s, set, err));
    const int room = s->ops->max_seq_len(s->model);
    if (s->nprompt > room)
        return fsdp_err_set(err, FSDP_EINVAL, "prompt of %d tokens: the model has %d positions",
                            s->nprompt, room);
    int max_tokens =
        set->logits || set->max_tokens >= room - s->nprompt ? room - s->nprompt : set->max_tokens;
    s->row = fsdp_alloc((size_t)s->vocab, sizeof *s->row, "logits", err);
    if (!s->row)
        return FSDP_ENOMEM;
    FSDP_TRY(generate_sampler_create(&s->sampler, &set->sampling, s->vocab, err));
    return s->ops->decoder_create(&s->decoder, s->model, (const float *const *)s->param, s->lane,
                                  set->logits ? s->nprompt : s->nprompt + max_tokens, err);
}

static void close_session(struct session *s)
{
    if (s->decoder)
        s->ops->decoder_destroy(s->decoder);
    for (int i = 0; s->param && i < fsdp_param_count(s->tree); i++)
        fsdp_device_free(s->device, s->param[i]);
    fsdp_lane_destroy(s->lane);
    fsdp_device_close(s->device);
    generate_sampler_destroy(s->sampler);
    fsdp_free(s->row);
    fsdp_free(s->prompt);
    fsdp_free(s->param);
    fsdp_module_tree_destroy(s->tree);
    if (s->model)
        s->ops->destroy(s->model);
    ckpt_close(s->ckpt);
}

/* ---- output --------------------------------------------------------------------------------- */

static int check_output(struct fsdp_err *err)
{
    if (fflush(stdout) || ferror(stdout))
        return fsdp_err_sys(err, errno, "standard output");
    return FSDP_OK;
}

static int print_logits(struct session *s, struct fsdp_err *err)
{
    enum { PIECE = 32 };
    const size_t vocab = (size_t)s->vocab;
    float *logits = fsdp_alloc(PIECE * vocab, sizeof *logits, "logits", err);
    int rc = logits ? FSDP_OK : FSDP_ENOMEM;

    for (int done = 0; rc == FSDP_OK && done < s->nprompt; done += PIECE) {
        int n = s->nprompt - done < PIECE ? s->nprompt - done : PIECE;
        rc = s->ops->decode(s->decoder, s->prompt + done, n, true, logits, err);
        for (size_t i = 0; rc == FSDP_OK && i < (size_t)n * vocab; i++)
            printf("%.9g%c", (double)logits[i], (i + 1) % vocab ? ' ' : '\n');
        if (rc == FSDP_OK)
            rc = check_output(err);
    }
    fsdp_free(logits);
    return rc;
}

static void print_token(int32_t token, bool as_text, bool first)
{
    if (!as_text)
        printf("%s%d", first ? "" : ",", token);
    else if (token < 256)
        putchar(token);
    else
        printf("<%d>", token);
}

static bool ends(const struct session *s, int32_t token)
{
    struct model_info info;
    s->ops->info(s->model, &info);
    for (int i = 0; i < info.neos; i++)
        if (info.eos[i] == token)
            return true;
    return false;
}

static int generate(struct session *s, const struct settings *set, struct fsdp_err *err)
{
    const int room = s->ops->max_seq_len(s->model) - s->nprompt;
    const int max_tokens = set->max_tokens < room ? set->max_tokens : room;
    const bool as_text = set->prompt != NULL;
    int32_t token;
    int done = 0;

    if (as_text)
        fputs(set->prompt, stdout);
    FSDP_TRY(s->ops->decode(s->decoder, s->prompt, s->nprompt, false, s->row, err));
    for (; done < max_tokens; done++) {
        if (done)
            FSDP_TRY(s->ops->decode(s->decoder, &token, 1, false, s->row, err));
        FSDP_TRY(generate_sample(&token, s->sampler, s->row, err));
        if (!set->ignore_eos && ends(s, token))
            break;
        print_token(token, as_text, done == 0);
        FSDP_TRY(check_output(err));
    }
    putchar('\n');
    if (done == max_tokens && max_tokens < set->max_tokens)
        fprintf(stderr, "fsdp-generate: stopped at the model's %d positions\n", room + s->nprompt);
    return check_output(err);
}

int main(int argc, char **argv)
{
    struct settings settings = {
        .device = "auto", .max_tokens = 200, .sampling = GENERATE_OPTS_INIT};
    struct session session = {0};
    struct fsdp_err err = FSDP_ERR_INIT;

    int rc = parse_options(&settings, argc, argv);
    if (rc >= 0)
        return rc;
    rc = open_session(&session, &settings, &err);
    if (rc == FSDP_OK)
        rc = settings.logits ? print_logits(&session, &err) : generate(&session, &settings, &err);
    if (rc)
        fprintf(stderr, "fsdp-generate: %s\n", err.text);
    close_session(&session);
    return rc ? 1 : 0;
}
