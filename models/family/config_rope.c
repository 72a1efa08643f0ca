/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rotary frequencies from config.json: the base (Su et al., arXiv 2104.09864) and its scalings:
 * linear, dynamic, llama3 (Grattafiori et al., arXiv 2407.21783), yarn (Peng et al., arXiv
 * 2309.00071) and longrope (Ding et al., arXiv 2402.13753).
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "family.h"

enum { KEY_NBYTES = 96 };

/* Where the settings of one kind are: transformers 5 keeps all in rope_parameters, with a section
 * for each kind of layer if these differ; 4 has rope_theta and an optional rope_scaling. */
struct source {
    const struct hf_config *hf;
    const struct traits *t;
    const char *section;
    const char *over;  /* a section whose keys win; NULL: there is none */
    bool own_longrope; /* Phi 3, which has no other scaling, and older names for it */
};

/* The path of a key, into out, which is returned. */
static const char *place_key(char out[KEY_NBYTES], const struct source *s, const char *name)
{
    snprintf(out, KEY_NBYTES, "%s.%s", s->over ? s->over : s->section, name);
    if (s->over && !hf_has(s->hf, out))
        snprintf(out, KEY_NBYTES, "%s.%s", s->section, name);
    return out;
}

static int read_key(const struct source *s, const char *name, bool required, double least,
                    double most, double *out, struct fsdp_err *err)
{
    char key[KEY_NBYTES];
    return hf_float(s->hf, place_key(key, s, name), required, least, most, out, err);
}

/* The length that the model was trained for, before its positions were stretched. */
static int read_trained(const struct source *s, double *out, struct fsdp_err *err)
{
    *out = s->own_longrope ? 4096 : s->t->max_seq_len;
    if (!s->own_longrope) /* which reads the file's own level alone */
        FSDP_TRY(
            read_key(s, "original_max_position_embeddings", false, 2, TRAITS_MAX_SEQ, out, err));
    return hf_float(s->hf, "original_max_position_embeddings", false, 2, TRAITS_MAX_SEQ, out, err);
}

static int scale_linear(struct traits_rope *r, const struct source *s, double theta,
                        struct fsdp_err *err)
{
    double factor;
    (void)theta;
    FSDP_TRY(read_key(s, "factor", true, 1, 1e6, &factor, err));
    for (int i = 0; i < r->dim / 2; i++)
        r->inv_freq[i] /= factor;
    return FSDP_OK;
}

/* Frequencies change beyond max_position_embeddings, where this toolkit does not go. */
static int scale_dynamic(struct traits_rope *r, const struct source *s, double theta,
                         struct fsdp_err *err)
{
    double factor;
    (void)r;
    (void)theta;
    return read_key(s, "factor", true, 1, 1e6, &factor, err);
}

/* Long wavelengths are stretched by factor, short ones stay, those between are interpolated. */
static int scale_llama3(struct traits_rope *r, const struct source *s, double theta,
                        struct fsdp_err *err)
{
    double factor, low, high, trained;
    (void)theta;
    FSDP_TRY(read_key(s, "factor", true, 1, 1e6, &factor, err));
    FSDP_TRY(read_key(s, "low_freq_factor", true, 1e-3, 1e6, &low, err));
    FSDP_TRY(read_key(s, "high_freq_factor", true, 1e-3, 1e6, &high, err));
    FSDP_TRY(read_trained(s, &trained, err));
    if (high <= low)
        return hf_refuse(s->hf, FSDP_EINVAL, err, s->section,
                         "has high_freq_factor %g, which must be above low_freq_factor %g", high,
                         low);
    for (int i = 0; i < r->dim / 2; i++) {
        const double turns = trained * r->inv_freq[i] / (2 * M_PI); /* within the trained length */
        const double keep = fmin(fmax((turns - low) / (high - low), 0), 1);
        r->inv_freq[i] *= keep + (1 - keep) / factor;
    }
    return FSDP_OK;
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

/* The scale of cosines and sines. */
static int read_yarn_scale(struct traits_rope *r, const struct source *s, double factor,
                           struct fsdp_err *err)
{
    double mscale = 0, mscale_all = 0;
    FSDP_TRY(read_key(s, "mscale", false, 0, 1e6, &mscale, err));
    FSDP_TRY(read_key(s, "mscale_all_dim", false, 0, 1e6, &mscale_all, err));
    r->scale = mscale > 0 && mscale_all > 0
                   ? yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all)
                   : yarn_mscale(factor, 1);
    return read_key(s, "attention_factor", false, 1e-6, 1e6, &r->scale, err);
}

/* The pair of a head that makes this many turns within the trained length. */
static double pair_of_turns(int dim, double theta, double trained, double turns)
{
    return dim * log(trained / (turns * 2 * M_PI)) / (2 * log(theta));
}

/* Pairs that make many turns stay, those that make few are stretched, those between are
 * interpolated. */
