/* SPDX-License-Identifier: Apache-2.0 */
/* The little XML that S3 speaks: elements without attributes that matter. */
#ifndef CKPT_S3_XML_H
#define CKPT_S3_XML_H

#include "util/text.h"

/* A stretch of text, not terminated. */
struct ckpt_s3_span {
    const char *data;
    size_t nbytes;
};

/* The content of the next element of that name in *rest, which becomes what follows it. False if
 * there is none. Elements of one name do not nest. */
bool ckpt_s3_xml_next(struct ckpt_s3_span *out, struct ckpt_s3_span *rest, const char *name);
/* The text of the first element of that name within a span, its entities resolved, and cut if it is
 * longer than out; "" and false if there is none. */
bool ckpt_s3_xml_text(char *out, size_t out_nbytes, struct ckpt_s3_span in, const char *name);
/* Appends text as XML. */
void ckpt_s3_xml_add(struct ckpt_text *out, const char *text);

#endif
