/* SPDX-License-Identifier: Apache-2.0 */
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#include <string.h>

#include "sign.h"

static void hex(char *out, const unsigned char *data, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++)
        snprintf(out + 2 * i, 3, "%02x", data[i]);
}

int ckpt_s3_sha256(char out[CKPT_S3_HASH_NBYTES], const void *data, size_t nbytes,
                   struct fsdp_err *err)
{
    unsigned char digest[32];
    if (!EVP_Digest(data, nbytes, digest, NULL, EVP_sha256(), NULL))
        return fsdp_err_set(err, FSDP_EINTERNAL, "OpenSSL has no SHA-256");
    hex(out, digest, sizeof digest);
    return FSDP_OK;
}

void ckpt_s3_date(char out[17], time_t time)
{
    struct tm tm;
    gmtime_r(&time, &tm);
    strftime(out, 17, "%Y%m%dT%H%M%SZ", &tm);
}

static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";

void ckpt_s3_encode(struct ckpt_text *out, const char *text, bool keep_slash)
{
    for (const char *p = text; *p; p++) {
        if (strchr(plain, *p) || (*p == '/' && keep_slash))
            ckpt_text_add(out, p, 1);
        else
            ckpt_text_printf(out, "%%%02X", (unsigned char)*p);
    }
}

/* The order of encoded texts: the '%' that stands for a sign is less than all that stay. */
static int rank_of(char c)
{
    return !c ? 0 : strchr(plain, c) ? 256 + c : (unsigned char)c;
}

static int compare_texts(const char *x, const char *y)
{
    while (*x && *x == *y)
        x++, y++;
    return rank_of(*x) - rank_of(*y);
}

static int compare_pairs(const void *a, const void *b)
{
    const struct ckpt_s3_pair *x = a, *y = b;
    int order = compare_texts(x->name, y->name);
    return order ? order : compare_texts(x->value, y->value);
}

void ckpt_s3_query(struct ckpt_text *out, struct ckpt_s3_pair *query, int nquery)
{
    if (nquery)
        qsort(query, (size_t)nquery, sizeof *query, compare_pairs);
    for (int i = 0; i < nquery; i++) {
        if (i)
            ckpt_text_add(out, "&", 1);
        ckpt_s3_encode(out, query[i].name, false);
        ckpt_text_add(out, "=", 1);
        ckpt_s3_encode(out, query[i].value, false);
    }
}

/* A header's value without blanks at its ends, runs of them as one. */
static void add_value(struct ckpt_text *out, const char *value)
{
    while (*value == ' ')
        value++;
    for (; *value; value++)
        if (*value != ' ' || (value[1] && value[1] != ' '))
            ckpt_text_add(out, value, 1);
}

static void add_names(struct ckpt_text *out, const struct ckpt_s3_sign_args *args)
{
    for (int i = 0; i < args->nheaders; i++)
        ckpt_text_printf(out, "%s%s", i ? ";" : "", args->headers[i].name);
}

/* The request in the one form that both sides hash. */
static void canonical(struct ckpt_text *out, const struct ckpt_s3_sign_args *args)
{
    ckpt_text_printf(out, "%s\n%s\n", args->method, args->path);
    ckpt_s3_query(out, args->query, args->nquery);
    ckpt_text_add(out, "\n", 1);
    qsort(args->headers, (size_t)args->nheaders, sizeof *args->headers, compare_pairs);
    for (int i = 0; i < args->nheaders; i++) {
        ckpt_text_printf(out, "%s:", args->headers[i].name);
        add_value(out, args->headers[i].value);
        ckpt_text_add(out, "\n", 1);
    }
    ckpt_text_add(out, "\n", 1);
    add_names(out, args);
    ckpt_text_printf(out, "\n%s", args->payload_hash);
}

static bool hmac(unsigned char out[32], const void *key, size_t key_nbytes, const char *text)
{
    unsigned len = 32;
    return HMAC(EVP_sha256(), key, (int)key_nbytes, (const unsigned char *)text, strlen(text), out,
                &len) != NULL;
}

/* key <- HMAC(HMAC(HMAC(HMAC("AWS4" + secret, day), region), service), "aws4_request") */
static int derive(unsigned char key[32], const struct ckpt_s3_sign_args *args, const char *day,
                  struct fsdp_err *err)
{
    char *first = fsdp_sprintf(err, "AWS4%s", args->secret);
    if (!first)
        return FSDP_ENOMEM;
    bool good = hmac(key, first, strlen(first), day) && hmac(key, key, 32, args->region) &&
                hmac(key, key, 32, args->service) && hmac(key, key, 32, "aws4_request");
    OPENSSL_cleanse(first, strlen(first));
    fsdp_free(first);
    return good ? FSDP_OK : fsdp_err_set(err, FSDP_EINTERNAL, "OpenSSL has no HMAC-SHA-256");
}

int ckpt_s3_sign(struct ckpt_text *out, const struct ckpt_s3_sign_args *args, struct fsdp_err *err)
{
    struct ckpt_text text = {0}, scope = {0};
    char date[17], day[9], hash[CKPT_S3_HASH_NBYTES], signature[CKPT_S3_HASH_NBYTES];
    unsigned char key[32];
    int rc = FSDP_ENOMEM;

    ckpt_s3_date(date, args->time);
    snprintf(day, sizeof day, "%.8s", date);
    ckpt_text_printf(&scope, "%s/%s/%s/aws4_request", day, args->region, args->service);
    canonical(&text, args);
    if (text.failed || scope.failed)
        goto out;
    FSDP_TRY_GOTO(ckpt_s3_sha256(hash, text.data, text.nbytes, err), out);
    ckpt_text_free(&text);
    ckpt_text_printf(&text, "AWS4-HMAC-SHA256\n%s\n%s\n%s", date, scope.data, hash);
    FSDP_TRY_GOTO(derive(key, args, day, err), out);
    if (text.failed || !hmac(key, key, sizeof key, text.data))
        goto out;
    hex(signature, key, sizeof key);
    ckpt_text_printf(out, "AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=", args->key_id,
                     scope.data);
    add_names(out, args);
    ckpt_text_printf(out, ", Signature=%s", signature);
    rc = out->failed ? FSDP_ENOMEM : FSDP_OK;
out:
    OPENSSL_cleanse(key, sizeof key);
    ckpt_text_free(&text);
    ckpt_text_free(&scope);
    return rc == FSDP_ENOMEM ? fsdp_err_set(err, rc, "signature: out of memory") : rc;
}
