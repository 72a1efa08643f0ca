/* SPDX-License-Identifier: Apache-2.0 */
/* Which linear maps have adapters, and what is trained besides. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "stack.h"

#define WEIGHT ".weight"

/* Is `end` the name of the module, whose name has nbytes, or its end after a dot? */
static bool is_end_of(const char *name, size_t nbytes, const char *end)
{
    const size_t n = strlen(end);
    return n && n <= nbytes && !strncmp(name + nbytes - n, end, n) &&
           (n == nbytes || name[nbytes - n - 1] == '.');
}

/* Bytes of a weight's name without its last part. */
static size_t module_nbytes(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? (size_t)(dot - name) : strlen(name);
}

/* ---- adapters -------------------------------------------------------------------------------- */

static bool is_router(const struct model *m, int weight)
{
    return weight == m->place[STACK_ROUTER].weight;
}

/* What transformers calls the weight, and PEFT its adapter. */
static const char *module_of(const struct model *m, int weight)
{
    return is_router(m, weight) ? m->family->names->router_parameter : m->weight[weight].name;
}

/* A target names a module in all layers, or (with its root) of any of them. A router of experts is
 * not among those that all-linear names. */
bool stack_is_target(const struct model *m, const char *target, int weight)
{
    const char *name = m->weight[weight].name + 1, *module = module_of(m, weight) + 1;
    if (!strcmp(target, "all-linear"))
        return !is_router(m, weight);
    return is_end_of(name, module_nbytes(name), target) ||
           is_end_of(module, module_nbytes(module), target);
}

static bool is_any_target(const struct model *m, const char *const *targets, int ntargets,
                          int weight)
{
    for (int i = 0; i < ntargets; i++)
        if (stack_is_target(m, targets[i], weight))
            return true;
    return false;
}

static bool is_adapted(const struct model *m, int weight)
{
    return is_any_target(m, m->lora.targets, m->lora.ntargets, weight);
}

/* Of the map with this name, which has nbytes. */
static struct stack_rank rank_of(struct model *m, const char *name, size_t nbytes)
{
    struct stack_rank rank = {m->lora.r, m->lora.scale};

    for (int i = 0; i < m->lora.nranks; i++) {
        const struct model_lora_rank *x = &m->lora.ranks[i];
        if (!strncmp(x->name, name, nbytes) && !x->name[nbytes])
            rank = (struct stack_rank){x->r, x->scale};
    }
    m->most_r = rank.r > m->most_r ? rank.r : m->most_r;
    return rank;
}

static void add_part(struct model *m, const struct stack_weight *of, const char *suffix, int rows,
                     int cols, struct fsdp_init init)
{
    struct stack_weight *w = &m->weight[m->nweights++];
    *w = (struct stack_weight){.part = of->part, .rows = rows, .cols = cols, .init = init};
    snprintf(w->name, sizeof w->name, "%.*s%s", (int)module_nbytes(of->name), of->name, suffix);
}

/* A begins as PEFT's does, by torch's kaiming_uniform_(a=sqrt(5)). */
struct fsdp_init stack_lora_init(int nin)
{
    return (struct fsdp_init){FSDP_INIT_UNIFORM, (float)(1 / sqrt(nin))};
}

/* The adapter of a weight, which is made where there is none yet. Magnitudes must be set once the
 * weight is known. */
static int adapter_of(struct model *m, const struct stack_place *place)
{
    for (int slot = 0; slot < STACK_NSLOTS; slot++)
        if (m->place[slot].weight == place->weight && m->place[slot].lora)
            return m->place[slot].lora;
    struct stack_weight of = m->weight[place->weight];
    const struct fsdp_init zeros = {FSDP_INIT_ZEROS, 0}, ones = {FSDP_INIT_ONES, 0};
    const int nout = m->family->names->fusion == TRAITS_TRANSPOSED ? of.cols : of.rows;
    const int lora = m->nweights;
    snprintf(of.name, sizeof of.name, "%s", module_of(m, place->weight));
    const struct stack_rank rank = rank_of(m, of.name + 1, module_nbytes(of.name) - 1);
    add_part(m, &of, ".lora_A" WEIGHT, rank.r, place->nin, stack_lora_init(place->nin));
    m->weight[lora].rank = rank;
    add_part(m, &of, ".lora_B" WEIGHT, nout, rank.r, zeros);
    if (m->lora.dora)
        add_part(m, &of, MODEL_MAGNITUDE, nout, 0, ones);
    return lora;
}

