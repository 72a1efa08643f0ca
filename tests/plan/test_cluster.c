/* SPDX-License-Identifier: Apache-2.0 */
/* cluster.yaml: what it says, what is wrong with it, how it is changed and written. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fsdp/tunable.h"
#include "plan/cluster/cluster.h"
#include "tap.h"

static char dir[160];

static const char *path_of(const char *name)
{
    static char path[4][240];
    static int turn;

    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[0], "%s/%s", dir, name);
    return path[turn];
}

static void put_bytes(const char *name, const char *text, size_t nbytes)
{
    FILE *f = fopen(path_of(name), "w");
    if (!f || fwrite(text, 1, nbytes, f) != nbytes || fclose(f))
        ok(false, "%s: cannot write", path_of(name));
}

static void put(const char *name, const char *text)
{
    put_bytes(name, text, strlen(text));
}

static char *get(const char *name)
{
    char *text = NULL;
    size_t nbytes;

    return fsdp_file_read(&text, &nbytes, path_of(name), 1 << 20, NULL) ? NULL : text;
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fabs(b);
}

static const char minimal[] = "gpu: h100\nnode: 8\nnetwork: 400Gbx8\n";

static void test_words(void)
{
    struct cluster c, d;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_device_clock device;
    struct fsdp_net_clock net;

    ok(!cluster_words(&c, "h100", "400Gbx8", 8, &err), "words: %s", err.text);
    stock_device(&device, "h100", NULL);
    stock_network(&net, "h100", "400Gbx8", 8, NULL);
    ok(c.clock.device.flops_16 == device.flops_16 && !strcmp(c.clock.device.name, "h100") &&
           c.clock.net.nic_nbytes_per_s == net.nic_nbytes_per_s &&
           c.clock.net.nic_nbytes_per_s == 50e9,
       "the stock clock");
    ok(c.node_ngpus == 8 && c.ngpus == 0 && c.basis == CLUSTER_STOCK && !c.path[0] &&
           !c.price_given && !c.mtbf_given && c.gpu_mtbf_h == 50700 && c.watts == 1050 &&
           c.pue == 1.25 && !strcmp(c.currency, "$"),
       "and what is assumed");
    put("minimal.yaml", minimal);
    ok(!cluster_load(&d, path_of("minimal.yaml"), &err), "three lines: %s", err.text);
    ok(!memcmp(&c.clock, &d.clock, sizeof c.clock) ||
           (c.clock.net.flat_share == d.clock.net.flat_share &&
            c.clock.device.product_share == d.clock.device.product_share),
       "say the same");
    ok(!strcmp(d.path, path_of("minimal.yaml")), "but for the path");
    cluster_close(&d);
    cluster_close(&c);
    cluster_close(&c);
    ok(!cluster_words(&c, "a100", NULL, 4, &err) && !strcmp(c.net, "none"),
       "no network is one node");
    cluster_close(&c);
    ok(!cluster_words(&c, "cpu", NULL, 2, &err) && c.clock.device.serial &&
           near(c.clock.device.memory_nbytes * 2,
                (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE)) &&
           near(c.host_nbytes, c.clock.device.memory_nbytes * 2),
       "cpu is this machine, whose memory ranks share: %s", err.text);
    cluster_close(&c);
}

static void refuse_words(const char *gpu, const char *net, int node, const char *want)
{
    struct cluster c;
    struct fsdp_err err = FSDP_ERR_INIT;
    const int rc = cluster_words(&c, gpu, net, node, &err);

    ok(rc && strstr(err.text, want) && !c.impl, "%s %s %d: %s", gpu, net, node, err.text);
    if (!rc)
        cluster_close(&c);
}

static void test_bad_words(void)
{
    refuse_words("h1000", "400Gbx8", 8,
                 "--gpu: GPU 'h1000' is not known; did you mean h100?; known are a100, ");
    refuse_words("tpu", "400Gbx8", 8, "--gpu: GPU 'tpu' is not known");
    refuse_words("", "400Gbx8", 8, "must be given, such as 'gpu: h100'");
    refuse_words("h100", "400x8", 8, "--net: network '400x8': write the cards of a node");
    refuse_words("h100", "400Gbx0", 8, "the number of cards");
    refuse_words("h100", "400Gbx8", 0, "--node-size: node.gpus: '0' is not allowed");
    refuse_words("h100", "400Gbx8", -8, "a whole number from 1 to 1024");
}

static const char whole[] =
    "# All of it.\n"
    "gpu: {like: h100, name: ours, peak_bf16: 800e12, memory_gib: 64, sms: 100,\n"
    "      watts: 500}\n"
    "node: {gpus: 4, nvlink: 300e9, nics: 2, nic: 25e9, host_gib: 512, nvme: 8e9, nvme_gib: 1000}\n"
    "network:\n"
    "  kind: roce\n"
    "  eta_flat: 0.6\n"
    "  hop_us: 10\n"
    "  tiers: [{nodes: 32, factor: 0.9}, {nodes: 128, factor: 0.5}]\n"
    "gpus: 64\n"
    "reserved_gib: 1.5\n"
    "reliability: {gpu_mtbf_h: 10000, restart_s: 300, requeue_s: 60, storage: 5e9}\n"
    "price_per_gpu_hour: 2.5\n"
    "currency: EUR\n"
    "pue: 1.1\n";

static void test_keys(void)
{
    struct cluster c;
    struct fsdp_err err = FSDP_ERR_INIT;
    char where[300], want[300];
    const double gib = 1024.0 * 1024 * 1024;

    put("whole.yaml", whole);
    ok(!cluster_load(&c, path_of("whole.yaml"), &err), "all sections: %s", err.text);
    const struct fsdp_device_clock *d = &c.clock.device;
    const struct fsdp_net_clock *n = &c.clock.net;
    ok(!strcmp(d->name, "ours") && !strcmp(c.gpu, "h100") && d->flops_16 == 800e12 &&
           d->flops_8 == 1979e12 && d->memory_nbytes == 64 * gib && d->nsms == 100 &&
           d->watts == 500,
       "the GPU: what is given, and the rest of like");
    ok(n->node_nranks == 4 && n->node_nbytes_per_s == 300e9 && near(n->nic_nbytes_per_s, 12.5e9) &&
           c.host_nbytes == 512 * gib && c.nvme_nbytes_per_s == 8e9 &&
           c.nvme_nbytes == 1000 * gib && !c.net[0],
       "the node: two cards of 25 GB/s for four");
    ok(n->flat_share == .6 && n->rail_share == .85 && near(n->net_hop_s, 10e-6), "the network");
    ok(n->ntiers == 2 && n->tiers[1].nodes == 128 && n->tiers[1].factor == .5 &&
           n->tiers[0].factor == .9,
       "its tiers");
    ok(c.ngpus == 64 && d->reserved_nbytes == 1.5 * gib && c.price_given &&
           c.price_per_gpu_hour == 2.5 && !strcmp(c.currency, "EUR") && c.pue == 1.1 &&
           c.watts == 750 && !c.watts_given,
       "and the rest");
    ok(c.mtbf_given && c.gpu_mtbf_h == 10000 && c.restart_given && c.restart_s == 300 &&
           c.requeue_s == 60 && c.storage_nbytes_per_s == 5e9,
       "failures");
    snprintf(want, sizeof want, "%s:4: node.nic", path_of("whole.yaml"));
    ok(!strcmp(cluster_where(where, sizeof where, &c, "node.nic"), want), "%s", where);
    struct stock_fact facts[64];
    const int nfacts = cluster_facts(facts, 64, &c);
    int given = 0, fitted = 0;
    for (int i = 0; i < nfacts; i++) {
        given += facts[i].origin == STOCK_GIVEN;
        fitted += facts[i].origin == STOCK_FITTED;
        if (facts[i].key && !strcmp(facts[i].key, "network.eta_flat"))
            ok(facts[i].origin == STOCK_GIVEN && facts[i].value == .6, "a fact that the file gave");
        if (facts[i].key && !strcmp(facts[i].key, "network.eta_rail"))
            ok(facts[i].origin == STOCK_ASSUMED && facts[i].value == .85,
               "and one that it did not");
    }
    ok(given == 8 && fitted > 1, "%d facts are given, %d fitted", given, fitted);
    cluster_close(&c);
}

static void refuse(const char *text, const char *want)
{
    struct cluster c;
    struct fsdp_err err = FSDP_ERR_INIT;
    char at[300];

    put("bad.yaml", text);
    const int rc = cluster_load(&c, path_of("bad.yaml"), &err);
    snprintf(at, sizeof at, "%s:", path_of("bad.yaml"));
    ok(rc && !strncmp(err.text, at, strlen(at)) && strstr(err.text, want) && !c.impl, "%s",
       rc ? strrchr(err.text, '/') + 1 : "it was taken");
    if (rc && !strstr(err.text, want))
        diag("wanted: %s", want);
    if (!rc)
        cluster_close(&c);
}

static void refuse_with(const char *line, const char *want)
{
    char text[400];

    snprintf(text, sizeof text, "%s%s\n", minimal, line);
    refuse(text, want);
}

static void test_bad_keys(void)
{
    refuse("", "gpu.like: must be given");
    refuse("gpu: h100\nnetwork: none\n", "node.gpus: must be given");
    refuse("gpu: h100\nnode: 8\n", "network.cards: must be given");
    refuse("gpu: {peak_bf16: 900e12}\nnode: 8\nnetwork: none\n", "gpu.like: must be given");
    refuse("gpu: h1000\nnode: 8\nnetwork: none\n", ":1: gpu: GPU 'h1000' is not known");
    refuse("gpu: h100\nnode: 8\nnetwork: fast\n", ":3: network: network 'fast': write the cards");
    refuse("gpu: [h100]\nnode: 8\nnetwork: none\n", ":1: gpu.like: a list is not allowed");
    refuse_with("reliabilty: {storage: 1e9}",
                ":4: unknown section 'reliabilty'; did you mean reliability?");
    refuse_with("price_per_gpu: 3", ":4: unknown section 'price_per_gpu'");
    refuse_with("colour: red", "a cluster has gpu, node, network, gpus");
    refuse("gpu: h100\nnode: {gpu: 8}\nnetwork: none\n",
           ":2: unknown key 'node.gpu'; did you mean node.gpus?");
    refuse("gpu: h100\nnode: 8\nnetwork: {cards: 400Gbx8, eta_flt: 0.5}\n",
           "did you mean network.eta_flat?");
    refuse("gpu: h100\nnode: eight\nnetwork: none\n",
           ":2: node.gpus: 'eight' is not allowed; allowed: a whole number from 1 to 1024");
    refuse("gpu: {like: h100, hbm: -1}\nnode: 8\nnetwork: none\n",
           ":1: gpu.hbm: '-1' is not allowed");
    refuse("gpu: {like: h100, hbm: 3.35}\nnode: 8\nnetwork: none\n",
           "a number from 1000000 to 1e+15");
    refuse("gpu: {like: h100, hbm: nan}\nnode: 8\nnetwork: none\n",
           "gpu.hbm: 'nan' is not allowed");
    refuse_with("price_per_gpu_hour: -2", ":4: price_per_gpu_hour: '-2' is not allowed");
    refuse_with("pue: 0.5", "a number from 1 to 10");
    refuse_with("pue:", ":4: pue: has no value");
    refuse_with("currency: doubloons", ":4: currency: 'doubloons' is longer than 7 bytes");
    refuse_with("gpus: 12", ":4: gpus: 12 GPUs are no whole number of nodes of 8");
    refuse("gpu: h100\nnode: 8\nnetwork: none\ngpus: 64\n", ":4: gpus: 64 GPUs are 8 nodes");
    refuse("gpu: h100\nnode: {gpus: 8, nic: 50e9}\nnetwork: 400Gbx8\n",
           ":2: node.nic: is given, and network.cards");
    refuse_with("gpu: a100", ":4: section gpu was given before, on line 1");
    refuse("gpu: h100\nnode: {gpus: 8, gpus: 4}\nnetwork: none\n",
           ":2: key node.gpus was given before");
    refuse("gpu: h100\nnode: 8\nnetwork: {cards: 400Gbx8, tiers: [{nodes: 32}]}\n",
           "an element has nodes and factor");
    refuse("gpu: h100\nnode: 8\nnetwork: {cards: 400Gbx8, tiers: [{node: 32}]}\n",
           "did you mean network.tiers.nodes?");
    refuse("gpu: h100\nnode: 8\nnetwork: {cards: 400Gbx8, tiers: [32]}\n", "network.tiers: ");
    refuse("gpu: h100\nnode: 8\nnetwork: {cards: 400Gbx8, tiers: 32}\n",
           "network.tiers: '32' is not allowed");
    refuse("gpu: h100\nnode: {gpus: {per: 8}}\nnetwork: none\n", ":2: unknown key 'node.gpus.per'");
    refuse_with("reliability: soon", ":4: reliability: is a section");
    refuse_with("measured: {factors: {product: 0}}",
                ":4: measured.factors.product: '0' is not allowed");
    refuse_with("measured: {factors: {products: 1}}", "did you mean measured.factors.product?");
    refuse_with("measured: {factors: 1}", ":4: ");
    refuse_with("measured: {copy: [[f32, 1024, lots, forward, 1e9]]}",
                ":4: measured.copy: kernels: 'lots' is not allowed; allowed: copy, branch, ");
    refuse_with("measured: {copy: [[f32, 1024, copy, up, 1e9]]}",
                ":4: measured.copy: pass: 'up' is not allowed; allowed: forward or backward");
    refuse_with("measured: {copy: [[1024, 0]]}", ":4: measured.copy: nbytes_per_s: '0'");
    refuse_with("measured: {copy: [[1024, 1, 2]]}",
                ":4: measured.copy: a row of 3 values; it has 5: type nbytes kernels pass "
                "nbytes_per_s; or 2: nbytes nbytes_per_s");
    refuse_with("measured: {jitter: -2}", ":4: measured.jitter: '-2' is not allowed");
    refuse_with("measured: {gem: x.tsv}", "did you mean measured.gemm?");
}

static void test_bad_files(void)
{
    struct cluster c;
    struct fsdp_err err = FSDP_ERR_INIT;
    char *huge = calloc(1, (2 << 20) + 1);

    ok(cluster_load(&c, path_of("absent.yaml"), &err) == FSDP_ENOTFOUND, "%s", err.text);
    ok(cluster_load(&c, dir, &err) && !c.impl, "%s", err.text);
    refuse("gpu: &a h100\nnode: 8\nnetwork: none\n", ":1: anchors");
    refuse("gpu: h100\nnode: *a\nnetwork: none\n", ":2: ");
    refuse("gpu: !!str h100\nnode: 8\nnetwork: none\n", ":1: anchors");
    refuse("gpu: h100\n---\nnode: 8\n", "a second document");
    refuse("- gpu\n- node\n", ":1: not a configuration: expected sections such as 'gpu:'");
    refuse("gpu: h100\nnode: {gpus: 8\n", "not valid YAML");
    refuse("gpu: h100\nnode:\n\tgpus: 8\n", "indent with spaces, not tabs");
    put_bytes("bad.yaml", "gpu: h100\0\nnode: 8\n", 19);
    ok(cluster_load(&c, path_of("bad.yaml"), &err), "%s", err.text);
    memset(huge, '#', 2 << 20);
    put("bad.yaml", huge);
    ok(cluster_load(&c, path_of("bad.yaml"), &err), "%s", err.text);
    free(huge);
    put("bom.yaml", "\xef\xbb\xbfgpu: h100\r\nnode: 8\r\nnetwork: 400Gbx8\r\n");
    ok(!cluster_load(&c, path_of("bom.yaml"), &err) && c.node_ngpus == 8 && !strcmp(c.gpu, "h100"),
       "a byte order mark and CRLF: %s", err.text);
    cluster_close(&c);
    put("comments.yaml", "# nothing\n\ngpu: h100 # here\nnode: 8\nnetwork: none\nreliability:\n");
    ok(!cluster_load(&c, path_of("comments.yaml"), &err),
       "comments, and a section without keys: %s", err.text);
    cluster_close(&c);
}

static void test_set(void)
{
    struct cluster c;
    struct fsdp_err err = FSDP_ERR_INIT;

    put("whole.yaml", whole);
    cluster_load(&c, path_of("whole.yaml"), &err);
    c.clock.ntokens = 4096;
    ok(!cluster_set(&c, "network.eta_flat", "0.7", &err) && c.clock.net.flat_share == .7 &&
           c.clock.ntokens == 4096,
       "one number: %s", err.text);
    ok(cluster_set(&c, "network.eta_flat", "7", &err) &&
           strstr(err.text, "command line: network.eta_flat") && c.clock.net.flat_share == .7,
       "%s", err.text);
    ok(cluster_set(&c, "network.eta_flt", "1", &err) &&
           strstr(err.text, "did you mean network.eta_flat"),
       "%s", err.text);
    ok(cluster_set(&c, "gpus", "62", &err) && c.ngpus == 64, "refused, and as before: %s",
       err.text);
    ok(!cluster_set(&c, "price", "3", &err) && c.price_per_gpu_hour == 3, "a short name");
    ok(!cluster_set(&c, "net", "800Gbx4", &err) && c.clock.net.nic_nbytes_per_s == 100e9 &&
           c.clock.net.flat_share == .57,
       "another network: %s", err.text);
    ok(!cluster_set(&c, "gpu", "b200", &err) && c.clock.device.flops_16 == 2250e12 &&
           c.clock.device.memory_nbytes == 180e9 && c.watts == 1500 &&
           c.clock.net.node_nbytes_per_s == 720e9 && !strcmp(c.clock.device.name, "b200"),
       "another GPU has nothing of the first: %s", err.text);
    ok(!cluster_set(&c, "node.gpus", "8", &err) && c.node_ngpus == 8 &&
           c.clock.net.node_nranks == 8 && c.clock.net.nic_nbytes_per_s == 50e9,
       "twice as many share the cards");
    ok(cluster_set(&c, "gpu", "b2000", &err) && strstr(err.text, "command line: gpu") &&
           !strcmp(c.gpu, "b200"),
       "%s", err.text);
    ok(cluster_set(&c, "measured.gemm", "x.tsv", &err) && strstr(err.text, "--cluster"), "%s",
       err.text);
    cluster_close(&c);
}

static const char tables[] =
    "gpu: h100\nnode: 8\nnetwork: 400Gbx8\n"
    "measured:\n"
    "  gemm: gemm.tsv\n"
    "  sdpa:\n"
    "    - [bf16, 4096, 128, forward, 5e14]\n"
    "    - [bf16, 4096, 128, backward, 4e14]\n"
    "  copy: [[1048576, 1e12], [1073741824, 3e12]]\n"
    "  nccl: nccl.tsv\n"
    "  contention: [[8, 0.06], [16, 0.12]]\n"
    "  factors: {product: 1.25, memory: 2, flat: 1.5, node: 2, latency: 3}\n"
    "# The last word.\n"
    "pue: 1.2\n";

static void put_tables(void)
{
    put("gemm.tsv", "type\tm\tn\tk\tflops_per_s\n# a comment\n\nbf16\t8192\t4096\t4096\t6e14\n"
                    "f8_e4m3 8192 4096 4096 1e15 # another\r\n");
    put("nccl.tsv", "all_gather 8 1 1e9 0.004\nreduce_scatter 64 8 1e9 0.01\n");
    put("tables.yaml", tables);
}

static void test_measured(void)
{
    struct cluster c;
    struct fsdp_err err = FSDP_ERR_INIT;

    put_tables();
    ok(!cluster_load(&c, path_of("tables.yaml"), &err), "measured: %s", err.text);
    const struct fsdp_device_clock *d = &c.clock.device;
    const struct fsdp_net_clock *n = &c.clock.net;
    ok(c.basis == CLUSTER_MEASURED && d->products.nrates == 2 && d->attention.nrates == 2 &&
           d->copies.nrates == 2 && n->nmeasured == 2,
       "all tables");
    ok(d->products.rate[0].m == 8192 && d->products.rate[0].k == 4096 &&
           near(d->products.rate[0].per_s, 6e14 / 1.25) && near(d->products.rate[1].per_s, 1e15),
       "products, with the factor of their type");
    ok(d->attention.rate[1].m == 4096 && d->attention.rate[1].n == 128 &&
           d->attention.rate[1].k == 2,
       "attention");
    ok(d->copies.rate[1].type == FSDP_F32 && near(d->copies.rate[1].per_s, 1.5e12), "copies");
    /* 7/8 and 63/64 of the bytes at 361 GB/s of a node, and at the flat share of 400 GB/s; the rest
     * is latency. */
    const double flat = 4e11 * 1.5 * n->flat_share * pow(2, n->flat_fall);
    const double carried[] = {7. / 8 / 361, 63. / 64 * 1e9 / flat};
    ok(n->measured[0].kind == FSDP_ALL_GATHER &&
           near(n->measured[0].seconds, 2 * carried[0] + 3 * (.004 - carried[0])) &&
           near(n->measured[1].seconds, 1.5 * carried[1] + 3 * (.01 - carried[1])) &&
           n->measured[1].nnodes == 8,
       "collectives, with factors by where they go, and of latency");
    ok(near(n->contention, .12), "the most thread blocks");
    ok(near(d->product_share, .692 / 1.25) && near(d->memory_share, .92 / 2) &&
           near(n->flat_share, .57 / 1.5) && near(n->net_hop_s, 42e-6) &&
           near(n->start_s, 25.2e-6) && near(n->node_nbytes_per_s, 361e9 / 2),
       "constants, too");
    const struct fsdp_work work = {
        .kind = FSDP_WORK_PRODUCT, .times = 1, .m = 8192, .n = 4096, .k = 4096, .type = FSDP_BF16};
    ok(near(fsdp_work_seconds(d, &work), 2.0 * 8192 * 4096 * 4096 / 6e14 * 1.25),
       "a product takes it");
    ok(!cluster_set(&c, "network.ctas", "12", &err) && near(c.clock.net.contention, .09),
       "between pairs");
    ok(!cluster_set(&c, "network.ctas", "4", &err) && near(c.clock.net.contention, .06),
       "before them");
    ok(!cluster_set_factor(&c, CLUSTER_PRODUCT, 1, &err) &&
           near(c.clock.device.product_share, .692) &&
           near(c.clock.device.products.rate[0].per_s, 6e14),
       "a factor takes the place of the last");
    ok(cluster_set_factor(&c, CLUSTER_PRODUCT, 0, &err) && strstr(err.text, "factor product is 0"),
       "%s", err.text);
    ok(!cluster_set(&c, "gpu", "a100", &err) && !c.clock.device.products.nrates &&
           near(c.clock.device.product_share, .821) && c.clock.net.nmeasured == 2,
       "another GPU has none of its tables: %s", err.text);
    ok(!cluster_set(&c, "net", "200Gbx8", &err) && !c.clock.net.nmeasured &&
           c.basis == CLUSTER_STOCK,
       "nor another network");
    cluster_close(&c);
    put("factor.yaml",
        "gpu: h100\nnode: 8\nnetwork: none\nmeasured: {factors: {attention: 0.9}}\n");
    ok(!cluster_load(&c, path_of("factor.yaml"), &err) && c.basis == CLUSTER_CALIBRATED,
       "factors alone");
    cluster_close(&c);
}

