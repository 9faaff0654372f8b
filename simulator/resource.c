#include "simulator/resource.h"

#include <math.h>

/* Sums of what flows take of a link may differ from it by rounding. */
#define TOLERANCE 1e-6

/* A flow, under way or not. */
typedef struct {
    SimWay way;
    double limit, rate;
    /* While rates are found: */
    double new_rate;
    uint64_t visit; /* all before this and it: one cache line, for every flow of a part is read */
    bool frozen;
    bool active;
    double remaining_ns;
    int64_t since_ns; /* remaining_ns was true then */
    double shared_ns; /* so far: what it has lost because links were shared */
} Flow;

/* Rates are found again at every instant, so lists are bare arrays: no calls, no clearing. */
typedef struct {
    Flow **flow; /* (owned) of (borrowed) Flow */
    int32_t n, room;
} FlowList;

typedef struct {
    double bytes_per_s;
    double wanted;  /* by its flows at their limits */
    FlowList flows; /* in no order */
    /* While rates are found: */
    double left;   /* after the frozen flows */
    double weight; /* what its other flows take per byte/s of a device */
    int32_t n_unfrozen;
    bool changed; /* is one of those in SimLinks.changed */
    uint64_t visit;
} Link;

struct SimLinks {
    SimEngine *engine;     /* (borrowed) */
    const int64_t *now_ns; /* (borrowed) the engine's clock */
    Link *link;            /* (owned) */
    Flow *flow;            /* (owned) */
    int32_t n_links, n_flows, n_active;
    /* Links of which too much was or is wanted, and whose flows have changed at this instant. */
    int32_t *changed; /* (owned) room for all */
    int32_t n_changed;
    /* The connected part of the network at hand. */
    FlowList part_flows;
    FlowList rising; /* while rates are found: those of part_flows without one, in their order */
    int32_t *part_links; /* (owned) room for all */
    int32_t n_part_links;
    uint64_t visit; /* number of parts walked */
};

static void
list_grow(FlowList *list)
{
    list->room = MAX(8, 2 * list->room);
    list->flow = g_renew(Flow *, list->flow, (size_t)list->room);
}

static inline void
list_add(FlowList *list, Flow *flow)
{
    if (list->n == list->room)
        list_grow(list);
    list->flow[list->n++] = flow;
}

