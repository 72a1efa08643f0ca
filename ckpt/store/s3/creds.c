/* SPDX-License-Identifier: Apache-2.0 */
#include <jansson.h>
#include <openssl/crypto.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "creds.h"

/* LAST_SECONDS: of their life, in which nobody begins anything with them. */
enum { RETRY_SECONDS = 60, LAST_SECONDS = 10 };

void ckpt_s3_creds_wipe(struct ckpt_s3_creds *creds)
{
    OPENSSL_cleanse(creds, sizeof *creds);
}

/* ---- the sources that need no network -------------------------------------------------------- */

static int from_environment(struct ckpt_s3_creds *out, struct fsdp_err *err)
{
    const char *id = getenv("AWS_ACCESS_KEY_ID"), *secret = getenv("AWS_SECRET_ACCESS_KEY");
    const char *token = getenv("AWS_SESSION_TOKEN"), *from = out->source;
    if ((!id || !*id) && (!secret || !*secret))
        return fsdp_err_set(err, FSDP_ENOTFOUND, "AWS_ACCESS_KEY_ID is not set");
    FSDP_TRY(
        ckpt_s3_creds_take(out->key_id, sizeof out->key_id, id, "AWS_ACCESS_KEY_ID", from, err));
    FSDP_TRY(ckpt_s3_creds_take(out->secret, sizeof out->secret, secret, "AWS_SECRET_ACCESS_KEY",
                                from, err));
    return token && *token ? ckpt_s3_creds_take(out->token, sizeof out->token, token,
                                                "AWS_SESSION_TOKEN", from, err)
                           : FSDP_OK;
}

static int from_keys(struct ckpt_s3_creds *out, const char *id, const char *secret,
                     const char *token, struct fsdp_err *err)
{
    const char *from = out->source;
    FSDP_TRY(
        ckpt_s3_creds_take(out->key_id, sizeof out->key_id, id, "aws_access_key_id", from, err));
    FSDP_TRY(ckpt_s3_creds_take(out->secret, sizeof out->secret, secret, "aws_secret_access_key",
                                from, err));
    return token ? ckpt_s3_creds_take(out->token, sizeof out->token, token, "aws_session_token",
                                      from, err)
                 : FSDP_OK;
}

static int from_named(struct ckpt_s3_creds *out, const char *name, int depth, struct fsdp_err *err);

/* The source's keys of itself, if it is the same profile, else whatever the source has. */
static int from_role(struct ckpt_s3_creds *out, const char *name, const char *role, int depth,
                     struct fsdp_err *err)
{
    enum { MAX_ROLES = 4 };
    struct ckpt_s3_creds who = {.source = out->source};
    char *source = ckpt_s3_profile_get(name, "source_profile", NULL);
    char *external_id = ckpt_s3_profile_get(name, "external_id", NULL);
    int rc;
    if (!source)
        rc = fsdp_err_set(err, FSDP_EINVAL,
                          "profile '%s' has the role_arn '%s', and no source_profile that takes it",
                          name, role);
    else if (depth == MAX_ROLES)
        rc = fsdp_err_set(err, FSDP_EINVAL, "profile '%s': source_profile leads in a circle", name);
    else
        rc = from_named(&who, source, depth + 1, err);
    if (rc == FSDP_OK)
        rc = ckpt_s3_creds_role(out, &who, role, external_id, err);
    ckpt_s3_creds_wipe(&who);
    fsdp_free(source);
    fsdp_free(external_id);
    return rc == FSDP_ENOTFOUND ? FSDP_EINVAL : rc;
}

/* Has it a browser's sign-in, whose cached token only AWS's own tool turns into keys? */
static int refuse_sso(const char *name, struct fsdp_err *err)
{
    static const char *const keys[] = {"sso_session", "sso_start_url", "sso_account_id"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        char *value = ckpt_s3_profile_get(name, keys[i], NULL);
        fsdp_free(value);
        if (value)
            return fsdp_err_set(err, FSDP_EINVAL,
                                "profile '%s' has %s, which is not read here: add to the profile "
                                "`credential_process = aws configure export-credentials --profile "
                                "%s --format process`",
                                name, keys[i], name);
    }
    return FSDP_OK;
}

static int from_named(struct ckpt_s3_creds *out, const char *name, int depth, struct fsdp_err *err)
{
    bool known = false;
    char *role = ckpt_s3_profile_get(name, "role_arn", &known);
    char *id = ckpt_s3_profile_get(name, "aws_access_key_id", &known);
    char *secret = ckpt_s3_profile_get(name, "aws_secret_access_key", NULL);
    char *token = ckpt_s3_profile_get(name, "aws_session_token", NULL);
    char *command = ckpt_s3_profile_get(name, "credential_process", NULL);
    char *source = ckpt_s3_profile_get(name, "source_profile", NULL);
    bool own = depth && source && !strcmp(source, name) && id; /* it takes its own role */
    int rc;
    if (role && !own)
        rc = from_role(out, name, role, depth, err);
    else if (id || secret)
        rc = from_keys(out, id, secret, token, err);
    else if (command)
        rc = ckpt_s3_creds_process(out, command, err);
    else if (!(rc = refuse_sso(name, err)) && (known || !strcmp(name, "default")))
        rc = fsdp_err_set(err, FSDP_ENOTFOUND, "profile '%s' has no keys", name);
    else if (rc == FSDP_OK)
        rc = fsdp_err_set(err, FSDP_EINVAL,
                          "%s: there is no profile '%s' in the files credentials and config",
                          depth ? "source_profile" : "AWS_PROFILE", name);
    if (secret)
        OPENSSL_cleanse(secret, strlen(secret));
    if (token)
        OPENSSL_cleanse(token, strlen(token));
    fsdp_free(role);
    fsdp_free(source);
    fsdp_free(id);
    fsdp_free(secret);
    fsdp_free(token);
    fsdp_free(command);
    return rc;
}