/* Has a target the number of a layer? */
static bool is_of_a_layer(const char *target)
{
    for (const char *at = target; *at; at += strcspn(at, "."), at += *at == '.') {
        const size_t ndigits = strspn(at, "0123456789");
        if (ndigits && at[ndigits] == '.')
            return true;
    }
    return false;
}

static int refuse_target(const struct model *m, const char *target, struct fsdp_err *err)
{
    if (is_of_a_layer(target))
        return fsdp_err_set_blame(err, FSDP_EUNSUPPORTED, "targets",
                                  "'%s' is a map of one layer, and adapters are of all layers: "
                                  "name it from behind the layer's number on",
                                  target);
    return fsdp_err_set_blame(
        err, FSDP_EINVAL, "targets",
        "'%s' is no linear map of the layers of %s; all-linear takes all of them, "
        "lora.target_parameters those of experts, and lora.modules_to_save trains a "
        "module whole",
        target, m->family->type);
}

const char *stack_head_module(const struct model *m)
{
    const struct traits_names *names = m->family->names;
    return names->head_module ? names->head_module : names->head;
}

/* By its name in files, too. */
static bool is_head(const struct model *m, const char *target)
{
    const char *head = m->family->names->head, *module = stack_head_module(m);
    return is_end_of(head, strlen(head), target) || is_end_of(module, strlen(module), target);
}

static bool adapts_head(const struct model *m, const char *const *targets, int ntargets)
{
    for (int i = 0; i < ntargets; i++)
        if (is_head(m, targets[i]))
            return true;
    return false;
}

/* PEFT trains such an adapter and warns of it: what it merges is then added to the embedding, too.
 */
static int check_head(const struct model *m, struct fsdp_err *err)
{
    if (!m->head_lora || !m->traits.tied)
        return FSDP_OK;
    return fsdp_err_set_blame(err, FSDP_EUNSUPPORTED, "targets",
                              "'%s' is tied: its weight is the embedding, too, to which a "
                              "merge would add the adapter; leave it out, or untie both "
                              "(tie_word_embeddings: false, and a copy of the embedding "
                              "as the head)",
                              stack_head_module(m));
}

/* key: targets or target_parameters */
static int refuse_given(bool theirs, const char *name, const char *key, struct fsdp_err *err)
{
    return fsdp_err_set_blame(
        err, FSDP_EINVAL, key,
        "%s %s, and the adapter of lora.path %s; leave out lora.%s, or say what the "
        "adapter has",
        theirs ? "has not" : "has", name, theirs ? "has" : "has not", key);
}

/* Do the targets that are given besides name the same maps? */
static int check_given(const struct model *m, struct fsdp_err *err)
{
    if (m->lora.ngiven && adapts_head(m, m->lora.given, m->lora.ngiven) != m->head_lora)
        return refuse_given(m->head_lora, stack_head_module(m), "targets", err);
    for (int w = 0; w < m->nbase && m->lora.ngiven; w++) {
        const bool given = is_any_target(m, m->lora.given, m->lora.ngiven, w);
        if (!m->weight[w].cols || given == is_adapted(m, w))
            continue;
        const char *name = m->weight[w].name + 1;
        char module[STACK_NAME_NBYTES];
        snprintf(module, sizeof module, "%.*s", (int)module_nbytes(name), name);
        return refuse_given(!given, module, "targets", err);
    }
    return FSDP_OK;
}

static int check_targets(const struct model *m, struct fsdp_err *err)
{
    for (int i = 0; i < m->lora.ntargets; i++) {
        const char *target = m->lora.targets[i];
        bool fits = is_head(m, target);
        for (int w = 0; w < m->nbase; w++)
            fits |= m->weight[w].cols && stack_is_target(m, target, w);
        if (!fits)
            return refuse_target(m, target, err);
    }
    return check_given(m, err);
}

