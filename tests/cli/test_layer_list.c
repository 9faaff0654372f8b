/* Tests of cli/recipe/layer_list.h: lists mean what Python makes of them. */
#include "cli/recipe/layer_list.h"

#include <string.h>

/* (owned) "0011": @n digits; "-": no list. */
static char *
digits_of(const uint8_t *values, int64_t n)
{
    GString *text = g_string_new(values == NULL ? "-" : NULL);

    for (int64_t i = 0; values != NULL && i < n; i++)
        g_string_append_c(text, (char)('0' + values[i]));
    return g_string_free(text, FALSE);
}

/* Numbers alone by the formulas of gpt_layer_specs.py (i % N == 0 has experts), of transformer/utils.py
 * (layer_number % N != 0 has a window) and of transformer_config.py (the last of N has no positions). */
static void
test_reads(void)
{
    static const LayerListEvery experts = {0, true}, window = {1, false}, positions = {1, true};
    static const struct {
        const char *text;
        LayerListEvery every;
        const char *digits;
    } rows[] = {
        {"([0]*3+[1]*5)", {0, true}, "00011111"},
        {"[1,1,1,0]*2", {0, true}, "11101110"},
        {"2*([0]+[1]*3)", {0, true}, "01110111"},
        {"([1]*3+[0]*1)*2", {0, true}, "11101110"},
        {"[0, 0, 0, 0, 1, 1, 1, 1]", {0, true}, "00001111"},
        {"'([1]+[0])*(2+2)'", {0, true}, "10101010"},
        {"[1]*2*4", {0, true}, "11111111"},
        {"[2,0]*4", {0, true}, "10101010"},
        {"1", {0, true}, "11111111"},
        {"[0]*3+[1]*4", {0, true}, "-"},
        {"[0]*3+[1]*6", {0, true}, "-"},
        {"0", {0, true}, "-"},
        {"", {0, true}, "-"},
        {"[1]*[8]", {0, true}, "-"},
        {"[1]+8", {0, true}, "-"},
        {"[[1]*8]", {0, true}, "-"},
        {"([1]*8", {0, true}, "-"},
        {"[1]*8)", {0, true}, "-"},
        {"[1]*99999999999999999999", {0, true}, "-"},
        {"[1]*65536*65536", {0, true}, "-"},
        {"(((((((((([1]*8))))))))))", {0, true}, "-"},
        {"-1", {0, true}, "-"},
        {"[1]*8;", {0, true}, "-"},
    };
    static const struct {
        const char *text;
        const LayerListEvery *every;
        const char *digits;
    } numbers[] = {
        {"3", &experts, "10010010"},   {"2", &window, "10101010"}, {"4", &window, "11101110"},
        {"4", &positions, "00010001"}, {"9", &window, "11111111"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autofree uint8_t *values = layer_list_read(rows[i].text, 8, rows[i].every);
        g_autofree char *digits = digits_of(values, 8);
        g_test_message("%s", rows[i].text);
        g_assert_cmpstr(digits, ==, rows[i].digits);
    }
    for (size_t i = 0; i < G_N_ELEMENTS(numbers); i++) {
        g_autofree uint8_t *values = layer_list_read(numbers[i].text, 8, *numbers[i].every);
        g_autofree char *digits = digits_of(values, 8);
        g_assert_cmpstr(digits, ==, numbers[i].digits);
    }
}

/* Every list of up to 12 layers is read back; the text is the shortest period. */
static void
test_writes(void)
{
    static const struct {
        const char *digits, *text;
    } rows[] = {
        {"00011111", "([0]*3+[1]*5)"},
        {"10101010", "([1]+[0])*4"},
        {"11101110", "([1]*3+[0])*2"},
        {"1111", "([1])*4"},
        {"0", "([0])"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        uint8_t values[8];
        const size_t n = strlen(rows[i].digits);
        for (size_t k = 0; k < n; k++)
            values[k] = (uint8_t)(rows[i].digits[k] - '0');
        g_autofree char *text = layer_list_write(values, (int64_t)n);
        g_assert_cmpstr(text, ==, rows[i].text);
    }
    for (int64_t n = 1; n <= 12; n++)
        for (int set = 0; set < 1 << n; set++) {
            uint8_t values[12];
            for (int64_t k = 0; k < n; k++)
                values[k] = set >> k & 1;
            g_autofree char *text = layer_list_write(values, n);
            g_autofree uint8_t *again = layer_list_read(text, n, (LayerListEvery){0, true});
            g_assert_nonnull(again);
            g_assert_true(memcmp(again, values, (size_t)n) == 0);
        }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/recipe/layer-list/reads", test_reads);
    g_test_add_func("/recipe/layer-list/writes", test_writes);
    return g_test_run();
}
