#include "simulator/resource.h"

#include <math.h>
#include <string.h>

/* Flows and links start cache lines of this many bytes: they are read at random. */
#define CACHE_LINE 64

/* A flow, under way or not. */
typedef struct {
    /* One cache line that is read of every flow of a part: */
    _Alignas(CACHE_LINE) const SimCrossing *crossed; /* (borrowed) */
    int32_t n_crossed;
    bool frozen, active;
    /* The full link that keeps it below its limit, or none: -1. */
    int32_t bottleneck, new_bottleneck;
    double device_bytes_per_s;
    double limit, rate;
    double new_rate; /* while rates are found */
    uint64_t visit;
    /* One that is read when its rate changes: */
    double remaining_ns;
    int64_t since_ns; /* remaining_ns was true then */
    double shared_ns; /* so far: what it has lost because links were shared */
    double visible;
} Flow;

/* A flow on a link, and what it takes of it. */
typedef struct {
    Flow *flow;         /* (borrowed) */
    double bytes_per_s; /* at full speed */
    double weight;      /* per byte/s of one of its devices */
    double wanted;      /* at its limit */
} Passing;

typedef struct {
    _Alignas(CACHE_LINE) double bytes_per_s;
    double wanted;    /* by its flows at their limits */
    Passing *passing; /* (owned; the first few in SimLinks.passing) its flows, in no order */
    int32_t n, room;
    bool changed; /* is one of those in SimLinks.changed */
    /* While rates are found: */
    int32_t n_unfrozen;
    double left;   /* after the frozen flows */
    double weight; /* what its other flows take per byte/s of a device */
    uint64_t visit;
} Link;

struct SimLinks {
    SimEngine *engine;     /* (borrowed) */
    const int64_t *now_ns; /* (borrowed) the engine's clock */
    Link *link;            /* (owned) */
    Passing *passing;      /* (owned) [link] room for a few each */
    Flow *flow;            /* (owned) */
    int32_t n_links, n_flows, n_active;
    /* Links of which too much was or is wanted, and whose flows have changed at this instant. */
    int32_t *changed; /* (owned) room for all */
    int32_t n_changed;
    /* The part of the network at hand: flows whose rates may change, tight links that they cross.
     * All lists but concerned have room for all: no calls, no growing. */
    Flow **part_flows; /* (owned) of (borrowed) Flow */
    int32_t n_part_flows;
    int32_t *part_links; /* (owned) */
    int32_t n_part_links;
    uint64_t visit; /* number of parts so far */
    /* While rates are found: flows of the part without one, links that these cross. */
    Flow **rising; /* (owned) of (borrowed) Flow */
    int32_t n_rising;
    int32_t *open_links; /* (owned) */
    int32_t n_open_links;
    bool has_neighbours;  /* other flows pass the part's links too */
    GPtrArray *concerned; /* of (borrowed) Flow: those of them that join next; mostly none */
};

/* Whether more is wanted of the link than it carries. */
static inline bool
is_tight(const Link *link)
{
    return link->wanted > link->bytes_per_s * (1 + SIM_LINK_TOLERANCE);
}

/* Notes that the flows on @link have changed, of which too much was or is wanted. */
static inline void
note_changed(SimLinks *links, Link *link)
{
    if (link->changed)
        return;
    link->changed = true;
    links->changed[links->n_changed++] = (int32_t)(link - links->link);
}

/* How fast its work gets on. */
static inline double
speed_of(const Flow *flow)
{
    return flow->limit - flow->visible * (flow->limit - flow->rate);
}

/* Up to @now_ns at the rate that it has had. */
static inline void
run_on(Flow *flow, int64_t now_ns)
{
    const double elapsed_ns = (double)(now_ns - flow->since_ns);

    if (elapsed_ns == 0)
        return;
    const double speed = speed_of(flow);
    flow->remaining_ns = MAX(flow->remaining_ns - elapsed_ns * speed, 0);
    if (flow->rate < flow->limit)
        flow->shared_ns += elapsed_ns * (1 - speed / flow->limit);
    flow->since_ns = now_ns;
}

/* Lets the flow run at @rate from now on. */
static inline void
set_rate(SimLinks *links, Flow *flow, double rate)
{
    const int64_t now_ns = *links->now_ns;

    run_on(flow, now_ns);
    flow->rate = rate;
    sim_engine_set(links->engine, (int32_t)(flow - links->flow),
                   now_ns + (int64_t)(flow->remaining_ns / speed_of(flow) + 0.5));
}

/* --- links and flows --- */

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

/* --- sharing --- */

/* Rates that differ by rounding alone. */
#define EQUAL 1e-9

static inline bool
is_in_part(const SimLinks *links, const Flow *flow)
{
    return flow->visit == links->visit;
}

