/* SPDX-License-Identifier: Apache-2.0 */
#include <expat.h>
#include <openssl/crypto.h>
#include <string.h>

#include "xml.h"

enum { MAX_NBYTES = 64 << 20, MAX_ELEMENTS = 1 << 20, MAX_DEPTH = 32 };

/* In the document's order. Name and text are places in `bytes`, each ends with a zero. */
struct element {
    size_t name, text;
    int parent;    /* -1: the root */
    bool has_text; /* it has ended, and has no children */
};

struct ckpt_s3_xml {
    struct element *elements;
    size_t nelements, max_elements;
    struct ckpt_text bytes;
};

struct reader {
    XML_Parser parser;
    struct ckpt_s3_xml *xml;
    int open, depth;     /* open: the element that the parser is in, -1: none */
    const char *refused; /* why the document is not read on */
};

static void refuse_document(struct reader *r, const char *why)
{
    if (!r->refused)
        r->refused = why;
    XML_StopParser(r->parser, XML_FALSE);
}

static const char *local_name(const char *name)
{
    const char *colon = strchr(name, ':');
    return colon ? colon + 1 : name;
}

static void on_start(void *ctx, const char *name, const char **attributes)
{
    struct reader *r = ctx;
    struct ckpt_s3_xml *xml = r->xml;
    (void)attributes;
    if (++r->depth > MAX_DEPTH || xml->nelements == MAX_ELEMENTS) {
        refuse_document(r, "too many elements");
        return;
    }
    struct element *elements = fsdp_alloc_grow(xml->elements, xml->nelements, &xml->max_elements,
                                               sizeof *elements, "XML", NULL);
    if (!elements) {
        refuse_document(r, "out of memory");
        return;
    }
    xml->elements = elements;
    elements[xml->nelements] = (struct element){.name = xml->bytes.nbytes, .parent = r->open};
    name = local_name(name);
    ckpt_text_add(&xml->bytes, name, strlen(name) + 1);
    elements[xml->nelements].text = xml->bytes.nbytes;
    r->open = (int)xml->nelements++;
}

static void on_text(void *ctx, const char *text, int nbytes)
{
    struct reader *r = ctx;
    ckpt_text_add(&r->xml->bytes, text, (size_t)nbytes);
}

static void on_end(void *ctx, const char *name)
{
    struct reader *r = ctx;
    struct element *e = &r->xml->elements[r->open];
    (void)name;
    e->has_text = (size_t)r->open + 1 == r->xml->nelements; /* it is the last: no child came */
    ckpt_text_add(&r->xml->bytes, "", 1);
    r->open = e->parent;
    r->depth--;
}

static void on_doctype(void *ctx, const char *name, const char *system, const char *public, int own)
{
    (void)name, (void)system, (void)public, (void)own;
    refuse_document(ctx, "it has a document type");
}

/* ---- parsing --------------------------------------------------------------------------------- */

/* Newer releases of expat call this function deprecated, older ones have no other. */
static unsigned long line_of(XML_Parser parser)
{
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    return (unsigned long)XML_GetCurrentLineNumber(parser);
#pragma GCC diagnostic pop
}

static int parse_document(struct reader *r, const char *data, size_t nbytes, struct fsdp_err *err)
{
    XML_SetUserData(r->parser, r);
    XML_SetElementHandler(r->parser, on_start, on_end);
    XML_SetCharacterDataHandler(r->parser, on_text);
    XML_SetStartDoctypeDeclHandler(r->parser, on_doctype);
    if (nbytes > MAX_NBYTES)
        r->refused = "it is larger than 64 MiB";
    else if (XML_Parse(r->parser, data, (int)nbytes, 1) == XML_STATUS_OK && !r->xml->bytes.failed)
        return FSDP_OK;
    if (r->xml->bytes.failed)
        r->refused = "out of memory";
    return fsdp_err_set(err, FSDP_EIO, "line %lu: %s", line_of(r->parser),
                        r->refused ? r->refused : XML_ErrorString(XML_GetErrorCode(r->parser)));
}

int ckpt_s3_xml_parse(struct ckpt_s3_xml **out, const char *data, size_t nbytes,
                      struct fsdp_err *err)
{
    struct reader r = {.open = -1};

    *out = NULL;
    for (; nbytes && strchr(" \t\r\n", *data) && *data; nbytes--)
        data++;
    if (!(r.xml = fsdp_alloc(1, sizeof *r.xml, "XML", err)))
        return FSDP_ENOMEM;
    *out = r.xml;
    if (!(r.parser = XML_ParserCreate(NULL)))
        return fsdp_err_set(err, FSDP_ENOMEM, "XML: out of memory");
    int rc = parse_document(&r, data, nbytes, err);
    XML_ParserFree(r.parser);
    return rc;
}

void ckpt_s3_xml_free(struct ckpt_s3_xml *xml)
{
    if (!xml)
        return;
    if (xml->bytes.data)
        OPENSSL_cleanse(xml->bytes.data, xml->bytes.nbytes); /* of STS: a secret */
    fsdp_free(xml->elements);
    ckpt_text_free(&xml->bytes);
    fsdp_free(xml);
}

/* ---- looking --------------------------------------------------------------------------------- */

static bool is_called(const struct ckpt_s3_xml *xml, size_t i, const char *name)
{
    return !xml->bytes.failed && !strcmp(xml->bytes.data + xml->elements[i].name, name);
}

bool ckpt_s3_xml_next(int *element, const struct ckpt_s3_xml *xml, const char *name)
{
    for (size_t i = (size_t)(*element + 1); xml && i < xml->nelements; i++)
        if (is_called(xml, i, name)) {
            *element = (int)i;
            return true;
        }
    return false;
}

bool ckpt_s3_xml_text(char *out, size_t out_nbytes, const struct ckpt_s3_xml *xml, int element,
                      const char *name)
{
    out[0] = 0;
    /* Children follow their parent, before any element that is outside of it. */
    for (size_t i = (size_t)element + 1; xml && i < xml->nelements; i++) {
        const struct element *e = &xml->elements[i];
        if (e->parent < element)
            break;
        if (e->parent == element && is_called(xml, i, name)) {
            if (e->has_text)
                snprintf(out, out_nbytes, "%s", xml->bytes.data + e->text);
            return e->has_text;
        }
    }
    return false;
}

void ckpt_s3_xml_add(struct ckpt_text *out, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '&':
            ckpt_text_printf(out, "&amp;");
            break;
        case '<':
            ckpt_text_printf(out, "&lt;");
            break;
        case '>':
            ckpt_text_printf(out, "&gt;");
            break;
        default:
            ckpt_text_add(out, text, 1);
        }
    }
}
