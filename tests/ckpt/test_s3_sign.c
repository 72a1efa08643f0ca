/* SPDX-License-Identifier: Apache-2.0 */
/* Signatures, against the examples that AWS publishes ("Signature Calculations for the
 * Authorization Header", S3 API reference). */
#include <stdio.h>
#include <string.h>

#include "tap.h"
#if HAVE_CURL
#include "../../ckpt/store/s3/sign.h"
#include "../../ckpt/store/s3/upload.h"

static struct fsdp_err err;

static struct ckpt_s3_sign_args example(const char *method, const char *path, const char *hash)
{
    return (struct ckpt_s3_sign_args){.method = method,
                                      .path = path,
                                      .payload_hash = hash,
                                      .region = "us-east-1",
                                      .service = "s3",
                                      .key_id = "AKIAIOSFODNN7EXAMPLE",
                                      .secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
                                      .time = 1369353600}; /* 20130524T000000Z */
}

/* Ends the value with that signature? */
static bool signs(const struct ckpt_s3_sign_args *args, const char *names, const char *signature)
{
    struct ckpt_text text = {0};
    char want[600];
    snprintf(want, sizeof want,
             "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
             "SignedHeaders=%s, Signature=%s",
             names, signature);
    bool same = !ckpt_s3_sign(&text, args, &err) && !strcmp(text.data, want);
    if (!same)
        diag("%s\n# instead of\n# %s", text.data ? text.data : err.text, want);
    ckpt_text_free(&text);
    return same;
}

#define HOST                                                                                       \
    {                                                                                              \
        "host", "examplebucket.s3.amazonaws.com"                                                   \
    }
#define DATE                                                                                       \
    {                                                                                              \
        "x-amz-date", "20130524T000000Z"                                                           \
    }

