/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "http.h"
#include "util/workers.h"

enum { MAX_THREADS = 8, PER_THREAD = 8, GROW_AFTER = 8 };

struct engine {
    pid_t pid; /* threads do not survive a fork: a child makes its own engine */
    pthread_mutex_t lock;
    struct ckpt_http_job *first, **last; /* waiting for a place */
    int nthreads, nactive, nlarge, limit, ngood;
    CURLM *multis[MAX_THREADS];
};

struct thread {
    struct engine *engine;
    CURLM *multi;
    int nactive;
    struct ckpt_http_job *paused;
};

static pthread_mutex_t engine_lock = PTHREAD_MUTEX_INITIALIZER;
static struct engine *engine;
static atomic_int max_large = MAX_THREADS * PER_THREAD;

/* ---- one exchange ---------------------------------------------------------------------------- */

/* Whether this libcurl has been built with certificates that are on this machine. One that was
 * linked statically, or built for another distribution, has not. */
static bool has_own_certificates(CURL *curl)
{
#if LIBCURL_VERSION_NUM >= 0x075400
    char *file = NULL, *folder = NULL;
    curl_easy_getinfo(curl, CURLINFO_CAINFO, &file);
    curl_easy_getinfo(curl, CURLINFO_CAPATH, &folder);
    return (file && access(file, R_OK) == 0) || (folder && access(folder, R_OK) == 0);
#else
    (void)curl;
    return true; /* there is no way to ask it */
#endif
}

const char *ckpt_http_certificates(bool has_own, const char *const *usual)
{
    static const char *const distributions[] = {
        "/etc/ssl/certs/ca-certificates.crt",                /* Debian, Arch */
        "/etc/pki/tls/certs/ca-bundle.crt",                  /* RHEL, Fedora */
        "/etc/ssl/ca-bundle.pem",                            /* SUSE */
        "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", /* newer RHEL */
        "/etc/ssl/cert.pem",                                 /* Alpine */
        NULL,
    };
    const char *given = getenv("AWS_CA_BUNDLE");
    if (given && *given)
        return given;
    if (has_own)
        return NULL;
    given = getenv("SSL_CERT_FILE");
    if (given && *given)
        return given;
    for (usual = usual ? usual : distributions; *usual; usual++)
        if (access(*usual, R_OK) == 0)
            return *usual;
    return NULL;
}

void ckpt_http_defaults(CURL *curl, char *text)
{
    const char *ca = ckpt_http_certificates(has_own_certificates(curl), NULL);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, text);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, 10L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1024L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, 30L);
    curl_easy_setopt(curl, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(curl, CURLOPT_DNS_SHUFFLE_ADDRESSES, 1L);
    curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, 512L << 10);
    curl_easy_setopt(curl, CURLOPT_UPLOAD_BUFFERSIZE, 1L << 20);
    if (ca)
        curl_easy_setopt(curl, CURLOPT_CAINFO, ca);
}

double ckpt_http_pause(int ntries)
{
    double most = 0.25 * (1 << (ntries < 8 ? ntries : 8)) / 2;
    uint64_t seed = (uint64_t)(fsdp_time_now() * 1e9) * 6364136223846793005u;
    return (most > 20 ? 20 : most) * ((double)(seed >> 33) / (double)(1u << 31));
}

static void finish_job(struct ckpt_http_job *job)
{
    job->ops->done(job);
}

static void release_job(struct ckpt_http_job *job)
{
    curl_easy_cleanup(job->curl);
    curl_slist_free_all(job->headers);
    job->curl = NULL;
    job->headers = NULL;
}

/* False if it could not even begin, in which case it is over, and no more than *large is left. */
static bool begin_job(struct thread *t, struct ckpt_http_job *job, bool *large)
{
    *large = job->large;
    job->ntries++;
    job->curl_text[0] = 0;
    job->curl = curl_easy_init();
    if (!job->curl) {
        job->rc = fsdp_err_set(&job->err, FSDP_ENOMEM, "libcurl: out of memory");
    } else {
        ckpt_http_defaults(job->curl, job->curl_text);
        curl_easy_setopt(job->curl, CURLOPT_PRIVATE, job);
        job->rc = job->ops->prepare(job, job->curl, &job->err);
        if (!job->rc && curl_multi_add_handle(t->multi, job->curl))
            job->rc = fsdp_err_set(&job->err, FSDP_ENOMEM, "libcurl: out of memory");
    }
    if (job->rc) {
        release_job(job);
        finish_job(job);
        return false;
    }
    t->nactive++;
    return true;
}

static void place_freed(struct engine *e, bool large, enum ckpt_http_verdict verdict)
{
    pthread_mutex_lock(&e->lock);
    e->nactive--;
    e->nlarge -= large;
    if (verdict == CKPT_HTTP_THROTTLED) {
        e->limit = e->limit > 1 ? e->limit / 2 : 1;
        e->ngood = 0;
    } else if (verdict == CKPT_HTTP_DONE && ++e->ngood >= GROW_AFTER) {
        e->ngood = 0;
        if (e->limit < e->nthreads * PER_THREAD)
            e->limit++;
    }
    pthread_mutex_unlock(&e->lock);
}

