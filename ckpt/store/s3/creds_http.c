/* SPDX-License-Identifier: Apache-2.0 */
/* Credentials that are asked for: of STS with a token (Kubernetes) or by another identity, of a
 * container's endpoint, of the instance. */
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "call.h"
#include "creds.h"
#include "xml.h"
#include "store/store.h"

enum { MAX_ANSWER_NBYTES = 256 << 10, MAX_TOKEN_NBYTES = 64 << 10 };

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* ---- one question ---------------------------------------------------------------------------- */

struct question {
    const char *method, *url;
    const char *headers[4]; /* lines, up to the first NULL */
    const char *body;
    long timeout_seconds;
    int tries;
    struct ckpt_text answer;
    long status;
    char why[CURL_ERROR_SIZE];
};

static size_t take_answer(char *data, size_t elem_nbytes, size_t nelem, void *arg)
{
    struct question *q = arg;
    size_t nbytes = elem_nbytes * nelem;
    if (q->answer.nbytes + nbytes > MAX_ANSWER_NBYTES)
        return 0;
    ckpt_text_add(&q->answer, data, nbytes);
    return nbytes;
}

/* These addresses are on the machine or its link: never through a proxy. */
static CURLcode ask_once(struct question *q, bool proxy)
{
    CURL *curl = curl_easy_init();
    struct curl_slist *headers = NULL;
    if (!curl)
        return CURLE_OUT_OF_MEMORY;
    for (int i = 0; i < 4 && q->headers[i]; i++)
        headers = curl_slist_append(headers, q->headers[i]);
    ckpt_text_free(&q->answer);
    q->why[0] = 0;
    ckpt_http_defaults(curl, q->why);
    curl_easy_setopt(curl, CURLOPT_URL, q->url);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT, q->timeout_seconds);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, q->timeout_seconds);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_answer);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, q);
    if (!proxy)
        curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
    if (strcmp(q->method, "GET")) {
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, q->body ? q->body : "");
        curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, q->method);
    }
    CURLcode code = curl_easy_perform(curl);
    q->status = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &q->status);
    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
    return code;
}

/* Their answers hold secrets, so that nothing of them is repeated. */
static int ask_server(struct question *q, const char *whom, bool proxy, struct fsdp_err *err)
{
    CURLcode code = CURLE_OK;
    for (int i = 1; i <= q->tries; i++) {
        code = ask_once(q, proxy);
        if (!code && q->status / 100 == 2)
            return FSDP_OK;
        if (!code && q->status / 100 == 4 && q->status != 429)
            break;
        if (i < q->tries)
            usleep((useconds_t)(1e6 * ckpt_http_pause(i)));
    }
    if (code)
        return fsdp_err_set(err, FSDP_EIO, "%s gives no credentials: %s", whom,
                            q->why[0] ? q->why : curl_easy_strerror(code));
    return fsdp_err_set(err, FSDP_EIO, "%s gives no credentials: HTTP %ld", whom, q->status);
}

static void forget(struct ckpt_text *text)
{
    if (text->data)
        OPENSSL_cleanse(text->data, text->nbytes);
    ckpt_text_free(text);
}

/* A token in a file, without the newline at its end. */
static int read_token(char **out, const char *path, struct fsdp_err *err)
{
    FSDP_TRY(ckpt_store_get(out, NULL, &ckpt_store_posix, path, MAX_TOKEN_NBYTES, err));
    (*out)[strcspn(*out, "\r\n")] = 0;
    return FSDP_OK;
}

/* ---- web identity ---------------------------------------------------------------------------- */

static int take_role(struct ckpt_s3_creds *out, const struct question *q, struct fsdp_err *err)
{
    struct ckpt_s3_xml *answer;
    char expires[64];
    int at = -1;
    ckpt_s3_xml_parse(&answer, q->answer.data, q->answer.nbytes, NULL);
    bool whole = ckpt_s3_xml_next(&at, answer, "Credentials") &&
                 ckpt_s3_xml_text(out->key_id, sizeof out->key_id, answer, at, "AccessKeyId") &&
                 ckpt_s3_xml_text(out->secret, sizeof out->secret, answer, at, "SecretAccessKey") &&
                 ckpt_s3_xml_text(out->token, sizeof out->token, answer, at, "SessionToken") &&
                 ckpt_s3_xml_text(expires, sizeof expires, answer, at, "Expiration");
    ckpt_s3_xml_free(answer);
    if (!whole)
        return fsdp_err_set(err, FSDP_EIO, "STS gives no whole credentials");
    out->expires = ckpt_s3_time(expires);
    return FSDP_OK;
}

