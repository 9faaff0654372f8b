#include "simulator/share.h"

#include <math.h>
#include <string.h>

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

/* What a link of the part has for its flows: flows outside keep what they have. */
static inline void
open_link(SimLinks *links, int32_t at)
{
    Link *link = &links->link[at];
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
    links->open_links[links->n_open_links++] = at;
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
    const Link *link = &links->link[at];
    double left = link->bytes_per_s, weight = 0, level;
    int32_t n_unfrozen = 0;
    bool any;

    for (int32_t i = 0; i < link->n; i++) {
        const Passing *p = &link->passing[i];
        if (is_in_part(links, p->flow)) {
            weight += p->weight;
            n_unfrozen++;
        } else {
            left -= p->flow->rate * p->bytes_per_s;
        }
    }
    left = MAX(left, 0);
    links->has_neighbours = n_unfrozen < link->n;
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
    for (int32_t i = 0; i < links->n_part_links; i++)
        open_link(links, links->part_links[i]);
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
