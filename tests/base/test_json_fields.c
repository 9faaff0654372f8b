/* Tests of base/json_fields.h: every type of field, flags, objects by name, rows, and messages. */
#include "base/json_fields.h"

#include <math.h>

#include "tests/base/json_doc.h"

typedef enum {
    COLOR_RED,
    COLOR_GREEN,
} Color;

typedef struct {
    int64_t count;
    int32_t rank;
    uint8_t stream;
    double rate;
    bool fits;
    int64_t start_ns;
    char *text;
    const char *lent;
    char op[4];
    Color color;
    int64_t order; /* an enum's index in an int64_t */
    struct {
        int64_t x;
    } inner;
    double shares[2];
    const char *words[3];
} Record;

static const char *const colors[] = {"red", "green", NULL};
static const char *const share_names[] = {"p10", "p90", NULL};

#define OF(member) JSON_FIELD_OF(Record, member)

static const JsonField inner_fields[] = {
    {"x", .type = JSON_INT, .size = sizeof(int64_t), .min = 1, .max = 9},
    {.key = NULL},
};

static const JsonField fields[] = {
    {"count", OF(count), -5, JSON_MAX_INT},
    {"rank", OF(rank), -1, INT32_MAX},
    {"stream", OF(stream), 0, 255},
    {"rate", OF(rate), 0, 1, JSON_NULLABLE},
    {"fits", OF(fits)},
    {"start_s", JSON_FIELD_AS(JSON_NS, Record, start_ns), 0, 10},
    {"text", OF(text), .flags = JSON_NULLABLE},
    {"lent", OF(lent), .names = colors},
    {"op", JSON_FIELD_AS(JSON_CHARS, Record, op), .flags = JSON_NULLABLE},
    {"color", OF(color), .names = colors},
    {"order", OF(order), .names = colors},
    {"inner", OF(inner), .fields = inner_fields},
    {"shares", JSON_FIELD_AS(JSON_DOUBLE, Record, shares), 0, 1, .keys = share_names},
    {"words", JSON_FIELD_AS(JSON_LENTS, Record, words)},
    {.key = NULL},
};

/* As json_fields_write_object() lays it out. */
#define RECORD                                                                                     \
    "{\"count\": 9007199254740992, \"rank\": -1, \"stream\": 200, \"rate\": null, \"fits\": "      \
    "true, "                                                                                       \
    "\"start_s\": 1.5, \"text\": \"h\", \"lent\": \"red\", \"op\": null, \"color\": \"green\", "   \
    "\"order\": \"green\", \"inner\": {\"x\": 3}, \"shares\": {\"p10\": 0.25, \"p90\": 1}, "       \
    "\"words\": [\"a\", \"b\"]}"

static void
test_what_is_read_is_written(void)
{
    g_autoptr(JsonDoc) doc = parse(RECORD);
    g_autoptr(JsonWriter) writer = json_writer_new();
    Record record = {.text = g_strdup("freed"), .op = "old"};

    json_fields_read_object(doc, json_doc_root(doc, NULL, 0), fields, &record);
    assert_finishes(doc, NULL);
    g_assert_cmpint(record.count, ==, JSON_MAX_INT);
    g_assert_cmpint(record.rank, ==, -1);
    g_assert_cmpint(record.stream, ==, 200);
    g_assert_true(isnan(record.rate) && record.fits);
    g_assert_cmpint(record.start_ns, ==, 1500000000);
    g_assert_cmpstr(record.text, ==, "h");
    g_assert_cmpstr(record.lent, ==, "red");
    g_assert_cmpstr(record.op, ==, "");
    g_assert_cmpint(record.color, ==, COLOR_GREEN);
    g_assert_cmpint(record.order, ==, 1);
    g_assert_cmpint(record.inner.x, ==, 3);
    g_assert_cmpfloat(record.shares[0], ==, 0.25);
    g_assert_cmpfloat(record.shares[1], ==, 1);
    g_assert_cmpstr(record.words[1], ==, "b");
    g_assert_null(record.words[2]);
    g_assert_cmpint(json_field_int64(&fields[2], &record), ==, 200);
    g_assert_cmpint(json_field_int64(&fields[4], &record), ==, 1);
    json_fields_write_object(writer, NULL, fields, &record);
    g_autofree char *text = json_writer_steal(writer, NULL);
    g_assert_cmpstr(text, ==, RECORD "\n");
    g_free(record.text);
}

/* --- what may be absent --- */

typedef struct {
    int64_t n;
    double bound_s, rate;
    char *source;
    bool on;
    struct {
        int64_t x;
    } inner;
} Sparse;

#define SPARSE(member) JSON_FIELD_OF(Sparse, member)
#define LEFT_OUT (JSON_OPTIONAL | JSON_SPARSE)

static const JsonField sparse_fields[] = {
    {"n", SPARSE(n), -1, 9, LEFT_OUT, .usual = -1},
    {"bound_s", SPARSE(bound_s), 0, 9, LEFT_OUT, .usual = NAN},
    {"rate", SPARSE(rate), 0, 9, LEFT_OUT},
    {"source", SPARSE(source), .flags = LEFT_OUT},
    {"on", SPARSE(on), .flags = LEFT_OUT},
    {"why", .type = JSON_LENT, .flags = JSON_OPTIONAL | JSON_SPARSE},
    {"inner", SPARSE(inner), .flags = JSON_OPTIONAL, .fields = inner_fields},
    {.key = NULL},
};

