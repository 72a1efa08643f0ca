/* SPDX-License-Identifier: Apache-2.0 */
#include "activations.h"

int acts_offload(struct fsdp *f, int module, struct fsdp_lane *lane, struct fsdp_err *err)
{
    const struct module_mem *mem = &f->mem.modules[module];
    return fsdp_copy(lane, mem->home, mem->place, mem->place_nbytes, err);
}

int acts_reload(struct fsdp *f, int module, struct fsdp_lane *lane, struct fsdp_err *err)
{
    const struct module_mem *mem = &f->mem.modules[module];
    return fsdp_copy(lane, mem->place, mem->home, mem->place_nbytes, err);
}
