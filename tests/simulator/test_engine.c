/* Tests of simulator/engine.h: order, ties, the clock, and stopping. */
#include "simulator/engine.h"

#include "tests/simulator/random.h"

typedef struct {
    GString *log;
    char name;
} Probe;

static bool
log_name(SimEngine *engine, void *user_data, GError **error)
{
    Probe *probe = user_data;

    g_string_append_c(probe->log, probe->name);
    return true;
}

static bool
again_in_1_ns(SimEngine *engine, void *user_data, GError **error)
{
    sim_engine_add(engine, sim_engine_now_ns(engine) + 1, again_in_1_ns, user_data);
    return true;
}

static void
test_fires_in_time_order(void)
{
    static const struct {
        const char *at_ns; /* one digit per event: event 'a' is added first, at at_ns[0] */
        const char *expect;
    } cases[] = {
        {"", ""},
        {"321", "cba"},
        {"111", "abc"},       /* a tie keeps insertion order */
        {"212121", "bdface"}, /* ... also when ties are interleaved */
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(SimEngine) engine = sim_engine_new();
        g_autoptr(GString) log = g_string_new(NULL);
        g_autoptr(GError) error = NULL;
        Probe probes[8];

        for (size_t j = 0; cases[i].at_ns[j]; j++) {
            probes[j] = (Probe){.log = log, .name = (char)('a' + j)};
            sim_engine_add(engine, cases[i].at_ns[j] - '0', log_name, &probes[j]);
        }
        g_assert_true(sim_engine_run(engine, 0, &error));
        g_assert_no_error(error);
        g_assert_cmpstr(log->str, ==, cases[i].expect);
    }
}

static void
test_livelock_is_an_error(void)
{
    g_autoptr(SimEngine) engine = sim_engine_new();
    g_autoptr(GError) error = NULL;

    sim_engine_add(engine, 0, again_in_1_ns, NULL);
    g_assert_false(sim_engine_run(engine, 100, &error));
    g_assert_error(error, SIM_ENGINE_ERROR, SIM_ENGINE_ERROR_EVENT_LIMIT);
    g_assert_cmpint(sim_engine_now_ns(engine), ==, 99); /* stays where it stopped */
}

static bool
fail_now(SimEngine *engine, void *user_data, GError **error)
{
    g_set_error_literal(error, G_FILE_ERROR, G_FILE_ERROR_FAILED, "enough");
    return false;
}

static void
test_an_event_can_stop_it(void)
{
    g_autoptr(SimEngine) engine = sim_engine_new();
    g_autoptr(GString) log = g_string_new(NULL);
    g_autoptr(GError) error = NULL;
    Probe probes[2] = {{log, 'a'}, {log, 'b'}};

    sim_engine_add(engine, 3, log_name, &probes[0]);
    sim_engine_add(engine, 5, fail_now, NULL);
    sim_engine_add(engine, 7, log_name, &probes[1]);
    g_assert_false(sim_engine_run(engine, 0, &error));
    g_assert_error(error, G_FILE_ERROR, G_FILE_ERROR_FAILED);
    g_assert_cmpstr(log->str, ==, "a");
    g_assert_cmpint(sim_engine_now_ns(engine), ==, 5);
    g_assert_cmpuint(sim_engine_n_pending(engine), ==, 1);
    g_assert_true(sim_engine_run(engine, 0, NULL)); /* and go on */
    g_assert_cmpstr(log->str, ==, "ab");
}

static void
test_the_past_is_rejected(void)
{
    g_autoptr(SimEngine) engine = sim_engine_new();
    g_autoptr(GString) log = g_string_new(NULL);
    Probe probe = {log, 'a'};

    sim_engine_add(engine, 3, log_name, &probe);
    g_assert_true(sim_engine_run(engine, 0, NULL));
    g_test_expect_message(NULL, G_LOG_LEVEL_CRITICAL, "*at_ns >= engine->now_ns*");
    sim_engine_add(engine, 2, log_name, &probe);
    g_test_assert_expected_messages();
    g_assert_cmpuint(sim_engine_n_pending(engine), ==, 0);
}

/* --- many --- */

typedef struct {
    uint64_t *state;
    int64_t last_ns, n_fired, n_left;
    int64_t last_number; /* of the event fired last */
    int64_t n_added;
} Crowd;

typedef struct {
    Crowd *crowd;
    int64_t at_ns, number;
} Member;

static bool member_fires(SimEngine *engine, void *user_data, GError **error);

static void
add_member(SimEngine *engine, Crowd *crowd)
{
    Member *member = g_new(Member, 1);

    *member = (Member){crowd, sim_engine_now_ns(engine) + random_in(crowd->state, 0, 9),
                       crowd->n_added++};
    sim_engine_add(engine, member->at_ns, member_fires, member);
}

/* Time never goes back; of two at one time, the one that was added first came first. */
static bool
member_fires(SimEngine *engine, void *user_data, GError **error)
{
    Member *member = user_data;
    Crowd *crowd = member->crowd;

    g_assert_cmpint(sim_engine_now_ns(engine), ==, member->at_ns);
    g_assert_cmpint(member->at_ns, >=, crowd->last_ns);
    if (member->at_ns == crowd->last_ns && crowd->n_fired > 0)
        g_assert_cmpint(member->number, >, crowd->last_number);
    crowd->last_ns = member->at_ns;
    crowd->last_number = member->number;
    crowd->n_fired++;
    g_free(member);
    for (int64_t n = random_in(crowd->state, 0, 2); n > 0 && crowd->n_left > 0; n--) {
        crowd->n_left--;
        add_member(engine, crowd);
    }
    return true;
}

static void
test_order_of_a_crowd(void)
{
    uint64_t state = 5;
    Crowd crowd = {.state = &state, .n_left = 100000};
    g_autoptr(SimEngine) engine = sim_engine_new();

    for (int i = 0; i < 1000; i++)
        add_member(engine, &crowd);
    g_assert_true(sim_engine_run(engine, 0, NULL));
    g_assert_cmpint(crowd.n_fired, ==, crowd.n_added);
    g_assert_cmpint(crowd.n_fired, >, 1000);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/simulator/engine/fires-in-time-order", test_fires_in_time_order);
    g_test_add_func("/simulator/engine/livelock-is-an-error", test_livelock_is_an_error);
    g_test_add_func("/simulator/engine/an-event-can-stop-it", test_an_event_can_stop_it);
    g_test_add_func("/simulator/engine/the-past-is-rejected", test_the_past_is_rejected);
    g_test_add_func("/simulator/engine/order-of-a-crowd", test_order_of_a_crowd);
    return g_test_run();
}
