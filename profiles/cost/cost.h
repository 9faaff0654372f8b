/*
 * profiles/cost/cost.h - what an op costs: the one interface for measured and modelled times.
 *
 * Everything is in seconds here; profiles/workload/workload.h rounds once to nanoseconds.  Every
 * cost says where it came from.  Derivations: docs/cost-model.md.
 *
 *   GEMM: max(FLOPs / rate(m,n,k), bytes / bandwidth) + kernel time, rate by tile and wave
 * quantisation; attention: fused by FLOPs at its own fraction, unfused as two batched products and
 * a softmax's traffic; memory-bound ops: bytes / bandwidth; all: no faster than one kernel each
 * [roofline: Williams 2009]; collectives: alpha-beta per algorithm on the level of the topology the
 * group spans [Thakur, Rabenseifner, Gropp 2005; Patarasuk and Yuan 2009: ring all-reduce
 * 2(n-1)/n].
 *
 * Thread-safety: pure.
 */
#ifndef PROFILES_COST_COST_H
#define PROFILES_COST_COST_H

#include "models/ops.h"
#include "profiles/profile.h"

G_BEGIN_DECLS

typedef enum {
    PROFILE_SOURCE_MODELLED,
    PROFILE_SOURCE_INTERPOLATED, /* between measured shapes */
    PROFILE_SOURCE_MEASURED,
} ProfileSource;

extern const char *const profile_source_names[];

/* Where the time of an op goes. */
typedef enum {
    PROFILE_PART_COMPUTE,
    PROFILE_PART_TP,
    PROFILE_PART_CP,
    PROFILE_PART_EP,
    PROFILE_PART_RECOMPUTE,
    PROFILE_PART_DP, /* parameters gathered, gradients scattered inside the op: ZeRO 3 */
    PROFILE_PART_N,
} ProfilePart;

typedef struct {
    double part_s[PROFILE_PART_N]; /* device time on the compute stream; sums to the op's device
                                      time */
    double host_s;                 /* host time to issue it; the op takes max(device, host) */
    ProfileSource source;
} ProfileCost;

/* Peak of @dtype on @device, or of the nearest wider format that it computes in; > 0. */
double profile_peak_flops_per_s(const ModelDevice *device, Dtype dtype);

/* The time of an op: the larger of device and host. */
double profile_cost_s(const ProfileCost *cost);

/*
 * A communicator: @n ranks, @first and every @stride-th after it; or in runs of @per_run such ranks
 * that begin @run_stride apart.  @run_stride >= per_run * stride.
 */
typedef struct {
    int64_t first, stride, n;
    int64_t per_run, run_stride; /* 0: one run */
    /* Of every @period devices the first @busy, from a multiple of period on, are in groups that do
     * the same at the same time; 0: all are. */
    int64_t busy, period;
} ProfileGroup;

/* The last of its ranks; how many of them are devices @begin to @end - 1; number @i of them. */
int64_t profile_group_last(const ProfileGroup *group);
int64_t profile_group_count(const ProfileGroup *group, int64_t begin, int64_t end);
int64_t profile_group_member(const ProfileGroup *group, int64_t i);

/* Time of one modelled op on @device. @pass BACKWARD of a GEMM is its two products.  Collectives
 * use
 * @group.  host_s is included. */
ProfileCost profile_cost_op(const Profile *profile, const ModelDevice *device, const ModelOp *op,
                            ProfilePass pass, Dtype dtype, const ProfileGroup *groups);

/* What is asked of profile_cost_part(). */
typedef struct {
    const ModelArch *arch;
    ModelPart part;
    int64_t layer;
    ModelShape shape;
    int64_t rank;                       /* device number: which kind, where in the topology */
    ProfileGroup groups[MODEL_GROUP_N]; /* by ModelGroup */
    bool overlap_tp;
    /* Memory traffic per weight, in bytes, of adding its gradient to what earlier micro-batches
     * left (beyond the product's own write); 0: nothing to add to. */
    double accumulate_bytes_per_weight;
    bool accumulate_in_product; /* by the products that make them, else by kernels of their own */
    double host_kernel_s;       /* host time of the framework per kernel, beyond the profile's */
} ProfileQuery;

/*
 * One part (a layer, the embedding, the head) in one pass: measured when the profile has the shape,
 * interpolated between measured shapes around it, else the sum of its modelled ops.
 */
ProfileCost profile_cost_part(const Profile *profile, const ProfileQuery *query, ProfilePass pass);

/* As profile_cost_part for what recompute adds to the backward: all of a layer's forward, or its
 * core attention only. */
ProfileCost profile_cost_recompute(const Profile *profile, const ProfileQuery *query, bool full);

/* One collective of @bytes (nccl-tests' size convention) over @group. */
double profile_cost_collective_s(const Profile *profile, ModelComm comm, int64_t bytes,
                                 const ProfileGroup *group);

/*
 * Adds to @traffic_bytes[level] what one rank of @group gives to that level in it, on average, and
 * gets from there.  A ring leaves each group of devices once, so of m ranks that lie in one, each
 * sends 1/m of it outwards (docs/cost-model.md 3.5).
 */
void profile_collective_traffic(const Profile *profile, ModelComm comm, int64_t bytes,
                                const ProfileGroup *group,
                                double traffic_bytes[MODEL_CLUSTER_MAX_LEVELS]);

/* Whether collectives over both take as long. */
bool profile_groups_cost_alike(const Profile *profile, const ProfileGroup *a,
                               const ProfileGroup *b);

/* Whether @level is between nodes, seen from device @rank: network_fraction, not link_fraction. */
bool profile_level_is_network(const Profile *profile, size_t level, int64_t rank);

/* @bytes from the first rank of @group to all others, as NCCL's pipelined ring broadcast. */
double profile_cost_broadcast_s(const Profile *profile, int64_t bytes, const ProfileGroup *group);

/*
 * One message from device @rank_a to @rank_b, alone but for equal ones that all @senders, rank_a
 * among them, send at once: those of one node, or pod, share its way out.
 */
double profile_cost_p2p_s(const Profile *profile, int64_t bytes, int64_t rank_a, int64_t rank_b,
                          const ProfileGroup *senders);

/* Optimizer step (Adam) over @n_elements parameters held in @bytes_per_element in all. */
double profile_cost_optimizer_s(const Profile *profile, const ModelDevice *device,
                                int64_t n_elements, double bytes_per_element);

G_END_DECLS

#endif /* PROFILES_COST_COST_H */
