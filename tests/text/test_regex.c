/* SPDX-License-Identifier: Apache-2.0 */
/* Regular expressions of tokenizers, on small vectors that PyPI's tokenizers 0.23.3 and tiktoken
 * 0.14.0 gave. tests/interop/unicode.sh compares real patterns on random text and runs this program
 * with arguments:
 *   ENGINE PATTERN FILE    the matches in the file, as pairs of offsets
 *   time ENGINE PATTERN FILE   megabytes a second */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tap.h"
#include "text/regex/regex.h"
#include "text/unicode/unicode.h"

static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
                           "\\s+(?!\\S)|\\s+";

/* The matches with bars between them. */
static void check_pieces(enum regex_engine engine, const char *pattern, const char *text,
                         const char *want)
{
    struct regex *re = NULL;
    struct regex_scan *scan = NULL;
    struct unicode_text got = {0};
    struct fsdp_err err = FSDP_ERR_INIT;
    size_t first, end = 0;
    int rc = regex_create(&re, pattern, strlen(pattern), engine, &err);

    if (!rc)
        rc = regex_scan_create(&scan, re, &err);
    if (!rc)
        while ((rc = regex_next(scan, text, strlen(text), end, &first, &end, &err)) == 1) {
            if (got.nbytes)
                unicode_text_add(&got, "|", 1, &err);
            unicode_text_add(&got, text + first, end - first, &err);
        }
    unicode_text_add(&got, "", 1, &err); /* its end */
    if (!ok(!rc && strcmp(got.at, want) == 0, "%s", pattern))
        diag("on %s: %s, not %s: %s", text, got.at, want, err.text);
    unicode_text_free(&got);
    regex_scan_destroy(scan);
    regex_destroy(re);
}

static void check_semantics(void)
{
    const enum regex_engine onig = REGEX_TOKENIZERS, fancy = REGEX_TIKTOKEN;

    check_pieces(onig, gpt2, "Hello world's  12 \xc3\xa9t\xc3\xa9!  ",
                 "Hello| world|'s| | 12| \xc3\xa9t\xc3\xa9|!|  ");
    check_pieces(onig, "\\p{N}{1,3}+", "1234567", "1234567");
    check_pieces(fancy, "\\p{N}{1,3}+", "1234567", "123|456|7");
    check_pieces(onig, "\\p{N}{2}+", "12345 6", "1234");
    check_pieces(onig, "\\p{N}{1,3}?", "123", "1|2|3");
    check_pieces(onig, "a{,2}b", "aaab", "aab");
    check_pieces(onig, "a$", "a\na\r\na", "a|a");
    check_pieces(fancy, "a$", "a\na\r\na", "a");
    check_pieces(onig, "[\\p{L}&&[^\\p{Han}]]+",
                 "ab\xe6\xbc\xa2"
                 "cd",
                 "ab|cd");
    check_pieces(fancy, "[a-z&&[^c]d]+", "abcde", "ab|de");
    check_pieces(onig, "(?i:'s|'t)", "'s 'S '\xc5\xbf 'u", "'s|'S|'\xc5\xbf");
    check_pieces(onig, "(?i:[^a-z])", "aZ\xe2\x84\xaa\xc5\xbf\xc3\x9f", "\xc3\x9f");
    check_pieces(onig, "(?i)b|c", "B aC C", "B|C|C");
    check_pieces(onig, "a++b*+c?+", "aabbc ac", "aabbc|ac");
    check_pieces(onig, "[a\\-z]", "a-bz", "a|-|z");
    check_pieces(onig, ".", "\n\r\v", "\r|\v");
    check_pieces(onig, "\\p{^L}", "a1b", "1");
    check_pieces(fancy, "\\pL\\PL", "a1b", "a1");
    check_pieces(onig, "\\x{41}\\u0042", "AB", "AB");
    check_pieces(onig, "(a|ab)(c|bcd)", "abcd", "abcd");
    check_pieces(onig, "(?>a|ab)c", "abc ac", "ac");
    check_pieces(onig, "\\w+|[^\\w\\s]+", "caf\xc3\xa9, ok", "caf\xc3\xa9|,|ok");
    /* Oniguruma's own: a superscript is a \\w, but no [\\w]. */
    check_pieces(onig, "\\w+|[^\\w\\s]+", "?\xc2\xb9? \xc2\xb9", "?\xc2\xb9?|\xc2\xb9");
    check_pieces(onig, "x", "", "");
}

static void check_refused(enum regex_engine engine, const char *pattern, const char *names)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct regex *re = NULL;
    const int rc = regex_create(&re, pattern, strlen(pattern), engine, &err);

    if (!ok(rc == FSDP_EUNSUPPORTED && strstr(err.text, names), "%s is refused: %s", pattern,
            names))
        diag("%d %s", rc, err.text);
    regex_destroy(re);
}