static bool error_code(char *out, size_t out_nbytes, const struct question *q)
{
    struct ckpt_s3_xml *answer;
    int at = -1;
    ckpt_s3_xml_parse(&answer, q->answer.data, q->answer.nbytes, NULL);
    bool found = ckpt_s3_xml_next(&at, answer, "Error") &&
                 ckpt_s3_xml_text(out, out_nbytes, answer, at, "Code");
    ckpt_s3_xml_free(answer);
    return found;
}

/* Signed lines for a question to STS that is to be asked by `who`. Freed with fsdp_free. */
static int sign_question(char *lines[3], const char *url, const char *region, const char *body,
                         const struct ckpt_s3_creds *who, struct fsdp_err *err)
{
    const char *host = strstr(url, "://") ? strstr(url, "://") + 3 : url;
    const char *path = host + strcspn(host, "/");
    char date[17], hash[CKPT_S3_HASH_NBYTES];
    struct ckpt_text auth = {0};
    struct ckpt_s3_pair headers[3];
    time_t now = time(NULL);
    char *name = fsdp_sprintf(err, "%.*s", (int)(path - host), host);
    int rc = name ? ckpt_s3_sha256(hash, body, strlen(body), err) : FSDP_ENOMEM;
    ckpt_s3_date(date, now);
    headers[0] = (struct ckpt_s3_pair){"host", name};
    headers[1] = (struct ckpt_s3_pair){"x-amz-date", date};
    headers[2] = (struct ckpt_s3_pair){"x-amz-security-token", who->token};
    const struct ckpt_s3_sign_args args = {.method = "POST",
                                           .path = *path ? path : "/",
                                           .headers = headers,
                                           .nheaders = who->token[0] ? 3 : 2,
                                           .payload_hash = hash,
                                           .region = region,
                                           .service = "sts",
                                           .key_id = who->key_id,
                                           .secret = who->secret,
                                           .time = now};
    if (rc == FSDP_OK)
        rc = ckpt_s3_sign(&auth, &args, err);
    if (rc == FSDP_OK && (!(lines[0] = fsdp_sprintf(err, "authorization: %s", auth.data)) ||
                          !(lines[1] = fsdp_sprintf(err, "x-amz-date: %s", date))))
        rc = FSDP_ENOMEM;
    if (rc == FSDP_OK && who->token[0] &&
        !(lines[2] = fsdp_sprintf(err, "x-amz-security-token: %s", who->token)))
        rc = FSDP_ENOMEM;
    ckpt_text_free(&auth);
    fsdp_free(name);
    return rc;
}

/* who: signs the question; NULL: the form has what proves us. */
static int ask_sts(struct ckpt_s3_creds *out, struct ckpt_s3_pair *form, int nform,
                   const char *role, const struct ckpt_s3_creds *who, struct fsdp_err *err)
{
    const char *endpoint = variable("AWS_ENDPOINT_URL_STS"), *region = variable("AWS_REGION");
    struct ckpt_text body = {0};
    struct fsdp_err why = FSDP_ERR_INIT;
    char code[64], *lines[3] = {NULL, NULL, NULL};
    region = region ? region : variable("AWS_DEFAULT_REGION");
    region = region ? region : "us-east-1";
    char *url = endpoint ? fsdp_strdup(endpoint, err)
                         : fsdp_sprintf(err, "https://sts.%s.amazonaws.com/", region);
    if (!url)
        return FSDP_ENOMEM;
    ckpt_s3_query(&body, form, nform);
    int rc = body.failed ? fsdp_err_set(&why, FSDP_ENOMEM, "STS: out of memory") : FSDP_OK;
    if (rc == FSDP_OK && who)
        rc = sign_question(lines, url, region, body.data, who, &why);
    struct question q = {.method = "POST",
                         .url = url,
                         .headers = {lines[0], lines[1], lines[2]},
                         .body = body.data,
                         .timeout_seconds = 20,
                         .tries = 3};
    if (rc == FSDP_OK)
        rc = ask_server(&q, "STS", true, &why);
    if (rc == FSDP_OK)
        rc = take_role(out, &q, err);
    else if (error_code(code, sizeof code, &q))
        rc = fsdp_err_set(err, rc, "%s, %s, for role '%s'", why.text, code, role);
    else
        rc = fsdp_err_pass(err, rc, &why);
    forget(&q.answer);
    forget(&body);
    for (int i = 0; i < 3; i++) {
        if (lines[i])
            OPENSSL_cleanse(lines[i], strlen(lines[i]));
        fsdp_free(lines[i]);
    }
    fsdp_free(url);
    return rc;
}