static int from_profile(struct ckpt_s3_creds *out, struct fsdp_err *err)
{
    return from_named(out, ckpt_s3_profile_name(), 0, err);
}

/* ---- the chain ------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    int (*get)(struct ckpt_s3_creds *out, struct fsdp_err *err);
} sources[] = {
    {"the environment", from_environment},
    {"the web identity", ckpt_s3_creds_web_identity},
    {"the profile", from_profile},
    {"the container", ckpt_s3_creds_container},
    {"the instance", ckpt_s3_creds_instance},
};

static int look_for_keys(struct ckpt_s3_creds *out, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    char all[600] = "";
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        memset(out, 0, sizeof *out);
        out->source = sources[i].name;
        int rc = sources[i].get(out, &why);
        if (rc == FSDP_OK)
            return rc;
        if (rc != FSDP_ENOTFOUND)
            return fsdp_err_pass(err, rc, &why);
        size_t len = strlen(all);
        snprintf(all + len, sizeof all - len, "%s%.150s", len ? "; " : "", why.text);
    }
    return fsdp_err_set(err, FSDP_ENOTFOUND, "no credentials for S3: %s", all);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ckpt_s3_creds current;
static int64_t not_before; /* of the next question for others than `current` */
static pid_t looking; /* the process one of whose threads asks; a fork leaves that thread behind */

/* Some are given out again until shortly before they expire, and some live for minutes only. */
static int64_t pause_of(int64_t now)
{
    int64_t pause = (current.expires - now) / 8;
    return pause < 1 ? 1 : pause > RETRY_SECONDS ? RETRY_SECONDS : pause;
}

/* What a look had for an answer. The lock is held. */
static int install(const struct ckpt_s3_creds *found, int rc, const struct fsdp_err *why)
{
    int64_t now = (int64_t)time(NULL);
    if (rc == FSDP_OK) {
        current = *found;
    } else if (current.source && now < current.expires) {
        fsdp_log(FSDP_LOG_WARN,
                 "fresh credentials for S3 could not be had, the old ones are "
                 "good for %lld s: %s",
                 (long long)(current.expires - now), why->text);
        rc = FSDP_OK;
    }
    not_before = now + pause_of(now);
    return rc;
}

static void *look_behind(void *arg)
{
    struct ckpt_s3_creds found;
    struct fsdp_err why = FSDP_ERR_INIT;
    int rc = look_for_keys(&found, &why);
    (void)arg;
    pthread_mutex_lock(&lock);
    install(&found, rc, &why);
    looking = 0;
    pthread_mutex_unlock(&lock);
    ckpt_s3_creds_wipe(&found);
    return NULL;
}

/* Asks on a thread of its own, so that transfers continue. The lock is held. False if it cannot. */
static bool ask_behind(void)
{
    pthread_t id;
    if (looking == getpid())
        return true;
    if (pthread_create(&id, NULL, look_behind, NULL))
        return false;
    pthread_detach(id);
    looking = getpid();
    return true;
}

/* Can `current` be used without waiting? */
static bool is_good(const struct ckpt_s3_creds *stale, int64_t now)
{
    if (!current.source)
        return false;
    if (!current.expires)
        return true;
    if (stale && !strcmp(stale->key_id, current.key_id) && !strcmp(stale->token, current.token))
        return false;
    if (now + CKPT_S3_REFRESH_SECONDS < current.expires)
        return true;
    if (now < not_before && now < current.expires)
        return true;
    return now + LAST_SECONDS < current.expires && ask_behind();
}

int ckpt_s3_creds_get(struct ckpt_s3_creds *out, const struct ckpt_s3_creds *stale,
                      struct fsdp_err *err)
{
    struct ckpt_s3_creds found;
    struct fsdp_err why = FSDP_ERR_INIT;
    int rc = FSDP_OK;
    pthread_mutex_lock(&lock);
    if (!is_good(stale, (int64_t)time(NULL))) {
        rc = look_for_keys(&found, &why);
        rc = install(&found, rc, &why);
        ckpt_s3_creds_wipe(&found);
    }
    if (rc == FSDP_OK)
        *out = current;
    pthread_mutex_unlock(&lock);
    return fsdp_err_pass(err, rc, &why);
}