static void test_examples(void)
{
    static const char empty[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    char hash[CKPT_S3_HASH_NBYTES];
    struct ckpt_s3_pair get[] = {
        {"x-amz-content-sha256", empty}, DATE, {"range", "bytes=0-9"}, HOST};
    struct ckpt_s3_sign_args args = example("GET", "/test.txt", empty);
    args.headers = get;
    args.nheaders = 4;
    ok(signs(&args, "host;range;x-amz-content-sha256;x-amz-date",
             "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
       "a range of an object");

    ok(!ckpt_s3_sha256(hash, "Welcome to Amazon S3.", 21, &err), "the hash of a body");
    struct ckpt_s3_pair put[] = {HOST,
                                 {"date", "Fri, 24 May 2013 00:00:00 GMT"},
                                 DATE,
                                 {"x-amz-storage-class", "REDUCED_REDUNDANCY"},
                                 {"x-amz-content-sha256", hash}};
    struct ckpt_text path = {0};
    ckpt_s3_encode(&path, "/test$file.text", true);
    args = example("PUT", path.data, hash);
    args.headers = put;
    args.nheaders = 5;
    ok(signs(&args, "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
             "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"),
       "an object, its name encoded");
    ckpt_text_free(&path);

    struct ckpt_s3_pair bare[] = {HOST, {"x-amz-content-sha256", empty}, DATE};
    struct ckpt_s3_pair lifecycle[] = {{"lifecycle", ""}};
    args = example("GET", "/", empty);
    args.headers = bare;
    args.nheaders = 3;
    args.query = lifecycle;
    args.nquery = 1;
    ok(signs(&args, "host;x-amz-content-sha256;x-amz-date",
             "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
       "a query without a value");
    struct ckpt_s3_pair list[] = {{"prefix", "J"}, {"max-keys", "2"}};
    args.query = list;
    args.nquery = 2;
    ok(signs(&args, "host;x-amz-content-sha256;x-amz-date",
             "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
       "a query to be sorted");
    args.secret = "another";
    struct ckpt_text text = {0};
    ok(!ckpt_s3_sign(&text, &args, &err) && !strstr(text.data, "34b48302"),
       "another secret, another signature");
    ckpt_text_free(&text);
}

static void test_encode(void)
{
    struct ckpt_text text = {0};
    struct ckpt_s3_pair query[] = {{"prefix", "a/b c+\xc3\xa4"}, {"delimiter", "/"}};
    ckpt_s3_query(&text, query, 2);
    ok(text.data && !strcmp(text.data, "delimiter=%2F&prefix=a%2Fb%20c%2B%C3%A4"), "a query: %s",
       text.data);
    ckpt_text_free(&text);
    ckpt_s3_encode(&text, "a/b=c&d%~", true);
    ok(text.data && !strcmp(text.data, "a/b%3Dc%26d%25~"), "a path: %s", text.data);
    ckpt_text_free(&text);
}

/* Every byte lies in one part, of at least the least size, and no object needs too many. */
static void test_parts(void)
{
    uint64_t begin, nbytes, end = 0, first = 16 << 20;
    bool good = true;
    uint32_t number = 0;
    for (; number < CKPT_S3_MAX_PARTS && good; number++) {
        good = ckpt_s3_part_of(&begin, &nbytes, first, end) == number && begin == end &&
               nbytes >= first &&
               ckpt_s3_part_of(&begin, &nbytes, first, end + nbytes - 1) == number;
        end += nbytes;
    }
    ok(good && end > UINT64_C(1600) << 30, "10,000 parts tile %llu GiB",
       (unsigned long long)(end >> 30));
}

static uint64_t state = 1;

static unsigned draw(unsigned below)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(state >> 33) % below;
}

/* A text of letters and of what must be encoded. */
static char *draw_text(char *out, size_t most, bool slash)
{
    static const char alphabet[] = "abcXYZ019-._~ +%=&@:,$!*'()/";
    size_t nbytes = 1 + draw((unsigned)most);
    for (size_t i = 0; i < nbytes; i++) {
        out[i] = alphabet[draw(sizeof alphabet - 1)];
        if (out[i] == '/' && (!slash || !i || out[i - 1] == '/'))
            out[i] = '_';
    }
    out[nbytes] = 0;
    return out;
}

/* Requests drawn at random and our signatures, a line each, for another program to compare:
 * method, path, query, headers, time, Authorization. */
static int print_requests(void)
{
    static const char *const methods[] = {"GET", "PUT", "HEAD", "POST", "DELETE"};
    for (int i = 0; i < 300; i++) {
        char texts[8][40], hash[CKPT_S3_HASH_NBYTES], date[17];
        struct ckpt_text path = {0}, query = {0}, out = {0};
        struct ckpt_s3_pair pairs[3];
        int nquery = (int)draw(4);
        ckpt_text_add(&path, "/", 1);
        ckpt_s3_encode(&path, draw_text(texts[0], 30, true), true);
        for (int k = 0; k < nquery; k++)
            pairs[k] = (struct ckpt_s3_pair){draw_text(texts[1 + k], 10, true),
                                             k ? draw_text(texts[4 + k], 20, true) : ""};
        ckpt_s3_query(&query, pairs, nquery);
        ckpt_s3_sha256(hash, texts[0], strlen(texts[0]), &err);
        struct ckpt_s3_sign_args args = example(methods[draw(5)], path.data, hash);
        args.time += (time_t)draw(1u << 30);
        ckpt_s3_date(date, args.time);
        struct ckpt_s3_pair headers[] = {
            {"host", "b.s3.amazonaws.com"}, {"x-amz-content-sha256", hash},
            {"x-amz-date", date},           {"x-amz-meta-a", "  two  blanks "},
            {"x-amz-meta-a-b", "x"},        {"range", "bytes=1-2"}};
        args.headers = headers;
        args.nheaders = 3 + (int)draw(4);
        args.query = pairs;
        args.nquery = nquery;
        if (ckpt_s3_sign(&out, &args, &err))
            return 1;
        printf("%s\t%s\t%s\t", args.method, path.data, query.data ? query.data : "");
        for (int k = 0; k < args.nheaders; k++)
            printf("%s%s=%s", k ? ";" : "", headers[k].name, headers[k].value);
        printf("\t%lld\t%s\n", (long long)args.time, out.data);
        ckpt_text_free(&path);
        ckpt_text_free(&query);
        ckpt_text_free(&out);
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "sign"))
        return print_requests();
    test_examples();
    test_encode();
    test_parts();
    return tap_done();
}
#else
int main(void)
{
    tap_skip("this build has no libcurl");
    return tap_done();
}
#endif
