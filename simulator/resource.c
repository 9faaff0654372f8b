#include "simulator/resource.h"

#include <string.h>

struct SimFlow {
    SimLinks *links; /* (borrowed) */
    double remaining_ns, rate;
    int64_t since_ns;   /* remaining_ns was true then */
    int64_t due_ns;     /* when it ends if rates stay */
    int64_t pending_ns; /* of the earliest event that will look at it; INT64_MAX: none */
    int32_t crossed[SIM_FLOW_MAX_LINKS];
    int32_t n_crossed;
    bool active;
    /* While rates are found: */
    bool frozen;
    uint64_t visit;
    double new_rate;
    SimEventFunc done;
    void *user_data; /* (borrowed) */
};

typedef struct {
    double capacity;
    GPtrArray *flows; /* of (borrowed) SimFlow, in no order */
    /* While rates are found: */
    double left; /* of capacity, after the frozen flows */
    int32_t n_unfrozen;
    uint64_t visit;
} Link;

struct SimLinks {
    SimEngine *engine; /* (borrowed) */
    Link *link;        /* (owned) */
    int32_t n_links, n_flows;
    GPtrArray *all;  /* of (owned) SimFlow: every one ever made */
    GPtrArray *idle; /* of (borrowed) SimFlow: those that can be used again */
    /* The connected part of the network at hand. */
    GPtrArray *part_flows; /* of (borrowed) SimFlow */
    GArray *part_links;    /* of int32_t */
    uint64_t visit;        /* number of parts walked */
};

SimLinks *
sim_links_new(SimEngine *engine, const double *capacity, int32_t n_links)
{
    g_return_val_if_fail(engine != NULL && n_links >= 0, NULL);
    SimLinks *links = g_new0(SimLinks, 1);

    links->engine = engine;
    links->n_links = n_links;
    links->link = g_new0(Link, (size_t)n_links);
    for (int32_t i = 0; i < n_links; i++) {
        g_assert(capacity[i] > 0);
        links->link[i].capacity = capacity[i];
        links->link[i].flows = g_ptr_array_new();
    }
    links->all = g_ptr_array_new_with_free_func(g_free);
    links->idle = g_ptr_array_new();
    links->part_flows = g_ptr_array_new();
    links->part_links = g_array_new(false, false, sizeof(int32_t));
    return links;
}

void
sim_links_free(SimLinks *links)
{
    if (links == NULL)
        return;
    for (int32_t i = 0; i < links->n_links; i++)
        g_ptr_array_unref(links->link[i].flows);
    g_free(links->link);
    g_ptr_array_unref(links->all);
    g_ptr_array_unref(links->idle);
    g_ptr_array_unref(links->part_flows);
    g_array_unref(links->part_links);
    g_free(links);
}

double
sim_flow_rate(const SimFlow *flow)
{
    return flow->rate;
}

int32_t
sim_links_n_flows(const SimLinks *links)
{
    return links->n_flows;
}

/* --- max-min fair rates --- */

static void
visit_link(SimLinks *links, int32_t i)
{
    Link *link = &links->link[i];

    if (link->visit == links->visit)
        return;
    link->visit = links->visit;
    link->left = link->capacity;
    link->n_unfrozen = (int32_t)link->flows->len;
    g_array_append_val(links->part_links, i);
}

/* Collects what is connected to @flow's links by flows. */
static void
walk_part(SimLinks *links, const SimFlow *flow)
{
    links->visit++;
    g_ptr_array_set_size(links->part_flows, 0);
    g_array_set_size(links->part_links, 0);
    for (int32_t i = 0; i < flow->n_crossed; i++)
        visit_link(links, flow->crossed[i]);
    /* part_links[0 .. next) have handed on their flows. */
    for (guint next = 0; next < links->part_links->len; next++) {
        const Link *link = &links->link[g_array_index(links->part_links, int32_t, next)];
        for (guint i = 0; i < link->flows->len; i++) {
            SimFlow *other = g_ptr_array_index(link->flows, i);
            if (other->visit == links->visit)
                continue;
            other->visit = links->visit;
            other->frozen = false;
            g_ptr_array_add(links->part_flows, other);
            for (int32_t k = 0; k < other->n_crossed; k++)
                visit_link(links, other->crossed[k]);
        }
    }
}

static void
freeze(SimLinks *links, SimFlow *flow, double rate)
{
    flow->frozen = true;
    flow->new_rate = rate;
    for (int32_t k = 0; k < flow->n_crossed; k++) {
        Link *link = &links->link[flow->crossed[k]];
        link->left -= rate;
        link->n_unfrozen--;
    }
}

/* The link that fills first when all unfrozen flows rise together, or -1 if they reach 1 before. */
static int32_t
find_bottleneck(const SimLinks *links, double *rate)
{
    int32_t best = -1;

    *rate = 1;
    for (guint i = 0; i < links->part_links->len; i++) {
        const int32_t at = g_array_index(links->part_links, int32_t, i);
        const Link *link = &links->link[at];
        if (link->n_unfrozen == 0)
            continue;
        const double share = MAX(link->left, 0) / link->n_unfrozen;
        if (share < *rate) {
            *rate = share;
            best = at;
        }
    }
    return best;
}

