#include "simulator/resource.h"

#include <math.h>

/* Sums of what flows take of a link may differ from it by rounding. */
#define TOLERANCE 1e-6

/* Rates are found again at every start and end, so lists are bare arrays: no calls, no clearing. */
typedef struct {
    SimFlow **flow; /* (owned) of (borrowed) SimFlow */
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
    uint64_t visit;
} Link;

struct SimLinks {
    SimEngine *engine;     /* (borrowed) */
    const int64_t *now_ns; /* (borrowed) the engine's clock */
    Link *link;            /* (owned) */
    int32_t n_links, n_flows;
    FlowList seeds; /* flows that a part is begun with; may hold one twice */
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
    list->flow = g_renew(SimFlow *, list->flow, (size_t)list->room);
}

static inline void
list_add(FlowList *list, SimFlow *flow)
{
    if (list->n == list->room)
        list_grow(list);
    list->flow[list->n++] = flow;
}

/* Removes @flow wherever it is; the last ones take its places. */
static inline void
list_remove(FlowList *list, const SimFlow *flow)
{
    for (int32_t i = 0; i < list->n;)
        if (list->flow[i] == flow)
            list->flow[i] = list->flow[--list->n];
        else
            i++;
}

SimLinks *
sim_links_new(SimEngine *engine, const double *bytes_per_s, int32_t n_links)
{
    g_return_val_if_fail(engine != NULL && n_links >= 0, NULL);
    SimLinks *links = g_new0(SimLinks, 1);

    links->engine = engine;
    links->now_ns = sim_engine_clock(engine);
    links->n_links = n_links;
    links->link = g_new0(Link, (size_t)n_links);
    links->part_links = g_new(int32_t, (size_t)n_links);
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
    g_free(links->seeds.flow);
    g_free(links->part_flows.flow);
    g_free(links->rising.flow);
    g_free(links->part_links);
    g_free(links);
}

int32_t
sim_links_n_flows(const SimLinks *links)
{
    return links->n_flows;
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
        const SimFlow *flow = link->flows.flow[i];
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
visit_flow(SimLinks *links, SimFlow *flow)
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
freeze(SimLinks *links, SimFlow *flow, double rate)
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
        SimFlow *flow = rising->flow[i];
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
            SimFlow *flow = link->flows.flow[i];
            if (!flow->frozen)
                freeze(links, flow, level / flow->way.device_bytes_per_s);
        }
    }
    freeze_limited(links, INFINITY);
}

/* --- time --- */

static bool look_at_flow(SimEngine *engine, void *user_data, GError **error);

/* How fast its work gets on. */
static inline double
speed_of(const SimFlow *flow)
{
    return flow->rate == flow->limit ? flow->limit
                                     : flow->limit - flow->way.visible * (flow->limit - flow->rate);
}

/* Up to @now_ns at the rate that it has had. */
static void
run_on(SimFlow *flow, int64_t now_ns)
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
set_rate(SimFlow *flow, double rate)
{
    const int64_t now_ns = *flow->links->now_ns;

    run_on(flow, now_ns);
    flow->rate = rate;
    flow->due_ns = now_ns + (int64_t)(flow->remaining_ns / speed_of(flow) + 0.5);
    if (flow->pending_ns == 0 || flow->due_ns < flow->pending_ns - 1) {
        flow->pending_ns = flow->due_ns + 1;
        sim_engine_add(flow->links->engine, flow->due_ns, look_at_flow, flow);
    }
}

/* Rates of the part at hand, found again. */
static void
share_again(SimLinks *links)
{
    walk_part(links);
    fill_progressively(links);
    for (int32_t i = 0; i < links->part_flows.n; i++) {
        SimFlow *other = links->part_flows.flow[i];
        if (other->active && other->new_rate != other->rate)
            set_rate(other, other->new_rate);
    }
}

/* Begins a part: the links that @flow crosses and that are tight. */
static bool
seed_links(SimLinks *links, const SimFlow *flow)
{
    links->visit++;
    links->part_flows.n = 0;
    links->n_part_links = 0;
    for (int32_t k = 0; k < flow->way.n_crossed; k++)
        if (is_tight(&links->link[flow->way.crossed[k].link]))
            visit_link(links, flow->way.crossed[k].link);
    return links->n_part_links > 0;
}