static void refuse_table(const char *gemm, const char *want)
{
    struct cluster c;
    struct fsdp_err err = FSDP_ERR_INIT;

    put_tables();
    put("gemm.tsv", gemm);
    const int rc = cluster_load(&c, path_of("tables.yaml"), &err);
    ok(rc && strstr(err.text, "tables.yaml:5: measured.gemm: ") && strstr(err.text, want) &&
           !c.impl,
       "%s", rc ? strstr(err.text, "tables") : "it was taken");
    if (!rc)
        cluster_close(&c);
}

static void test_bad_tables(void)
{
    refuse_table("bf16 1 2 3\n",
                 "gemm.tsv:1: measured.gemm: a row of 4 values; it has 5: type m n k flops_per_s");
    refuse_table("type m n flops_per_s\n",
                 "gemm.tsv:1: the columns of measured.gemm are type m n k");
    refuse_table("bf17 1 2 3 4\n", "gemm.tsv:1: measured.gemm: type: 'bf17' is not allowed");
    refuse_table("i32 1 2 3 4\n", "type: 'i32' is not allowed");
    refuse_table("\nbf16 1 2 x 4\n",
                 "gemm.tsv:2: measured.gemm: k: 'x' is not allowed; allowed: a number above 0");
    refuse_table("bf16 1 2 3 -4\n", "flops_per_s: '-4' is not allowed");
    refuse_table("bf16 1 2 3 inf\n", "flops_per_s: 'inf' is not allowed");
    refuse_table("bf16 1 2 3 nan\n", "flops_per_s: 'nan' is not allowed");
    refuse_table("", "it has no rows");
    refuse_table("# none\n", "it has no rows");
    unlink(path_of("gemm.tsv"));
    struct cluster c;
    struct fsdp_err err = FSDP_ERR_INIT;
    ok(cluster_load(&c, path_of("tables.yaml"), &err) &&
           strstr(err.text, "tables.yaml:5: measured.gemm"),
       "%s", err.text);
    refuse_with("measured: {gemm: [bf16, 1, 2, 3, 4]}",
                ":4: measured.gemm: allowed: the path of a TSV file");
    refuse_with("measured: {gemm: [[bf16, 1, 2, 3]]}", ":4: measured.gemm: a row of 4 values");
    refuse_with("measured: {collectives: [[gather, 8, 1, 1e6, 1e-3]]}",
                "all_gather, reduce_scatter or all_reduce");
    refuse_with("measured: {collectives: [[all_gather, 8, 9, 1e6, 1e-3]]}",
                "at most as many nodes as ranks");
    refuse_with("measured: {collectives: [[all_gather, 8.5, 1, 1e6, 1e-3]]}", "a whole number");
    refuse_with("measured: {contention: [[8]]}", "measured.contention: 1 values given");
    refuse_with("measured: {contention: [[16, 0.1], [8, 0.2]]}",
                "in the order of their first numbers");
    refuse_with("measured: {contention: [8, 0.2]}", "measured.contention: a list is not allowed");
    refuse_with("measured: {sdpa: [[bf16, 1, 2, both, 4]]}", "forward or backward");
    refuse_with("node: [[1]]", ":4: ");
    refuse_with("measured: {sdpa: [[[1]]]}", "is not a plain value");
}