/* How fast its devices send at @rate. */
static inline double
level_of(const Flow *flow, double rate)
{
    return rate * flow->device_bytes_per_s;
}

/* Takes @flow, and the tight links that it crosses, into the part at hand. */
static inline void
join(SimLinks *links, Flow *flow)
{
    if (is_in_part(links, flow))
        return;
    flow->visit = links->visit;
    links->part_flows[links->n_part_flows++] = flow;
    for (int32_t k = 0; k < flow->n_crossed; k++) {
        const int32_t at = flow->crossed[k].link;
        Link *link = &links->link[at];
        if (!is_tight(link) || link->visit == links->visit)
            continue;
        link->visit = links->visit;
        links->part_links[links->n_part_links++] = at;
    }
}

/* Sets what @link has for its flows of the part: flows outside keep what they have. */
static inline void
share_out(SimLinks *links, Link *link)
{
    double left = link->bytes_per_s, weight = 0;
    int32_t n_unfrozen = 0;

    for (int32_t i = 0; i < link->n; i++) {
        const Passing *p = &link->passing[i];
        if (is_in_part(links, p->flow)) {
            weight += p->weight;
            n_unfrozen++;
        } else {
            left -= p->flow->rate * p->bytes_per_s;
        }
    }
    link->left = MAX(left, 0);
    link->weight = weight;
    link->n_unfrozen = n_unfrozen;
    links->has_neighbours |= n_unfrozen < link->n;
}

/* Gives @flow @rate, because of the link @bottleneck or (-1) its limit. */
static inline void
freeze(SimLinks *links, Flow *flow, double rate, int32_t bottleneck)
{
    flow->frozen = true;
    flow->new_rate = rate;
    flow->new_bottleneck = bottleneck;
    for (int32_t k = 0; k < flow->n_crossed; k++) {
        const SimCrossing *c = &flow->crossed[k];
        Link *link = &links->link[c->link];
        if (link->visit != links->visit)
            continue;
        link->left -= rate * c->bytes_per_s;
        link->weight -= c->bytes_per_s / flow->device_bytes_per_s;
        link->n_unfrozen--;
    }
}

/* The link that fills first when the devices of all unfrozen flows rise together beyond @from
 * bytes/s, and at how many; -1: none does. */
static inline int32_t
find_bottleneck(SimLinks *links, double from, double *level)
{
    int32_t best = -1, n = 0;

    *level = INFINITY;
    for (int32_t i = 0; i < links->n_open_links; i++) {
        const int32_t at = links->open_links[i];
        const Link *link = &links->link[at];
        if (link->n_unfrozen == 0)
            continue;
        links->open_links[n++] = at; /* the others need no second look */
        const double fills = MAX(link->left / link->weight, from);
        if (fills < *level) {
            *level = fills;
            best = at;
        }
    }
    links->n_open_links = n;
    return best;
}

/* Freezes the unfrozen flows that reach their limit at @level at the latest. */
static inline bool
freeze_limited(SimLinks *links, double level)
{
    bool any = false;
    int32_t n = 0;

    for (int32_t i = 0; i < links->n_rising; i++) {
        Flow *flow = links->rising[i];
        if (flow->frozen)
            continue;
        if (level_of(flow, flow->limit) <= level) {
            freeze(links, flow, flow->limit, -1);
            any = true;
        } else {
            links->rising[n++] = flow;
        }
    }
    links->n_rising = n;
    return any;
}

/* Fills new_rate and new_bottleneck of the part's flows, as if those outside could not change,
 * where they cross one tight link, as most do: of the others each runs at its limit. */
static inline void
fill_link(SimLinks *links, int32_t at)
{
    Link *link = &links->link[at];
    double level;
    bool any;

    share_out(links, link);
    double left = link->left, weight = link->weight;
    int32_t n_unfrozen = link->n_unfrozen;
    /* Frozen flows have their limit, which they reach before the link is full. */
    do {
        any = false;
        level = MAX(left / weight, 0);
        for (int32_t i = 0; i < link->n; i++) {
            const Passing *p = &link->passing[i];
            if (!is_in_part(links, p->flow) || p->flow->frozen ||
                level_of(p->flow, p->flow->limit) > level)
                continue;
            p->flow->frozen = any = true;
            left -= p->wanted;
            weight -= p->weight;
            n_unfrozen--;
        }
    } while (any && n_unfrozen > 0);
    for (int32_t i = 0; n_unfrozen > 0 && i < link->n; i++) {
        Flow *flow = link->passing[i].flow;
        if (!is_in_part(links, flow) || flow->frozen)
            continue;
        flow->new_rate = level / flow->device_bytes_per_s;
        flow->new_bottleneck = at;
    }
}

