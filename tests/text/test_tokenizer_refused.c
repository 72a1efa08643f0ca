/* SPDX-License-Identifier: Apache-2.0 */
/* What a tokenizer's file may not hold is refused by name: what would give other ids, and damage.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tap.h"
#include "text/tokenizer/tokenizer.h"

static void put(const char *path, const char *bytes, size_t nbytes)
{
    FILE *file = fopen(path, "w");

    if (file) {
        fwrite(bytes, 1, nbytes, file);
        fclose(file);
    }
}

/* Opening a file of these bytes fails, and says the file and `part`. */
static void refused_bytes(const char *what, const char *bytes, size_t nbytes, const char *part)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct tokenizer *t = NULL;

    put("t.file", bytes, nbytes);
    const int rc = tokenizer_open(&t, "t.file", &err);
    if (!ok(rc && !t && !strncmp(err.text, "t.file", 6) && strstr(err.text, part), "%s", what))
        diag("%s", rc ? err.text : "it was taken");
    tokenizer_close(t);
}

static void refused(const char *what, const char *text, const char *part)
{
    refused_bytes(what, text, strlen(text), part);
}

/* A small tokenizer.json in which one part is another one. */
#define VOCAB "{\"<unk>\": 0, \"a\": 1, \"b\": 2, \"ab\": 3}"
#define BPE(vocab, merges, more)                                                                   \
    "{\"type\": \"BPE\", \"vocab\": " vocab ", \"merges\": " merges more "}"
#define MODEL BPE(VOCAB, "[[\"a\", \"b\"]]", "")
#define FILE_OF(model, parts) "{\"model\": " model parts "}"

static void test_good(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct tokenizer *t = NULL;
    static const char text[] = FILE_OF(MODEL, "");

    put("t.file", text, strlen(text));
    ok(!tokenizer_open(&t, "t.file", &err) && tokenizer_vocab_size(t) == 4,
       "what the others differ from is read: %s", err.text);
    tokenizer_close(t);
}

static void test_unsupported(void)
{
    refused("another model", FILE_OF("{\"type\": \"WordPiece\", \"vocab\": {}}", ""), "WordPiece");
    refused("a model without a type", FILE_OF("{\"vocab\": {}}", ""), "without a type");
    refused("a normalizer", FILE_OF(MODEL, ", \"normalizer\": {\"type\": \"Precompiled\"}"),
            "normalizer 'Precompiled'");
    refused("a normalizer within others",
            FILE_OF(MODEL,
                    ", \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": "
                    "\"Nmt\"}]}"),
            "normalizer 'Nmt'");
    refused("a pre-tokenizer", FILE_OF(MODEL, ", \"pre_tokenizer\": {\"type\": \"Bert\"}"),
            "pre-tokenizer 'Bert'");
    refused("a post-processor", FILE_OF(MODEL, ", \"post_processor\": {\"type\": \"Odd\"}"),
            "post-processor 'Odd'");
    refused("a decoder", FILE_OF(MODEL, ", \"decoder\": {\"type\": \"CTC\"}"), "decoder 'CTC'");
    refused("a regular expression",
            FILE_OF(MODEL, ", \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": "
                           "\"(?<=a)b\"}, \"behavior\": \"Isolated\"}"),
            "lookbehind");
    refused("a behavior of Split",
            FILE_OF(MODEL, ", \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": "
                           "\"a\"}, \"behavior\": \"Odd\"}"),
            "'Odd'");
    refused("dropout", FILE_OF(BPE(VOCAB, "[]", ", \"dropout\": 0.1"), ""), "dropout");
    refused("a suffix of words",
            FILE_OF(BPE(VOCAB, "[]", ", \"end_of_word_suffix\": \"</w>\""), ""),
            "end_of_word_suffix");
    refused("a prefix of parts",
            FILE_OF(BPE(VOCAB, "[]", ", \"continuing_subword_prefix\": \"##\""), ""),
            "continuing_subword_prefix");
    refused("bytes without their tokens",
            FILE_OF(BPE(VOCAB, "[]", ", \"byte_fallback\": true"), ""), "<0x00>");
    refused("ByteLevel without its decoder",
            FILE_OF(MODEL, ", \"pre_tokenizer\": {\"type\": \"ByteLevel\"}"), "ByteLevel");
}