/* ---- adapters of experts --------------------------------------------------------------------- */

/* A parameter of the experts, as transformers names it; NULL: the model has none. */
static const char *parameter_of(const struct model *m, enum stack_expert slot)
{
    const struct traits_names *names = m->family->names;
    const char *name = slot == STACK_EXPERT_DOWN ? names->parameter_down : names->parameter_gate_up;
    return m->traits.experts && name ? name + 1 : NULL;
}

/* By the parameter's name (mlp.experts.down_proj), or by that of the module that it is in
 * (mlp.experts), and by the ends of both. An end of one word, such as down_proj, is that of a
 * linear map, unless it is the module's. */
bool stack_is_expert_target(const struct model *m, const char *target, enum stack_expert slot)
{
    const char *name = parameter_of(m, slot);
    return name && (is_end_of(name, module_nbytes(name), target) ||
                    (strchr(target, '.') && is_end_of(name, strlen(name), target)));
}

static bool names_parameter(const struct model *m, const char *const *texts, int ntexts,
                            enum stack_expert slot)
{
    const char *name = parameter_of(m, slot);
    for (int i = 0; name && i < ntexts; i++)
        if (is_end_of(name, strlen(name), texts[i]))
            return true;
    return false;
}

static bool adapts_parameter(const struct model *m, enum stack_expert slot)
{
    return names_parameter(m, m->lora.parameters, m->lora.nparameters, slot);
}

static int refuse_parameter(const struct model *m, const char *text, struct fsdp_err *err)
{
    const char *const key = "target_parameters";

    if (!parameter_of(m, STACK_EXPERT_DOWN))
        return fsdp_err_set_blame(err, FSDP_EINVAL, key,
                                  "'%s': %s has no experts, whose weights this is for", text,
                                  m->family->type);
    if (is_of_a_layer(text))
        return fsdp_err_set_blame(err, FSDP_EUNSUPPORTED, key,
                                  "'%s' is a parameter of one layer, and adapters are of all "
                                  "layers: name it from behind the layer's number on",
                                  text);
    return fsdp_err_set_blame(
        err, FSDP_EINVAL, key, "'%s' is no parameter of the experts of %s: %s and %s are", text,
        m->family->type, parameter_of(m, STACK_EXPERT_GATE), parameter_of(m, STACK_EXPERT_DOWN));
}

/* Do the parameters that are given besides name the same? */
static int check_given_parameters(const struct model *m, struct fsdp_err *err)
{
    static const enum stack_expert slots[] = {STACK_EXPERT_GATE, STACK_EXPERT_DOWN};

    for (int i = 0; i < 2 && m->lora.ngiven_parameters; i++) {
        const bool given =
            names_parameter(m, m->lora.given_parameters, m->lora.ngiven_parameters, slots[i]);
        if (given != adapts_parameter(m, slots[i]))
            return refuse_given(!given, parameter_of(m, slots[i]), "target_parameters", err);
    }
    return FSDP_OK;
}

/* PEFT has neither dropout nor magnitudes of experts and routers. */
static int check_parameters(const struct model *m, struct fsdp_err *err)
{
    const bool adapts_router = m->place[STACK_ROUTER].lora > 0;
    const char *key = m->lora.dropout > 0 ? "dropout" : m->lora.dora ? "dora" : NULL;

    for (int i = 0; i < m->lora.nparameters; i++) {
        const char *text = m->lora.parameters[i];
        if (!names_parameter(m, &text, 1, STACK_EXPERT_GATE) &&
            !names_parameter(m, &text, 1, STACK_EXPERT_DOWN))
            return refuse_parameter(m, text, err);
    }
    if ((m->lora.nparameters || adapts_router) && key)
        return fsdp_err_set_blame(err, FSDP_EUNSUPPORTED, key,
                                  "adapters of experts (lora.target_parameters) and of "
                                  "their router have none, as in PEFT; leave it out");
    return check_given_parameters(m, err);
}