static bool same_clock(const struct cluster *a, const struct cluster *b)
{
    const struct fsdp_device_clock *x = &a->clock.device, *y = &b->clock.device;
    bool same =
        near(x->product_share, y->product_share) && near(x->memory_share, y->memory_share) &&
        near(x->flops_16, y->flops_16) && near(x->memory_nbytes, y->memory_nbytes) &&
        near(a->clock.net.flat_share, b->clock.net.flat_share) &&
        near(a->clock.net.nic_nbytes_per_s, b->clock.net.nic_nbytes_per_s) &&
        near(a->clock.net.contention, b->clock.net.contention) &&
        x->products.nrates == y->products.nrates && x->attention.nrates == y->attention.nrates &&
        x->copies.nrates == y->copies.nrates && a->clock.net.nmeasured == b->clock.net.nmeasured;
    for (int i = 0; same && i < x->products.nrates; i++)
        same = near(x->products.rate[i].per_s, y->products.rate[i].per_s) &&
               x->products.rate[i].type == y->products.rate[i].type;
    for (int i = 0; same && i < a->clock.net.nmeasured; i++)
        same = near(a->clock.net.measured[i].seconds, b->clock.net.measured[i].seconds);
    for (int i = 0; same && i < CLUSTER_NFACTORS; i++)
        same = near(a->factor[i], b->factor[i]);
    return same;
}

