/* Tests of simulator/resource.h: shares by hand, max-min fairness as defined, and a slow oracle. */
#include "simulator/resource.h"

#include <math.h>

#include "tests/simulator/random.h"

#define MAX_FLOWS 64
#define MAX_LINKS 4

/* --- by hand --- */

typedef struct {
    int64_t start_ns, work_ns, end_ns;
    SimCrossing crossed[MAX_LINKS];
    int32_t n_crossed;
    double device, limit; /* bytes/s of one device; share of full speed */
    double hidden;        /* part of its transfers that it does not wait for */
    double shared_ns;     /* what it has lost */
} Job;

/* What is done to or asked of the links at given times. */
typedef struct {
    int64_t at_ns;
    void (*act)(SimLinks *links, void *user_data);
    void *user_data;
} Act;

/* Timers: a flow for each job, then the starts of jobs, then acts. */
static void
run_jobs_and_acts(Job *jobs, int32_t n_jobs, const double *capacity, int32_t n_links,
                  const Act *acts, int32_t n_acts)
{
    g_autoptr(SimEngine) engine = sim_engine_new(2 * n_jobs + n_acts);
    g_autoptr(SimLinks) links = sim_links_new(engine, n_jobs, capacity, n_links);

    for (int32_t i = 0; i < n_jobs; i++) {
        jobs[i].end_ns = -1;
        sim_engine_set(engine, n_jobs + i, jobs[i].start_ns);
    }
    for (int32_t i = 0; i < n_acts; i++)
        sim_engine_set(engine, 2 * n_jobs + i, acts[i].at_ns);
    for (int32_t timer; (timer = sim_engine_next(engine)) >= 0;) {
        Job *job = &jobs[timer % n_jobs];
        if (timer < n_jobs) {
            g_assert_cmpint(job->end_ns, ==, -1);
            job->end_ns = *sim_engine_clock(engine);
            job->shared_ns = sim_flow_end(links, timer);
        } else if (timer < 2 * n_jobs) {
            sim_flow_start(links, timer - n_jobs, job->work_ns,
                           &(SimRoute){job->crossed, job->n_crossed, job->device, 1 - job->hidden},
                           job->limit);
        } else {
            const Act *act = &acts[timer - 2 * n_jobs];
            act->act(links, act->user_data);
        }
        if (sim_engine_next_ns(engine) > *sim_engine_clock(engine))
            sim_links_share(links);
    }
    g_assert_cmpint(sim_links_n_flows(links), ==, 0);
}

static void
run_jobs(Job *jobs, int n_jobs, const double *capacity, int32_t n_links)
{
    run_jobs_and_acts(jobs, n_jobs, capacity, n_links, NULL, 0);
}