/* Removes @flow, which is there once; the last one takes its place. */
static inline void
list_remove(FlowList *list, const Flow *flow)
{
    int32_t i = 0;

    while (list->flow[i] != flow)
        i++;
    list->flow[i] = list->flow[--list->n];
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
        g_free(links->link[i].flows.flow);
    g_free(links->link);
    g_free(links->flow);
    g_free(links->changed);
    g_free(links->part_flows.flow);
    g_free(links->rising.flow);
    g_free(links->part_links);
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

/* --- max-min fair rates --- */

/* Whether more is wanted of the link than it carries. */
static inline bool
is_tight(const Link *link)
{
    return link->wanted > link->bytes_per_s * (1 + TOLERANCE);
}

/* Of the sum of a link's flows, which is small, without what additions and subtractions leave. */
static void
sum_wanted(Link *link, int32_t at)
{
    double sum = 0;

    for (int32_t i = 0; i < link->flows.n; i++) {
        const Flow *flow = link->flows.flow[i];
        for (int32_t k = 0; k < flow->way.n_crossed; k++)
            if (flow->way.crossed[k].link == at)
                sum += flow->limit * flow->way.crossed[k].bytes_per_s;
    }
    link->wanted = sum;
}

static void
visit_link(SimLinks *links, int32_t i)
{
    Link *link = &links->link[i];

    if (link->visit == links->visit)
        return;
    link->visit = links->visit;
    link->left = link->bytes_per_s;
    link->weight = 0;
    link->n_unfrozen = 0;
    links->part_links[links->n_part_links++] = i;
}

static void
visit_flow(SimLinks *links, Flow *flow)
{
    if (flow->visit == links->visit)
        return;
    flow->visit = links->visit;
    flow->frozen = false;
    list_add(&links->part_flows, flow);
    for (int32_t k = 0; k < flow->way.n_crossed; k++) {
        const SimCrossing *c = &flow->way.crossed[k];
        Link *link = &links->link[c->link];
        if (!is_tight(link))
            continue;
        visit_link(links, c->link);
        link->weight += c->bytes_per_s / flow->way.device_bytes_per_s;
        link->n_unfrozen++;
    }
}

/* Collects what the seeds in part_flows and part_links are connected to by tight links. */
static void
walk_part(SimLinks *links)
{
    /* part_links[0 .. next) have handed on their flows. */
    for (int32_t next = 0; next < links->n_part_links; next++) {
        const Link *link = &links->link[links->part_links[next]];
        for (int32_t i = 0; i < link->flows.n; i++)
            visit_flow(links, link->flows.flow[i]);
    }
}

static void
freeze(SimLinks *links, Flow *flow, double rate)
{
    flow->frozen = true;
    flow->new_rate = rate;
    for (int32_t k = 0; k < flow->way.n_crossed; k++) {
        const SimCrossing *c = &flow->way.crossed[k];
        Link *link = &links->link[c->link];
        if (link->visit != links->visit)
            continue;
        link->left -= rate * c->bytes_per_s;
        link->weight -= c->bytes_per_s / flow->way.device_bytes_per_s;
        link->n_unfrozen--;
    }
}

/* The link that fills first when the devices of all unfrozen flows rise together beyond @from
 * bytes/s, and at how many; NULL: none does. */
static const Link *
find_bottleneck(SimLinks *links, double from, double *level)
{
    const Link *best = NULL;
    int32_t n = 0;

    *level = INFINITY;
    for (int32_t i = 0; i < links->n_part_links; i++) {
        const int32_t at = links->part_links[i];
        const Link *link = &links->link[at];
        if (link->n_unfrozen == 0)
            continue;
        links->part_links[n++] = at; /* the others need no second look */
        const double fills = MAX(link->left / link->weight, from);
        if (fills < *level) {
            *level = fills;
            best = link;
        }
    }
    links->n_part_links = n;
    return best;
}

/* Freezes the unfrozen flows that reach their limit at @level at the latest. */
static bool
freeze_limited(SimLinks *links, double level)
{
    FlowList *rising = &links->rising;
    bool any = false;
    int32_t n = 0;

    for (int32_t i = 0; i < rising->n; i++) {
        Flow *flow = rising->flow[i];
        if (flow->frozen)
            continue;
        if (flow->limit * flow->way.device_bytes_per_s <= level) {
            freeze(links, flow, flow->limit);
            any = true;
        } else {
            rising->flow[n++] = flow;
        }
    }
    rising->n = n;
    return any;
}

/* Fills new_rate of the part's flows. */
static void
fill_progressively(SimLinks *links)
{
    const Link *link;
    double level = 0, next;

    links->rising.n = 0;
    for (int32_t i = 0; i < links->part_flows.n; i++)
        list_add(&links->rising, links->part_flows.flow[i]);
    /* Frozen flows have their final rate; the devices of all others at least @level bytes/s. */
    while ((link = find_bottleneck(links, level, &next)) != NULL) {
        if (freeze_limited(links, next))
            continue;
        level = next;
        for (int32_t i = 0; i < link->flows.n; i++) {
            Flow *flow = link->flows.flow[i];
            if (!flow->frozen)
                freeze(links, flow, level / flow->way.device_bytes_per_s);
        }
    }
    freeze_limited(links, INFINITY);
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
    flow->shared_ns = 0;
    flow->active = true;
    links->n_active++;
    if (work_ns == 0)
        flow->way.n_crossed = 0; /* it ends before it takes anything */
    for (int32_t k = 0; k < flow->way.n_crossed; k++) {
        Link *link = &links->link[way.crossed[k].link];
        list_add(&link->flows, flow);
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
        sum_wanted(&links->link[flow->way.crossed[k].link], flow->way.crossed[k].link);
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
        list_remove(&link->flows, flow);
        sum_wanted(link, flow->way.crossed[k].link);
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
    links->visit++;
    links->part_flows.n = 0;
    links->n_part_links = 0;
    for (int32_t i = 0; i < links->n_changed; i++) {
        Link *link = &links->link[links->changed[i]];
        link->changed = false;
        for (int32_t k = 0; k < link->flows.n; k++)
            visit_flow(links, link->flows.flow[k]);
    }
    links->n_changed = 0;
    walk_part(links);
    fill_progressively(links);
    for (int32_t i = 0; i < links->part_flows.n; i++) {
        Flow *flow = links->part_flows.flow[i];
        if (flow->new_rate != flow->rate)
            set_rate(links, flow, flow->new_rate);
    }
}
