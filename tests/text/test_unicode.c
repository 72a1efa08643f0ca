/* SPDX-License-Identifier: Apache-2.0 */
/* Unicode as tokenizers know it, on small vectors that PyPI's tokenizers 0.23.3 gave. Every code
 * point is compared with tokenizers and tiktoken by tests/interop/unicode.sh, which runs this
 * program with arguments:
 *   class NAME               the class as code points
 *   nfc|nfd|nfkc|nfkd|lower|accents <TEXT   what becomes of the text */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tap.h"
#include "text/unicode/unicode.h"

static int apply(struct unicode_text *out, const char *what, const char *text, size_t nbytes)
{
    static const char *const forms[] = {"nfc", "nfd", "nfkc", "nfkd"};
    struct fsdp_err err = FSDP_ERR_INIT;

    for (int form = UNICODE_NFC; form <= UNICODE_NFKD; form++)
        if (strcmp(what, forms[form]) == 0)
            return unicode_normalize(out, text, nbytes, (enum unicode_form)form, &err);
    if (strcmp(what, "lower") == 0)
        return unicode_lower(out, text, nbytes, &err);
    return unicode_strip_accents(out, text, nbytes, &err);
}

static void check_text(const char *what, const char *text, const char *want)
{
    struct unicode_text out = {0};
    const int rc = apply(&out, what, text, strlen(text));

    if (!ok(!rc && out.nbytes == strlen(want) &&
                memcmp(out.at ? out.at : "", want, out.nbytes) == 0,
            "%s of '%s' is '%s'", what, text, want))
        diag("%.*s", (int)out.nbytes, out.at ? out.at : "");
    unicode_text_free(&out);
}

static void check_forms(void)
{
    check_text("nfc", "e\xcc\x81", "\xc3\xa9");
    check_text("nfd", "\xc3\xa9", "e\xcc\x81");
    check_text("nfc", "plain text", "plain text");
    check_text("nfkc", "\xef\xac\x81", "fi");
    check_text("nfc", "\xef\xac\x81", "\xef\xac\x81");
    check_text("nfd", "\xea\xb0\x81", "\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8");
    check_text("nfc", "\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81");
    /* Marks change places by their class: cedilla before acute. */
    check_text("nfd", "a\xcc\x81\xcc\xa7", "a\xcc\xa7\xcc\x81");
    /* U+32FF and U+07FD are younger than the original's table: they stay where they are. */
    check_text("nfkc", "\xe3\x8b\xbf", "\xe3\x8b\xbf");
    check_text("nfd", "a\xcc\x81\xdf\xbd", "a\xcc\x81\xdf\xbd");
    check_text("nfc", "", "");
}

static void check_cases(void)
{
    check_text("lower", "\xce\x91\xce\xa3", "\xce\xb1\xcf\x83");
    check_text("lower", "\xce\xa3", "\xcf\x83");
    check_text("lower", "\xce\x91\xce\xa3\xce\x91", "\xce\xb1\xcf\x83\xce\xb1");
    check_text("lower", "\xc4\xb0", "i\xcc\x87");
    check_text("lower", "Hello, W\xc3\x96RLD", "hello, w\xc3\xb6rld");
    check_text("accents", "e\xcc\x81t\xc3\xa9", "et\xc3\xa9");
}

static void check_strip(void)
{
    const char *text = "\xc2\xa0 a b\xe2\x80\x8b\t\n";
    size_t first = 0, end = strlen(text);

    unicode_strip(text, &first, &end, true, false);
    ok(first == 3 && end == strlen(text), "strip left");
    unicode_strip(text, &first, &end, true, true);
    ok(first == 3 && end == 9, "strip: U+200B is no white space");
    first = 0, end = 3;
    unicode_strip(text, &first, &end, true, true);
    ok(first == end, "strip: nothing remains of blanks");
}

