/* Tests of base/text.h: the nearest name, and escaping. */
#include "base/text.h"

#include <string.h>

static void
test_finds_the_nearest(void)
{
    static const char *const names[] = {"tp",     "pp",      "dp",          "hidden",
                                        "layers", "n_heads", "micro-batch", NULL};
    static const struct {
        const char *name;
        const char *expect;
    } cases[] = {
        {"hidden", "hidden"},
        {"hiden", "hidden"},   /* deletion */
        {"hiddden", "hidden"}, /* insertion */
        {"hidxen", "hidden"},  /* substitution */
        {"hdiden", "hidden"},  /* transposition counts 1: */
        {"hdidne", "hidden"},  /* ... two of them are within 2 */
        {"hidde", "hidden"},
        {"HIDDEN", "hidden"}, /* case counts nothing */
        {"n-heads", "n_heads"},
        {"micro_batch", "micro-batch"},
        {"mircobatchs", "micro-batch"}, /* 3 edits, 11 / 3 = 3 */
        {"mircobatchess", NULL},        /* 5 edits, 13 / 3 = 4 */
        {"hixxxn", NULL},               /* 3 edits, max(2, 6 / 3) = 2 */
        {"TP", "tp"},
        {"xp", "tp"}, /* as near to pp and dp: the first */
        {"dpp", "pp"},
        {"x", NULL}, /* within 2 of tp, but nothing in common */
        {"zz", NULL},
        {"", NULL},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++)
        g_assert_cmpstr(text_nearest(cases[i].name, names), ==, cases[i].expect);
}

static void
test_handles_any_list_and_length(void)
{
    static const char *const none[] = {NULL};
    g_autofree char *limit = g_strnfill(128, 'a');
    g_autofree char *beyond = g_strnfill(129, 'a');
    g_autofree char *huge = g_strnfill(1 << 20, 'a');
    const char *const names[] = {beyond, limit, NULL};

    g_assert_null(text_nearest("tp", none));
    g_assert_true(text_nearest(limit, names) == limit);
    g_assert_null(text_nearest(beyond, names));
    g_assert_null(text_nearest(huge, names));
}

static void
test_suggests(void)
{
    static const char *const names[] = {"plan", "plot", NULL};
    g_autofree char *near = text_suggestion("pln", names);
    g_autofree char *far = text_suggestion("simulate", names);

    g_assert_cmpstr(near, ==, ": did you mean \"plan\"?");
    g_assert_cmpstr(far, ==, "");

    static const char *const likes[] = {"dgx-h100", "llama2-70b", "llama3-70b", "h20",
                                        "aH100b",   "x-h100",     "y-h100",     NULL};
    g_autofree char *equal = text_suggestion("llama-70b", likes);
    g_autofree char *part = text_suggestion("-H100", likes);
    g_autofree char *short_part = text_suggestion("-H", likes);
    g_assert_cmpstr(equal, ==, ": did you mean \"llama2-70b\" or \"llama3-70b\"?");
    g_assert_cmpstr(part, ==, ": did you mean \"dgx-h100\" or \"x-h100\" or \"y-h100\"?");
    g_assert_cmpstr(short_part, ==, "");

    /* As others call it: with an owner, with a number of devices, with more around it. */
    static const struct {
        const char *name, *expect;
    } framed[] = {
        {"meta-llama/Llama3-70B", ": did you mean \"llama3-70b\"?"},
        {"8xH20", ": did you mean \"h20\"?"},
        {"Meta-Llama-3-70B-Instruct", ": did you mean \"llama3-70b\"?"},
        {"owner/", ""},
        {"16x", ""},
        {"an-h20-of-ours", ""}, /* so short a name is in it by chance */
    };
    for (size_t i = 0; i < G_N_ELEMENTS(framed); i++) {
        g_autofree char *said = text_suggestion(framed[i].name, likes);
        g_assert_cmpstr(said, ==, framed[i].expect);
    }
}

static void
test_escapes(void)
{
    static const struct {
        const char *text;
        size_t max_bytes;
        const char *expect;
    } cases[] = {
        {"", 100, ""},
        {"plain \"text\" \\ here", 100, "plain \"text\" \\ here"},
        {"a\nb\tc\rd", 100, "a\\nb\\tc\\rd"},
        {"\x1b[31mred\x7f", 100, "\\x1b[31mred\\x7f"},
        {"h\xc3\xa4user", 100, "h\xc3\xa4user"},
        {"bad \xff\xc3", 100, "bad \\xff\\xc3"},
        {"\xc0\xaf", 100, "\\xc0\\xaf"},          /* overlong */
        {"\xed\xa0\x80", 100, "\\xed\\xa0\\x80"}, /* a surrogate */
        {"\xc2\x9b"
         "31m",
         100, "\\u009b31m"}, /* CSI as one character */
        {"\xe2\x80\xae"
         "evil",
         100, "\\u202eevil"}, /* right to left */
        {"line\xe2\x80\xa8sep", 100, "line\\u2028sep"},
        {"0123456789", 10, "0123456789"},
        {"01234567890", 10, "0123456..."},
        {"01234\n\n\n", 10, "01234\\n..."}, /* an escape is not cut apart */
        {"0123456\xc3\xa4\xc3\xa4", 11, "0123456\xc3\xa4\xc3\xa4"},
        {"01234567\xc3\xa4\xc3\xa4", 11, "01234567..."},
        {"0123456\xc3\xa4\xc3\xa4\xc3\xa4", 11, "0123456..."}, /* nor a character */
        {"abcd", 3, "..."},
        {"abcd", 2, ""},
        {"abcd", 0, ""},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *text = text_escape(cases[i].text, cases[i].max_bytes);

        g_assert_cmpstr(text, ==, cases[i].expect);
    }
}

static void
test_escapes_all_bytes_within_the_limit(void)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(2);

    for (int i = 0; i < 20000; i++) {
        char bytes[33];
        size_t max_bytes = (size_t)g_rand_int_range(random, 0, 80);
        g_autofree char *text = NULL;

        for (size_t j = 0; j < sizeof(bytes) - 1; j++)
            bytes[j] = (char)g_rand_int_range(random, 1, 256);
        bytes[sizeof(bytes) - 1] = 0;
        text = text_escape(bytes, max_bytes);
        g_assert_cmpuint(strlen(text), <=, max_bytes);
        g_assert_true(g_utf8_validate(text, -1, NULL));
        for (const char *p = text; *p != 0; p++)
            g_assert_false(g_ascii_iscntrl(*p));
    }
}

static void
test_stays_in_its_cell(void)
{
    static const char *const cases[][2] = {
        {"vtrain_multi, tp <= 8", "vtrain_multi, tp &lt;= 8"},
        {"<script>open()</script>", "&lt;script>open()&lt;/script>"},
        {"a|b\nc", "a\\|b\\\\nc"},
        {"![x](http://y) `z` &lt;", "!\\[x](http://y) \\`z\\` &amp;lt;"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *text = text_markdown(cases[i][0], 100);
        g_assert_cmpstr(text, ==, cases[i][1]);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/base/text/finds-the-nearest", test_finds_the_nearest);
    g_test_add_func("/base/text/handles-any-list-and-length", test_handles_any_list_and_length);
    g_test_add_func("/base/text/suggests", test_suggests);
    g_test_add_func("/base/text/escapes", test_escapes);
    g_test_add_func("/base/text/escapes-all-bytes-within-the-limit",
                    test_escapes_all_bytes_within_the_limit);
    g_test_add_func("/base/text/stays-in-its-cell", test_stays_in_its_cell);
    return g_test_run();
}
