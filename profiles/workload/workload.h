/*
 * profiles/workload/workload.h - Workload: the ops of a plan as integer nanoseconds and bytes.
 *
 * The room profiles/workload/ turns a Plan, a ModelArch and a Profile into the numbers that the
 * planner, the simulator and the reports add and compare: what each op of a (stage, class of
 * micro-batches, slice) takes, what it sends, what it allocates and frees, and what each pipeline
 * rank does after its last op.  Times are rounded here, once; from here on everything is an
 * integer.
 *
 * A class is all micro-batches with the same number of sequences; there is one class unless the
 * plan's micro_batch_sequences differ.
 *
 * Memory (docs/cost-model.md 6): the F of a (stage, micro-batch, slice) allocates activation_bytes
 * and kv_bytes when it starts, and its B frees both when it ends.  Where the backward is cut in
 * two, I replaces activation_bytes by weight_activation_bytes, which W frees: if that is less, I
 * frees the difference when it ends, and if it is more, I allocates it when it starts.  The
 * gradients of K and V are summed over slices: the first backward of a micro-batch, that of its
 * last slice, allocates kv_gradient_bytes of all slices, and each backward frees those of its own
 * slice.  A workspace exists from the start of an op to its end.
 */
#pragma once

#include "profiles/cost/cost.h"
#include "schedule/plan.h"

/* What a stage sends to a neighbour; all is 0 if there is none, or on the same rank. */
typedef struct {
    int64_t bytes, ns;
    /* With blocking messages: for how much of ns the sender does not wait, because the transport
     * holds that part of the message in buffers of its own (docs/cost-model.md 3.4). */
    int64_t buffered_ns;
    /* How many bytes each of the sending devices puts on its link, and the level of that link. */
    int64_t sent_bytes;
    int32_t level;
} WorkloadMessage;

/* What the ops of one (stage, class, slice) take and need; arrays are indexed by ScheduleOpKind. */
typedef struct {
    int64_t time_ns[SCHEDULE_OP_N];
    /* Sums to time_ns; time in which the device waits for the host counts as compute. */
    int64_t part_ns[SCHEDULE_OP_N][PROFILE_PART_N];
    ProfileSource source;
    /* Bytes that one device of the stage sends to each level of the network during the op, in the
     * collectives of tp, cp, ep, and dp with ZeRO 3; it receives as many.  Floats are exact enough
     * for shares of links. */
    float traffic_bytes[SCHEDULE_OP_N][MODEL_CLUSTER_MAX_LEVELS];
    WorkloadMessage forward_message, backward_message; /* to the next stage, to the one before */
    int64_t activation_bytes;
    /* Of these, what F takes only behind its first two layers with experts: a backward that it is merged with
     * has given back as much by then, or more. */
    int64_t late_activation_bytes;
    int64_t
        weight_activation_bytes; /* kept from I to W; above activation_bytes with full recompute */
    int64_t kv_bytes;
    int64_t kv_gradient_bytes; /* the gradients of this slice's K and V */
    int64_t
        workspace_bytes[SCHEDULE_OP_N]; /* the least; prefetched weights add to it (prefetch.h) */
} WorkloadOp;

/* Buckets of one chunk at most: more of them would change no prediction by as much as is shown. */
#define WORKLOAD_MAX_BUCKETS 64

/* What a pipeline rank does besides its ops, and what its devices have. */
typedef struct {
    int64_t dp_reduce_ns, dp_reduce_bytes; /* gradients, after its last backward or during it */
    int64_t dp_gather_ns, dp_gather_bytes; /* parameters, after the optimizer (ZeRO 1 and 2) */
    /* Bytes that one device sends to each level in them, as WorkloadOp.traffic_bytes. */
    double dp_reduce_traffic_bytes[MODEL_CLUSTER_MAX_LEVELS];
    double dp_gather_traffic_bytes[MODEL_CLUSTER_MAX_LEVELS];
    int32_t n_buckets; /* collectives for a chunk's gradients, and for its parameters; 0 means 1 */
    int64_t optimizer_ns;
    int64_t static_bytes[TRACE_MEMORY_N]; /* held for the whole iteration */
    int64_t memory_limit_bytes;           /* its device's memory, or the user's limit; 0: none */
    int64_t memory_usable_bytes;          /* how much of that a peak may reach; 0: all */
    double device_flops_per_s;            /* peak for the plan's dtype, to compute utilisation */
} WorkloadRank;

/* A link that carries what a pipeline rank sends to one level of the network, and receives. */
typedef struct {
    int32_t link;
    /* How many devices of the rank share the link, which carries what all of them send.  0: each
     * device has such a link of its own. */
    int32_t n_devices;
} WorkloadCrossing;

/*
 * The links of the cluster that the traffic of a pipeline crosses.  The devices of a pipeline rank
 * do the same at the same time, so the own link of one stands for those of all; groups of devices
 * (nodes, domains) whose shared links carry the traffic of the same ranks stand for each other too
 * (docs/cost-model.md 3.5).
 */
typedef struct {
    int32_t n_levels, n_links;
    double *bytes_per_s; /* (owned) [link] its rate in each direction */
    /* The crossings of (rank, level) are crossings[begin[i]] to crossings[begin[i + 1] - 1], where
     * i is rank * n_levels + level. */
    int64_t *begin;              /* (owned) */
    WorkloadCrossing *crossings; /* (owned) */
    double senders_fraction;     /* the share of a rank's devices that send a message */
} WorkloadLinks;