static void test_write(void)
{
    struct cluster c, d;
    struct fsdp_err err = FSDP_ERR_INIT;
    char *text;

    put_tables();
    cluster_load(&c, path_of("tables.yaml"), &err);
    ok(!cluster_write(&c, path_of("again.yaml"), &err) &&
           !cluster_load(&d, path_of("again.yaml"), &err) && same_clock(&c, &d),
       "written and read again: %s", err.text);
    text = get("again.yaml");
    ok(text && strstr(text, "gemm: gemm.tsv\n") && strstr(text, "# The last word.\npue: 1.2\n"),
       "next to it the paths are the same, and the rest of the text, too");
    fsdp_free(text);
    cluster_close(&d);
    mkdir(path_of("else"), 0777);
    ok(!cluster_write(&c, path_of("else/where.yaml"), &err) &&
           !cluster_load(&d, path_of("else/where.yaml"), &err) && same_clock(&c, &d),
       "elsewhere they are whole: %s", err.text);
    cluster_close(&d);
    cluster_close(&c);

    put("minimal.yaml", "# Ours.\ngpu: h100 # a comment\nnode: 8\nnetwork: 400Gbx8");
    cluster_load(&c, path_of("minimal.yaml"), &err);
    cluster_set_factor(&c, CLUSTER_CONTENTION, .5, &err);
    cluster_set_factor(&c, CLUSTER_PRODUCT, 1.1, &err);
    ok(!cluster_write(&c, path_of("minimal.yaml"), &err), "in its own place: %s", err.text);
    text = get("minimal.yaml");
    ok(text &&
           !strcmp(text, "# Ours.\ngpu: h100 # a comment\nnode: 8\nnetwork: 400Gbx8\nmeasured:\n"
                         "  factors: # measured time / modelled time\n    product: 1.1\n"
                         "    contention: 0.5\n"),
       "the section is added");
    fsdp_free(text);
    ok(!cluster_load(&d, path_of("minimal.yaml"), &err) && same_clock(&c, &d) &&
           d.basis == CLUSTER_CALIBRATED,
       "and read: %s", err.text);
    cluster_set_factor(&d, CLUSTER_CONTENTION, 1, &err);
    cluster_set_factor(&d, CLUSTER_PRODUCT, 1, &err);
    cluster_write(&d, path_of("minimal.yaml"), &err);
    text = get("minimal.yaml");
    ok(text && !strcmp(text, "# Ours.\ngpu: h100 # a comment\nnode: 8\nnetwork: 400Gbx8\n"),
       "factors of 1 are none");
    fsdp_free(text);
    cluster_close(&d);
    cluster_close(&c);

    put("flow.yaml", "{gpu: h100, node: 8, network: none}\n");
    cluster_load(&c, path_of("flow.yaml"), &err);
    cluster_set_factor(&c, CLUSTER_PRODUCT, 1.1, &err);
    ok(cluster_write(&c, path_of("flow.yaml"), &err) && strstr(err.text, "write one key a line"),
       "%s", err.text);
    text = get("flow.yaml");
    ok(text && !strcmp(text, "{gpu: h100, node: 8, network: none}\n") &&
           access(path_of("flow.yaml.part"), F_OK),
       "which stays as it was");
    fsdp_free(text);
    cluster_close(&c);
    cluster_words(&c, "h100", "none", 8, &err);
    ok(cluster_write(&c, path_of("absent/x.yaml"), &err), "%s", err.text);
    cluster_close(&c);
}