static void end(struct thread *t, struct ckpt_http_job *job, CURLcode code)
{
    bool given_up = job->given_up && atomic_load(job->given_up);
    bool last = given_up || job->ntries >= job->max_tries || fsdp_time_now() >= job->deadline;
    enum ckpt_http_verdict verdict = job->ops->judge(job, job->curl, code, last);
    curl_multi_remove_handle(t->multi, job->curl);
    release_job(job);
    t->nactive--;
    place_freed(t->engine, job->large, verdict);
    if (last || verdict == CKPT_HTTP_DONE) {
        finish_job(job);
        return;
    }
    job->not_before = fsdp_time_now();
    if (verdict != CKPT_HTTP_AT_ONCE)
        job->not_before += ckpt_http_pause(job->ntries);
    job->next = t->paused;
    t->paused = job;
}

/* ---- threads --------------------------------------------------------------------------------- */

static void give_place(struct engine *e, bool large)
{
    pthread_mutex_lock(&e->lock);
    e->nactive--;
    e->nlarge -= large;
    pthread_mutex_unlock(&e->lock);
}

/* The engine's lock is held. */
static bool may_begin(const struct engine *e, const struct ckpt_http_job *job, double now)
{
    return job->not_before <= now && (!job->large || e->nlarge < atomic_load(&max_large));
}

/* One of the thread's own whose pause is over, else the queue's first; NULL: none, or no place. */
static struct ckpt_http_job *next_job(struct thread *t)
{
    struct engine *e = t->engine;
    struct ckpt_http_job *job = NULL, **at = &t->paused;
    double now = fsdp_time_now();
    if (t->nactive >= PER_THREAD)
        return NULL;
    pthread_mutex_lock(&e->lock);
    while (*at && !may_begin(e, *at, now))
        at = &(*at)->next;
    if (!*at)
        for (at = &e->first; *at && !may_begin(e, *at, now);)
            at = &(*at)->next;
    if (*at && e->nactive < e->limit) {
        job = *at;
        if (e->last == &job->next)
            e->last = at;
        *at = job->next;
        e->nactive++;
        e->nlarge += job->large;
    }
    pthread_mutex_unlock(&e->lock);
    return job;
}

static void *run_jobs(void *arg)
{
    struct thread *t = arg;
    for (;;) {
        struct ckpt_http_job *job;
        struct CURLMsg *msg;
        int nrunning, nmsgs;
        bool ended = false, large;
        while ((job = next_job(t)))
            if (!begin_job(t, job, &large))
                give_place(t->engine, large);
        curl_multi_perform(t->multi, &nrunning);
        while ((msg = curl_multi_info_read(t->multi, &nmsgs))) {
            CURLcode code = msg->data.result;
            ended = true; /* there is a place for another */
            if (msg->msg == CURLMSG_DONE &&
                !curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, (char **)&job))
                end(t, job, code);
        }
        if (!ended)
            curl_multi_poll(t->multi, NULL, 0, t->paused ? 50 : 1000, NULL);
    }
    return NULL;
}

/* Threads that wait for work are no more of a burden than open files; they end with the process. */
static int engine_start(struct fsdp_err *err)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
    struct engine *e = fsdp_alloc(1, sizeof *e, "http engine", err);
    if (!e)
        return FSDP_ENOMEM;
    pthread_mutex_init(&e->lock, NULL);
    e->pid = getpid();
    e->last = &e->first;
    int nthreads = ckpt_workers_default(MAX_THREADS);
    for (int i = 0; i < (nthreads < 2 ? 2 : nthreads); i++) {
        struct thread *t = fsdp_alloc(1, sizeof *t, "http thread", err);
        pthread_t id;
        if (!t || !(t->multi = curl_multi_init()))
            break;
        curl_multi_setopt(t->multi, CURLMOPT_MAXCONNECTS, 2L * PER_THREAD);
        t->engine = e;
        if (pthread_create(&id, NULL, run_jobs, t)) {
            curl_multi_cleanup(t->multi);
            fsdp_free(t);
            break;
        }
        pthread_detach(id);
        pthread_mutex_lock(&e->lock);
        e->multis[e->nthreads++] = t->multi;
        e->limit = e->nthreads * PER_THREAD;
        pthread_mutex_unlock(&e->lock);
    }
    if (!e->nthreads)
        return fsdp_err_set(err, FSDP_ENOMEM, "cannot start a thread for transfers");
    engine = e;
    return FSDP_OK;
}

int ckpt_http_submit(struct ckpt_http_job *job, struct fsdp_err *err)
{
    pthread_mutex_lock(&engine_lock);
    int rc = engine && engine->pid == getpid() ? FSDP_OK : engine_start(err);
    struct engine *e = engine;
    pthread_mutex_unlock(&engine_lock);
    FSDP_TRY(rc);
    pthread_mutex_lock(&e->lock);
    job->not_before = 0;
    job->next = NULL;
    *e->last = job;
    e->last = &job->next;
    pthread_mutex_unlock(&e->lock);
    for (int i = 0; i < e->nthreads; i++)
        curl_multi_wakeup(e->multis[i]);
    return FSDP_OK;
}

void ckpt_http_large(int most)
{
    atomic_store(&max_large, most > 1 ? most : 1);
}