/* PEFT wraps the module of both parameters once for each, the second around the first. */
static int add_expert_lora(struct model *m, enum stack_expert slot, bool inner)
{
    const struct stack_place *place = &m->expert_place[slot];
    const char *parameter = parameter_of(m, slot);
    const struct stack_rank rank = rank_of(m, parameter, strlen(parameter));
    const int E = m->traits.experts, r = rank.r, lora = m->nweights;
    const struct stack_weight pair[] = {
        {.rows = E * r, .cols = place->nin, .init = stack_lora_init(place->nin), .rank = rank},
        {.rows = stack_expert_lora(m, slot).rows, .cols = E * r, .init = {FSDP_INIT_ZEROS, 0}}};
    const char *name = parameter - 1;

    for (int i = 0; i < 2; i++) {
        struct stack_weight *w = &m->weight[m->nweights++];
        *w = pair[i];
        w->part = STACK_PART_MLP;
        w->by_expert = true;
        snprintf(w->name, sizeof w->name, "%.*s%s.lora_%c" WEIGHT, (int)module_nbytes(name), name,
                 inner ? ".base_layer" : "", "AB"[i]);
    }
    return lora;
}

static int list_experts(struct model *m, struct fsdp_err *err)
{
    const bool down = adapts_parameter(m, STACK_EXPERT_DOWN);

    FSDP_TRY(check_parameters(m, err));
    if (adapts_parameter(m, STACK_EXPERT_GATE))
        m->expert_place[STACK_EXPERT_GATE].lora = m->expert_place[STACK_EXPERT_UP].lora =
            add_expert_lora(m, STACK_EXPERT_GATE, down);
    if (down)
        m->expert_place[STACK_EXPERT_DOWN].lora = add_expert_lora(m, STACK_EXPERT_DOWN, false);
    return FSDP_OK;
}

void stack_list_parameters(const struct model *m, struct model_info *info)
{
    info->nparameters = 0;
    if (m->expert_place[STACK_EXPERT_GATE].lora)
        info->parameters[info->nparameters++] = parameter_of(m, STACK_EXPERT_GATE);
    if (m->expert_place[STACK_EXPERT_DOWN].lora)
        info->parameters[info->nparameters++] = parameter_of(m, STACK_EXPERT_DOWN);
    if (m->place[STACK_ROUTER].lora)
        info->parameters[info->nparameters++] = m->family->names->router_parameter + 1;
}

/* Of gate and up the rows of B follow each other, even where the weights are apart; where their
 * columns alternate, gate is both. */
struct stack_expert_lora stack_expert_lora(const struct model *m, enum stack_expert slot)
{
    const int nout = m->expert_place[slot].nout;
    const bool both = slot != STACK_EXPERT_DOWN && !m->family->names->experts_gate_up_bias;
    return (struct stack_expert_lora){.first = slot == STACK_EXPERT_UP ? nout : 0,
                                      .rows = both ? 2 * nout : nout};
}

/* ---- the list -------------------------------------------------------------------------------- */

int stack_list_lora(struct model *m, struct fsdp_err *err)
{
    m->nweights = m->nbase;
    for (int slot = 0; slot < STACK_NEXPERTS; slot++)
        m->expert_place[slot].lora = 0;
    for (int slot = 0; slot < STACK_NSLOTS; slot++)
        m->place[slot].lora = 0;
    m->most_r = 0;
    m->head_lora = m->lora.r && adapts_head(m, m->lora.targets, m->lora.ntargets);
    if (m->head_lora)
        m->head_rank = rank_of(m, stack_head_module(m), strlen(stack_head_module(m)));
    FSDP_TRY(check_head(m, err));
    if (!m->lora.r)
        return FSDP_OK;
    if (m->lora.dora && !m->nn->lengths)
        return fsdp_err_set_blame(err, FSDP_EUNSUPPORTED, "dora",
                                  "device %s has no operators for DoRA; set fsdp.device "
                                  "to cpu",
                                  m->nn->name);
    FSDP_TRY(check_targets(m, err));
    for (int slot = 0; slot < STACK_NSLOTS; slot++) {
        struct stack_place *place = &m->place[slot];
        if (place->weight >= 0 && m->weight[place->weight].cols && is_adapted(m, place->weight))
            place->lora = adapter_of(m, place);
    }
    return list_experts(m, err);
}