static void test_parts(void)
{
#define ADDED(token) FILE_OF(MODEL, ", \"added_tokens\": [" token "]")
    refused("an added token whose id is not what the original gives",
            ADDED("{\"id\": 9, \"content\": \"<s>\"}"), "'<s>' has the id 9");
    refused("an added token that is in the vocabulary with another id",
            ADDED("{\"id\": 4, \"content\": \"a\"}"), "'a' has the id 4");
    refused("an added token twice",
            ADDED("{\"id\": 4, \"content\": \"c\"}, {\"id\": 4, \"content\": \"c\"}"), "twice");
    refused("an added token without content", ADDED("{\"id\": 4}"), "added_tokens[0]");
    refused("an added token with a negative id", ADDED("{\"id\": -4, \"content\": \"c\"}"),
            "added_tokens[0]");
    refused("an added token of which the normalizer leaves nothing",
            FILE_OF(MODEL, ", \"added_tokens\": [{\"id\": 4, \"content\": \" \", \"normalized\": "
                           "true}], \"normalizer\": {\"type\": \"Strip\", \"strip_left\": true, "
                           "\"strip_right\": true}"),
            "leaves nothing");
#define TEMPLATE(single, special)                                                                  \
    FILE_OF(MODEL, ", \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": " single  \
                   ", \"special_tokens\": " special "}")
    refused("a template with a token of no id",
            TEMPLATE("[{\"SpecialToken\": {\"id\": \"<s>\"}}, {\"Sequence\": {}}]", "{}"), "'<s>'");
    refused("a template with an id outside the vocabulary",
            TEMPLATE("[{\"SpecialToken\": {\"id\": \"<s>\"}}, {\"Sequence\": {}}]",
                     "{\"<s>\": {\"ids\": [4000]}}"),
            "4000");
    refused("a template with a negative id",
            TEMPLATE("[{\"SpecialToken\": {\"id\": \"<s>\"}}, {\"Sequence\": {}}]",
                     "{\"<s>\": {\"ids\": [-1]}}"),
            "no id");
    refused("a template without the text", TEMPLATE("[]", "{}"), "no text");
    refused("a template with the text twice",
            TEMPLATE("[{\"Sequence\": {}}, {\"Sequence\": {}}]", "{}"), "twice");
}

static void test_damage(void)
{
    refused("an empty file", "", "neither");
    refused("no tokenizer", "hello, world", "neither");
    refused("JSON that ends early", "{\"model\": {\"type\": \"BPE\", ", "line 1: not valid JSON");
    refused("JSON without a model", "{\"version\": \"1.0\"}", "no model");
    refused("a vocabulary that is no object", FILE_OF(BPE("[1, 2]", "[]", ""), ""), "vocab");
    refused("an id that is no integer", FILE_OF(BPE("{\"a\": 1.5}", "[]", ""), ""), "'a'");
    refused("an id below zero", FILE_OF(BPE("{\"a\": -1}", "[]", ""), ""), "'a'");
    refused("an id beyond all bounds", FILE_OF(BPE("{\"a\": 99999999999}", "[]", ""), ""), "'a'");
    refused("a number beyond 64 bits", FILE_OF(BPE("{\"a\": 99999999999999999999}", "[]", ""), ""),
            "not valid JSON");
    refused("an id twice", FILE_OF(BPE("{\"a\": 1, \"b\": 1}", "[]", ""), ""), "the id 1");
    refused("merges that are no list", FILE_OF(BPE(VOCAB, "{}", ""), ""), "merges");
    refused("a merge of an unknown token", FILE_OF(BPE(VOCAB, "[[\"a\", \"c\"]]", ""), ""),
            "model.merges[0]: 'c'");
    refused("a merge into an unknown token", FILE_OF(BPE(VOCAB, "[\"b a\"]", ""), ""),
            "model.merges[0]: 'b' + 'a'");
    refused("a merge of three", FILE_OF(BPE(VOCAB, "[\"a b a\"]", ""), ""), "two tokens");
    refused("an unknown token that is not there",
            FILE_OF(BPE(VOCAB, "[]", ", \"unk_token\": \"<x>\""), ""), "'<x>'");
#define UNIGRAM(vocab, unk)                                                                        \
    FILE_OF("{\"type\": \"Unigram\", \"unk_id\": " unk ", \"vocab\": " vocab "}", "")
    refused("a score that is none", UNIGRAM("[[\"a\", \"x\"]]", "0"), "model.vocab[0]");
    refused("a score that is no number of JSON", UNIGRAM("[[\"a\", NaN]]", "0"), "not valid JSON");
    refused("an unknown token outside the vocabulary", UNIGRAM("[[\"a\", 0.5]]", "7"), "unk_id");
    refused("no unknown token", UNIGRAM("[[\"a\", 0.5]]", "null"), "unknown");
}