/* A key that is changed changes the clock, or is refused where a table has taken its place. */
static void check_what_ifs(struct cluster *c)
{
    struct fsdp_err err = FSDP_ERR_INIT;

    ok(!cluster_set(c, "node.host_memory", "1e9", &err) &&
           c->clock.net.host_memory_nbytes_per_s == 1e9 &&
           !cluster_set(c, "gpu.pcie", "2e9", &err) && c->clock.net.host_nbytes_per_s == 2e9 &&
           !cluster_set(c, "network.contention", "0.5", &err) && c->clock.net.contention == .5 &&
           !cluster_set(c, "network.jitter", "0.25", &err) && c->clock.net.jitter == .25 &&
           !cluster_set(c, "gpu.step_ms", "3", &err) && near(c->clock.device.step_s, 3e-3),
       "a number of the command line takes the place of a measured one: %s", err.text);
    ok(cluster_set(c, "gpu.product_share", "0.1", &err) == FSDP_EINVAL &&
           strstr(err.text, "measured.gemm") && strstr(err.text, "measured.factors.product"),
       "that of a table is refused: %s", err.text);
    ok(cluster_set(c, "gpu.hbm", "1e12", &err) && strstr(err.text, "measured.copy"), "%s",
       err.text);
    ok(!cluster_set(c, "gpu.peak_fp8", "1e15", &err), "unless it has no rows of that type: %s",
       err.text);
    ok(!cluster_set(c, "gpu", "h100", &err) && !cluster_set(c, "gpu.hbm", "1e12", &err),
       "or another GPU is asked for: %s", err.text);
}