int stack_set_lora(struct model *m, const struct model_lora *lora, struct fsdp_err *err)
{
    if (lora->r && m->family->section)
        return fsdp_err_set_blame(
            err, FSDP_EUNSUPPORTED, "r",
            "adapters of model_type %s are not supported, since PEFT has other names "
            "for its modules than its folder; train the model whole, or save its text "
            "model alone",
            m->family->type);
    m->lora = *lora;
    return stack_list_lora(m, err);
}

struct stack_lora_widths stack_lora_widths(const struct model *m)
{
    struct stack_lora_widths most = {0};
    for (int slot = 0; slot < STACK_NSLOTS; slot++) {
        const struct stack_place *place = &m->place[slot];
        if (place->lora && place->nin > most.nin)
            most.nin = place->nin;
        if (place->lora && place->nout > most.nout)
            most.nout = place->nout;
    }
    return most;
}

/* ---- modules that are trained whole ---------------------------------------------------------- */

/* Is the weight the module's, which may have the head's name in transformers? */
static bool is_weight_of(const struct model *m, const char *name, const char *module)
{
    const size_t nbytes = module_nbytes(name);
    const char *head = m->family->names->head;
    return is_end_of(name, nbytes, module) ||
           (is_head(m, module) && nbytes == strlen(head) && !strncmp(name, head, nbytes));
}

bool stack_is_trained(const struct model *m, const char *name)
{
    for (int i = 0; i < m->lora.nmodules; i++)
        if (is_weight_of(m, name, m->lora.modules_to_save[i]))
            return true;
    return !m->lora.r;
}

static int refuse_saved(const char *module, const char *why, struct fsdp_err *err)
{
    const int rc = fsdp_err_set(err, FSDP_EUNSUPPORTED, "'%s' %s", module, why);
    return fsdp_err_blame(err, rc, "modules_to_save");
}

/* PEFT makes a copy of such a module, next to the tied one, which then no longer is. */
static int check_saved(const struct model *m, const char *module, struct fsdp_err *err)
{
    const char *embed = m->family->names->embed;

    if (m->traits.tied && (is_head(m, module) || is_end_of(embed, strlen(embed), module)))
        return refuse_saved(module,
                            "is tied: embedding and head are one weight, and PEFT's file of it "
                            "would be another for each",
                            err);
    return FSDP_OK;
}

/* Has the module, of which files would have the whole weight, too, an adapter? */
static bool has_adapter(const struct model *m, const struct fsdp_module_tree *tree,
                        const char *module)
{
    static const char low[] = ".lora_A" WEIGHT;

    if (m->head_lora && is_head(m, module))
        return true;
    for (int p = 0; p < fsdp_param_count(tree); p++) {
        const char *name = fsdp_param_tensor(tree, p).name;
        const size_t nbytes = strlen(name), suffix = sizeof low - 1;
        if (nbytes > suffix && !strcmp(name + nbytes - suffix, low) &&
            is_end_of(name, nbytes - suffix, module))
            return true;
    }
    return false;
}

int stack_check_saved(const struct model *m, const struct fsdp_module_tree *tree,
                      struct fsdp_err *err)
{
    for (int i = 0; i < m->lora.nmodules; i++) {
        const char *module = m->lora.modules_to_save[i];
        bool fits = false;
        for (int p = 0; p < fsdp_param_count(tree); p++) {
            const char *name = fsdp_param_tensor(tree, p).name;
            fits |= is_weight_of(m, name, module);
        }
        FSDP_TRY(check_saved(m, module, err));
        if (has_adapter(m, tree, module))
            return refuse_saved(
                module,
                "has an adapter (lora.targets) and is trained whole, too; name it in one of both",
                err);
        if (!fits)
            return fsdp_err_set_blame(err, FSDP_EINVAL, "modules_to_save",
                                      "the model has no module '%s' "
                                      "with weights of its own",
                                      module);
    }
    return FSDP_OK;
}