/* Likewise, for any number of tight links. */
static void
fill_links(SimLinks *links)
{
    double level = 0, next;
    int32_t at;

    links->n_open_links = 0;
    for (int32_t i = 0; i < links->n_part_links; i++) {
        share_out(links, &links->link[links->part_links[i]]);
        links->open_links[links->n_open_links++] = links->part_links[i];
    }
    links->n_rising = links->n_part_flows;
    memcpy(links->rising, links->part_flows, sizeof *links->rising * (size_t)links->n_rising);
    /* Frozen flows have their final rate; the devices of all others at least @level bytes/s. */
    while ((at = find_bottleneck(links, level, &next)) >= 0) {
        if (freeze_limited(links, next))
            continue;
        level = next;
        const Link *link = &links->link[at];
        for (int32_t i = 0; i < link->n; i++) {
            Flow *flow = link->passing[i].flow;
            if (is_in_part(links, flow) && !flow->frozen)
                freeze(links, flow, level / flow->device_bytes_per_s, at);
        }
    }
    freeze_limited(links, INFINITY);
}

/* Lists the flows outside of the part that the new rates on link @at concern: those that it keeps
 * down although it is no longer full, or although others send faster, and those that send faster
 * than a flow that it keeps down. */
static void
find_concerned(SimLinks *links, int32_t at)
{
    const Link *link = &links->link[at];
    double used = 0, fastest = 0, kept_down = INFINITY;
    int32_t n_outside = 0;

    for (int32_t i = 0; i < link->n; i++) {
        const Passing *p = &link->passing[i];
        const bool inside = is_in_part(links, p->flow);
        const double rate = inside ? p->flow->new_rate : p->flow->rate;
        used += rate * p->bytes_per_s;
        n_outside += !inside;
        if (!inside)
            continue;
        fastest = MAX(fastest, level_of(p->flow, rate));
        if (p->flow->new_bottleneck == at)
            kept_down = MIN(kept_down, level_of(p->flow, rate));
    }
    const bool is_full = used >= link->bytes_per_s * (1 - EQUAL);
    for (int32_t i = 0; n_outside > 0 && i < link->n; i++) {
        Flow *flow = link->passing[i].flow;
        const double level = level_of(flow, flow->rate) * (1 + EQUAL);
        if (is_in_part(links, flow))
            continue;
        if ((flow->bottleneck == at && (!is_full || fastest > level)) ||
            level > kept_down * (1 + 3 * EQUAL))
            g_ptr_array_add(links->concerned, flow);
    }
}

/*
 * New rates for the flows on the links that have changed, and for as many others as these concern.
 * Rates are max-min fair if and only if each flow runs at its limit or crosses a full link on which
 * none sends faster [Bertsekas and Gallager, 6.5.2]; so if that still holds on every link between
 * the part and the rest, the rest has the rates that it would get anyway.  Else the part grows.
 */
static void
share_part(SimLinks *links)
{
    for (;;) {
        for (int32_t i = 0; i < links->n_part_flows; i++) {
            Flow *flow = links->part_flows[i];
            flow->frozen = false;
            flow->new_rate = flow->limit;
            flow->new_bottleneck = -1;
        }
        links->has_neighbours = false;
        if (links->n_part_links == 1)
            fill_link(links, links->part_links[0]);
        else if (links->n_part_links > 1)
            fill_links(links);
        if (!links->has_neighbours)
            return;
        for (int32_t i = 0; i < links->n_part_links; i++)
            find_concerned(links, links->part_links[i]);
        if (links->concerned->len == 0)
            return;
        for (guint i = 0; i < links->concerned->len; i++)
            join(links, links->concerned->pdata[i]);
        g_ptr_array_set_size(links->concerned, 0);
    }
}

/* Begins a part with the flows on the links that have changed. */
static inline void
begin_part(SimLinks *links)
{
    links->visit++;
    links->n_part_flows = 0;
    links->n_part_links = 0;
    for (int32_t i = 0; i < links->n_changed; i++) {
        Link *link = &links->link[links->changed[i]];
        link->changed = false;
        for (int32_t k = 0; k < link->n; k++)
            join(links, link->passing[k].flow);
    }
    links->n_changed = 0;
}

void
sim_links_share(SimLinks *links)
{
    if (links->n_changed == 0)
        return;
    begin_part(links);
    if (links->n_part_flows == 0)
        return;
    share_part(links);
    for (int32_t i = 0; i < links->n_part_flows; i++) {
        Flow *flow = links->part_flows[i];
        flow->bottleneck = flow->new_bottleneck;
        if (flow->new_rate != flow->rate)
            set_rate(links, flow, flow->new_rate);
    }
}