/* Which whole weights a rank holds for ops to come: prefetch.h. */
typedef struct WorkloadPrefetch WorkloadPrefetch;

typedef struct {
    int32_t n_stages, n_ranks, n_classes, n_slices;
    int32_t n_chains; /* 2 for bidir schedules: stage s of chain 1 lies on rank p-1-s */
    /* (owned) [((chain * n_stages + stage) * n_classes + class) * n_slices + slice] */
    WorkloadOp *ops;
    int32_t *class_of_micro_batch; /* (owned, nullable) [micro-batch]; NULL: there is one class */
    WorkloadRank *ranks;           /* (owned) [n_ranks] */
    bool blocking_messages; /* the compute stream waits in sends and receives (no overlap_pp) */
    bool overlap_dp;        /* the gradients of a chunk are reduced during its last backward */
    bool overlap_gather; /* its parameters are gathered before its first forward (ZeRO 1 and 2) */
    /* How much slower a device computes while a collective of dp, or a message, runs. */
    double interference_fraction, message_interference_fraction;
    /* How long two overlapped ops take (simulator/pairs.h).  0: as long as what they compute and
     * their collectives say; < 0: they run one after the other, or plain op times do not say. */
    int64_t pair_ns;
    bool merges_pairs;          /* what overlapped ops hide are the collectives of experts alone */
    WorkloadLinks *links;       /* (owned, nullable) NULL: messages are delays that share nothing */
    WorkloadPrefetch *prefetch; /* (owned, nullable) NULL: no op holds weights for later ops */
    int64_t op_overhead_ns; /* measured: what the executor needs for each op besides computing */
    /* For reports; 0 or NaN where no model is known. */
    double model_flops, tokens; /* of one iteration, over all replicas */
    double physical_bound_s;    /* workload_physical_bound_s() */
    int64_t n_devices;
    double price_per_device_hour, power_w_per_device; /* means over the devices */
} Workload;

/*
 * Makes the Workload of @plan.
 * @memory_limit_bytes  of every device; 0: its own memory.
 * Returns: (owned) NULL on PLAN_ERROR_INVALID (degrees that do not divide the model; the message
 * names the flag and the legal values) or PLAN_ERROR_INFEASIBLE (@profile's cluster has too few
 * devices). Cost: O(stages * classes * slices * ops of a layer).
 */
Workload *workload_new(const ModelArch *arch, const Profile *profile, const Plan *plan,
                       int64_t memory_limit_bytes, GError **error);
void workload_free(Workload *workload);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Workload, workload_free)

/* Returns: (owned) a Workload for any @schedule in which all stages take @time_ns, by
 * ScheduleOpKind, and all messages @message_ns; it has no bytes. */
Workload *workload_new_plain(const Schedule *schedule, const int64_t time_ns[SCHEDULE_OP_N],
                             int64_t message_ns);

/*
 * Makes pipeline rank @rank compute at @speed (> 0) times its rate: what its ops compute and
 * recompute, and its optimizer, take 1 / @speed of their time.  Communication takes as long as
 * before.
 * @placement  that of the schedule, which says which stages are on the rank.
 */
void workload_set_rank_speed(Workload *workload, SchedulePlacement placement, int32_t rank,
                             double speed);

/* Defined in links.c.  @links is nullable. */
void workload_links_free(WorkloadLinks *links);

/* The bytes that a peak of @rank may reach; 0: no limit. */
static inline int64_t
workload_usable_bytes(const WorkloadRank *rank)
{
    return rank->memory_usable_bytes > 0 ? rank->memory_usable_bytes : rank->memory_limit_bytes;
}

/* Returns: how long an op of @kind takes in its collectives (tp, cp, ep, dp of ZeRO 3), ns. */
static inline int64_t
workload_collectives_ns(const WorkloadOp *op, ScheduleOpKind kind)
{
    return op->part_ns[kind][PROFILE_PART_TP] + op->part_ns[kind][PROFILE_PART_CP] +
           op->part_ns[kind][PROFILE_PART_EP] + op->part_ns[kind][PROFILE_PART_DP];
}

/* Returns: how long an op of @kind takes at the least, ns: without the exchanges that a pair may hide. */
static inline int64_t
workload_least_ns(const Workload *workload, const WorkloadOp *op, ScheduleOpKind kind)
{
    return op->time_ns[kind] - (workload->merges_pairs ? op->part_ns[kind][PROFILE_PART_EP] : 0);
}

/* What @op's stage sends after its forward, or after its backward. */
static inline const WorkloadMessage *
workload_message(const WorkloadOp *op, bool forward)
{
    return forward ? &op->forward_message : &op->backward_message;
}

/* How long a blocking send keeps its sender: not for what the transport buffers. */
static inline int64_t
workload_send_ns(const WorkloadMessage *message)
{
    return MAX(0, message->ns - message->buffered_ns);
}

static inline const WorkloadOp *
workload_op_of_class(const Workload *workload, int32_t chain, int32_t stage, int32_t class_,
                     int32_t slice)
{
    const int64_t at = (int64_t)(chain * workload->n_stages + stage) * workload->n_classes + class_;

    return &workload->ops[at * workload->n_slices + slice];
}

/* The op of a micro-batch, whatever its class. */
static inline const WorkloadOp *
workload_op(const Workload *workload, int32_t chain, int32_t stage, int32_t micro_batch,
            int32_t slice)
{
    const int32_t *classes = workload->class_of_micro_batch;

    return workload_op_of_class(workload, chain, stage, classes ? classes[micro_batch] : 0, slice);
}