/* As --measure does. */
static void test_measure(void)
{
    struct cluster c, d;
    struct fsdp_err err = FSDP_ERR_INIT;
    const struct fsdp_rate products[] = {{FSDP_BF16, 1024, 512, 256, 1e12},
                                         {FSDP_F32, 64, 64, 64, 5e11}};
    const struct fsdp_rate attention[] = {{FSDP_BF16, 512, 64, 2, 3e11}};
    const struct fsdp_rate copies[] = {{FSDP_BF16, 4096, FSDP_PASS_LOSS, 2, 5e9},
                                       {FSDP_F32, 1e6, FSDP_PASS_COPY, 1, 9e9}};
    const struct fsdp_collective_time times[] = {{FSDP_ALL_REDUCE, 4, 1, 1e6, 1e-3}};

    cluster_words(&c, "cpu", NULL, 4, &err);
    ok(!cluster_set_rates(&c, CLUSTER_GEMM, "products.tsv", products, 2, &err) &&
           !cluster_set_rates(&c, CLUSTER_SDPA, NULL, attention, 1, &err) &&
           !cluster_set_rates(&c, CLUSTER_COPY, NULL, copies, 2, &err) &&
           !cluster_set_collectives(&c, NULL, times, 1, &err) &&
           !cluster_set_number(&c, CLUSTER_MEASURED_JITTER, .05, &err) &&
           !cluster_set_number(&c, CLUSTER_MEASURED_STEP_MS, .5, &err) &&
           !cluster_set_number(&c, CLUSTER_MEASURED_HOST, 7e9, &err) &&
           !cluster_set_number(&c, CLUSTER_MEASURED_HOST_MEMORY, 3e10, &err) &&
           !cluster_set_number(&c, CLUSTER_MEASURED_SCATTER, .08, &err) &&
           !cluster_set_number(&c, CLUSTER_MEASURED_CONTENTION, .2, &err),
       "tables that were measured: %s", err.text);
    ok(c.basis == CLUSTER_MEASURED && c.clock.device.products.nrates == 2 &&
           c.clock.net.contention == .2 && c.clock.net.jitter == .05 && c.scatter == .08 &&
           near(c.clock.device.step_s, 5e-4) && c.clock.net.host_nbytes_per_s == 7e9 &&
           c.clock.net.host_memory_nbytes_per_s == 3e10,
       "are in the clock");
    ok(near(fsdp_pass_seconds(&c.clock.device, FSDP_PASS_LOSS, true, FSDP_BF16, 1e6), 1e6 / 5e9) &&
           near(fsdp_pass_seconds(&c.clock.device, FSDP_PASS_LOSS, false, FSDP_F32, 1e6),
                1e6 / 5e9),
       "kernels by what they do");
    ok(!cluster_write_table(&c, CLUSTER_GEMM, path_of("products.tsv"), &err) &&
           !cluster_write(&c, path_of("cpu.yaml"), &err),
       "written: %s", err.text);
    ok(!cluster_load(&d, path_of("cpu.yaml"), &err) && same_clock(&c, &d) && d.node_ngpus == 4 &&
           !strcmp(d.gpu, "cpu") && d.clock.device.copies.nrates == 2 && d.scatter == .08 &&
           d.clock.device.copies.rate[0].n == copies[d.clock.device.copies.rate[0].k > 1 ? 0 : 1].n,
       "and read: %s", err.text);
    check_what_ifs(&d);
    cluster_close(&d);
    cluster_close(&c);
    cluster_words(&c, "cpu", NULL, 4, &err);
    ok(cluster_write_table(&c, CLUSTER_COPY, path_of("copy.tsv"), &err), "%s", err.text);
    cluster_close(&c);
}

