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
 * Flows have numbers: flow f ends when timer f of the engine goes off.  Rates change only when
 * flows start or end or get other limits.  What does so at one instant is collected, and
 * sim_links_share() finds all new rates once, when nothing more happens at that instant; and only
 * on links on which more is wanted than they carry, beginning with those of what has changed, as
 * far as rates do change.  Where there are none, nothing else is touched, and a flow ends
 * exactly its work after it started.
 *
 * Rates are doubles; ends are rounded to the nearest ns.  One run has one order of events and of
 * additions, hence one result.
 *
 * Knows no ranks and no ops.  Thread-safety: none; belongs to its engine's thread.
 */
#pragma once

#include "simulator/engine.h"

/* Longest work: 26 days, which a double holds to half a ns. */
#define SIM_FLOW_MAX_NS (INT64_C(1) << 51)

/* Sums of what flows take of a link may differ from it by rounding. */
#define SIM_LINK_TOLERANCE 1e-6

typedef struct SimLinks SimLinks;

/* What a flow takes of one link at full speed. */
typedef struct {
    double bytes_per_s;
    int32_t link;
} SimCrossing;

/* The links that a flow crosses, and how fast its devices send. */
typedef struct {
    const SimCrossing *crossed; /* (borrowed) outlives the flow's activity; different links */
    int32_t n_crossed;
    double device_bytes_per_s; /* of one of its devices while it sends at full speed; > 0 */
    double visible;            /* 0 to 1: the part of its transfers that is waited for */
} SimRoute;

/*
 * @engine       (borrowed) outlives the links; its timers [0, @n_flows) are the flows'.
 * @bytes_per_s  (borrowed, copied) > 0, INFINITY for links that never fill.
 */
SimLinks *sim_links_new(SimEngine *engine, int32_t n_flows, const double *bytes_per_s,
                        int32_t n_links);
void sim_links_free(SimLinks *links);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(SimLinks, sim_links_free)

/*
 * Starts @flow now.  When its timer goes off, sim_flow_end() must be called; then it may be started
 * again.
 *
 * @work_ns  >= 0, at most SIM_FLOW_MAX_NS
 * @route    read now; what its `crossed` points to, as long as the flow is active
 * @limit    in (0, 1]
 * Cost: O(links crossed and flows on them), and what sharing costs if more is wanted of one.
 */
void sim_flow_start(SimLinks *links, int32_t flow, int64_t work_ns, const SimRoute *route,
                    double limit);

/* Lets an active flow run at @limit, in (0, 1], at the most from now on. */
void sim_flow_set_limit(SimLinks *links, int32_t flow, double limit);

/* Ends @flow, whose timer has gone off.  Returns: what it has lost because links were shared, ns.
 */
double sim_flow_end(SimLinks *links, int32_t flow);

/* Finds the new rates after flows have started, ended or got other limits.  Must be called before
 * the clock moves on; may set timers to now.  Cost: O(1) where no link was wanted too much, else
 * O(flows and links whose rates change, and their neighbours) per level of rates. */
void sim_links_share(SimLinks *links);

/* How many flows are active, whether one is, and its rate, from 0 to its limit, as the last
 * sim_links_share() found it. */
int32_t sim_links_n_flows(const SimLinks *links);
bool sim_flow_is_active(const SimLinks *links, int32_t flow);
double sim_flow_rate(const SimLinks *links, int32_t flow);
