/* SPDX-License-Identifier: Apache-2.0 */
/* The XML of S3's answers: as servers send it, hostile, and cut off. */
#include <stdlib.h>
#include <string.h>

#include "tap.h"

#if HAVE_CURL
#include "../../ckpt/store/s3/xml.h"

/* The child `name` of the first element `of`; want NULL: there is none. */
static bool has(const char *data, size_t nbytes, const char *of, const char *name, const char *want)
{
    struct ckpt_s3_xml *xml;
    char got[16] = "";
    int at = -1;
    ckpt_s3_xml_parse(&xml, data, nbytes, NULL);
    bool found = ckpt_s3_xml_next(&at, xml, of) && ckpt_s3_xml_text(got, sizeof got, xml, at, name);
    ckpt_s3_xml_free(xml);
    return want ? found && !strcmp(got, want) : !found && !*got;
}

static bool in(const char *text, const char *of, const char *name, const char *want)
{
    return has(text, strlen(text), of, name, want);
}

/* Is it refused, with this in the text? */
static bool refused(const char *text, size_t nbytes, const char *why)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt_s3_xml *xml;
    int rc = ckpt_s3_xml_parse(&xml, text, nbytes, &err);
    ckpt_s3_xml_free(xml);
    if (rc == FSDP_EIO && strstr(err.text, why))
        return true;
    diag("%d, '%s'", rc, err.text);
    return false;
}

static void test_answers(void)
{
    ok(in("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<L xmlns=\"http://s3.amazonaws.com/doc/\">"
          "<C><Key>k</Key></C></L>",
          "C", "Key", "k"),
       "a list, with the namespace that S3 sends");
    ok(in("<n:L xmlns:n=\"x\"><n:C><n:Key>k</n:Key></n:C></n:L>", "C", "Key", "k"),
       "prefixes do not matter");
    ok(in("<C><Key>x&amp;&lt;&#x41;&quot;&#228;</Key></C>", "C", "Key", "x&<A\"\xc3\xa4"),
       "entities and references");
    ok(in("<C><Key><![CDATA[a&<b]]>c</Key></C>", "C", "Key", "a&<bc"), "CDATA");
    ok(in("<C><KeyCount>1</KeyCount><Key>k</Key></C>", "C", "Key", "k"), "a name is taken whole");
    ok(in("<C><Owner><Key>other</Key></Owner><Key>k</Key></C>", "C", "Key", "k"),
       "a child's child is another's");
    ok(in("<L><C><A>1</A></C><Key>k</Key></L>", "C", "Key", NULL), "so is a sibling's");
    ok(in("<C><Key/></C>", "C", "Key", ""), "an empty element");
    ok(in("<C><Key>0123456789abcdefgh</Key></C>", "C", "Key", "0123456789abcde"),
       "what is too long is cut");
    ok(in(" \n\n <?xml version=\"1.0\"?><C><Key>k</Key></C>", "C", "Key", "k"),
       "blanks before the declaration, which S3 sends while it works");
    ok(in("\xef\xbb\xbf<C><Key>k</Key></C>", "C", "Key", "k"), "a byte order mark");
    static const char wide[] = "\xff\xfe<\0C\0>\0<\0K\0>\0k\0<\0/\0K\0>\0<\0/\0C\0>\0";
    ok(has(wide, sizeof wide - 1, "C", "K", "k"), "UTF-16");

    struct ckpt_s3_xml *xml;
    static const char list[] = "<L><C>1</C><D/><C>2</C><E><C>3</C></E></L>";
    int count = 0;
    ckpt_s3_xml_parse(&xml, list, strlen(list), NULL);
    for (int at = -1; ckpt_s3_xml_next(&at, xml, "C");)
        count++;
    ok(count == 3, "elements of one name, one after the other");
    ckpt_s3_xml_free(xml);
}

static void test_damage(void)
{
    static const char error[] = "<Error><Code>InternalError</Code><Message>We enc";
    static const char *const cut[] = {"<C><Key>k", "<C><Key>k</Key", "<C><Key", "<C>", "<",
                                      "",          "no XML at all",  "<C></D>"};
    bool all = true;
    for (size_t i = 0; i < sizeof cut / sizeof *cut; i++)
        all = all && refused(cut[i], strlen(cut[i]), "line 1: ") && in(cut[i], "C", "Key", NULL);
    ok(all, "what is cut off or no XML is refused, and nothing is made of it");
    ok(refused(error, strlen(error), "line 1: ") && in(error, "Error", "Code", "InternalError") &&
           in(error, "Error", "Message", NULL),
       "of an error that is cut off, what has come can be read");
    ok(refused("<C>\n<Key>\x01</Key></C>", 19, "line 2: "), "the line is named");
    ok(refused("<C>&other;</C>", 14, "undefined entity"), "an unknown entity");
    static const char laughs[] =
        "<!DOCTYPE l [<!ENTITY a \"ha\"><!ENTITY b \"&a;&a;&a;&a;\">]><C><Key>&b;</Key></C>";
    ok(refused(laughs, strlen(laughs), "document type") && in(laughs, "C", "Key", NULL),
       "a document type is refused before its entities");
    static const char file[] = "<!DOCTYPE l SYSTEM \"file:///etc/passwd\"><C><Key>k</Key></C>";
    ok(refused(file, strlen(file), "document type"), "and one elsewhere is not opened");
}

/* count times "<a>", and nothing that ends them; or each with its end. */
static void test_limits(void)
{
    enum { DEEP = 1000, MANY = (1 << 20) + 1 };
    char *deep = malloc(3 * DEEP), *many = malloc(4 * (size_t)MANY + 16);
    for (int i = 0; i < DEEP; i++)
        memcpy(deep + 3 * (size_t)i, "<a>", 3);
    ok(refused(deep, 3 * DEEP, "too many elements"), "a thousand levels");
    char *at = many;
    memcpy(at, "<C>", 3);
    at += 3;
    for (int i = 0; i < MANY; i++, at += 4)
        memcpy(at, "<a/>", 4);
    ok(refused(many, (size_t)(at - many), "too many elements"), "more than a million elements");
    char *large = calloc(1, (64u << 20) + 1);
    memset(large, ' ', (64u << 20) + 1);
    memcpy(large, "<C>", 3);
    ok(refused(large, (64u << 20) + 1, "64 MiB"), "more than 64 MiB");
    free(deep);
    free(many);
    free(large);
}

int main(void)
{
    test_answers();
    test_damage();
    test_limits();
    return tap_done();
}
#else
int main(void)
{
    tap_skip("this build has no libcurl");
    return tap_done();
}
#endif
