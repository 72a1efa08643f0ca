/* SPDX-License-Identifier: Apache-2.0 */
/* setup.h: what a run is made of, from settings to an engine, without launcher or checkpoint.
 */
#ifndef TRAIN_SETUP_H
#define TRAIN_SETUP_H

#include "config/config.h"
#include "data/mixture.h"
#include "family/model.h"
#include "train/node/bind.h"
#include "train/node/cores.h"
#include "adapter.h"
#include "carried.h"
#include "text.h"
#include "train_state.h"

struct train_parts {
    struct config *config;
    char *agree;        /* config_agree_text */
    char *model_config; /* path of config.json */
    char *model_folder; /* in which it lies */
    const char
        *weights; /* where weights are: model.path, or the folder of the file that it names */
    uint64_t model_hash; /* of the bytes of config.json */
    struct config_batch batch;
    /* Of train_parts_plan, set before: the device to plan for, a word of fsdp_device_describe;
     * NULL: fsdp.device, whose auto is what a run on this machine would take. */
    const char *target;
    int most_accumulation; /* of train_parts_plan, set before: no more micro-steps; 0: all */
    /* Set before, borrowed: what decides where fsdp.offload_update leaves it open; NULL: the stock
     * clock of the device. */
    const struct fsdp_clock *clock;
    double host_nbytes;           /* likewise: memory of a node's host; 0: not known */
    bool updates_on_host;         /* what was decided */
    const struct boot_info *info; /* the caller's */
    struct train_gpu gpu;
    struct fsdp_device *device;
    bool converts; /* some rank's device has no products in param_dtype (nn_multiplies) */
    const struct model_ops *ops;
    struct model *model;
    struct train_adapter adapter;
    struct train_carried carried; /* until the model is described */
    bool (*stop_requested)(void); /* polled during tokenizing; NULL: never */
    bool stopped;                 /* a stop was requested; the agreed error says so */
    struct train_text text;
    /* Token files of the sources' text, then of the held-out data; NULL: none. */
    char *tokens[CONFIG_MAX_SOURCES + 1];
    struct data_mixture *data, *eval; /* NULL where there is none */
    struct fsdp_schedule schedule;
    struct binding binding;
    struct train_cores cores;
    int threads;
    /* NULL-terminated, or NULL */
    const char **wrap_classes, **wrap_modules, **checkpoint_modules, **frozen, **ignored;
    char optimizer[16]; /* word of optim.name */
    struct fsdp_optim_group *groups;
    struct fsdp_optim_opts optim; /* as the engine has them; name and groups are those above */
    struct fsdp_unit_override *overrides; /* [noverrides] */
    char **override_texts;                /* what their patterns point into */
    int noverrides;
    struct fsdp_mesh *mesh;
    struct fsdp_module_tree *tree;
    struct fsdp *fsdp;
};

/* Sequences of a row: 2 where rows are pairs. */
static inline int train_parts_row_sequences(const struct train_parts *p)
{
    return p->config->train.objective == CONFIG_DPO ? 2 : 1;
}
/* Word of the logits' type: fsdp.output_dtype, or what auto means on the devices of all ranks.
 * Writes to and returns out. Local. */
const char *train_output_dtype(char *out, size_t out_nbytes, const struct train_parts *p);
/* FSDP_EUNSUPPORTED, naming the key, where this build has no store for an address. Local. */
int train_stores_check(const struct config *config, struct fsdp_err *err);
/* Configuration, on all ranks the same. FSDP_EMISMATCH names the first setting and rank that
 * differ. Collective, blocks, ends in one agreed status. */
int train_parts_config(struct train_parts *parts, struct fsdp_oob *oob, const char *path,
                       int noverrides, char *const *overrides, struct fsdp_err *err);
/* Device, model, data, division of the batch. Collective, blocks, agreed. */
int train_parts_local(struct train_parts *parts, struct fsdp_oob *oob,
                      const struct fsdp_node_map *nodes, struct fsdp_err *err);
/* Mesh, module tree, engine. Collective, blocks. */
int train_parts_engine(struct train_parts *parts, struct fsdp_oob *oob,
                       const struct fsdp_node_map *nodes, struct fsdp_err *err);
/* Configuration, model and schedule of a run on the ranks of nodes, without them: no data is
 * opened, no weights are read, no memory is taken. parts->device is a described one, parts->fsdp
 * one of fsdp_plan, with the hash, lists and memory of the run's. On the CPU products take memory
 * by their threads: each node counts as a machine like this one. Local. */
int train_parts_plan(struct train_parts *parts, const char *path, int noverrides,
                     char *const *overrides, const struct fsdp_node_map *nodes,
                     struct fsdp_err *err);
/* Elements that are trained. Local. */
uint64_t train_parts_trained(const struct train_parts *parts);
/* The state of a run that begins here. */
struct train_state train_parts_state(const struct train_parts *parts);
void train_parts_close(struct train_parts *parts);

#endif
