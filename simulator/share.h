/*
 * simulator/share.h - what resource.c and share.c share: flows, links, how work gets on.
 * Internal to those two.
 */
#ifndef SIMULATOR_SHARE_H
#define SIMULATOR_SHARE_H

#include "simulator/resource.h"

G_BEGIN_DECLS

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

G_END_DECLS

#endif /* SIMULATOR_SHARE_H */