/* JSON of `depth` pre-tokenizers within each other. */
static void test_depth(void)
{
    enum { DEPTH = 1000 };
    static const char open[] = "{\"type\": \"Sequence\", \"pretokenizers\": [", close[] = "]}";
    char *text = NULL;
    size_t nbytes = 0;
    FILE *out = open_memstream(&text, &nbytes);

    fprintf(out, "{\"model\": %s, \"pre_tokenizer\": ", MODEL);
    for (int i = 0; i < DEPTH; i++)
        fputs(open, out);
    fputs("{\"type\": \"Odd\"}", out);
    for (int i = 0; i < DEPTH; i++)
        fputs(close, out);
    fputs("}", out);
    fclose(out);
    refused_bytes("pre-tokenizers within pre-tokenizers", text, nbytes, "'Odd'");
    free(text);
    nbytes = 5 << 20;
    text = malloc(nbytes);
    memset(text, '[', nbytes);
    memcpy(text, "{\"a\":", 5);
    refused_bytes("five million brackets", text, nbytes, "not valid JSON");
    free(text);
}

static void test_others(void)
{
    static const char model[] = "\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02"
                                "\n\x08\n\x01"
                                "a\x15\0\0\x80\xbf";

    refused("tekken.json without a pattern",
            "{\"config\": {\"default_vocab_size\": 300, \"default_num_special_tokens\": 5}}",
            "pattern");
    refused("tekken.json without its bytes",
            "{\"config\": {\"pattern\": \".\", \"default_vocab_size\": 300, "
            "\"default_num_special_tokens\": 5}, \"vocab\": []}",
            "byte 0x00");
    refused("tekken.json with a token that is not base64",
            "{\"config\": {\"pattern\": \".\", \"default_vocab_size\": 300, "
            "\"default_num_special_tokens\": 5}, \"vocab\": [{\"token_bytes\": \"?\"}]}",
            "base64");
    refused("ranks of a number that is not known", "IQ== 0\nIg== 1\n", "2 ranks");
    refused("a rank that is none", "IQ== 0\nIg== x\n", "line 2");
    refused("a line without a rank", "IQ== 0\nIg==\n", "line 2");
    refused("a rank twice", "IQ== 0\nIg== 0\n", "the id 0");
    refused_bytes("SentencePiece's default normalizer", model, sizeof model - 1,
                  "remove_extra_whitespaces");
    refused_bytes("a tokenizer.model that ends early", model, sizeof model - 3, "damaged");
    refused_bytes("a tokenizer.model without pieces", "\n", 1, "damaged");
}

static int open_configured(struct tokenizer **out, const char *config, struct fsdp_err *err)
{
    static const char file[] = FILE_OF(MODEL, "");

    mkdir("configured", 0777);
    put("configured/tokenizer.json", file, strlen(file));
    put("configured/tokenizer_config.json", config, strlen(config));
    return tokenizer_open(out, "configured", err);
}

static void test_config(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct tokenizer *t = NULL;
    int rc = open_configured(&t,
                             "{\"eos_token\": \"<eos>\", \"added_tokens_decoder\": {\"5\": "
                             "{\"content\": \"<y>\"}, \"4\": {\"content\": \"<x>\"}}, "
                             "\"model_max_length\": 1000000000000000000000000000000}",
                             &err);

    ok(!rc && tokenizer_find(t, "<x>", 3) == 4 && tokenizer_find(t, "<y>", 3) == 5 &&
           tokenizer_eos(t) == 6 && tokenizer_vocab_size(t) == 7,
       "tokenizer_config.json adds tokens in the order of their ids: %s", err.text);
    tokenizer_close(t);
    t = NULL;
    rc = open_configured(&t, "{\"added_tokens_decoder\": {\"9\": {\"content\": \"<x>\"}}}", &err);
    ok(rc == FSDP_EUNSUPPORTED && strstr(err.text, "'<x>' the id 9"),
       "not with an id that leaves others out: %s", err.text);
    tokenizer_close(t);
}

static void test_folders(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct tokenizer *t = NULL;

    mkdir("empty", 0777);
    ok(tokenizer_open(&t, "empty", &err) == FSDP_ENOTFOUND && strstr(err.text, "tokenizer.json"),
       "a folder without one: %s", err.text);
    ok(tokenizer_open(&t, "missing", &err) && strstr(err.text, "missing"), "no folder: %s",
       err.text);
    mkdir("folder", 0777);
    put("folder/tokenizer.json", FILE_OF(MODEL, ""), strlen(FILE_OF(MODEL, "")));
    put("folder/tokenizer_config.json", "{\"bos_token\": ", 14);
    ok(tokenizer_open(&t, "folder", &err) && strstr(err.text, "folder/tokenizer_config.json:1"),
       "a damaged tokenizer_config.json: %s", err.text);
}

int main(void)
{
    test_good();
    test_unsupported();
    test_parts();
    test_damage();
    test_depth();
    test_others();
    test_config();
    test_folders();
    return tap_done();
}
