/* SPDX-License-Identifier: Apache-2.0 */
/* Which file of certificates a store is checked against, with a libcurl that has its own and one
 * that has not. */
#include <stdlib.h>
#include <string.h>

#include "tap.h"
#if HAVE_CURL
#include "../../ckpt/store/s3/http.h"

static bool is(const char *got, const char *want)
{
    return want ? got && !strcmp(got, want) : !got;
}

int main(void)
{
    const char *const usual[] = {"/no/such/bundle", "/proc/self/status", "/proc/self/stat", NULL};
    const char *const nowhere[] = {"/no/such/bundle", NULL};

    unsetenv("AWS_CA_BUNDLE");
    unsetenv("SSL_CERT_FILE");
    ok(is(ckpt_http_certificates(true, usual), NULL), "libcurl's own certificates count");
    ok(is(ckpt_http_certificates(false, usual), "/proc/self/status"),
       "one without takes the first usual file that is there");
    ok(is(ckpt_http_certificates(false, nowhere), NULL), "or none");
    setenv("SSL_CERT_FILE", "/mine", 1);
    ok(is(ckpt_http_certificates(false, usual), "/mine"), "SSL_CERT_FILE is asked first");
    ok(is(ckpt_http_certificates(true, usual), NULL), "but not by a libcurl that has its own");
    setenv("AWS_CA_BUNDLE", "/store", 1);
    ok(is(ckpt_http_certificates(false, usual), "/store") &&
           is(ckpt_http_certificates(true, usual), "/store"),
       "AWS_CA_BUNDLE goes before all");
    setenv("AWS_CA_BUNDLE", "", 1);
    setenv("SSL_CERT_FILE", "", 1);
    ok(is(ckpt_http_certificates(false, usual), "/proc/self/status"), "empty variables are none");
    return tap_done();
}
#else
int main(void)
{
    tap_skip("this build has no libcurl");
    return tap_done();
}
#endif
