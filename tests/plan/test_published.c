/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "runs.h"
#include "tap.h"

static int predict(const char *file, struct fsdp_err *err)
{
    struct runs runs;
    int rc = runs_open(&runs, file, err);

    if (rc == FSDP_OK)
        rc = runs_predict_all(&runs, err);
    if (rc == FSDP_OK)
        printf("id,predicted\n");
    for (int i = 0; rc == FSDP_OK && i < runs.nrows; i++) {
        printf("%s,", runs.row[i].id);
        if (runs.predicted[i] > 0)
            printf("%.6g", runs.predicted[i]);
        else
            fprintf(stderr, "%s: row %s lacks %s\n", file, runs.row[i].id,
                    runs_lacks(&runs.row[i]));
        printf("\n");
    }
    runs_close(&runs);
    return rc;
}

static int table(const char *file, struct fsdp_err *err)
{
    struct runs runs;
    int rc = runs_open(&runs, file, err);

    if (rc == FSDP_OK)
        rc = runs_predict_all(&runs, err);
    if (rc == FSDP_OK)
        runs_print(&runs, stdout);
    runs_close(&runs);
    return rc;
}

int main(int argc, char **argv)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    int rc = FSDP_OK;

    if (argc == 3 && !strcmp(argv[1], "--table"))
        rc = table(argv[2], &err);
    else if (argc == 2)
        rc = predict(argv[1], &err);
    if (rc) {
        fprintf(stderr, "published: %s\n", err.text);
        return 1;
    }
    return 0;
}
