/* SPDX-License-Identifier: Apache-2.0 */
/* What is put before and behind an error's text, and where its reason is then. */
#include "tap.h"

#include <errno.h>
#include <string.h>

#include "fsdp/base.h"

static bool reason_is(const struct fsdp_err *err, const char *expected)
{
    char out[FSDP_ERR_TEXT_NBYTES];
    const bool good = !strcmp(fsdp_err_reason(out, err), expected);

    if (!good)
        diag("the reason is '%s', of '%s'", out, err->text);
    return good;
}

int main(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;

    fsdp_err_set(&err, FSDP_ENOSPC, "no space on %s", "n1");
    ok(reason_is(&err, "no space on n1"), "a plain error is its own reason");
    ok(fsdp_err_prefix(&err, FSDP_ENOSPC, "run.yaml:%d: ", 7) == FSDP_ENOSPC &&
           reason_is(&err, "run.yaml:7: no space on n1"),
       "the place belongs to it");
    fsdp_err_hint(&err, FSDP_ENOSPC, " (delete something)");
    ok(!strcmp(err.text, "run.yaml:7: no space on n1 (delete something)") &&
           reason_is(&err, "run.yaml:7: no space on n1"),
       "the hint does not: %s", err.text);
    fsdp_err_relay(&err, FSDP_EPEER, "rank 2 aborted: ");
    fsdp_err_prefix(&err, FSDP_EPEER, "comm gather: ");
    fsdp_err_hint(&err, FSDP_EPEER, ", says rank 3");
    ok(!strcmp(err.text, "comm gather: rank 2 aborted: run.yaml:7: no space on n1 (delete "
                         "something), says rank 3") &&
           reason_is(&err, "run.yaml:7: no space on n1"),
       "nor who passed it on: %s", err.text);
    fsdp_err_set(&err, FSDP_EIO, "x");
    ok(reason_is(&err, "x") && !fsdp_err_prefix(&err, FSDP_OK, "y") && reason_is(&err, "x"),
       "a new error begins anew; success changes nothing");

    char most[FSDP_ERR_TEXT_NBYTES];
    memset(most, 'a', sizeof most - 1);
    most[sizeof most - 1] = 0;
    fsdp_err_set(&err, FSDP_EIO, "%s", most);
    fsdp_err_relay(&err, FSDP_EIO, "before\n: ");
    fsdp_err_hint(&err, FSDP_EIO, " behind");
    ok(strlen(err.text) == sizeof most - 1 && !strncmp(err.text, "before?: aaa", 12) &&
           reason_is(&err, most + 9),
       "a text that does not fit is cut at its end, and stays printable");
    fsdp_err_prefix(&err, FSDP_EIO, "%s", most);
    ok(strlen(err.text) == sizeof most - 1 && reason_is(&err, ""), "even where nothing is left");

    fsdp_err_set(&err, FSDP_EIO, "disk full");
    fsdp_err_of_rank(&err, FSDP_EIO, 3);
    ok(err.of_other && err.rank == 3 && err.culprit == 3 && !strcmp(err.text, "rank 3: disk full"),
       "another rank's failure: %s", err.text);
    ok(fsdp_err_prefix(NULL, FSDP_EIO, "x") == FSDP_EIO, "nobody need want the error");

    ok(fsdp_err_set_blame(&err, FSDP_EINVAL, "betas", "beta%d is %g", 2, 1.5) == FSDP_EINVAL &&
           !strcmp(err.setting, "betas") && reason_is(&err, "beta2 is 1.5"),
       "an error and the setting at fault: %s", err.setting);
    fsdp_err_blame(&err, FSDP_EINVAL, "groups");
    ok(!strcmp(err.setting, "betas"), "the first that is named stays: %s", err.setting);
    ok(fsdp_err_set_blame(&err, FSDP_EUNSUPPORTED, "groups", "none") == FSDP_EUNSUPPORTED &&
           !strcmp(err.setting, "groups"),
       "until there is a new error: %s", err.setting);
    ok(fsdp_err_set_blame(NULL, FSDP_EINVAL, "betas", "x") == FSDP_EINVAL, "or nobody wants it");
    fsdp_err_sys(&err, ENOENT, "cannot open %s", "a\nb");
    ok(err.status == FSDP_ENOTFOUND &&
           reason_is(&err, "cannot open a?b: No such file or directory"),
       "an errno: %s", err.text);
    return tap_done();
}