static void check_classes(void)
{
    size_t nranges, n = 0;
    const struct unicode_range *ranges = unicode_class("L", 1, &nranges);

    for (size_t i = 0; i < nranges; i++)
        n += ranges[i].last - ranges[i].first + 1;
    ok(n == 141028, "141,028 letters");
    ok(unicode_class("uppercase letter", 16, &nranges) == unicode_class("Lu", 2, &nranges),
       "a class by its long name");
    ok(!unicode_class("Klingon", 7, &nranges) && !nranges, "a class that is not known");
    ok(unicode_is(0xa0, UNICODE_SPACE) && !unicode_is(0x180e, UNICODE_SPACE), "white space");
    ok(unicode_is(0x6f22, UNICODE_HAN) && !unicode_is('a', UNICODE_HAN), "Han");
    ok(unicode_is('+', UNICODE_PUNCTUATION) && !unicode_is(0xd7, UNICODE_PUNCTUATION),
       "punctuation is ASCII's, too");
    ok(unicode_is(0x663, UNICODE_NUMERIC) && unicode_is('_', UNICODE_WORD), "numbers and words");
}

static void check_valid(void)
{
    static const struct {
        const char *text;
        size_t bad;
    } cases[] = {
        {"abcdefgh\xff", 8},     {"\xc0\x80", 0}, {"a\xed\xa0\x80", 1},
        {"\xf4\x90\x80\x80", 0}, {"\xe2\x82", 0}, {"12345678\xc3\xa9\xc3", 10},
        {"\xe0\x80\x80", 0},
    };
    size_t bad;

    ok(unicode_valid("\xf0\x9f\x98\x80 \xc3\xa9", 7, NULL), "valid UTF-8");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bad = 99;
        ok(!unicode_valid(cases[i].text, strlen(cases[i].text), &bad) && bad == cases[i].bad,
           "invalid UTF-8 of case %zu at byte %zu", i, cases[i].bad);
    }
}

/* A mark behind a mark, many times, with falling classes: no quadratic time. */
static void check_many_marks(void)
{
    const size_t nmarks = 400000;
    struct unicode_text text = {0}, out = {0};
    struct fsdp_err err = FSDP_ERR_INIT;
    bool sorted = true;

    for (size_t i = 0; i < nmarks; i++)
        unicode_text_add(&text, i % 2 ? "\xcc\xa7" : "\xcc\x81", 2, &err);
    ok(!unicode_normalize(&out, text.at, text.nbytes, UNICODE_NFC, &err) &&
           out.nbytes == text.nbytes,
       "%zu marks", nmarks);
    for (size_t i = 0; i < out.nbytes; i += 2)
        sorted &= memcmp(out.at + i, i < out.nbytes / 2 ? "\xcc\xa7" : "\xcc\x81", 2) == 0;
    ok(sorted, "are in order");
    unicode_text_free(&text);
    unicode_text_free(&out);
}

/* ---- for tests/interop/unicode.sh ----------------------------------------------------------- */

static int print_class(const char *name)
{
    size_t nranges;
    const struct unicode_range *ranges = unicode_class(name, strlen(name), &nranges);

    for (size_t i = 0; i < nranges; i++)
        printf("%u %u\n", (unsigned)ranges[i].first, (unsigned)ranges[i].last);
    return ranges ? 0 : 1;
}

static int print_text(const char *what)
{
    struct unicode_text in = {0}, out = {0};
    struct fsdp_err err = FSDP_ERR_INIT;
    char buffer[65536];
    size_t n;

    while ((n = fread(buffer, 1, sizeof buffer, stdin)))
        unicode_text_add(&in, buffer, n, &err);
    const int rc = apply(&out, what, in.at, in.nbytes);
    fwrite(out.at, 1, out.nbytes, stdout);
    unicode_text_free(&in);
    unicode_text_free(&out);
    return rc ? 1 : 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "class") == 0)
        return print_class(argv[2]);
    if (argc == 2)
        return print_text(argv[1]);
    check_forms();
    check_cases();
    check_strip();
    check_classes();
    check_valid();
    check_many_marks();
    return tap_done();
}