void
sim_flow_start(SimLinks *links, SimFlow *flow, int64_t work_ns, SimWay way, double limit,
               SimEventFunc done, void *user_data)
{
    g_return_if_fail(links != NULL && work_ns >= 0 && work_ns <= SIM_FLOW_MAX_NS);
    g_return_if_fail(!flow->active && limit > 0 && limit <= 1);

    flow->links = links;
    flow->way = way;
    flow->remaining_ns = (double)work_ns;
    flow->since_ns = *links->now_ns;
    flow->rate = flow->limit = limit;
    flow->shared_ns = 0;
    flow->active = true;
    flow->done = done;
    flow->user_data = user_data;
    links->n_flows++;
    for (int32_t k = 0; k < way.n_crossed; k++) {
        Link *link = &links->link[way.crossed[k].link];
        list_add(&link->flows, flow);
        link->wanted += limit * way.crossed[k].bytes_per_s;
    }
    set_rate(flow, limit);
    if (seed_links(links, flow))
        share_again(links);
}

/* Collects the flows that @flow meets on tight links: once they may have been slowed by it. */
static void
seed_flows(SimLinks *links, const SimFlow *flow)
{
    links->seeds.n = 0;
    for (int32_t k = 0; k < flow->way.n_crossed; k++) {
        const Link *link = &links->link[flow->way.crossed[k].link];
        if (link->visit != links->visit)
            continue;
        for (int32_t i = 0; i < link->flows.n; i++)
            list_add(&links->seeds, link->flows.flow[i]);
    }
}

/* After what @flow wants has become less: those it met, collected before, get new rates. */
static void
share_what_is_left(SimLinks *links)
{
    links->visit++;
    links->part_flows.n = 0;
    links->n_part_links = 0;
    for (int32_t i = 0; i < links->seeds.n; i++)
        visit_flow(links, links->seeds.flow[i]);
    share_again(links);
}

void
sim_flow_set_limit(SimFlow *flow, double limit)
{
    SimLinks *links = flow->links;

    g_return_if_fail(flow->active && limit > 0 && limit <= 1);
    if (limit == flow->limit)
        return;
    const bool was_tight = seed_links(links, flow);
    if (was_tight)
        seed_flows(links, flow);
    run_on(flow, *links->now_ns);
    flow->limit = limit;
    for (int32_t k = 0; k < flow->way.n_crossed; k++)
        sum_wanted(&links->link[flow->way.crossed[k].link], flow->way.crossed[k].link);
    if (was_tight)
        share_what_is_left(links);
    else if (seed_links(links, flow))
        share_again(links);
    else
        set_rate(flow, limit);
}

static void
end_flow(SimLinks *links, SimFlow *flow)
{
    const bool was_tight = seed_links(links, flow);

    run_on(flow, *links->now_ns);
    if (was_tight)
        seed_flows(links, flow);
    for (int32_t k = 0; k < flow->way.n_crossed; k++) {
        Link *link = &links->link[flow->way.crossed[k].link];
        list_remove(&link->flows, flow);
        sum_wanted(link, flow->way.crossed[k].link);
    }
    flow->active = false;
    links->n_flows--;
    if (!was_tight)
        return;
    list_remove(&links->seeds, flow);
    share_what_is_left(links);
}

/* An event about a flow: its end, or too early for it, because it has become slower, or left over
 * from an end that was expected and came earlier. */
static bool
look_at_flow(SimEngine *engine, void *user_data, GError **error)
{
    SimFlow *flow = user_data;
    const int64_t now_ns = *flow->links->now_ns;

    if (now_ns + 1 != flow->pending_ns)
        return true;
    flow->pending_ns = 0;
    if (!flow->active)
        return true;
    if (flow->due_ns > now_ns) {
        flow->pending_ns = flow->due_ns + 1;
        sim_engine_add(engine, flow->due_ns, look_at_flow, flow);
        return true;
    }
    end_flow(flow->links, flow);
    return flow->done(engine, flow->user_data, error);
}