/* Every allocation fails once, and nothing is lost or left. */
static void test_memory(void)
{
    struct cluster c;
    struct fsdp_err err = FSDP_ERR_INIT;
    int nfailures = 0, rc = -1;

    put_tables();
    for (uint64_t nth = 1; rc && nth < 1000; nth++) {
        fsdp_alloc_fail_at(nth);
        rc = cluster_load(&c, path_of("tables.yaml"), &err);
        fsdp_alloc_fail_at(0);
        if (rc && (rc != FSDP_ENOMEM || c.impl))
            ok(false, "allocation %d: %d, %s", (int)nth, rc, err.text);
        nfailures += rc != 0;
    }
    ok(!rc && nfailures > 20, "%d allocations fail", nfailures);
    cluster_close(&c);
}

static void test_examples(void)
{
    static const char *const names[] = {"h100", "a100", "h200", "b200", "cpu"};
    struct cluster c;
    struct fsdp_err err = FSDP_ERR_INIT;
    char path[300];

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/examples/clusters/%s.yaml",
                 getenv("TOP") ? getenv("TOP") : ".", names[i]);
        const int rc = cluster_load(&c, path, &err);
        ok(!rc && !strcmp(c.gpu, names[i]) && c.basis == CLUSTER_STOCK,
           "examples/clusters/%s.yaml %s", names[i], rc ? err.text : "");
        if (!rc)
            cluster_close(&c);
    }
}

int main(void)
{
    snprintf(dir, sizeof dir, "%s/cluster-XXXXXX",
             getenv("TEST_TMP") ? getenv("TEST_TMP") : "/tmp");
    if (!mkdtemp(dir))
        return 1;
    test_words();
    test_bad_words();
    test_keys();
    test_bad_keys();
    test_bad_files();
    test_set();
    test_measured();
    test_bad_tables();
    test_write();
    test_measure();
    test_memory();
    test_examples();
    return tap_done();
}
