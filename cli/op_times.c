#include "cli/op_times.h"

#include <math.h>
#include <string.h>

/* F, B, I, W, comm; NaN: not given. */
#define N_NAMES 5

static int
find_name(const char *name)
{
    static const char *const names[N_NAMES] = {"F", "B", "I", "W", "comm"};

    for (int i = 0; i < N_NAMES; i++) {
        if (strcmp(names[i], name) == 0)
            return i;
    }
    return -1;
}

static void
read_word(Options *options, const char *word, double times[N_NAMES])
{
    const char *equals = strchr(word, '=');
    g_autofree char *name = equals == NULL ? NULL : g_strndup(word, (size_t)(equals - word));
    const int i = name == NULL ? -1 : find_name(name);
    GError *error = NULL;

    if (i < 0) {
        options_fail(options, "op-times", "expected F=, B=, I=, W= or comm=, got \"%s\"", word);
        return;
    }
    if (!isnan(times[i]))
        options_fail(options, "op-times", "%s is there twice", name);
    if (!units_parse(equals + 1, UNITS_KIND_S, &times[i], &error)) {
        options_fail(options, "op-times", "%s: %s", name, error->message);
        g_error_free(error);
        times[i] = 0;
    }
}

OpTimes
op_times_read(Options *options)
{
    g_auto(GStrv) words = options_words(options, "op-times");
    double times[N_NAMES] = {NAN, NAN, NAN, NAN, NAN};
    enum {
        F,
        B,
        I,
        W,
        COMM
    };

    for (size_t i = 0; words != NULL && words[i] != NULL; i++)
        read_word(options, words[i], times);
    if (isnan(times[F]))
        times[F] = 1;
    if (isnan(times[B]))
        times[B] = !isnan(times[I]) && !isnan(times[W]) ? times[I] + times[W] : 2 * times[F];
    if (isnan(times[I]))
        times[I] = isnan(times[W]) ? times[B] / 2 : fmax(times[B] - times[W], 0);
    if (isnan(times[W]))
        times[W] = fmax(times[B] - times[I], 0);
    if (isnan(times[COMM]))
        times[COMM] = 0;
    return (OpTimes){
        .time_ns = {[SCHEDULE_OP_FORWARD] = units_ns_from_s(times[F]),
                    [SCHEDULE_OP_BACKWARD] = units_ns_from_s(times[B]),
                    [SCHEDULE_OP_BACKWARD_INPUT] = units_ns_from_s(times[I]),
                    [SCHEDULE_OP_BACKWARD_WEIGHT] = units_ns_from_s(times[W])},
        .message_ns = units_ns_from_s(times[COMM]),
    };
}
