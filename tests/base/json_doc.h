/*
 * tests/base/json_doc.h - documents for the tests of base/json.h, and how they must finish.
 */
#pragma once

#include "base/json.h"

#include <string.h>

static inline JsonDoc *
parse(const char *text)
{
    g_autoptr(GError) error = NULL;
    JsonDoc *doc = json_doc_parse("model.json", text, strlen(text), &error);

    g_assert_no_error(error);
    return doc;
}

/* Expects what went wrong in @doc, or NULL for nothing, with model.json in front. */
static inline void
assert_finishes(JsonDoc *doc, const char *expect)
{
    g_autoptr(GError) error = NULL;
    bool ok = json_doc_finish(doc, &error);

    g_assert_cmpint(json_doc_failed(doc), ==, !ok);
    if (expect == NULL) {
        g_assert_no_error(error);
        g_assert_true(ok);
        return;
    }
    g_assert_false(ok);
    g_assert_error(error, JSON_ERROR, JSON_ERROR_INVALID);
    g_assert_true(g_str_has_prefix(error->message, "model.json:"));
    g_assert_cmpstr(error->message + strlen("model.json:"), ==, expect);
    g_assert_false(json_doc_finish(doc, NULL)); /* stays so */
}
