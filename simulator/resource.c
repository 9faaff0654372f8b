#include "simulator/resource.h"

#include "simulator/share.h"

static inline void
passing_add(PassingList *list, Flow *flow, double bytes_per_s)
{
    if (list->n == list->room) {
        list->room = MAX(8, 2 * list->room);
        list->passing = g_renew(Passing, list->passing, (size_t)list->room);
    }
    list->passing[list->n++] = (Passing){flow, bytes_per_s};
}

/* Removes @flow, which is there once; the last one takes its place. */
static inline void
passing_remove(PassingList *list, const Flow *flow)
{
    int32_t i = 0;

    while (list->passing[i].flow != flow)
        i++;
    list->passing[i] = list->passing[--list->n];
}

SimLinks *
sim_links_new(SimEngine *engine, int32_t n_flows, const double *bytes_per_s, int32_t n_links)
{
    g_return_val_if_fail(engine != NULL && n_links >= 0 && n_flows >= 0, NULL);
    SimLinks *links = g_new0(SimLinks, 1);

    links->engine = engine;
    links->now_ns = sim_engine_clock(engine);
    links->n_links = n_links;
    links->n_flows = n_flows;
    links->link = g_new0(Link, (size_t)n_links);
    links->flow = g_new0(Flow, (size_t)n_flows);
    links->part_links = g_new(int32_t, (size_t)n_links);
    links->open_links = g_new(int32_t, (size_t)n_links);
    links->changed = g_new(int32_t, (size_t)n_links);
    for (int32_t i = 0; i < n_links; i++) {
        g_assert(bytes_per_s[i] > 0);
        links->link[i].bytes_per_s = bytes_per_s[i];
    }
    return links;
}

void
sim_links_free(SimLinks *links)
{
    if (links == NULL)
        return;
    for (int32_t i = 0; i < links->n_links; i++)
        g_free(links->link[i].flows.passing);
    g_free(links->link);
    g_free(links->flow);
    g_free(links->changed);
    g_free(links->part_flows.flow);
    g_free(links->rising.flow);
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

/* Of the sum of a link's flows, which is small, without what additions and subtractions leave. */
static void
sum_wanted(Link *link)
{
    double sum = 0;

    for (int32_t i = 0; i < link->flows.n; i++)
        sum += link->flows.passing[i].flow->limit * link->flows.passing[i].bytes_per_s;
    link->wanted = sum;
}

/* --- time --- */

/* How fast its work gets on. */
static inline double
speed_of(const Flow *flow)
{
    return flow->rate == flow->limit ? flow->limit
                                     : flow->limit - flow->way.visible * (flow->limit - flow->rate);
}

/* Up to @now_ns at the rate that it has had. */
static void
run_on(Flow *flow, int64_t now_ns)
{
    const double elapsed_ns = (double)(now_ns - flow->since_ns);

    if (elapsed_ns == 0)
        return;
    flow->remaining_ns = MAX(flow->remaining_ns - elapsed_ns * speed_of(flow), 0);
    if (flow->rate < flow->limit)
        flow->shared_ns += elapsed_ns * (1 - speed_of(flow) / flow->limit);
    flow->since_ns = now_ns;
}

/* Lets the flow run at @rate from now on. */
static void
set_rate(SimLinks *links, Flow *flow, double rate)
{
    const int64_t now_ns = *links->now_ns;

    run_on(flow, now_ns);
    flow->rate = rate;
    sim_engine_set(links->engine, (int32_t)(flow - links->flow),
                   now_ns + (int64_t)(flow->remaining_ns / speed_of(flow) + 0.5));
}

/* --- changes --- */

/* Notes those of the links that @flow crosses of which too much is wanted.  Returns whether there
 * is one. */
static bool
note_tight(SimLinks *links, const Flow *flow)
{
    bool any = false;

    for (int32_t k = 0; k < flow->way.n_crossed; k++) {
        const int32_t at = flow->way.crossed[k].link;
        Link *link = &links->link[at];
        if (!is_tight(link))
            continue;
        any = true;
        if (link->changed)
            continue;
        link->changed = true;
        links->changed[links->n_changed++] = at;
    }
    return any;
}

void
sim_flow_start(SimLinks *links, int32_t number, int64_t work_ns, SimWay way, double limit)
{
    g_return_if_fail(links != NULL && work_ns >= 0 && work_ns <= SIM_FLOW_MAX_NS);
    g_return_if_fail(number >= 0 && number < links->n_flows && !links->flow[number].active);
    g_return_if_fail(limit > 0 && limit <= 1);
    Flow *flow = &links->flow[number];

    flow->way = way;
    flow->remaining_ns = (double)work_ns;
    flow->since_ns = *links->now_ns;
    flow->limit = limit;
    flow->bottleneck = -1;
    flow->shared_ns = 0;
    flow->active = true;
    links->n_active++;
    if (work_ns == 0)
        flow->way.n_crossed = 0; /* it ends before it takes anything */
    for (int32_t k = 0; k < flow->way.n_crossed; k++) {
        Link *link = &links->link[way.crossed[k].link];
        passing_add(&link->flows, flow, way.crossed[k].bytes_per_s);
        link->wanted += limit * way.crossed[k].bytes_per_s;
    }
    if (note_tight(links, flow))
        flow->rate = -1; /* none yet */
    else
        set_rate(links, flow, limit);
}

void
sim_flow_set_limit(SimLinks *links, int32_t number, double limit)
{
    Flow *flow = &links->flow[number];

    g_return_if_fail(flow->active && limit > 0 && limit <= 1);
    if (limit == flow->limit)
        return;
    if (flow->rate >= 0)
        run_on(flow, *links->now_ns);
    const bool was_tight = note_tight(links, flow);
    flow->limit = limit;
    for (int32_t k = 0; k < flow->way.n_crossed; k++)
        sum_wanted(&links->link[flow->way.crossed[k].link]);
    if (note_tight(links, flow) || was_tight)
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
    note_tight(links, flow);
    for (int32_t k = 0; k < flow->way.n_crossed; k++) {
        Link *link = &links->link[flow->way.crossed[k].link];
        passing_remove(&link->flows, flow);
        sum_wanted(link);
    }
    flow->active = false;
    links->n_active--;
    return flow->shared_ns;
}

void
sim_links_share(SimLinks *links)
{
    if (links->n_changed == 0)
        return;
    share_begin(links);
    for (int32_t i = 0; i < links->n_changed; i++) {
        Link *link = &links->link[links->changed[i]];
        link->changed = false;
        for (int32_t k = 0; k < link->flows.n; k++)
            share_join(links, link->flows.passing[k].flow);
    }
    links->n_changed = 0;
    share_part(links);
    for (int32_t i = 0; i < links->part_flows.n; i++) {
        Flow *flow = links->part_flows.flow[i];
        flow->bottleneck = flow->new_bottleneck;
        if (flow->new_rate != flow->rate)
            set_rate(links, flow, flow->new_rate);
    }
}
