/* SPDX-License-Identifier: Apache-2.0 */
/* A regular expression, a 0 byte, a text; the first byte chooses the engine. Matches go forward,
 * are not empty, lie between characters, and a scan that begins in the middle finds the same ones.
 */
#include "fuzz.h"
#include "text/regex/regex.h"

static bool is_boundary(const char *text, size_t nbytes, size_t at)
{
    return at == nbytes || ((unsigned char)text[at] & 0xc0) != 0x80;
}

static bool is_utf8(const char *text, size_t nbytes)
{
    uint32_t code;
    int n;

    for (const char *at = text, *end = text + nbytes; at < end; at += n)
        if (!(n = fsdp_utf8_decode(&code, at, end)))
            return false;
    return true;
}

static void scan_text(const struct regex *re, const char *text, size_t nbytes)
{
    struct regex_scan *scan = NULL;
    size_t first = 0, end = 0, at = 0;
    int rc;

    if (regex_scan_create(&scan, re, NULL))
        abort();
    while ((rc = regex_next(scan, text, nbytes, at, &first, &end, NULL)) == 1) {
        if (first < at || end <= first || end > nbytes || !is_boundary(text, nbytes, first) ||
            !is_boundary(text, nbytes, end))
            abort();
        at = end;
    }
    if (rc < 0 && rc != FSDP_ENOMEM)
        abort();
    regex_scan_destroy(scan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    const enum regex_engine engine = nbytes && data[0] & 1 ? REGEX_TIKTOKEN : REGEX_TOKENIZERS;
    const char *pattern = (const char *)data + 1, *text = NULL;
    size_t npattern = nbytes ? nbytes - 1 : 0;
    struct regex *re = NULL;

    if (npattern && (text = memchr(pattern, 0, npattern)))
        npattern = (size_t)(text++ - pattern);
    const size_t ntext = text ? nbytes - 2 - npattern : 0;
    if (!regex_create(&re, npattern ? pattern : "", npattern, engine, NULL) && text &&
        is_utf8(text, ntext))
        scan_text(re, text, ntext);
    regex_destroy(re);
    return 0;
}

FUZZ_TARGET("regex")
