/* Tests of simulator/resource.h: shares by hand, max-min fairness as defined, and a slow oracle. */
#include "simulator/resource.h"

#include <math.h>

#include "tests/simulator/random.h"

#define MAX_FLOWS 64

/* --- by hand --- */

typedef struct {
    SimLinks *links;
    int64_t start_ns, work_ns, end_ns;
    int32_t crossed[SIM_FLOW_MAX_LINKS];
    int32_t n_crossed;
    SimFlow *flow; /* while it runs */
} Job;

static bool
job_ends(SimEngine *engine, void *user_data, GError **error)
{
    Job *job = user_data;

    g_assert_cmpint(job->end_ns, ==, -1);
    job->end_ns = sim_engine_now_ns(engine);
    job->flow = NULL;
    return true;
}

static bool
job_starts(SimEngine *engine, void *user_data, GError **error)
{
    Job *job = user_data;

    job->flow =
        sim_links_start(job->links, job->work_ns, job->crossed, job->n_crossed, job_ends, job);
    return true;
}

static void
run_jobs(Job *jobs, int n_jobs, const double *capacity, int32_t n_links)
{
    g_autoptr(SimEngine) engine = sim_engine_new();
    g_autoptr(SimLinks) links = sim_links_new(engine, capacity, n_links);

    for (int i = 0; i < n_jobs; i++) {
        jobs[i].links = links;
        jobs[i].end_ns = -1;
        sim_engine_add(engine, jobs[i].start_ns, job_starts, &jobs[i]);
    }
    g_assert_true(sim_engine_run(engine, 0, NULL));
    g_assert_cmpint(sim_links_n_flows(links), ==, 0);
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
            for (int k = 0; k < 2; k++)
                jobs[i].crossed[k] = cases[c].jobs[i].crossed[k];
        }
        run_jobs(jobs, cases[c].n_jobs, cases[c].capacity, 3);
        for (int i = 0; i < cases[c].n_jobs; i++)
            g_assert_cmpint(jobs[i].end_ns, ==, cases[c].jobs[i].end);
    }
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
        for (int k = 0; k < net->n_links && job->n_crossed < SIM_FLOW_MAX_LINKS; k++)
            if (random_in(state, 0, 2) == 0)
                job->crossed[job->n_crossed++] = k;
    }
}

static bool
crosses(const Job *job, int link)
{
    for (int k = 0; k < job->n_crossed; k++)
        if (job->crossed[k] == link)
            return true;
    return false;
}

/* Max-min by another road: every flow's rate is what bisection over a common water level allows,
 * one bottleneck at a time, over all flows and links. */
static void
oracle_rates(const Net *net, const bool *active, double *rate)
{
    bool fixed[MAX_FLOWS] = {false};

    for (;;) {
        double level = 1;
        for (int l = 0; l < net->n_links; l++) {
            double used = 0;
            int n = 0;
            for (int i = 0; i < net->n_jobs; i++)
                if (active[i] && crosses(&net->jobs[i], l)) {
                    used += fixed[i] ? rate[i] : 0;
                    n += !fixed[i];
                }
            if (n > 0)
                level = MIN(level, (net->capacity[l] - used) / n);
        }
        bool any = false;
        bool hit[MAX_FLOWS] = {false};
        for (int i = 0; i < net->n_jobs; i++) {
            if (!active[i] || fixed[i])
                continue;
            hit[i] = level == 1;
            for (int l = 0; l < net->n_links; l++) {
                double used = 0;
                int n = 0;
                for (int j = 0; j < net->n_jobs; j++)
                    if (active[j] && crosses(&net->jobs[j], l)) {
                        used += fixed[j] ? rate[j] : 0;
                        n += !fixed[j];
                    }
                if (crosses(&net->jobs[i], l) && (net->capacity[l] - used) / n <= level + 1e-12)
                    hit[i] = true;
            }
        }
        for (int i = 0; i < net->n_jobs; i++)
            if (hit[i]) {
                fixed[i] = any = true;
                rate[i] = level;
            }
        if (!any)
            return;
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

typedef struct {
    Net *net;
    int n_looks;
} Observer;

/* The definition: no link carries more than it can; whoever runs below 1 has a full link on which
 * nobody runs faster. */
static bool
observe(SimEngine *engine, void *user_data, GError **error)
{
    const Observer *observer = user_data;
    const Net *net = observer->net;
    double used[6] = {0}, fastest[6] = {0};

    for (int i = 0; i < net->n_jobs; i++) {
        const Job *job = &net->jobs[i];
        for (int k = 0; job->flow != NULL && k < job->n_crossed; k++) {
            used[job->crossed[k]] += sim_flow_rate(job->flow);
            fastest[job->crossed[k]] = MAX(fastest[job->crossed[k]], sim_flow_rate(job->flow));
        }
    }
    for (int l = 0; l < net->n_links; l++)
        g_assert_cmpfloat(used[l], <=, net->capacity[l] + 1e-9);
    for (int i = 0; i < net->n_jobs; i++) {
        const Job *job = &net->jobs[i];
        bool bottleneck = job->flow == NULL || sim_flow_rate(job->flow) == 1;
        for (int k = 0; job->flow != NULL && k < job->n_crossed; k++)
            bottleneck =
                bottleneck || (used[job->crossed[k]] >= net->capacity[job->crossed[k]] - 1e-9 &&
                               fastest[job->crossed[k]] <= sim_flow_rate(job->flow) + 1e-9);
        g_assert_true(bottleneck);
    }
    return true;
}

static void
test_is_max_min_fair(void)
{
    for (uint64_t seed = 0; seed < 1000; seed++) {
        uint64_t state = seed ^ 0xfa1;
        Net net;
        Observer observer = {.net = &net};
        random_net(&state, &net);
        g_autoptr(SimEngine) engine = sim_engine_new();
        g_autoptr(SimLinks) links = sim_links_new(engine, net.capacity, net.n_links);
        for (int i = 0; i < net.n_jobs; i++) {
            net.jobs[i].links = links;
            net.jobs[i].end_ns = -1;
            sim_engine_add(engine, net.jobs[i].start_ns, job_starts, &net.jobs[i]);
        }
        for (int i = 0; i < 40; i++)
            sim_engine_add(engine, i * 200001, observe, &observer);
        g_assert_true(sim_engine_run(engine, 0, NULL));
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/simulator/resource/by-hand", test_by_hand);
    g_test_add_func("/simulator/resource/equals-oracle", test_equals_oracle);
    g_test_add_func("/simulator/resource/is-max-min-fair", test_is_max_min_fair);
    return g_test_run();
}