static void
test_by_hand(void)
{
    static const struct {
        double capacity[3];
        int n_jobs;
        struct {
            int64_t start, work;
            int32_t n, crossed[2];
            int64_t end;
        } jobs[4];
    } cases[] = {
        /* Alone. */
        {{1, 1, 1}, 1, {{5, 100, 1, {0}, 105}}},
        {{1, 1, 1}, 1, {{5, 100, 0, {0}, 105}}},
        {{1, 1, 1}, 1, {{5, 0, 1, {0}, 5}}},
        {{0.25, 1, 1}, 1, {{0, 100, 1, {0}, 400}}},
        /* Three on one link; the shorter ones leave first: 3 * 10, + 2 * 10, + 10. */
        {{1, 1, 1}, 3, {{0, 10, 1, {0}, 30}, {0, 20, 1, {0}, 50}, {0, 30, 1, {0}, 60}}},
        /* Room for two at full speed; a third makes all of them run at 2/3. */
        {{2, 1, 1}, 3, {{0, 60, 1, {0}, 90}, {0, 60, 1, {0}, 90}, {0, 60, 1, {0}, 90}}},
        {{3, 1, 1}, 3, {{0, 60, 1, {0}, 60}, {0, 60, 1, {0}, 60}, {0, 60, 1, {0}, 60}}},
        /* One comes at 40: the first has 60 left and shares until 160. */
        {{1, 1, 1}, 2, {{0, 100, 1, {0}, 160}, {40, 100, 1, {0}, 200}}},
        /* A long flow over two links beside a short one on each, one of them wide enough for 1.5:
           on link 0 both get 1/2, on link 1 the other one gets min(1, 1.5 - 1/2). */
        {{1, 1.5, 1}, 3, {{0, 100, 2, {0, 1}, 200}, {0, 100, 1, {0}, 200}, {0, 100, 1, {1}, 100}}},
        /* [Bertsekas and Gallager, 6.5.2]: two on link 0; one of them and two more on link 1: 1/3
           there, 2/3 for the first. */
        {{1, 1, 1},
         4,
         {{0, 200, 1, {0}, 300},
          {0, 100, 2, {0, 1}, 300},
          {0, 100, 1, {1}, 300},
          {0, 100, 1, {1}, 300}}},
        /* What is not connected is not touched. */
        {{1, 1, 1}, 3, {{0, 50, 1, {0}, 100}, {0, 50, 1, {0}, 100}, {0, 77, 1, {2}, 77}}},
    };

    for (size_t c = 0; c < G_N_ELEMENTS(cases); c++) {
        Job jobs[4] = {0};
        for (int i = 0; i < cases[c].n_jobs; i++) {
            jobs[i].start_ns = cases[c].jobs[i].start;
            jobs[i].work_ns = cases[c].jobs[i].work;
            jobs[i].n_crossed = cases[c].jobs[i].n;
            jobs[i].device = jobs[i].limit = 1;
            for (int k = 0; k < 2; k++)
                jobs[i].crossed[k] = (SimCrossing){1, cases[c].jobs[i].crossed[k]};
        }
        run_jobs(jobs, cases[c].n_jobs, cases[c].capacity, 3);
        for (int i = 0; i < cases[c].n_jobs; i++)
            g_assert_cmpint(jobs[i].end_ns, ==, cases[c].jobs[i].end);
    }
}

/*
 * One link of 10.  A is 4 devices of 2, B one of 10, C one of 1.  All devices rise together: at 1 C
 * has what it wants; 10 = 1 + 4 x + x: the others get 1.8 each, A runs at 0.9, B at 0.18.
 */
static void
test_devices_share(void)
{
    static const double capacity[] = {10};
    Job jobs[] = {
        {.work_ns = 900, .crossed = {{8, 0}}, .n_crossed = 1, .device = 2, .limit = 1},
        {.work_ns = 180, .crossed = {{10, 0}}, .n_crossed = 1, .device = 10, .limit = 1},
        {.work_ns = 1000, .crossed = {{1, 0}}, .n_crossed = 1, .device = 1, .limit = 1},
    };

    run_jobs(jobs, 3, capacity, 1);
    for (int i = 0; i < 3; i++)
        g_assert_cmpint(jobs[i].end_ns, ==, 1000);
    g_assert_cmpfloat_with_epsilon(jobs[0].shared_ns, 100, 1e-6);
    g_assert_cmpfloat_with_epsilon(jobs[1].shared_ns, 820, 1e-6);
    g_assert_cmpfloat(jobs[2].shared_ns, ==, 0);
}

/* Two on a link of 1 that want all of it: halves.  The second waits for a half of its transfers
 * only: it runs at 3/4, and loses a quarter of its time. */
static void
test_hidden_transfers_may_wait(void)
{
    static const double capacity[] = {1};
    Job jobs[] = {
        {.work_ns = 200, .crossed = {{1, 0}}, .n_crossed = 1, .device = 1, .limit = 1},
        {.work_ns = 300,
         .crossed = {{1, 0}},
         .n_crossed = 1,
         .device = 1,
         .limit = 1,
         .hidden = .5},
    };

    run_jobs(jobs, 2, capacity, 1);
    g_assert_cmpint(jobs[0].end_ns, ==, 400);
    g_assert_cmpint(jobs[1].end_ns, ==, 400);
    g_assert_cmpfloat_with_epsilon(jobs[1].shared_ns, 100, 1e-6);
}

/* @user_data: the number of a flow. */
static void
limit_falls(SimLinks *links, void *user_data)
{
    sim_flow_set_limit(links, GPOINTER_TO_INT(user_data), 0.25);
}

static void
limit_returns(SimLinks *links, void *user_data)
{
    sim_flow_set_limit(links, GPOINTER_TO_INT(user_data), 1);
}