static int scale_yarn(struct traits_rope *r, const struct source *s, double theta,
                      struct fsdp_err *err)
{
    double factor = 0, trained, fast = 32, slow = 1;
    bool truncate = true;
    char key[KEY_NBYTES];

    if (theta <= 1)
        return hf_refuse(s->hf, FSDP_EINVAL, err, "rope_theta", "is %g; yarn needs one above 1",
                         theta);
    FSDP_TRY(read_trained(s, &trained, err));
    FSDP_TRY(read_key(s, "factor", false, 1, 1e6, &factor, err));
    FSDP_TRY(read_key(s, "beta_fast", false, 1e-3, 1e6, &fast, err));
    FSDP_TRY(read_key(s, "beta_slow", false, 1e-3, 1e6, &slow, err));
    FSDP_TRY(hf_bool(s->hf, place_key(key, s, "truncate"), &truncate, err));
    if (factor == 0)
        factor = s->t->max_seq_len / trained;
    FSDP_TRY(read_yarn_scale(r, s, factor, err));
    double low = pair_of_turns(r->dim, theta, trained, fast);
    double high = pair_of_turns(r->dim, theta, trained, slow);
    low = fmax(truncate ? floor(low) : low, 0);
    high = fmin(truncate ? ceil(high) : high, r->dim - 1);
    if (low == high)
        high += 0.001;
    for (int i = 0; i < r->dim / 2; i++) {
        const double stretched = fmin(fmax((i - low) / (high - low), 0), 1);
        r->inv_freq[i] *= stretched / factor + (1 - stretched);
    }
    return FSDP_OK;
}

/* A list with a value for each pair, which must be there. */
static int read_factors(const struct source *s, const char *name, double *out, int count,
                        struct fsdp_err *err)
{
    char key[KEY_NBYTES];
    if (!hf_has(s->hf, place_key(key, s, name)))
        return hf_refuse(s->hf, FSDP_EINVAL, err, key, "is missing");
    return hf_floats(s->hf, key, 1e-6, 1e9, out, count, err);
}

/* A factor for each pair, of which there are two sets: for short rows and for long ones. */
static int scale_longrope(struct traits_rope *r, const struct source *s, double theta,
                          struct fsdp_err *err)
{
    const int half = r->dim / 2;
    double factor = 0, trained, shorts[2048] = {0}, longs[2048] = {0};

    (void)theta;
    FSDP_TRY(read_trained(s, &trained, err));
    FSDP_TRY(read_factors(s, "short_factor", shorts, half, err));
    FSDP_TRY(read_factors(s, "long_factor", longs, half, err));
    FSDP_TRY(read_key(s, "factor", false, 1, 1e6, &factor, err));
    if (factor == 0)
        factor = s->t->max_seq_len / trained;
    r->scale = factor <= 1 ? 1 : sqrt(1 + log(factor) / log(trained));
    FSDP_TRY(read_key(s, "attention_factor", false, 1e-6, 1e6, &r->scale, err));
    r->long_inv_freq =
        fsdp_alloc((size_t)half, sizeof *r->long_inv_freq, "rotary frequencies", err);
    if (!r->long_inv_freq)
        return FSDP_ENOMEM;
    r->long_over = (int)trained;
    for (int i = 0; i < half; i++) {
        r->long_inv_freq[i] = r->inv_freq[i] / longs[i];
        r->inv_freq[i] /= shorts[i];
    }
    return FSDP_OK;
}

static int apply_scaling(struct traits_rope *r, const struct source *s, double theta,
                         struct fsdp_err *err)
{
    static const struct {
        const char *type;
        int (*scale)(struct traits_rope *, const struct source *, double, struct fsdp_err *);
    } scalings[] = {{"default", NULL},          {"linear", scale_linear},
                    {"dynamic", scale_dynamic}, {"llama3", scale_llama3},
                    {"yarn", scale_yarn},       {"longrope", scale_longrope},
                    {"su", scale_longrope}};
    enum { NSCALINGS = sizeof scalings / sizeof scalings[0] };
    const char *type = "default";
    char key[KEY_NBYTES];

    if (!hf_has(s->hf, place_key(key, s, "rope_type")))
        place_key(key, s, "type");
    FSDP_TRY(hf_text(s->hf, key, false, &type, err));
    if (s->own_longrope && !strcmp(type, "yarn"))
        type = "longrope";
    for (int i = 0; i < NSCALINGS; i++)
        if (!strcmp(type, scalings[i].type) &&
            (!s->own_longrope || !scalings[i].scale || scalings[i].scale == scale_longrope))
            return scalings[i].scale ? scalings[i].scale(r, s, theta, err) : FSDP_OK;
    return hf_refuse(s->hf, FSDP_EUNSUPPORTED, err, key, "is '%.64s' (supported: default%s)", type,
                     s->own_longrope ? " and longrope"
                                     : ", linear, dynamic, llama3, yarn, longrope");
}

