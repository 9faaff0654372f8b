/*
 * profiles/cost/collective.h - what collectives and messages take on a cluster, and what they send.
 *
 * A time is that of the profile's measured rows where it has any for the number of ranks, else it
 * follows alpha-beta models of NCCL's algorithms on the levels that the group spans: a latency for
 * each step, and bytes over the rate of the slowest link [Thakur, Rabenseifner, Gropp 2005; ring
 * all-reduce: Patarasuk and Yuan 2009].  Formulas: docs/cost-model.md 3.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "models/ops.h"
#include "profiles/profile.h"

/*
 * A group of @n devices: device @first and every @stride-th after it; or, where @per_run is not 0,
 * runs of @per_run such devices, the first ones of which are @run_stride apart (at least @per_run *
 * @stride).
 */
typedef struct {
    int64_t first, stride, n;
    int64_t per_run, run_stride; /* 0: all devices form one run */
    /* How many devices are in groups that run the same collective at the same time: the first @busy
     * of every @period devices, counted from a multiple of @period.  0: all devices are. */
    int64_t busy, period;
} ProfileGroup;

/* Member number @i of the group; 0 <= i < n. */
int64_t profile_group_member(const ProfileGroup *group, int64_t i);

/* The last member of the group. */
int64_t profile_group_last(const ProfileGroup *group);

/* Of @n_parts equal runs of the members of @group (n_parts divides n): the first run; and the first members of all
 * runs. */
ProfileGroup profile_group_run(const ProfileGroup *group, int64_t n_parts);
ProfileGroup profile_group_across(const ProfileGroup *group, int64_t n_parts);

/* How many members of the group are among the devices @begin to @end - 1. */
int64_t profile_group_count(const ProfileGroup *group, int64_t begin, int64_t end);

/* Seconds of one collective over @group; @bytes is the size that nccl-tests prints. */
double profile_cost_collective_s(const Profile *profile, ModelComm comm, int64_t bytes,
                                 const ProfileGroup *group);

/*
 * The bytes of @op's collective over @group as one collective of that kind carries them.  Where a row
 * is sent once to each place (op->copies > 0), k copies of it that go to m places at random reach
 * m (1 - (1 - 1/m)^k) of them: nodes, where the group spans several, since a node forwards what has
 * come over NVLink, else ranks (cost-model.md 3.6).
 */
int64_t profile_carried_bytes(const Profile *profile, const ModelOp *op, const ProfileGroup *group);

/* How many groups of ranks with fast links @group consists of: nodes, where it spans several, else 1. */
int64_t profile_group_nodes(const Profile *profile, const ProfileGroup *group);

/* Seconds of NCCL's pipelined ring broadcast of @bytes from the first member to all others. */
double profile_cost_broadcast_s(const Profile *profile, int64_t bytes, const ProfileGroup *group);

/* Seconds of one message from device @rank_a to @rank_b, while all @senders, @rank_a among them,
 * send an equal one: devices of one node, or of one domain, share its links to the outside. */
double profile_cost_p2p_s(const Profile *profile, int64_t bytes, int64_t rank_a, int64_t rank_b,
                          const ProfileGroup *senders);

/* Adds to @traffic_bytes[level] the bytes that one member of @group sends to that level on average
 * during the collective; it receives as many.  A ring leaves each group of devices once, so each of
 * the m members in one group sends 1 / m of that outwards (docs/cost-model.md 3.5). */
void profile_collective_traffic(const Profile *profile, ModelComm comm, int64_t bytes,
                                const ProfileGroup *group,
                                double traffic_bytes[MODEL_CLUSTER_MAX_LEVELS]);

/* Whether every collective takes as long over group @a as over group @b. */
bool profile_groups_cost_alike(const Profile *profile, const ProfileGroup *a,
                               const ProfileGroup *b);

/* Whether @level, seen from device @rank, connects nodes: then network_fraction is the share of its
 * rate that collectives reach, and link_fraction otherwise. */
bool profile_level_is_network(const Profile *profile, size_t level, int64_t rank);
