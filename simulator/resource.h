/*
 * simulator/resource.h - links that messages share, max-min fair, on the engine's clock.
 *
 * A flow has work (ns that it takes alone) and crosses some links.  Alone it runs at rate 1.  Where
 * the flows on a link would need more than its capacity (the number of flows that it carries at
 * rate 1), rates are max-min fair: no flow can get more without one that has no more getting less.
 * They follow from progressive filling: raise all rates together; what hits a full link stays
 * [Bertsekas and Gallager, Data Networks, 2nd ed., 6.5.2].
 *
 * Rates change only when a flow starts or ends, and only in the part of the network that is
 * connected to it by shared links; where no link is full nothing else is touched, and a flow ends
 * exactly its work after it started.
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

/* Links that one flow may cross. */
#define SIM_FLOW_MAX_LINKS 4

/* Longest work: 26 days, which a double holds to half a ns. */
#define SIM_FLOW_MAX_NS (INT64_C(1) << 51)

typedef struct SimLinks SimLinks;
typedef struct SimFlow SimFlow;

/*
 * @engine    (borrowed) outlives the links.
 * @capacity  (borrowed, copied) > 0, INFINITY for links that never fill.
 */
SimLinks *sim_links_new(SimEngine *engine, const double *capacity, int32_t n_links);
void sim_links_free(SimLinks *links);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(SimLinks, sim_links_free)

/*
 * Starts a flow now.  When it ends, @done is called as an event.
 *
 * @work_ns  >= 0, at most SIM_FLOW_MAX_NS
 * @crossed  @n_crossed different links, at most SIM_FLOW_MAX_LINKS
 * Returns: (borrowed) the flow, until it ends.
 * Cost: O(1) where no link is full, else O(flows and links connected to it).
 */
SimFlow *sim_links_start(SimLinks *links, int64_t work_ns, const int32_t *crossed,
                         int32_t n_crossed, SimEventFunc done, void *user_data);

/* The share of its speed alone that a flow has now, in (0, 1]. */
double sim_flow_rate(const SimFlow *flow);

/* Flows under way. */
int32_t sim_links_n_flows(const SimLinks *links);

G_END_DECLS

#endif /* SIMULATOR_RESOURCE_H */