/*
 * Two on a link of 1: halves.  At 10 the first may take a quarter only: the other gets three; at 30
 * it may take all again.  A: 5 + 5 of 20, then 10 at 1/2: 50.  B: 5 + 15 of 30, then 10 at 1/2: 50.
 * Alone: 100 ns, a quarter from 10 on: 10 + 90 * 4.
 */
static void
test_limits_change(void)
{
    static const double capacity[] = {1};
    Job jobs[] = {
        {.work_ns = 20, .crossed = {{1, 0}}, .n_crossed = 1, .device = 1, .limit = 1},
        {.work_ns = 30, .crossed = {{1, 0}}, .n_crossed = 1, .device = 1, .limit = 1},
        {.work_ns = 100, .device = 1, .limit = 1},
    };
    const Act acts[] = {
        {10, limit_falls, GINT_TO_POINTER(0)},
        {10, limit_falls, GINT_TO_POINTER(2)},
        {30, limit_returns, GINT_TO_POINTER(0)},
    };

    run_jobs_and_acts(jobs, 3, capacity, 1, acts, G_N_ELEMENTS(acts));
    g_assert_cmpint(jobs[0].end_ns, ==, 50);
    g_assert_cmpint(jobs[1].end_ns, ==, 50);
    g_assert_cmpint(jobs[2].end_ns, ==, 370);
}

/* --- random --- */

typedef struct {
    int n_links, n_jobs;
    double capacity[6];
    Job jobs[MAX_FLOWS];
} Net;

static void
random_net(uint64_t *state, Net *net)
{
    *net = (Net){.n_links = (int)random_in(state, 1, 6), .n_jobs = (int)random_in(state, 1, 30)};
    for (int i = 0; i < net->n_links; i++)
        net->capacity[i] =
            random_in(state, 0, 9) == 0 ? INFINITY : (double)random_in(state, 1, 12) / 4;
    for (int i = 0; i < net->n_jobs; i++) {
        Job *job = &net->jobs[i];
        job->start_ns = random_in(state, 0, 3) * 1000000;
        job->work_ns = random_in(state, 0, 5000000);
        job->device = (double)random_in(state, 1, 8) / 4;
        job->limit = random_in(state, 0, 2) == 0 ? 0.75 : 1;
        for (int k = 0; k < net->n_links && job->n_crossed < MAX_LINKS; k++)
            if (random_in(state, 0, 2) == 0)
                job->crossed[job->n_crossed++] =
                    (SimCrossing){job->device * (double)random_in(state, 1, 3), k};
    }
}

/* What @job takes of @link at full speed. */
static double
takes(const Job *job, int link)
{
    for (int k = 0; k < job->n_crossed; k++)
        if (job->crossed[k].link == link)
            return job->crossed[k].bytes_per_s;
    return 0;
}

/* At how many bytes/s of the devices of all unfixed flows @link is full. */
static double
level_of(const Net *net, const bool *active, const bool *fixed, const double *rate, int link)
{
    double used = 0, weight = 0;

    for (int i = 0; i < net->n_jobs; i++) {
        const double all = active[i] ? takes(&net->jobs[i], link) : 0;
        if (fixed[i])
            used += rate[i] * all;
        else
            weight += all / net->jobs[i].device;
    }
    return weight > 0 ? (net->capacity[link] - used) / weight : INFINITY;
}

/* Max-min by its definition, over all flows and links: the lowest level at which a flow is stopped,
 * by its limit or by a link, fixes those that it stops. */
static void
oracle_rates(const Net *net, const bool *active, double *rate)
{
    bool fixed[MAX_FLOWS] = {false};

    for (;;) {
        double stop[MAX_FLOWS], lowest = INFINITY;
        for (int i = 0; i < net->n_jobs; i++) {
            const Job *job = &net->jobs[i];
            stop[i] = INFINITY;
            if (!active[i] || fixed[i])
                continue;
            stop[i] = job->limit * job->device;
            for (int l = 0; l < net->n_links; l++)
                if (takes(job, l) > 0)
                    stop[i] = MIN(stop[i], level_of(net, active, fixed, rate, l));
            lowest = MIN(lowest, stop[i]);
        }
        if (lowest == INFINITY)
            return;
        for (int i = 0; i < net->n_jobs; i++)
            if (stop[i] <= lowest + 1e-12) {
                fixed[i] = true;
                rate[i] = lowest / net->jobs[i].device;
            }
    }
}