static void check_refusals(void)
{
    const enum regex_engine onig = REGEX_TOKENIZERS, fancy = REGEX_TIKTOKEN;

    check_refused(onig, "[[:space:]]", "POSIX class at byte 1 ");
    check_refused(onig, "a(?<=b)", "lookbehind at byte 1 ");
    check_refused(onig, "a(?<!b)", "lookbehind at byte 1 ");
    check_refused(onig, "(a)\\1", "\\1 at byte 3 ");
    check_refused(onig, "\\bx", "\\b at byte 0 ");
    check_refused(onig, "^a", "^ at byte 0 ");
    check_refused(onig, "a*", "may match nothing");
    check_refused(onig, "(?:a*)*b", "may match nothing at byte 6 ");
    check_refused(onig, "\\p{Klingon}", "not known at byte 0 ");
    check_refused(onig, "\\p{Script=Han}", "property with a value");
    check_refused(onig, "\\p{Word:tiktoken}", "property with a value");
    check_refused(onig, "\\pL", "without braces");
    check_refused(onig, "(?i:ss)", "ligatures");
    check_refused(onig, "(?i:\xc3\xa9)", "caseless character beyond ASCII at byte 4 ");
    check_refused(onig, "(?i:\\p{Lu})", "caseless property at byte 4 ");
    check_refused(onig, "(?s:.)", "group of this kind at byte 0 ");
    check_refused(onig, "a(?i)b", "flags");
    check_refused(onig, "(?<x>a)", "group with a name");
    check_refused(onig, "a{2}?b", "lazy fixed");
    check_refused(onig, "a**b", "quantifier of a quantifier");
    check_refused(onig, "(?=a)+a", "assertion");
    check_refused(onig, "(a", "does not end");
    check_refused(onig, "a)", "closing bracket");
    check_refused(onig, "[a", "does not end");
    check_refused(onig, "[]", "empty class");
    check_refused(onig, "[z-a]", "backwards");
    check_refused(onig, "[a-\\d]", "ends with a class");
    check_refused(fancy, "[a--b]", "range without an end");
    check_refused(fancy, "[\\w~~b]", "operator of classes");
    check_refused(fancy, "\\u{41}", "\\u{");
    check_refused(onig, "\\x80", "byte beyond ASCII");
    check_refused(onig, "a{1001}", "number of times");
}

/* A match of a megabyte, over many windows, and matches behind it. */
static void check_long(const char *pattern, const char *unit, size_t nunits)
{
    struct unicode_text text = {0};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct regex *re = NULL;
    struct regex_scan *scan = NULL;
    size_t first = 1, end = 0;

    for (size_t i = 0; i < nunits; i++)
        unicode_text_add(&text, unit, strlen(unit), &err);
    const size_t nbytes = text.nbytes;
    unicode_text_add(&text, "!x", 2, &err);
    int rc = regex_create(&re, pattern, strlen(pattern), REGEX_TOKENIZERS, &err);
    if (!rc)
        rc = regex_scan_create(&scan, re, &err);
    ok(!rc && regex_next(scan, text.at, text.nbytes, 0, &first, &end, &err) == 1 && !first &&
           end == nbytes,
       "%s takes %zu bytes at once", pattern, nbytes);
    ok(!rc && regex_next(scan, text.at, text.nbytes, end, &first, &end, &err) == 1 &&
           first == nbytes && end == nbytes + 1,
       "then what follows");
    ok(!rc && regex_next(scan, text.at, text.nbytes, nbytes + 1, &first, &end, &err) == 1 &&
           first == nbytes + 1 &&
           regex_next(scan, text.at, text.nbytes, end, &first, &end, &err) == 0,
       "up to the end");
    if (*err.text)
        diag("%s", err.text);
    regex_scan_destroy(scan);
    regex_destroy(re);
    unicode_text_free(&text);
}

/* ---- for tests/interop/unicode.sh ----------------------------------------------------------- */

static double seconds_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int print_matches(const char *engine, const char *pattern, const char *path, bool print)
{
    FILE *file = fopen(path, "rb");
    struct unicode_text text = {0};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct regex *re = NULL;
    struct regex_scan *scan = NULL;
    char buffer[65536];
    size_t n, first, end = 0, nmatches = 0;
    int rc;

    while (file && (n = fread(buffer, 1, sizeof buffer, file)))
        unicode_text_add(&text, buffer, n, &err);
    const double begin = seconds_now();
    rc = regex_create(&re, pattern, strlen(pattern),
                      strcmp(engine, "tiktoken") ? REGEX_TOKENIZERS : REGEX_TIKTOKEN, &err);
    if (!rc)
        rc = regex_scan_create(&scan, re, &err);
    const double loaded = seconds_now();
    if (!rc)
        while ((rc = regex_next(scan, text.at, text.nbytes, end, &first, &end, &err)) == 1) {
            nmatches++;
            if (print)
                printf("%zu %zu\n", first, end);
        }
    if (!print)
        printf("%.1f MB/s, %zu matches, loaded in %.2f ms\n",
               1e-6 * (double)text.nbytes / (seconds_now() - loaded), nmatches,
               1e3 * (loaded - begin));
    if (rc)
        fprintf(stderr, "%s\n", err.text);
    regex_scan_destroy(scan);
    regex_destroy(re);
    unicode_text_free(&text);
    if (file)
        fclose(file);
    return rc ? 1 : 0;
}

int main(int argc, char **argv)
{
    if (argc == 4)
        return print_matches(argv[1], argv[2], argv[3], true);
    if (argc == 5)
        return print_matches(argv[2], argv[3], argv[4], false);
    check_semantics();
    check_refusals();
    check_long(gpt2, "abcdefgh", 131072);
    check_long(gpt2, "\xe6\xbc\xa2", 349526);
    check_long("\\p{N}{1,3}+|.", "7", 1 << 20);
    check_long("(?:[a-c]|d{1,2})+|.", "abcd", 1 << 18);
    return tap_done();
}