static const char *session_name(void)
{
    const char *session = variable("AWS_ROLE_SESSION_NAME");
    return session ? session : "libfsdp";
}

int ckpt_s3_creds_role(struct ckpt_s3_creds *out, const struct ckpt_s3_creds *who, const char *role,
                       const char *external_id, struct fsdp_err *err)
{
    struct ckpt_s3_pair form[] = {{"Action", "AssumeRole"},
                                  {"Version", "2011-06-15"},
                                  {"RoleArn", role},
                                  {"RoleSessionName", session_name()},
                                  {"ExternalId", external_id}};
    return ask_sts(out, form, external_id ? 5 : 4, role, who, err);
}

int ckpt_s3_creds_web_identity(struct ckpt_s3_creds *out, struct fsdp_err *err)
{
    const char *path = variable("AWS_WEB_IDENTITY_TOKEN_FILE"), *role = variable("AWS_ROLE_ARN");
    char *token = NULL;
    struct fsdp_err why = FSDP_ERR_INIT;
    if (!path)
        return fsdp_err_set(err, FSDP_ENOTFOUND, "AWS_WEB_IDENTITY_TOKEN_FILE is not set");
    if (!role)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "AWS_WEB_IDENTITY_TOKEN_FILE is set, AWS_ROLE_ARN is not");
    if (read_token(&token, path, &why))
        return fsdp_err_set(err, FSDP_EINVAL, "AWS_WEB_IDENTITY_TOKEN_FILE: %s", why.text);
    struct ckpt_s3_pair form[] = {{"Action", "AssumeRoleWithWebIdentity"},
                                  {"Version", "2011-06-15"},
                                  {"RoleArn", role},
                                  {"RoleSessionName", session_name()},
                                  {"WebIdentityToken", token}};
    int rc = ask_sts(out, form, 5, role, NULL, err);
    OPENSSL_cleanse(token, strlen(token));
    fsdp_free(token);
    return rc;
}

/* ---- container ------------------------------------------------------------------------------- */

/* What is secret goes to this machine, to the addresses that AWS has for it, or through TLS. */
static bool may_ask(const char *url)
{
    static const char *const hosts[] = {"localhost",     "127.0.0.1",      "[::1]",
                                        "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"};
    if (!strncmp(url, "https://", 8))
        return true;
    if (strncmp(url, "http://", 7))
        return false;
    size_t nbytes = url[7] == '[' ? strcspn(url + 7, "]") + 1 : strcspn(url + 7, ":/");
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++)
        if (strlen(hosts[i]) == nbytes && !strncmp(url + 7, hosts[i], nbytes))
            return true;
    return false;
}

static int container_header(char **out, struct fsdp_err *err)
{
    const char *path = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    const char *given = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN");
    char *token = NULL;
    *out = NULL;
    if (path)
        FSDP_TRY(read_token(&token, path, err));
    if ((token || given) &&
        !(*out = fsdp_sprintf(err, "Authorization: %s", token ? token : given))) {
        fsdp_free(token);
        return FSDP_ENOMEM;
    }
    fsdp_free(token);
    return FSDP_OK;
}

