/* Tests of simulator/engine.h: order, ties, the clock, timers set again, and a slow oracle. */
#include "simulator/engine.h"

#include <string.h>

#include "tests/simulator/random.h"

/* Timer i is set to at_ns[i], a digit; '-': not at all. */
static void
test_goes_off_in_time_order(void)
{
    static const struct {
        const char *at_ns, *expect;
    } cases[] = {
        {"-", ""},
        {"321", "cba"},
        {"111", "abc"}, /* a tie is settled by number */
        {"212121", "bdface"},
        {"5-0-5", "cae"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const int32_t n = (int32_t)strlen(cases[i].at_ns);
        g_autoptr(SimEngine) engine = sim_engine_new(n);
        g_autoptr(GString) log = g_string_new(NULL);

        /* The order in which they are set says nothing. */
        for (int32_t t = n - 1; t >= 0; t--)
            if (cases[i].at_ns[t] != '-')
                sim_engine_set(engine, t, cases[i].at_ns[t] - '0');
        for (int32_t t; (t = sim_engine_next(engine)) >= 0;) {
            g_assert_cmpint(*sim_engine_clock(engine), ==, cases[i].at_ns[t] - '0');
            g_string_append_c(log, (char)('a' + t));
        }
        g_assert_cmpstr(log->str, ==, cases[i].expect);
    }
}

static void
test_the_clock_stays_when_nothing_is_set(void)
{
    g_autoptr(SimEngine) engine = sim_engine_new(3);

    g_assert_cmpint(sim_engine_next_ns(engine), ==, SIM_ENGINE_NEVER);
    g_assert_cmpint(sim_engine_next(engine), ==, -1);
    sim_engine_set(engine, 1, 7);
    g_assert_cmpint(sim_engine_next_ns(engine), ==, 7);
    g_assert_cmpint(*sim_engine_clock(engine), ==, 0);
    g_assert_cmpint(sim_engine_next(engine), ==, 1);
    g_assert_cmpint(*sim_engine_clock(engine), ==, 7);
    g_assert_cmpint(sim_engine_next(engine), ==, -1);
    g_assert_cmpint(*sim_engine_clock(engine), ==, 7);
}

static void
test_set_again_replaces(void)
{
    g_autoptr(SimEngine) engine = sim_engine_new(2);

    sim_engine_set(engine, 0, 5);
    sim_engine_set(engine, 1, 6);
    sim_engine_set(engine, 0, 9); /* later */
    g_assert_cmpint(sim_engine_next(engine), ==, 1);
    sim_engine_set(engine, 1, 6); /* now, again */
    g_assert_cmpint(sim_engine_next(engine), ==, 1);
    sim_engine_set(engine, 0, 7); /* earlier */
    g_assert_cmpint(sim_engine_next(engine), ==, 0);
    g_assert_cmpint(*sim_engine_clock(engine), ==, 7);
    sim_engine_set(engine, 0, 8);
    sim_engine_set(engine, 0, SIM_ENGINE_NEVER);
    g_assert_cmpint(sim_engine_next(engine), ==, -1);
}

static void
test_rejects_the_past(void)
{
    g_autoptr(SimEngine) engine = sim_engine_new(1);

    sim_engine_set(engine, 0, 5);
    g_assert_cmpint(sim_engine_next(engine), ==, 0);
    g_test_expect_message(NULL, G_LOG_LEVEL_CRITICAL, "*at_ns >= engine->now_ns*");
    sim_engine_set(engine, 0, 4);
    g_test_assert_expected_messages();
    g_assert_cmpint(sim_engine_next(engine), ==, -1);
}

/* Any number of timers, set, set again and stopped at random, against the least of an array. */
static void
test_equals_the_least_of_an_array(void)
{
    for (uint64_t seed = 0; seed < 300; seed++) {
        uint64_t state = seed ^ 0xe9;
        const int32_t n = (int32_t)random_in(&state, 1, 40);
        g_autoptr(SimEngine) engine = sim_engine_new(n);
        int64_t at_ns[40], now_ns = 0;

        for (int32_t t = 0; t < n; t++)
            at_ns[t] = SIM_ENGINE_NEVER;
        for (int i = 0; i < 400; i++) {
            for (int64_t k = random_in(&state, 0, 3); k > 0; k--) {
                const int32_t t = (int32_t)random_in(&state, 0, n - 1);
                at_ns[t] = random_in(&state, 0, 5) == 0 ? SIM_ENGINE_NEVER
                                                        : now_ns + random_in(&state, 0, 9);
                sim_engine_set(engine, t, at_ns[t]);
            }
            int32_t first = 0;
            for (int32_t t = 1; t < n; t++)
                first = at_ns[t] < at_ns[first] ? t : first;
            if (random_in(&state, 0, 1) == 0)
                g_assert_cmpint(sim_engine_next_ns(engine), ==, at_ns[first]);
            const bool any = at_ns[first] != SIM_ENGINE_NEVER;
            g_assert_cmpint(sim_engine_next(engine), ==, any ? first : -1);
            now_ns = any ? at_ns[first] : now_ns;
            g_assert_cmpint(*sim_engine_clock(engine), ==, now_ns);
            if (any)
                at_ns[first] = SIM_ENGINE_NEVER;
        }
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/simulator/engine/goes-off-in-time-order", test_goes_off_in_time_order);
    g_test_add_func("/simulator/engine/the-clock-stays-when-nothing-is-set",
                    test_the_clock_stays_when_nothing_is_set);
    g_test_add_func("/simulator/engine/set-again-replaces", test_set_again_replaces);
    g_test_add_func("/simulator/engine/rejects-the-past", test_rejects_the_past);
    g_test_add_func("/simulator/engine/equals-the-least-of-an-array",
                    test_equals_the_least_of_an_array);
    return g_test_run();
}