/* Fills new_rate of the part's flows. */
static void
fill_progressively(SimLinks *links)
{
    double rate;

    /* Frozen flows have their final rate; all others at least that of the last bottleneck. */
    for (int32_t at; (at = find_bottleneck(links, &rate)) >= 0;) {
        const Link *link = &links->link[at];
        for (guint i = 0; i < link->flows->len; i++) {
            SimFlow *flow = g_ptr_array_index(link->flows, i);
            if (!flow->frozen)
                freeze(links, flow, rate);
        }
    }
    for (guint i = 0; i < links->part_flows->len; i++) {
        SimFlow *flow = g_ptr_array_index(links->part_flows, i);
        if (!flow->frozen)
            freeze(links, flow, 1);
    }
}

/* --- time --- */

static bool look_at_flow(SimEngine *engine, void *user_data, GError **error);

/* Lets the flow run at @rate from now on. */
static void
set_rate(SimFlow *flow, double rate)
{
    SimEngine *engine = flow->links->engine;
    const int64_t now_ns = sim_engine_now_ns(engine);

    flow->remaining_ns -= (double)(now_ns - flow->since_ns) * flow->rate;
    flow->remaining_ns = MAX(flow->remaining_ns, 0);
    flow->since_ns = now_ns;
    flow->rate = rate;
    flow->due_ns = now_ns + (int64_t)(flow->remaining_ns / rate + 0.5);
    if (flow->due_ns < flow->pending_ns) {
        flow->pending_ns = flow->due_ns;
        sim_engine_add(engine, flow->due_ns, look_at_flow, flow);
    }
}

/* Whether @flow meets others on a link that is too small for all of them. */
static bool
is_squeezed(const SimLinks *links, const SimFlow *flow)
{
    for (int32_t k = 0; k < flow->n_crossed; k++) {
        const Link *link = &links->link[flow->crossed[k]];
        if (link->flows->len > link->capacity)
            return true;
    }
    return false;
}

/* After @flow came, or before it goes: whoever it meets gets new rates. */
static void
share_again(SimLinks *links, const SimFlow *flow)
{
    walk_part(links, flow);
    fill_progressively(links);
    for (guint i = 0; i < links->part_flows->len; i++) {
        SimFlow *other = g_ptr_array_index(links->part_flows, i);
        if (other->new_rate != other->rate)
            set_rate(other, other->new_rate);
    }
}

SimFlow *
sim_links_start(SimLinks *links, int64_t work_ns, const int32_t *crossed, int32_t n_crossed,
                SimEventFunc done, void *user_data)
{
    g_return_val_if_fail(links != NULL && work_ns >= 0 && work_ns <= SIM_FLOW_MAX_NS, NULL);
    g_return_val_if_fail(n_crossed >= 0 && n_crossed <= SIM_FLOW_MAX_LINKS, NULL);
    SimFlow *flow;

    if (links->idle->len > 0) {
        flow = g_ptr_array_steal_index_fast(links->idle, links->idle->len - 1);
    } else {
        flow = g_new0(SimFlow, 1);
        flow->links = links;
        flow->pending_ns = INT64_MAX;
        g_ptr_array_add(links->all, flow);
    }
    flow->remaining_ns = (double)work_ns;
    flow->since_ns = sim_engine_now_ns(links->engine);
    flow->rate = 1;
    flow->n_crossed = n_crossed;
    memcpy(flow->crossed, crossed, sizeof *crossed * (size_t)n_crossed);
    flow->active = true;
    flow->done = done;
    flow->user_data = user_data;
    links->n_flows++;
    for (int32_t k = 0; k < n_crossed; k++)
        g_ptr_array_add(links->link[crossed[k]].flows, flow);
    set_rate(flow, 1);
    if (is_squeezed(links, flow))
        share_again(links, flow);
    return flow;
}

static void
end_flow(SimLinks *links, SimFlow *flow)
{
    const bool squeezed = is_squeezed(links, flow);

    for (int32_t k = 0; k < flow->n_crossed; k++)
        g_ptr_array_remove_fast(links->link[flow->crossed[k]].flows, flow);
    flow->active = false;
    links->n_flows--;
    if (squeezed)
        share_again(links, flow);
    g_ptr_array_add(links->idle, flow);
}

/* An event about a flow: its end, or too early for it, because it has become slower, or left over
 * from an end that was expected and came earlier. */
static bool
look_at_flow(SimEngine *engine, void *user_data, GError **error)
{
    SimFlow *flow = user_data;
    const int64_t now_ns = sim_engine_now_ns(engine);

    if (now_ns != flow->pending_ns)
        return true;
    flow->pending_ns = INT64_MAX;
    if (!flow->active)
        return true;
    if (flow->due_ns > now_ns) {
        flow->pending_ns = flow->due_ns;
        sim_engine_add(engine, flow->due_ns, look_at_flow, flow);
        return true;
    }
    end_flow(flow->links, flow);
    return flow->done(engine, flow->user_data, error);
}
