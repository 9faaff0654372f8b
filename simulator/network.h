/*
 * simulator/network.h - SimNetwork: which links each transfer crosses, and how much it takes of
 * them.
 *
 * Links are full duplex, so each link of the Workload is two here: 2 k out, 2 k + 1 in.
 *
 * A route is what one kind of transfer takes of the links that it crosses while it runs at full
 * speed, in bytes per second: its bytes over the time that the cost model gives it alone.  That
 * time already holds the share of a link that the devices of one rank leave each other, since they
 * all do the same at the same time, so a route is the sum over those devices; and what different
 * routes take of one link is shared out max-min fair.  So nothing is counted twice.
 *
 *   an op with collectives (tp, cp, ep, dp with ZeRO 3): their bytes, spread evenly over the op;
 *   what is hidden behind computing may take longer without the op's doing so
 *   a pair of overlapped ops: what both send, spread evenly over the pair
 *   a message: out of the sender's links, into the receiver's
 *   the reduction, the gathering of a rank
 *
 * Internal to simulator/.
 */
#pragma once

#include "simulator/resource.h"
#include "simulator/sweep.h"

/* A link that can fill, and a stream whose transfers cross it. */
typedef struct {
    int32_t link, stream;
} SimSuspect;

typedef struct {
    int32_t n_links;     /* each direction is one */
    double *bytes_per_s; /* (owned) [link] capacity */
    SimRoute *routes;    /* (owned) [route] with crossings of links that can fill only */
    GArray *crossings;   /* of SimCrossing: those of the routes, in their order */
    /* Pairs of a link that can fill, because its streams may want too much of it at once, and one
     * of those streams; by link.  None: nothing is ever contended. */
    GArray *suspects; /* of SimSuspect */
} SimNetwork;

/* The number of the route of an op of @cost, of the message it sends, of a rank's data-parallel
 * communication. */
static inline int64_t
sim_route_of_op(int64_t cost)
{
    return 2 * cost;
}

static inline int64_t
sim_route_of_message(int64_t cost)
{
    return 2 * cost + 1;
}

static inline int64_t
sim_route_of_dp(const SimProgram *program, int32_t rank, bool gathers)
{
    return 2 * program->n_costs + 2 * (int64_t)rank + gathers;
}

/* The number of the route of an overlapped pair of @kind, one of program->pair_kinds. */
static inline int64_t
sim_route_of_pair(const SimProgram *program, const SimPairKind *kind)
{
    return 2 * program->n_costs + 2 * (int64_t)program->schedule->n_ranks +
           (kind - program->pair_kinds);
}

/* The number of the route of what @step does on its compute stream. */
int64_t sim_route_of_step(const SimProgram *program, uint32_t step);

/* Fills @network from the links of @program's workload, which it has.  Returns false on
 * SCHEDULE_ERROR_SHAPE: links, levels or traffic out of range. */
bool sim_network_init(SimNetwork *network, const SimProgram *program, GError **error);
void sim_network_clear(SimNetwork *network);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(SimNetwork, sim_network_clear)

/* Returns: until when, at the times of a sweep that has seen no two messages on one stream at once,
 * no link has more on it than it carries: what ends until then takes the sweep's times, and so does
 * everything if it is INT64_MAX.  Cost: O(transfers on links that can fill, streams of a link). */
int64_t sim_network_suffices_until(const SimNetwork *network, const SimProgram *program,
                                   const SimTimes *times);
