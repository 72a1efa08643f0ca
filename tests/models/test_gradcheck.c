/* SPDX-License-Identifier: Apache-2.0 */
/* The gradient check passes a right backward pass and names the parameter of a wrong one. */
#include <math.h>
#include <string.h>

#include "check/gradcheck.h"
#include "tap.h"

enum { NELEM = 200 };

enum fault {
    NONE,
    SCALED,      /* one per cent too large */
    ONE_MISSING, /* an element's gradient is not written */
    ADDED,       /* to whatever the memory holds */
    NOT_FINITE
};

/* loss = sum of i cos(w[i]) / NELEM; `flat` is a parameter that the loss does not depend on,
 * and whose gradient nobody writes. */
struct toy {
    int root, w, flat;
    enum fault fault;
};

struct call {
    const float *w;
    float *dw, beta;
    double *loss;
    enum fault fault;
};

static int forward(void *arg, struct fsdp_err *err)
{
    const struct call *a = arg;
    (void)err;
    for (int i = 0; i < NELEM; i++)
        *a->loss += (double)(float)(i * cos(a->w[i]) / NELEM);
    return FSDP_OK;
}

static int backward(void *arg, struct fsdp_err *err)
{
    const struct call *a = arg;
    (void)err;
    for (int i = 0; i < NELEM; i++) {
        double g = -i * sin(a->w[i]) / NELEM;
        g *= a->fault == SCALED ? 1.01 : 1;
        g = a->fault == ONE_MISSING && i == NELEM - 2 ? 0 : g;
        g = a->fault == NOT_FINITE && i == 7 ? NAN : g;
        a->dw[i] = (float)g + (a->beta != 0.0f ? a->dw[i] : 0);
    }
    return FSDP_OK;
}

static int pass(void *ctx, struct fsdp *f, bool train, double *loss, struct fsdp_err *err)
{
    const struct toy *toy = ctx;
    struct fsdp_view view;

    FSDP_TRY(fsdp_module_enter(f, toy->root, FSDP_FORWARD, &view, err));
    struct call call = {.w = view.param[toy->w], .loss = loss, .fault = toy->fault};
    FSDP_TRY(fsdp_lane_call(view.lane, forward, &call, sizeof call, err));
    FSDP_TRY(fsdp_module_leave(f, toy->root, FSDP_FORWARD, err));
    if (!train)
        return FSDP_OK;
    FSDP_TRY(fsdp_module_enter(f, toy->root, FSDP_BACKWARD, &view, err));
    call.w = view.param[toy->w];
    call.dw = view.grad[toy->w];
    call.beta = fsdp_view_grad_beta(&view, toy->w);
    call.beta = toy->fault == ADDED ? 1 : call.beta;
    FSDP_TRY(fsdp_lane_call(view.lane, backward, &call, sizeof call, err));
    return fsdp_module_leave(f, toy->root, FSDP_BACKWARD, err);
}

static struct fsdp_err err = FSDP_ERR_INIT;

static void test_faults(struct fsdp *f, const struct fsdp_module_tree *tree, struct toy *toy)
{
    static const char *const names[] = {"right", "scaled", "one element missing",
                                        "added to old values", "not finite"};
    struct gradcheck_row rows[2];

    for (toy->fault = NONE; toy->fault <= NOT_FINITE; toy->fault++) {
        int rc = gradcheck_run(rows, f, tree, 40, 1, pass, toy, &err);
        bool wrong = !(rows[0].worst < 3e-3);
        ok(rc == FSDP_OK && wrong == (toy->fault != NONE) && !strcmp(rows[0].name, "w"),
           "%s: difference %.1e", names[toy->fault], rows[0].worst);
        ok(!rows[0].below_noise && rows[1].below_noise && rows[1].grad_norm == 0 &&
               rows[1].worst < 3e-3,
           "%s: the other parameter has no gradient", names[toy->fault]);
    }
    toy->fault = NONE;
    ok(gradcheck_run(rows, f, tree, 0, 1, pass, toy, &err) == FSDP_EINVAL, "no directions: %s",
       err.text);
}

int main(void)
{
    static const int node_of[1];
    const struct fsdp_node_map nodes = {.nranks = 1, .nnodes = 1, .node_of = node_of};
    const struct fsdp_mesh_shape one = {.shard_size = 1, .replicate_size = 1};
    const struct fsdp_init zeros = {FSDP_INIT_ZEROS, 0};
    const struct fsdp_opts opts = gradcheck_opts();
    const uint64_t shapes[2] = {NELEM, 3};
    struct toy toy = {.fault = NONE};
    struct fsdp_module_tree *tree;
    struct fsdp_oob *oob;
    struct fsdp_device *device;
    struct fsdp_mesh *mesh;
    struct fsdp *f;

    int rc = fsdp_module_tree_create(&tree, &err);
    rc = rc ? rc : fsdp_module_add(tree, -1, "", "Toy", &toy.root, &err);
    rc = rc ? rc
            : fsdp_module_add_param(tree, 0,
                                    &(struct fsdp_param_desc){
                                        .name = "w", .ndim = 1, .shape = &shapes[0], .init = zeros},
                                    &toy.w, &err);
    rc = rc ? rc
            : fsdp_module_add_param(
                  tree, 0,
                  &(struct fsdp_param_desc){
                      .name = "flat", .ndim = 1, .shape = &shapes[1], .init = zeros},
                  &toy.flat, &err);
    rc = rc ? rc : fsdp_oob_self_create(&oob, &err);
    rc = rc ? rc : fsdp_device_open(&device, "cpu", 0, &err);
    rc = rc ? rc : fsdp_mesh_create(&mesh, one, "auto", 60, &nodes, oob, device, &err);
    rc = rc ? rc : fsdp_create(&f, tree, &opts, device, mesh, &err);
    rc = rc ? rc : fsdp_init_params(f, &err);
    rc = rc ? rc : gradcheck_randomize(f, tree, 3, &err);
    if (!ok(rc == FSDP_OK, "an engine%s%s", rc ? ": " : "", rc ? err.text : ""))
        return tap_done();
    test_faults(f, tree, &toy);
    fsdp_destroy(f);
    fsdp_mesh_destroy(mesh);
    fsdp_device_close(device);
    oob->close(oob);
    fsdp_module_tree_destroy(tree);
    return tap_done();
}
