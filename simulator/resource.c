#include "simulator/resource.h"

#include <string.h>

#include "simulator/share.h"

/* Flows on most links at one time; more have an array of their own. */
#define FEW 4

SimLinks *
sim_links_new(SimEngine *engine, int32_t n_flows, const double *bytes_per_s, int32_t n_links)
{
    g_return_val_if_fail(engine != NULL && n_links >= 0 && n_flows >= 0, NULL);
    SimLinks *links = g_new0(SimLinks, 1);

    links->engine = engine;
    links->now_ns = sim_engine_clock(engine);
    links->n_links = n_links;
    links->n_flows = n_flows;
    links->link = g_aligned_alloc0((size_t)n_links, sizeof(Link), CACHE_LINE);
    links->passing = g_aligned_alloc0((size_t)n_links, FEW * sizeof(Passing), CACHE_LINE);
    links->flow = g_aligned_alloc0((size_t)n_flows, sizeof(Flow), CACHE_LINE);
    links->part_flows = g_new(Flow *, (size_t)n_flows);
    links->rising = g_new(Flow *, (size_t)n_flows);
    links->concerned = g_ptr_array_new();
    links->part_links = g_new(int32_t, (size_t)n_links);
    links->open_links = g_new(int32_t, (size_t)n_links);
    links->changed = g_new(int32_t, (size_t)n_links);
    for (int32_t i = 0; i < n_links; i++) {
        g_assert(bytes_per_s[i] > 0);
        links->link[i].bytes_per_s = bytes_per_s[i];
        links->link[i].passing = &links->passing[FEW * (size_t)i];
        links->link[i].room = FEW;
    }
    return links;
}

void
sim_links_free(SimLinks *links)
{
    if (links == NULL)
        return;
    for (int32_t i = 0; i < links->n_links; i++)
        if (links->link[i].room > FEW)
            g_free(links->link[i].passing);
    g_aligned_free(links->link);
    g_aligned_free(links->passing);
    g_aligned_free(links->flow);
    g_free(links->changed);
    g_free(links->part_flows);
    g_free(links->rising);
    g_ptr_array_unref(links->concerned);
    g_free(links->part_links);
    g_free(links->open_links);
    g_free(links);
}

int32_t
sim_links_n_flows(const SimLinks *links)
{
    return links->n_active;
}

bool
sim_flow_is_active(const SimLinks *links, int32_t flow)
{
    return links->flow[flow].active;
}

double
sim_flow_rate(const SimLinks *links, int32_t flow)
{
    return links->flow[flow].rate;
}

/* --- what passes a link --- */

static void
grow_link(Link *link)
{
    Passing *more = g_new(Passing, 2 * (size_t)link->room);

    memcpy(more, link->passing, sizeof *more * (size_t)link->n);
    if (link->room > FEW)
        g_free(link->passing);
    link->passing = more;
    link->room *= 2;
}

static inline void
add_passing(Link *link, Flow *flow, double bytes_per_s)
{
    const double wanted = flow->limit * bytes_per_s;

    if (link->n == link->room)
        grow_link(link);
    link->passing[link->n++] =
        (Passing){flow, bytes_per_s, bytes_per_s / flow->device_bytes_per_s, wanted};
    link->wanted += wanted;
}

/* The sum, which is short, without what additions and subtractions leave. */
static inline void
sum_wanted(Link *link)
{
    double sum = 0;

    for (int32_t i = 0; i < link->n; i++)
        sum += link->passing[i].wanted;
    link->wanted = sum;
}

/* Where @flow, which passes the link, stands on it. */
static inline Passing *
find_passing(const Link *link, const Flow *flow)
{
    Passing *passing = link->passing;

    while (passing->flow != flow)
        passing++;
    return passing;
}

/* The last one takes its place. */
static inline void
remove_passing(Link *link, const Flow *flow)
{
    *find_passing(link, flow) = link->passing[link->n - 1];
    link->n--;
    sum_wanted(link);
}

/* --- changes --- */

void
sim_flow_start(SimLinks *links, int32_t number, int64_t work_ns, const SimRoute *route,
               double limit)
{
    g_return_if_fail(links != NULL && work_ns >= 0 && work_ns <= SIM_FLOW_MAX_NS);
    g_return_if_fail(number >= 0 && number < links->n_flows && !links->flow[number].active);
    g_return_if_fail(limit > 0 && limit <= 1);
    Flow *flow = &links->flow[number];
    bool any_tight = false;

    flow->crossed = route->crossed;
    flow->n_crossed = work_ns == 0 ? 0 : route->n_crossed; /* it ends before it takes anything */
    flow->device_bytes_per_s = route->device_bytes_per_s;
    flow->visible = route->visible;
    flow->remaining_ns = (double)work_ns;
    flow->since_ns = *links->now_ns;
    flow->limit = limit;
    flow->bottleneck = -1;
    flow->shared_ns = 0;
    flow->active = true;
    links->n_active++;
    for (int32_t k = 0; k < flow->n_crossed; k++) {
        Link *link = &links->link[route->crossed[k].link];
        add_passing(link, flow, route->crossed[k].bytes_per_s);
        if (!is_tight(link))
            continue;
        note_changed(links, link);
        any_tight = true;
    }
    if (any_tight)
        flow->rate = -1; /* none yet */
    else
        set_rate(links, flow, limit);
}

void
sim_flow_set_limit(SimLinks *links, int32_t number, double limit)
{
    Flow *flow = &links->flow[number];
    bool any_tight = false;

    g_return_if_fail(flow->active && limit > 0 && limit <= 1);
    if (limit == flow->limit)
        return;
    if (flow->rate >= 0)
        run_on(flow, *links->now_ns);
    flow->limit = limit;
    for (int32_t k = 0; k < flow->n_crossed; k++) {
        Link *link = &links->link[flow->crossed[k].link];
        const bool was_tight = is_tight(link);
        find_passing(link, flow)->wanted = limit * flow->crossed[k].bytes_per_s;
        sum_wanted(link);
        if (!was_tight && !is_tight(link))
            continue;
        note_changed(links, link);
        any_tight = true;
    }
    if (any_tight)
        flow->rate = -1;
    else
        set_rate(links, flow, limit);
}

double
sim_flow_end(SimLinks *links, int32_t number)
{
    Flow *flow = &links->flow[number];

    g_return_val_if_fail(flow->active, 0);
    run_on(flow, *links->now_ns);
    for (int32_t k = 0; k < flow->n_crossed; k++) {
        Link *link = &links->link[flow->crossed[k].link];
        if (is_tight(link))
            note_changed(links, link);
        remove_passing(link, flow);
    }
    flow->active = false;
    links->n_active--;
    return flow->shared_ns;
}