static void
test_absent_keys_keep_values_and_usual_values_are_left_out(void)
{
    const Sparse usual = {.n = -1, .bound_s = NAN, .inner.x = 2};
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"{}", "{\"inner\": {\"x\": 2}}\n"},
        {"{\"why\": \"for people\", \"inner\": null}", "{\"inner\": {\"x\": 2}}\n"},
        {"{\"n\": 0, \"bound_s\": 0, \"rate\": 1, \"source\": \"\", \"on\": true, \"inner\": "
         "{\"x\": 5}}",
         "{\"n\": 0, \"bound_s\": 0, \"rate\": 1, \"source\": \"\", \"on\": true, \"inner\": "
         "{\"x\": 5}}\n"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(JsonDoc) doc = parse(cases[i].in);
        g_autoptr(JsonWriter) writer = json_writer_new();
        Sparse record = usual;

        json_fields_read_object(doc, json_doc_root(doc, NULL, 0), sparse_fields, &record);
        assert_finishes(doc, NULL);
        json_write_object_inline(writer, NULL);
        for (const JsonField *field = sparse_fields; field->key != NULL; field++) {
            const JsonField one[] = {*field, {.key = NULL}};
            if (field->size > 0)
                json_fields_write(writer, one, &record);
        }
        json_write_object_end(writer);
        g_autofree char *text = json_writer_steal(writer, NULL);
        g_assert_cmpstr(text, ==, cases[i].out);
        g_free(record.source);
    }
}

/* --- rows --- */

static void
test_rows_are_read_and_written(void)
{
    static const char text[] = "[\n  {\"x\": 1},\n  {\"x\": 9}\n]\n";
    g_autoptr(JsonDoc) doc = parse(text);
    g_autoptr(GArray) rows = g_array_new(FALSE, FALSE, sizeof(int64_t));
    g_autoptr(JsonWriter) writer = json_writer_new();

    json_fields_read_rows(doc, json_doc_root(doc, NULL, 0), inner_fields, rows);
    assert_finishes(doc, NULL);
    g_assert_cmpuint(rows->len, ==, 2);
    json_fields_write_rows(writer, NULL, inner_fields, rows);
    g_autofree char *written = json_writer_steal(writer, NULL);
    g_assert_cmpstr(written, ==, text);
}

static void
test_rows_begin_with_usual_values(void)
{
    g_autoptr(JsonDoc) doc = parse("[{}]");
    g_autoptr(GArray) rows = g_array_new(FALSE, FALSE, sizeof(Sparse));

    json_fields_read_rows(doc, json_doc_root(doc, NULL, 0), sparse_fields, rows);
    assert_finishes(doc, NULL);
    g_assert_cmpint(g_array_index(rows, Sparse, 0).n, ==, -1);
    g_assert_true(isnan(g_array_index(rows, Sparse, 0).bound_s));
    g_assert_null(g_array_index(rows, Sparse, 0).source);
    g_assert_cmpint(g_array_index(rows, Sparse, 0).inner.x, ==, 0);
}

/* --- messages --- */

/* They are those of the getters of base/json.h; the first thing wrong is told. */
static void
test_messages_name_key_and_bounds(void)
{
    static const struct {
        const char *text, *expect;
    } cases[] = {
        {"[{\"x\":1},{\"x\":10}]", "1:15: $[1].x: expected an integer from 1 to 9, got 10"},
        {"[{}]", "1:2: $[0].x: missing key"},
        {"[{\"x\":1,\"y\":2}]", "1:9: $[0].y: unknown key"},
        {"[{\"x\":null}]", "1:7: $[0].x: expected an integer from 1 to 9, got null"},
        {"[{\"x\":1},3,{\"x\":0}]", "1:10: $[1]: expected an object"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(JsonDoc) doc = parse(cases[i].text);
        g_autoptr(GArray) rows = g_array_new(FALSE, FALSE, sizeof(int64_t));

        json_fields_read_rows(doc, json_doc_root(doc, NULL, 0), inner_fields, rows);
        assert_finishes(doc, cases[i].expect);
    }
}

static void
test_words_and_absent_keys_are_checked(void)
{
    static const struct {
        const char *text, *expect;
    } cases[] = {
        {"{\"lent\":\"blue\"}", "1:1: $.lint: missing key; also missing: $.rate, $.words"},
        {"{\"lint\":\"blue\"}", "1:9: $.lint: expected \"red\" or \"green\", got \"blue\""},
        {"{\"lint\":\"red\"}", "1:1: $.rate: missing key; also missing: $.words"},
        {"{\"lint\":\"red\",\"rate\":0,\"words\":[\"a\",\"b\",\"c\"]}",
         "1:32: $.words: expected at most 2 names"},
        {"{\"lint\":\"red\",\"rate\":2}", "1:22: $.rate: expected a number from 0 to 1, got 2"},
    };
    static const JsonField three[] = {
        {"lint", OF(lent), .names = colors},
        {"rate", OF(rate), 0, 1, JSON_NULLABLE},
        {"words", JSON_FIELD_AS(JSON_LENTS, Record, words)},
        {.key = NULL},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(JsonDoc) doc = parse(cases[i].text);
        Record record = {0};

        json_fields_read(doc, json_doc_root(doc, NULL, 0), three, &record);
        assert_finishes(doc, cases[i].expect);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/base/json-fields/what-is-read-is-written", test_what_is_read_is_written);
    g_test_add_func("/base/json-fields/absent-keys-keep-values-and-usual-values-are-left-out",
                    test_absent_keys_keep_values_and_usual_values_are_left_out);
    g_test_add_func("/base/json-fields/rows-are-read-and-written", test_rows_are_read_and_written);
    g_test_add_func("/base/json-fields/rows-begin-with-usual-values",
                    test_rows_begin_with_usual_values);
    g_test_add_func("/base/json-fields/messages-name-key-and-bounds",
                    test_messages_name_key_and_bounds);
    g_test_add_func("/base/json-fields/words-and-absent-keys-are-checked",
                    test_words_and_absent_keys_are_checked);
    return g_test_run();
}
