/* SPDX-License-Identifier: Apache-2.0 */
/* Paths of data: folders, patterns, and the tables that are not read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/source/list.h"
#include "tap.h"

static char dir[] = "/tmp/test_list_XXXXXX";
static struct fsdp_err err = FSDP_ERR_INIT;

static const char *in_dir(const char *name)
{
    static char path[200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void put(const char *name)
{
    FILE *out = fopen(in_dir(name), "w");
    if (!out || fclose(out) != 0)
        abort();
}

/* The files of `path` are `names`, with one blank behind each. */
static void expect(const char *path, const char *only, const char *names)
{
    struct data_list list = {.only = only};
    char got[500] = "";

    err.text[0] = 0;
    if (data_list_add(&list, in_dir(path), &err))
        snprintf(got, sizeof got, "%.*s", (int)sizeof got - 1, err.text);
    for (size_t i = 0; i < list.npaths; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s ",
                 list.paths[i] + strlen(dir) + 1);
    ok(!strcmp(got, names), "%s: %s", path, got);
    data_list_free(&list);
}

static void refuse(const char *path, int status, const char *holds)
{
    struct data_list list = {0};

    err.text[0] = 0;
    ok(data_list_add(&list, in_dir(path), &err) == status && strstr(err.text, path) &&
           strstr(err.text, holds),
       "refused: %s", err.text);
    data_list_free(&list);
}

static void check_patterns(void)
{
    put("b.txt");
    put("a.txt");
    put("c.json");
    put("[x].txt");
    put(".hidden.txt");
    mkdir(in_dir("d"), 0777);
    put("d/z.txt");
    put("d/.hidden.txt");
    mkdir(in_dir("d/deep"), 0777);
    put("d/deep/y.txt");
    mkdir(in_dir("e"), 0777);
    put("e/x.txt");
    expect("*.txt", NULL, "[x].txt a.txt b.txt ");
    expect("[bc].*", NULL, "b.txt c.json ");
    expect("?.txt", NULL, "a.txt b.txt ");
    expect("*/*.txt", NULL, "d/z.txt e/x.txt ");
    expect("[de]", NULL, "d/deep/y.txt d/z.txt e/x.txt ");
    expect("[x].txt", NULL, "[x].txt ");
    expect("*", ".json", "c.json ");
    expect("d", ".txt", "d/deep/y.txt d/z.txt ");
    refuse("*.md", FSDP_EINVAL, "no file matches the pattern");
    refuse("nothere/*.txt", FSDP_ENOTFOUND, "No such file");
    refuse("d/**/*.txt", FSDP_EINVAL, "'**' has no meaning here");
    refuse("nothere", FSDP_ENOTFOUND, "No such file");
    mkdir(in_dir("empty"), 0777);
    refuse("empty", FSDP_EINVAL, "the folder holds no files");
    refuse("empty/*", FSDP_EINVAL, "no file matches the pattern");
}

static void check_tables(void)
{
    put("t.parquet");
    put("t.arrow");
    put("a b.arrow");
    refuse("t.parquet", FSDP_EUNSUPPORTED, "Parquet is not read here");
    refuse("t.parquet", FSDP_EUNSUPPORTED, "/t.parquet > /tmp/");
    refuse("t.arrow", FSDP_EUNSUPPORTED, "pyarrow");
    refuse("a b.arrow", FSDP_EUNSUPPORTED, " FILE > FILE.jsonl");
    refuse("", FSDP_EUNSUPPORTED, "is not read here");
}

static void check_memory(void)
{
    struct data_list list = {0};
    const uint64_t before = fsdp_alloc_count();
    bool all = true;

    if (data_list_add(&list, in_dir("d"), &err))
        abort();
    const uint64_t count = fsdp_alloc_count() - before;
    data_list_free(&list);
    for (uint64_t nth = 1; nth <= count; nth++) {
        fsdp_alloc_fail_at(nth);
        all &= data_list_add(&list, in_dir("d"), &err) == FSDP_ENOMEM;
        data_list_free(&list);
    }
    fsdp_alloc_fail_at(0);
    ok(all && count > 3, "each of %d allocations may fail", (int)count);
}

int main(void)
{
    char command[64];

    if (!mkdtemp(dir))
        return 1;
    check_patterns();
    check_tables();
    check_memory();
    snprintf(command, sizeof command, "rm -rf %s", dir);
    ok(system(command) == 0, "cleaned up");
    return tap_done();
}
