/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of an S3 server: lists of objects and of uploads, errors. */
#include "fuzz.h"

#if HAVE_CURL
#include "../../ckpt/store/s3/xml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    static const char *const elements[] = {"Contents", "CommonPrefixes", "Upload", "Error",
                                           "Credentials"};
    static const char *const texts[] = {"Key",  "Size",   "LastModified", "Prefix",
                                        "Code", "Region", "UploadId",     "IsTruncated"};
    char *copy = malloc(nbytes ? nbytes : 1), text[32]; /* an overrun shows */
    struct ckpt_s3_xml *xml;
    if (!copy)
        abort();
    memcpy(copy, data, nbytes);
    ckpt_s3_xml_parse(&xml, copy, nbytes, NULL);
    free(copy);
    for (size_t e = 0; e < sizeof elements / sizeof elements[0]; e++)
        for (int at = -1, i = 0; i < 1000 && ckpt_s3_xml_next(&at, xml, elements[e]); i++)
            for (size_t t = 0; t < sizeof texts / sizeof texts[0]; t++) {
                ckpt_s3_xml_text(text, sizeof text, xml, at, texts[t]);
                if (!memchr(text, 0, sizeof text))
                    abort();
            }
    for (size_t t = 0; t < sizeof texts / sizeof texts[0]; t++)
        ckpt_s3_xml_text(text, sizeof text, xml, CKPT_S3_XML_ROOT, texts[t]);
    ckpt_s3_xml_free(xml);
    return 0;
}
#else
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    (void)data, (void)nbytes;
    return 0;
}
#endif

FUZZ_TARGET("xml")
