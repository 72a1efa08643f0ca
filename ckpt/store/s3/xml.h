/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xml.h: the XML that S3 and STS answer with, read by expat: elements with children or text.
 * Attributes and namespace prefixes do not matter. A document type, and with it entities other than
 * XML's five, is refused; so are documents of more than 64 MiB, a million elements or 32 levels.
 */
#ifndef CKPT_S3_XML_H
#define CKPT_S3_XML_H

#include "util/text.h"

struct ckpt_s3_xml;
enum { CKPT_S3_XML_ROOT = 0 }; /* the document's first element */

/* Blanks before the document are skipped: S3 sends them while it works. FSDP_EIO: it is no XML, cut
 * off, or refused; the text is "line 3: mismatched tag". *out is then what was read before, so that
 * an error inside can still be found, or NULL. Freed with ckpt_s3_xml_free. */
int ckpt_s3_xml_parse(struct ckpt_s3_xml **out, const char *data, size_t nbytes,
                      struct fsdp_err *err);
void ckpt_s3_xml_free(struct ckpt_s3_xml *xml); /* NULL is allowed */

/* *element = the next element of that name, at any depth, in the document's order; begin with -1.
 * xml may be NULL: there is none. */
bool ckpt_s3_xml_next(int *element, const struct ckpt_s3_xml *xml, const char *name);
/* The text of the first child of that name, cut if it is longer than out; "" and false if there is
 * none. An element with children has no text. */
bool ckpt_s3_xml_text(char *out, size_t out_nbytes, const struct ckpt_s3_xml *xml, int element,
                      const char *name);
/* Appends text as XML. */
void ckpt_s3_xml_add(struct ckpt_text *out, const char *text);

#endif
