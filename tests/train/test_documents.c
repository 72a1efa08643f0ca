/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of documents: JSON Lines of every kind, windows over documents, and lines that are none. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/data.h"
#include "tap.h"

enum { T = 6, END = 1 };
static char dir[] = "/tmp/test_documents_XXXXXX";
static struct fsdp_err err = FSDP_ERR_INIT;

static const char *in_dir(const char *name)
{
    static char path[200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void put(const char *name, const void *bytes, size_t nbytes)
{
    FILE *out = fopen(in_dir(name), "wb");
    if (!out || fwrite(bytes, 1, nbytes, out) != nbytes || fclose(out) != 0)
        abort();
}

static const struct data_text bytes = {.vocab_size = 128, .end = END, .special = DATA_SPECIAL_EOS};
static struct data_opts more = DATA_OPTS_INIT; /* of open_data's options, those it does not set */

static int open_data(struct data **out, const char *name, enum data_format format, bool documents)
{
    struct data_opts opts = more;
    const char *paths[] = {in_dir(name)};

    opts.npaths = 1;
    opts.paths = paths;
    opts.format = format;
    opts.shuffle = false;
    opts.seq_len = T;
    opts.vocab_size = 128;
    opts.text = &bytes;
    opts.documents = documents;
    opts.nends = 1;
    opts.ends[0] = END;
    return data_open(out, &opts, &err);
}

/* Text of a row: inputs as letters, a digit for where the document begins, and the label below
 * ('-': does not count), such as "abc|000|bc-". Tokens under ten are shown as digits. */
static const char *row_text(struct data *data, uint64_t index)
{
    static char text[3 * (T + 1)];
    int32_t tokens[T + 1], labels[T], starts[T];
    const struct data_row row = {tokens, labels, starts, NULL};
    char *to = text;

    if (data_row(data, index, &row, &err))
        return err.text;
    for (int t = 0; t < T; t++)
        *to++ = (char)(tokens[t] < 10 ? '0' + tokens[t] : tokens[t]);
    *to++ = '|';
    for (int t = 0; t < T; t++)
        *to++ = (char)('0' + starts[t]);
    *to++ = '|';
    for (int t = 0; t < T; t++)
        *to++ = (char)(labels[t] == DATA_IGNORE ? '-'
                       : labels[t] < 10         ? '0' + labels[t]
                                                : labels[t]);
    *to = 0;
    return text;
}

static void expect_rows(const char *what, struct data *data, const char *const *rows)
{
    uint64_t nrows = 0;
    bool same = true;

    for (; rows[nrows]; nrows++) {
        const char *got = row_text(data, nrows);
        if (strcmp(got, rows[nrows])) {
            same = false;
            diag("row %d is %s, not %s", (int)nrows, got, rows[nrows]);
        }
    }
    ok(same && data_nrows(data) == nrows && data_has_labels(data), "%s: %d rows", what, (int)nrows);
    data_close(data);
}

static const char lines[] = "{\"text\": \"abc\"}\n"
                            "{\"prompt\": \"AB\", \"completion\": \"cd\", \"id\": 7}\n"
                            "\n"
                            "{\"input_ids\": [65, 98, 99], \"labels\": [-100, -100, 99]}\n"
                            "{\"text\": \"\"}\n"
                            "{\"text\": \"abcdefghijklmnop\"}\n"
                            "{\"attention_mask\": [0, 1, 1, 1, 0], \"input_ids\": [7, 100, 101, "
                            "102, 7]}";

static void check_jsonl(void)
{
    static const char *const packed[] = {
        "abc000|000333|bc1---", /* the prompt and its answer take four positions: the next row */
        "ABcdAb|000044|-cd1-c",
        "abcdef|000000|bcdefg",
        "ghijkl|000000|hijklm",
        "mnopde|000044|nop1ef",
        NULL};
    static const char *const apart[] = {"abc000|000333|bc1---", "ABcd00|000044|-cd1--",
                                        "Ab0000|002222|-c----", "abcdef|000000|bcdefg",
                                        "ghijkl|000000|hijklm", "mnop00|000044|nop1--",
                                        "de0000|002222|ef----", NULL};
    struct data *data;
    uint64_t ntokens, ncut;

    put("a.jsonl", lines, strlen(lines));
    if (!ok(!open_data(&data, "a.jsonl", DATA_JSONL, true), "JSON Lines are read %s", err.text))
        return;
    ok(data_ndocuments(data, &ntokens, &ncut) == 5 && ntokens == 4 + 5 + 3 + 17 + 3 && ncut == 1,
       "its documents are counted");
    uint64_t hash = data_hash(data);
    expect_rows("documents in rows", data, packed);
    if (open_data(&data, "a.jsonl", DATA_JSONL, false))
        abort();
    ok(data_hash(data) != hash, "packed or not are different data");
    expect_rows("a document a row", data, apart);
}

static void check_windows(void)
{
    static const char text[] = "abc\1de\1\1fghijkl"; /* END after c, e, and alone */
    static const char *const rows[] = {"abc1de|000044|bc1-e1", "11fghi|012222|--ghij", NULL};
    static const char *const files[] = {"abcdef|000333|bc-ef-", NULL};
    char command[100];
    struct data *data;

    put("tokens", text, 14);
    if (open_data(&data, "tokens", DATA_TEXT, true))
        abort();
    expect_rows("windows over tokens that end documents", data, rows);
    snprintf(command, sizeof command, "mkdir %s/folder", dir);
    if (system(command) != 0)
        abort();
    put("folder/1", "abc", 3);
    put("folder/2", "def", 3);
    put("folder/3", "g", 1);
    if (!ok(!open_data(&data, "folder", DATA_TEXT, true), "a folder of texts %s", err.text))
        return;
    expect_rows("files of text are documents", data, files);
}

static void refuse(const char *line, int status, int column, const char *holds)
{
    char text[300], where[40];
    struct data *data;

    int nbytes = snprintf(text, sizeof text, "{\"text\": \"good\"}\n\n%s\n", line);
    snprintf(where, sizeof where, "bad.jsonl:3:%d: ", column);
    put("bad.jsonl", text, (size_t)nbytes);
    err.text[0] = 0;
    int rc = open_data(&data, "bad.jsonl", DATA_JSONL, true);
    if (!ok(rc == status && strstr(err.text, where) && strstr(err.text, holds), "refused: %s",
            err.text) &&
        !rc)
        data_close(data);
}

static void check_bad(void)
{
    static const char list[] = "[\n  {\"text\": \"good\"}\n]\n";
    struct data *data;

    refuse("{\"conversations\": []}", FSDP_EINVAL, 1, "found 'conversations' (docs/faq.md shows");
    put("list.json", "[{\"text\": \"good\"}]", 18);
    ok(open_data(&data, "list.json", DATA_JSONL, true) == FSDP_EINVAL &&
           strstr(err.text, "found a list; each line holds one document: jq -c '.[]'"),
       "a list in one line: %s", err.text);
    put("list.json", list, sizeof list - 1);
    ok(open_data(&data, "list.json", DATA_JSONL, true) == FSDP_EINVAL &&
           strstr(err.text, "list.json:1:1: not JSON") && strstr(err.text, "jq -c '.[]'"),
       "a list over several lines, and how it becomes lines: %s", err.text);

    refuse("{\"text\": \"x", FSDP_EINVAL, 11, "not JSON: premature end of input");
    refuse("plain words", FSDP_EINVAL, 5, "not JSON");
    refuse("{\"text\": \"\u00e4\" 5}", FSDP_EINVAL, 14, "not JSON: '}' expected near '5'");
    refuse("[1, 2]", FSDP_EINVAL, 1,
           "needs text, prompt + completion, messages, or input_ids; found a list");
    refuse(" {\"content\": \"x\", \"id\": {\"text\": 1}}", FSDP_EINVAL, 2,
           "found 'content', 'id' (data.text_key names");
    refuse("{\"prompt\": \"x\"}", FSDP_EINVAL, 1, "found 'prompt'");
    refuse("{}", FSDP_EINVAL, 1, "found an empty object");
    refuse("{\"\u00e4\": {\"text\": \"}\\\"\"}, \"text\" : 5}", FSDP_EINVAL, 33,
           "'text' is a number, and needs to be a text");
    refuse("{\"text\": \"\\u00e4\"}", FSDP_EINVAL, 10,
           "token 195, not below the model's vocabulary of 128");
    refuse("{\"input_ids\": [1, 128]}", FSDP_EINVAL, 15, "token 128");
    refuse("{\"input_ids\": [1, -2]}", FSDP_EINVAL, 15, "token -2");
    refuse("{\"input_ids\": [1, 99999999999]}", FSDP_EINVAL, 15, "token 99999999999");
    refuse("{\"input_ids\": [1, 2.5]}", FSDP_EINVAL, 15, "not a whole number");
    refuse("{\"input_ids\": [1, 2], \"labels\": [1]}", FSDP_EINVAL, 15, "as long as input_ids");
    refuse("{\"input_ids\": [1, 2], \"attention_mask\": [1]}", FSDP_EINVAL, 15,
           "attention_mask is");
    refuse("{\"input_ids\": [1, 2], \"attention_mask\": [1, 2]}", FSDP_EINVAL, 15,
           "other than 0 and 1");
    refuse("{\"input_ids\": [1, 2], \"attention_mask\": [1, -1]}", FSDP_EINVAL, 15,
           "other than 0 and 1");
    refuse("{\"input_ids\": [1, 2], \"labels\": [1, 3]}", FSDP_EINVAL, 15, "nor -100");
    put("bad.jsonl", "{\"text\": \"\"}\n", 13);
    ok(open_data(&data, "bad.jsonl", DATA_JSONL, true) == FSDP_EINVAL &&
           strstr(err.text, "no document of two tokens"),
       "refused: %s", err.text);
    put("late.jsonl", lines, strlen(lines));
    if (open_data(&data, "late.jsonl", DATA_JSONL, true))
        abort();
    put("late.jsonl", "{\"text\": \"abd more\"}", 20);
    ok(strstr(row_text(data, 0), "late.jsonl: a document has changed since"), "a changed file: %s",
       err.text);
    data_close(data);
}

static char logged[2000];

static void keep_log(void *ctx, enum fsdp_log_level level, const char *text)
{
    (void)ctx;
    (void)level;
    snprintf(logged + strlen(logged), sizeof logged - strlen(logged), "%s\n", text);
}

static void check_skip(void)
{
    static const char bad[] = "{\"body\": \"abc\"}\nno line\n\n{\"text\": \"abc\"}\n"
                              "{\"body\": \"def\", \"text\": 5}\n";
    static const char *const apart[] = {"abc000|000333|bc1---", "def000|000333|ef1---", NULL};
    struct data *data;

    put("skip.jsonl", bad, strlen(bad));
    more.text_key = "body";
    ok(open_data(&data, "skip.jsonl", DATA_JSONL, false) == FSDP_EINVAL &&
           strstr(err.text, "skip.jsonl:2:2: not JSON"),
       "stops at a bad line: %s", err.text);
    more.skip_bad_lines = true;
    if (!ok(!open_data(&data, "skip.jsonl", DATA_JSONL, false), "or leaves it out"))
        return;
    fsdp_log_set(keep_log, NULL, FSDP_LOG_WARN);
    data_warn(data);
    fsdp_log_set(NULL, NULL, FSDP_LOG_WARN);
    ok(strstr(logged, "skip.jsonl: 2 of 5 lines are left out (data.on_bad_line); the first: ") &&
           strstr(logged, "skip.jsonl:2:2: not JSON"),
       "logged: %s", logged);
    expect_rows("the other lines", data, apart);
    more.text_key = "nothing";
    ok(open_data(&data, "skip.jsonl", DATA_JSONL, false) == FSDP_EINVAL &&
           strstr(err.text, "no document of two tokens or more; the first line that is left out: "),
       "all lines bad: %s", err.text);
    more = (struct data_opts)DATA_OPTS_INIT;
}

static void check_too_long(void)
{
    static const char *const truncated[] = {"abc000|000333|bc1---", "ABcdAb|000044|-cd1-c",
                                            "abcdef|000000|bcdefg", "de0000|002222|ef----", NULL};
    static const char *const dropped[] = {"abc000|000333|bc1---", "ABcdAb|000044|-cd1-c",
                                          "de0000|002222|ef----", NULL};
    static const char *const *const rows[] = {[DATA_TRUNCATE] = truncated, [DATA_DROP] = dropped};
    static const char *const names[] = {[DATA_TRUNCATE] = "truncated", [DATA_DROP] = "dropped"};
    uint64_t ntokens, ncut, hash[4] = {0};
    struct data *data;

    put("a.jsonl", lines, strlen(lines));
    more.too_long = DATA_REFUSE;
    ok(open_data(&data, "a.jsonl", DATA_JSONL, true) == FSDP_EINVAL &&
           strstr(err.text, "a.jsonl:6:1: a document of 17 tokens, and a row has 7"),
       "too long: %s", err.text);
    for (int way = DATA_TRUNCATE; way <= DATA_DROP; way++) {
        const bool drop = way == DATA_DROP;
        more.too_long = (enum data_too_long)way;
        if (open_data(&data, "a.jsonl", DATA_JSONL, true))
            abort();
        ok(data_ndocuments(data, &ntokens, &ncut) == (drop ? 4 : 5) && ncut == 1 &&
               ntokens == 4 + 5 + 3 + 3 + (drop ? 0 : 7),
           "%s, and counted", names[way]);
        hash[way] = data_hash(data);
        expect_rows(names[way], data, rows[way]);
    }
    ok(hash[DATA_TRUNCATE] != hash[DATA_DROP], "which are different data");
    more = (struct data_opts)DATA_OPTS_INIT;
}

static void check_memory(void)
{
    struct data *data = NULL;

    put("a.jsonl", lines, strlen(lines));
    const uint64_t before = fsdp_alloc_count();
    if (open_data(&data, "a.jsonl", DATA_JSONL, true))
        abort();
    const uint64_t count = fsdp_alloc_count() - before;
    bool all = true;
    data_close(data);
    for (uint64_t nth = 1; nth <= count; nth++) {
        fsdp_alloc_fail_at(nth);
        all &= open_data(&data, "a.jsonl", DATA_JSONL, true) == FSDP_ENOMEM;
    }
    fsdp_alloc_fail_at(0);
    ok(all && count > 5, "each of %d allocations may fail", (int)count);
}

int main(void)
{
    char command[64];

    if (!mkdtemp(dir))
        return 1;
    check_jsonl();
    check_windows();
    check_bad();
    check_skip();
    check_too_long();
    check_memory();
    snprintf(command, sizeof command, "rm -rf %s", dir);
    ok(system(command) == 0, "cleaned up");
    return tap_done();
}
