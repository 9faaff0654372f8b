#include "simulator/share.h"

#include <math.h>

/* Rates that differ by rounding alone. */
#define EQUAL 1e-9

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

static inline bool
is_in_part(const SimLinks *links, const Flow *flow)
{
    return flow->visit == links->visit;
}

/* How fast its devices send at @rate. */
static inline double
level_of(const Flow *flow, double rate)
{
    return rate * flow->way.device_bytes_per_s;
}

void
share_begin(SimLinks *links)
{
    links->visit++;
    links->part_flows.n = 0;
    links->n_part_links = 0;
}

void
share_join(SimLinks *links, Flow *flow)
{
    if (is_in_part(links, flow))
        return;
    flow->visit = links->visit;
    list_add(&links->part_flows, flow);
    for (int32_t k = 0; k < flow->way.n_crossed; k++) {
        const int32_t at = flow->way.crossed[k].link;
        Link *link = &links->link[at];
        if (!is_tight(link) || link->visit == links->visit)
            continue;
        link->visit = links->visit;
        links->part_links[links->n_part_links++] = at;
    }
}

/* What a link of the part has for its flows: flows outside keep what they have. */
static void
open_link(SimLinks *links, int32_t at)
{
    Link *link = &links->link[at];

    link->left = link->bytes_per_s;
    link->weight = 0;
    link->n_unfrozen = 0;
    for (int32_t i = 0; i < link->flows.n; i++) {
        const Passing *p = &link->flows.passing[i];
        if (is_in_part(links, p->flow)) {
            link->weight += p->bytes_per_s / p->flow->way.device_bytes_per_s;
            link->n_unfrozen++;
        } else {
            link->left -= p->flow->rate * p->bytes_per_s;
        }
    }
    link->left = MAX(link->left, 0);
    links->open_links[links->n_open_links++] = at;
}

/* Gives @flow @rate, because of the link @bottleneck or (-1) its limit. */
static void
freeze(SimLinks *links, Flow *flow, double rate, int32_t bottleneck)
{
    flow->frozen = true;
    flow->new_rate = rate;
    flow->new_bottleneck = bottleneck;
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
 * bytes/s, and at how many; -1: none does. */
static int32_t
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
        if (level_of(flow, flow->limit) <= level) {
            freeze(links, flow, flow->limit, -1);
            any = true;
        } else {
            rising->flow[n++] = flow;
        }
    }
    rising->n = n;
    return any;
}

/* Fills new_rate and new_bottleneck of the part's flows, as if those outside could not change. */
static void
fill_progressively(SimLinks *links)
{
    double level = 0, next;
    int32_t at;

    links->n_open_links = 0;
    for (int32_t i = 0; i < links->n_part_links; i++)
        open_link(links, links->part_links[i]);
    links->rising.n = 0;
    for (int32_t i = 0; i < links->part_flows.n; i++) {
        links->part_flows.flow[i]->frozen = false;
        list_add(&links->rising, links->part_flows.flow[i]);
    }
    /* Frozen flows have their final rate; the devices of all others at least @level bytes/s. */
    while ((at = find_bottleneck(links, level, &next)) >= 0) {
        if (freeze_limited(links, next))
            continue;
        level = next;
        const PassingList *flows = &links->link[at].flows;
        for (int32_t i = 0; i < flows->n; i++) {
            Flow *flow = flows->passing[i].flow;
            if (is_in_part(links, flow) && !flow->frozen)
                freeze(links, flow, level / flow->way.device_bytes_per_s, at);
        }
    }
    freeze_limited(links, INFINITY);
}

/* Appends to rising the flows outside of the part that the new rates on link @at concern: those
 * that it keeps down although it is no longer full, or although others send faster, and those that
 * send faster than a flow that it keeps down. */
static void
find_concerned(SimLinks *links, int32_t at)
{
    const Link *link = &links->link[at];
    double used = 0, fastest = 0, kept_down = INFINITY;
    int32_t n_outside = 0;

    for (int32_t i = 0; i < link->flows.n; i++) {
        const Passing *p = &link->flows.passing[i];
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
    for (int32_t i = 0; n_outside > 0 && i < link->flows.n; i++) {
        Flow *flow = link->flows.passing[i].flow;
        const double level = level_of(flow, flow->rate) * (1 + EQUAL);
        if (is_in_part(links, flow))
            continue;
        if ((flow->bottleneck == at && (!is_full || fastest > level)) ||
            level > kept_down * (1 + 3 * EQUAL))
            list_add(&links->rising, flow);
    }
}

/*
 * New rates for the flows on the links that have changed, and for as many others as these concern.
 * Rates are max-min fair if and only if each flow runs at its limit or crosses a full link on which
 * none sends faster [Bertsekas and Gallager, 6.5.2]; so if that still holds on every link between
 * the part and the rest, the rest has the rates that it would get anyway.  Else the part grows.
 */
void
share_part(SimLinks *links)
{
    for (;;) {
        fill_progressively(links);
        links->rising.n = 0;
        for (int32_t i = 0; i < links->n_part_links; i++)
            find_concerned(links, links->part_links[i]);
        if (links->rising.n == 0)
            return;
        for (int32_t i = 0; i < links->rising.n; i++)
            share_join(links, links->rising.flow[i]);
    }
}
