/*
 * simulator/resource.h - links that flows share, max-min fair, on the engine's clock.
 *
 * A flow has work (ns that it takes alone) and crosses some links, of each of which it takes so
 * many bytes per second at full speed.  Its rate is the share of these that it has; alone it has
 * its limit, at most 1.  Its work gets on at its rate; where only a part of its transfers is waited
 * for, the rest being hidden behind other work, it falls behind its limit by that part only.  Where
 * the flows on a link would take more than it carries, rates are max-min fair between the devices
 * that send: no device's bytes per second can rise without those of one that has no more falling.
 * Rates follow from progressive filling: raise all devices' bytes per second together; what reaches
 * its limit or hits a full link stays [Bertsekas and Gallager, Data Networks, 2nd ed., 6.5.2].
 *
 * Rates change only when a flow starts or ends or gets another limit, and only in the part of the
 * network that is connected to it by links on which more is wanted than they carry; where there are
 * none, nothing else is touched, and a flow ends exactly its work after it started.
 *
 * Rates are doubles; ends are rounded to the nearest ns.  One run has one order of events and of
 * additions, hence one result.
 *
 * Knows no ranks and no ops.  Thread-safety: none; belongs to its engine's thread.
 */
#ifndef SIMULATOR_RESOURCE_H
#define SIMULATOR_RESOURCE_H

#include "simulator/engine.h"

G_BEGIN_DECLS

/* Longest work: 26 days, which a double holds to half a ns. */
#define SIM_FLOW_MAX_NS (INT64_C(1) << 51)

typedef struct SimLinks SimLinks;

/* What a flow takes of one link at full speed. */
typedef struct {
    double bytes_per_s;
    int32_t link;
} SimCrossing;

/* What a flow crosses. */
typedef struct {
    const SimCrossing *crossed; /* (borrowed) outlives the flow's activity; different links */
    int32_t n_crossed;
    double device_bytes_per_s; /* of one of its devices while it sends at full speed; > 0 */
    double visible;            /* 0 to 1: the part of its transfers that is waited for */
} SimWay;

/* A flow's place: zeroed by its owner before first use, then this module's; one use at a time. */
typedef struct {
    SimWay way;
    double limit, rate;
    /* While rates are found: */
    double new_rate;
    uint64_t visit; /* all before this and it: one cache line, for every flow of a part is read */
    bool frozen;
    bool active;
    double remaining_ns;
    int64_t since_ns;   /* remaining_ns was true then */
    int64_t due_ns;     /* when it ends if rates stay */
    int64_t pending_ns; /* 1 + time of the earliest event that will look at it; 0: none */
    double shared_ns;   /* so far: what it has lost because links were shared */
    SimLinks *links;    /* (borrowed) */
    SimEventFunc done;
    void *user_data; /* (borrowed) */
} SimFlow;

/*
 * @engine       (borrowed) outlives the links.
 * @bytes_per_s  (borrowed, copied) > 0, INFINITY for links that never fill.
 */
SimLinks *sim_links_new(SimEngine *engine, const double *bytes_per_s, int32_t n_links);
void sim_links_free(SimLinks *links);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(SimLinks, sim_links_free)

/*
 * Starts @flow (borrowed until it ends) now.  When it ends, @done is called as an event; the flow
 * may then be started again.
 *
 * @work_ns  >= 0, at most SIM_FLOW_MAX_NS
 * @limit    in (0, 1]
 * Cost: O(links crossed) where none is wanted too much, else O(flows and links connected to it).
 */
void sim_flow_start(SimLinks *links, SimFlow *flow, int64_t work_ns, SimWay way, double limit,
                    SimEventFunc done, void *user_data);

/* Lets an active flow run at @limit, in (0, 1], at the most from now on. */
void sim_flow_set_limit(SimFlow *flow, double limit);

/* Flows under way. */
int32_t sim_links_n_flows(const SimLinks *links);

G_END_DECLS

#endif /* SIMULATOR_RESOURCE_H */
