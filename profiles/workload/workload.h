/*
 * profiles/workload/workload.h - Workload: a plan's ops as integers: nanoseconds and bytes.
 *
 * The bridge between Plan + ModelArch + Profile and everything that simulates or plans: what one op
 * of (stage, micro-batch class, slice) takes, what it sends, what it allocates and frees, and what
 * each rank does after its last op.  From here on only integers are added and compared.
 *
 * A class is a distinct number of sequences in a micro-batch (one class unless
 * micro_batch_sequences differ).
 *
 * Memory conventions (docs/cost-model.md 6): F of (stage, micro-batch, slice) allocates
 * `activation_bytes` and `kv_bytes` when it starts; B frees both when it ends (kv with the
 * micro-batch's slice); I turns `activation_bytes` into `weight_activation_bytes`, which W frees:
 * what is less is freed when I ends, what is more allocated when it starts.  The
 * gradients of K and V are summed over slices: the backward of the last slice, which is the first,
 * allocates `kv_gradient_bytes` of all slices, and each backward frees its own slice's.
 * `workspace` lives from an op's start to its end.
 */
#ifndef PROFILES_WORKLOAD_WORKLOAD_H
#define PROFILES_WORKLOAD_WORKLOAD_H

#include "profiles/cost/cost.h"
#include "schedule/plan.h"

G_BEGIN_DECLS

/* One op's kinds by ScheduleOpKind. */
typedef struct {
    int64_t time_ns[SCHEDULE_OP_N];
    int64_t part_ns[SCHEDULE_OP_N]
                   [PROFILE_PART_N]; /* sums to time_ns (host-bound excess: compute) */
    ProfileSource source;
    /* Bytes that one device of the stage gives to each level of the network while the op runs, as
     * much as it gets from there: the collectives of tp, cp, ep, and dp with ZeRO 3.  Float: shares
     * of links need no more. */
    float traffic_bytes[SCHEDULE_OP_N][MODEL_CLUSTER_MAX_LEVELS];
    int64_t forward_message_bytes; /* to the next stage; 0: none or same rank */
    int64_t forward_message_ns;
    int64_t backward_message_bytes; /* to the stage before */
    int64_t backward_message_ns;
    /* Of blocking messages: what the sender need not wait for, because the transport holds that
     * much of the message in buffers of its own (docs/cost-model.md 3.4); 0 to ..._message_ns. */
    int64_t forward_buffered_ns, backward_buffered_ns;
    /* Of a message: what one of the devices that send it puts on its link, and to which level. */
    int64_t forward_sent_bytes, backward_sent_bytes;
    int32_t forward_level, backward_level;
    int64_t activation_bytes;
    int64_t weight_activation_bytes; /* kept from I to W; more than before with full recompute */
    int64_t kv_bytes;
    int64_t kv_gradient_bytes;              /* of this slice's K and V */
    int64_t workspace_bytes[SCHEDULE_OP_N]; /* at the least: see WorkloadPrefetch */
} WorkloadOp;

/* Buckets of a chunk: finer ones change nothing that can be seen. */
#define WORKLOAD_MAX_BUCKETS 64

/* What a pipeline rank does besides its ops. */
typedef struct {
    int64_t dp_reduce_ns, dp_reduce_bytes; /* gradients, after (or behind) its last backward */
    int64_t dp_gather_ns, dp_gather_bytes; /* parameters after the optimizer (ZeRO 1, 2) */
    /* Bytes that one device gives to each level in them, as WorkloadOp.traffic_bytes. */
    double dp_reduce_traffic_bytes[MODEL_CLUSTER_MAX_LEVELS];
    double dp_gather_traffic_bytes[MODEL_CLUSTER_MAX_LEVELS];
    int32_t n_buckets; /* of a chunk's gradients, or parameters: each is a collective; 0: as 1 */
    int64_t optimizer_ns;
    int64_t static_bytes[TRACE_MEMORY_N]; /* resident for the whole iteration */
    int64_t memory_limit_bytes;           /* of its device, or the user's limit; 0: none */
    int64_t memory_usable_bytes;          /* what a peak may reach of it; 0: all */
    double device_flops_per_s;            /* peak of the plan's dtype, for utilisation */
} WorkloadRank;

/* A link that what a rank sends to (and gets from) one level of the network crosses. */
typedef struct {
    int32_t link;
    /* Of the rank that have it in common: it carries what all of them send.  0: a link of every
     * device's own, which carries what that device sends. */
    int32_t n_devices;
} WorkloadCrossing;