/* Queries that grow with their position (Ministral 3). */
static int read_growth(struct traits_rope *r, const struct source *s, struct fsdp_err *err)
{
    double span;
    FSDP_TRY(read_key(s, "llama_4_scaling_beta", false, 0, 1e3, &r->growth, err));
    FSDP_TRY(read_trained(s, &span, err));
    r->growth_span = (int)span;
    return FSDP_OK;
}

static int read_dim(struct traits_rope *r, const struct source *s, const struct family *family,
                    struct fsdp_err *err)
{
    const int D = s->t->head_dim;
    double fraction = family->rotary_fraction > 0 ? family->rotary_fraction : 1;

    if (family->partial_rotary) {
        FSDP_TRY(hf_float(s->hf, "partial_rotary_factor", false, 0, 1, &fraction, err));
        if (family->rotary_fraction > 0) /* the older key of GPT-NeoX wins */
            FSDP_TRY(hf_float(s->hf, "rotary_pct", false, 0, 1, &fraction, err));
    }
    FSDP_TRY(read_key(s, "partial_rotary_factor", false, 0, 1, &fraction, err));
    if (fraction != 1 && !family->partial_rotary)
        return hf_refuse(s->hf, FSDP_EUNSUPPORTED, err, s->section,
                         "has partial_rotary_factor %g; all of a head turns in model_type %s",
                         fraction, family->type);
    r->dim = (int)(D * fraction);
    if (r->dim < 2 || r->dim % 2)
        return hf_refuse(s->hf, FSDP_EINVAL, err,
                         fraction != 1            ? "partial_rotary_factor"
                         : family->keys->head_dim ? "head_dim"
                                                  : family->keys->dim,
                         "gives %d elements of a head that turn, which must be even and positive",
                         r->dim);
    return FSDP_OK;
}

static int read_rope(struct traits_rope *r, const struct source *s, const struct family *family,
                     double theta, struct fsdp_err *err)
{
    bool present, over = false;

    FSDP_TRY(hf_object(s->hf, s->section, &present, err));
    if (s->over)
        FSDP_TRY(hf_object(s->hf, s->over, &over, err));
    FSDP_TRY(read_dim(r, s, family, err));
    FSDP_TRY(read_key(s, "rope_theta", false, 1, 1e12, &theta, err));
    r->scale = 1;
    r->inv_freq = fsdp_alloc((size_t)r->dim / 2, sizeof *r->inv_freq, "rotary frequencies", err);
    if (!r->inv_freq)
        return FSDP_ENOMEM;
    for (int i = 0; i < r->dim / 2; i++)
        r->inv_freq[i] = pow(theta, -2.0 * i / r->dim);
    if (!present && !over)
        return FSDP_OK;
    FSDP_TRY(read_growth(r, s, err));
    return apply_scaling(r, s, theta, err);
}

int family_read_rope(struct traits *t, const struct family *family, const struct hf_config *hf,
                     struct fsdp_err *err)
{
    const char *const by_layer[] = {"rope_parameters.full_attention",
                                    "rope_parameters.sliding_attention"};
    const bool new = hf_has(hf, "rope_parameters"), old = hf_has(hf, "rope_scaling");
    double full = family->rope_theta > 0 ? family->rope_theta : 10000, sliding;
    /* Where a file has both, transformers takes rope_scaling; by layer, what it says of the layers
     * that see all. */
    struct source s = {.hf = hf,
                       .t = t,
                       .section = old ? "rope_scaling" : "rope_parameters",
                       .own_longrope = !strcmp(family->type, "phi3")};

    FSDP_TRY(hf_float(hf, "rope_theta", false, 1, 1e12, &full, err));
    if (family->rotary_fraction > 0)
        FSDP_TRY(hf_float(hf, "rotary_emb_base", false, 1, 1e12, &full, err));
    if (new && !family->rope_by_layer && (hf_has(hf, by_layer[0]) || hf_has(hf, by_layer[1])))
        return hf_refuse(hf, FSDP_EUNSUPPORTED, err, "rope_parameters",
                         "has sections by layer, which model_type %s does not take", family->type);
    if (family->rope_by_layer) {
        s.over = old ? "rope_scaling" : NULL;
        s.section = by_layer[0];
    }
    FSDP_TRY(read_rope(&t->rope[TRAITS_ROPE_FULL], &s, family, full, err));
    if (!family->rope_by_layer)
        return FSDP_OK;
    sliding = family->sliding_rope_theta > 0 ? family->sliding_rope_theta : full;
    if (family->sliding_rope_key)
        FSDP_TRY(hf_float(hf, family->sliding_rope_key, false, 1, 1e12, &sliding, err));
    s.over = NULL; /* transformers 4 scales the others alone */
    s.section = by_layer[1];
    return read_rope(&t->rope[TRAITS_ROPE_SLIDING], &s, family, sliding, err);
}