int ckpt_s3_creds_container(struct ckpt_s3_creds *out, struct fsdp_err *err)
{
    const char *relative = variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    const char *full = variable("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    char *header = NULL;
    if (!relative && !full)
        return fsdp_err_set(err, FSDP_ENOTFOUND, "no container gives any");
    if (!relative && !may_ask(full))
        return fsdp_err_set(
            err, FSDP_EINVAL,
            "AWS_CONTAINER_CREDENTIALS_FULL_URI: neither https:// nor an address of "
            "this machine");
    FSDP_TRY(container_header(&header, err));
    char *url =
        relative ? fsdp_sprintf(err, "http://169.254.170.2%s", relative) : fsdp_strdup(full, err);
    struct question q = {
        .method = "GET", .url = url, .headers = {header}, .timeout_seconds = 5, .tries = 3};
    int rc = url ? ask_server(&q, "the container", false, err) : FSDP_ENOMEM;
    if (rc == FSDP_OK)
        rc = ckpt_s3_creds_json(out, q.answer.data, q.answer.nbytes, "Token", "the container", err);
    forget(&q.answer);
    fsdp_free(header);
    fsdp_free(url);
    return rc;
}

/* ---- instance -------------------------------------------------------------------------------- */

/* PATH of the metadata service. */
static int ask_instance(struct ckpt_text *answer, const char *method, const char *path,
                        const char *header, struct fsdp_err *err)
{
    const char *endpoint = variable("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    char *url = fsdp_sprintf(err, "%s%s", endpoint ? endpoint : "http://169.254.169.254", path);
    struct question q = {
        .method = method, .url = url, .headers = {header}, .timeout_seconds = 1, .tries = 2};
    if (!url)
        return FSDP_ENOMEM;
    int rc = ask_server(&q, "the instance", false, err);
    fsdp_free(url);
    if (rc == FSDP_OK && !q.answer.data)
        rc = fsdp_err_set(err, FSDP_EIO, "the instance gives no credentials: an empty answer");
    if (rc)
        forget(&q.answer);
    else
        *answer = q.answer;
    return rc;
}

/* A role's name from the first line, and then its keys. */
static int ask_role(struct ckpt_s3_creds *out, const char *header, struct fsdp_err *err)
{
    static const char folder[] = "/latest/meta-data/iam/security-credentials/";
    struct ckpt_text role = {0}, keys = {0};
    FSDP_TRY(ask_instance(&role, "GET", folder, header, err));
    role.data[strcspn(role.data, "\r\n")] = 0;
    char *path = fsdp_sprintf(err, "%s%s", folder, role.data);
    int rc = path ? ask_instance(&keys, "GET", path, header, err) : FSDP_ENOMEM;
    if (rc == FSDP_OK)
        rc = ckpt_s3_creds_json(out, keys.data, keys.nbytes, "Token", "the instance", err);
    fsdp_free(path);
    forget(&keys);
    ckpt_text_free(&role);
    return rc;
}

/* Version 2 alone: a token first, which no request that somebody tricks a program into can have. */
int ckpt_s3_creds_instance(struct ckpt_s3_creds *out, struct fsdp_err *err)
{
    const char *disabled = variable("AWS_EC2_METADATA_DISABLED");
    struct ckpt_text token = {0};
    struct fsdp_err why = FSDP_ERR_INIT;
    if (disabled && !strcasecmp(disabled, "true"))
        return fsdp_err_set(err, FSDP_ENOTFOUND, "AWS_EC2_METADATA_DISABLED is set");
    if (ask_instance(&token, "PUT", "/latest/api/token",
                     "X-aws-ec2-metadata-token-ttl-seconds: 21600", &why))
        return fsdp_err_pass(err, FSDP_ENOTFOUND, &why); /* not on such a machine */
    token.data[strcspn(token.data, "\r\n")] = 0;
    char *header = fsdp_sprintf(err, "X-aws-ec2-metadata-token: %s", token.data);
    int rc = header ? ask_role(out, header, err) : FSDP_ENOMEM;
    forget(&token);
    fsdp_free(header);
    return rc;
}