/*
 * The links of the cluster that a pipeline's traffic crosses.  The devices of a rank do the same at
 * the same time, so each of its devices' own links stands for all; groups of devices (nodes, pods)
 * whose shared links carry the same ranks' traffic stand for each other too (docs/cost-model.md
 * 3.5).
 */
typedef struct {
    int32_t n_levels, n_links;
    double *bytes_per_s;         /* (owned) [link] what it carries, each way */
    int64_t *begin;              /* (owned) [rank * n_levels + level], and one more */
    WorkloadCrossing *crossings; /* (owned) those of (rank, level): [begin .. next begin) */
    double senders_fraction;     /* of a rank's devices that send a message */
} WorkloadLinks;

/* Which whole weights a rank holds for ops to come: prefetch.h. */
typedef struct WorkloadPrefetch WorkloadPrefetch;

typedef struct {
    int32_t n_stages, n_ranks, n_classes, n_slices;
    int32_t n_chains; /* 2 for bidir schedules: stage s of chain 1 lies on rank p-1-s */
    WorkloadOp
        *ops; /* (owned) [((chain * n_stages + stage) * n_classes + class) * n_slices + slice] */
    int32_t *class_of_micro_batch; /* (owned, nullable: one class) */
    WorkloadRank *ranks;           /* (owned) n_ranks */
    bool blocking_messages; /* the compute stream waits in sends and receives (no overlap_pp) */
    bool overlap_dp;        /* a chunk's gradients are reduced behind its last backward... */
    bool overlap_gather;    /* ... its parameters gathered ahead of its first forward (ZeRO 1, 2) */
    /* Slowdown of computing while a collective of dp, or a message, runs beside it. */
    double interference_fraction, message_interference_fraction;
    /* Of two ops that run overlapped (simulator/pairs.h).  0: by what they compute and what their
     * collectives take; < 0: they do not, as plain op times say nothing of it */
    int64_t pair_ns;
    WorkloadLinks *links;       /* (owned, nullable) NULL: messages are delays and meet nowhere */
    WorkloadPrefetch *prefetch; /* (owned, nullable) NULL: no op has weights of later ones */
    int64_t op_overhead_ns;     /* measured: per op, bookkeeping of the executor */
    /* For the report; 0 or NaN when no model is known. */
    double model_flops, tokens; /* per iteration, all replicas */
    int64_t n_devices;
    double price_per_device_hour, power_w_per_device; /* means over the devices */
} Workload;

/*
 * Prices every op of @plan.
 * @profile's cluster must have at least plan_n_devices() devices.
 * Returns NULL on PLAN_ERROR_INVALID (degrees that do not divide the model: names the flag and the
 * legal values) or PLAN_ERROR_INFEASIBLE (too few devices). Cost: O(stages * classes * slices * ops
 * per layer).
 */
Workload *workload_new(const ModelArch *arch, const Profile *profile, const Plan *plan,
                       int64_t memory_limit_bytes, GError **error);
void workload_free(Workload *workload);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Workload, workload_free)

/* Plain op times for any schedule, one op after the other: the same @time_ns for all stages,
 * messages of @message_ns. */
Workload *workload_new_plain(const Schedule *schedule, const int64_t time_ns[SCHEDULE_OP_N],
                             int64_t message_ns);

/*
 * Rank @rank computes at @speed (> 0) times its rate: the computing and recomputing of its ops and
 * its optimizer take 1 / @speed of their time, its communication takes what it took.
 * @placement  of the schedule: which stages lie on the rank.
 */
void workload_set_rank_speed(Workload *workload, SchedulePlacement placement, int32_t rank,
                             double speed);

/* Defined in links.c.  @links is nullable. */
void workload_links_free(WorkloadLinks *links);

/* What a peak of @rank may reach; 0: no limit. */
static inline int64_t
workload_usable_bytes(const WorkloadRank *rank)
{
    return rank->memory_usable_bytes > 0 ? rank->memory_usable_bytes : rank->memory_limit_bytes;
}

static inline const WorkloadOp *
workload_op(const Workload *workload, int32_t chain, int32_t stage, int32_t micro_batch,
            int32_t slice)
{
    int32_t class_ =
        workload->class_of_micro_batch ? workload->class_of_micro_batch[micro_batch] : 0;

    return &workload->ops[((int64_t)(chain * workload->n_stages + stage) * workload->n_classes +
                           class_) *
                              workload->n_slices +
                          slice];
}

G_END_DECLS

#endif /* PROFILES_WORKLOAD_WORKLOAD_H */
