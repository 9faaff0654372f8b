/*
 * simulator/share.h - what resource.c and share.c share: flows, links, and who gets how much.
 * Internal to those two.
 */
#ifndef SIMULATOR_SHARE_H
#define SIMULATOR_SHARE_H

#include "simulator/resource.h"

G_BEGIN_DECLS

/* A flow, under way or not. */
typedef struct {
    SimWay way;
    double limit, rate;
    /* While rates are found: */
    double new_rate;
    uint64_t visit; /* all before this and it: one cache line, for every flow of a part is read */
    bool frozen;
    bool active;
    /* The full link that keeps it below its limit, or none: -1. */
    int32_t bottleneck, new_bottleneck;
    double remaining_ns;
    int64_t since_ns; /* remaining_ns was true then */
    double shared_ns; /* so far: what it has lost because links were shared */
} Flow;

/* Rates are found again at every instant, so lists are bare arrays: no calls, no clearing. */
typedef struct {
    Flow **flow; /* (owned) of (borrowed) Flow */
    int32_t n, room;
} FlowList;

/* A flow on a link, and what it takes of it at full speed. */
typedef struct {
    Flow *flow; /* (borrowed) */
    double bytes_per_s;
} Passing;

typedef struct {
    Passing *passing; /* (owned) */
    int32_t n, room;
} PassingList;

typedef struct {
    double bytes_per_s;
    double wanted;     /* by its flows at their limits */
    PassingList flows; /* in no order */
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
    /* The part of the network at hand: flows whose rates may change, tight links that they cross.
     */
    FlowList part_flows;
    int32_t *part_links; /* (owned) room for all */
    int32_t n_part_links;
    uint64_t visit; /* number of parts so far */
    /* While rates are found: flows of the part without one, links that these cross. */
    FlowList rising;
    int32_t *open_links; /* (owned) room for all */
    int32_t n_open_links;
};

/* Whether more is wanted of the link than it carries. */
static inline bool
is_tight(const Link *link)
{
    return link->wanted > link->bytes_per_s * (1 + SIM_LINK_TOLERANCE);
}

/* Begins a part of the network without flows. */
void share_begin(SimLinks *links);

/* Takes @flow, and the tight links that it crosses, into the part at hand. */
void share_join(SimLinks *links, Flow *flow);

/*
 * Fills new_rate and new_bottleneck of the part's flows, and takes as many others into it as these
 * concern.
 */
void share_part(SimLinks *links);

G_END_DECLS

#endif /* SIMULATOR_SHARE_H */