/* Ends of all jobs in real numbers: rates stay until the next start or end. */
static void
oracle_ends(const Net *net, double *end)
{
    bool active[MAX_FLOWS] = {false}, done[MAX_FLOWS] = {false};
    double left[MAX_FLOWS], rate[MAX_FLOWS] = {0}, now = 0;

    for (int i = 0; i < net->n_jobs; i++)
        left[i] = (double)net->jobs[i].work_ns;
    for (;;) {
        double next = INFINITY;
        for (int i = 0; i < net->n_jobs; i++)
            if (!done[i] && !active[i] && (double)net->jobs[i].start_ns <= now)
                active[i] = true;
        oracle_rates(net, active, rate);
        for (int i = 0; i < net->n_jobs; i++)
            if (active[i])
                next = MIN(next, now + left[i] / rate[i]);
            else if (!done[i])
                next = MIN(next, (double)net->jobs[i].start_ns);
        if (next == INFINITY)
            return;
        for (int i = 0; i < net->n_jobs; i++) {
            if (!active[i])
                continue;
            left[i] -= (next - now) * rate[i];
            if (left[i] < 1e-6) {
                active[i] = false;
                done[i] = true;
                end[i] = next;
            }
        }
        now = next;
    }
}

static void
test_equals_oracle(void)
{
    for (uint64_t seed = 0; seed < 2000; seed++) {
        uint64_t state = seed;
        double end[MAX_FLOWS];
        Net net;
        random_net(&state, &net);
        run_jobs(net.jobs, net.n_jobs, net.capacity, net.n_links);
        oracle_ends(&net, end);
        /* Each of up to 60 starts and ends moves by half a ns at most, and what follows with it. */
        for (int i = 0; i < net.n_jobs; i++)
            g_assert_cmpfloat_with_epsilon((double)net.jobs[i].end_ns, end[i], 60);
    }
}

/* The definition: no link carries more than it can; whoever runs below its limit has a full link on
 * which no device sends faster.  @user_data: the Net. */
static void
observe(SimLinks *links, void *user_data)
{
    const Net *net = user_data;
    double used[6] = {0}, fastest[6] = {0};

    sim_links_share(links);
    for (int i = 0; i < net->n_jobs; i++) {
        const Job *job = &net->jobs[i];
        for (int k = 0; sim_flow_is_active(links, i) && k < job->n_crossed; k++) {
            const int32_t l = job->crossed[k].link;
            used[l] += sim_flow_rate(links, i) * job->crossed[k].bytes_per_s;
            fastest[l] = MAX(fastest[l], sim_flow_rate(links, i) * job->device);
        }
    }
    for (int l = 0; l < net->n_links; l++)
        g_assert_cmpfloat(used[l], <=, net->capacity[l] * (1 + 2e-6));
    for (int i = 0; i < net->n_jobs; i++) {
        const Job *job = &net->jobs[i];
        if (!sim_flow_is_active(links, i))
            continue;
        const double rate = sim_flow_rate(links, i);
        bool bottleneck = rate == job->limit;
        for (int k = 0; k < job->n_crossed; k++) {
            const int32_t l = job->crossed[k].link;
            bottleneck = bottleneck || (used[l] >= net->capacity[l] - 1e-9 &&
                                        fastest[l] <= rate * job->device + 1e-9);
        }
        g_assert_true(bottleneck);
    }
}

static void
test_is_max_min_fair(void)
{
    for (uint64_t seed = 0; seed < 1000; seed++) {
        uint64_t state = seed ^ 0xfa1;
        Act acts[40];
        Net net;
        random_net(&state, &net);
        for (int i = 0; i < 40; i++)
            acts[i] = (Act){i * 200001, observe, &net};
        run_jobs_and_acts(net.jobs, net.n_jobs, net.capacity, net.n_links, acts, 40);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/simulator/resource/by-hand", test_by_hand);
    g_test_add_func("/simulator/resource/devices-share", test_devices_share);
    g_test_add_func("/simulator/resource/hidden-transfers-may-wait",
                    test_hidden_transfers_may_wait);
    g_test_add_func("/simulator/resource/limits-change", test_limits_change);
    g_test_add_func("/simulator/resource/equals-oracle", test_equals_oracle);
    g_test_add_func("/simulator/resource/is-max-min-fair", test_is_max_min_fair);
    return g_test_run();
}
