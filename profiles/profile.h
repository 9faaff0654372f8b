/*
 * profiles/profile.h - Profile: a cluster, how much of it software reaches, and what was measured
 * on it.
 *
 * A built-in cluster is one file profiles/NAME.json, which the program embeds; there is no list of
 * names elsewhere.
 * File "degas-profile": {"format","version","name","cluster":{...models/cluster.h...},
 * "cost"?:{the parameters of parameter.h, all optional}, "cost_sources"?:{parameter: text,...},
 * "cost_before"?:[{"stack","parameter","factor"},...],
 * "measured_model"?:{...models/arch.h...},"measured_on"?,"measured_attention"?,
 * "measured_attention_why"?,"measured_dtype"?,"measured_concurrency"?,"measured_disturbed_fraction"?,
 * "measured"?:[{"op","pass"?,"batch"?,"tokens"?,"context"?,"tp"?,"n_elements"?,"bytes"?,"n_ranks"?,
 * "median_s","p10_s"?,"p90_s"?,"queue_s"?,"cold_s"?,"warm_s"?},...],"measured_interference"?:[{"beside","n_ranks","factor",
 * "p10"?,"p90"?},...],"measured_variation"?:{"op_fraction","correlation_s","rank_fraction"},
 * "measured_fit"?:[{"op","pass","tp","n_left_out","median_fraction","worst_fraction"},...]}.
 * A built-in cluster is a profile without measurements; `degas profile` writes one with them, and
 * `degas calibrate` changes its parameters.  Where a measurement has the shape that is asked for it
 * is taken; profiles/cost/ models everything else.
 *
 * Thread-safety: a profile is not changed once it is loaded; concurrent readers are fine.
 */
#pragma once

#include "models/arch.h"
#include "models/cluster.h"
#include "profiles/parameter.h"

/* What was timed.  Sizes of collectives are those that nccl-tests prints. */
typedef enum {
    PROFILE_OP_LAYER, /* one layer, all its ops */
    PROFILE_OP_EMBEDDING,
    PROFILE_OP_HEAD,       /* with the loss */
    PROFILE_OP_OPTIMIZER,  /* n_elements parameters */
    PROFILE_OP_P2P,        /* bytes from one rank to a neighbour */
    PROFILE_OP_ALL_REDUCE, /* bytes over n_ranks */
    PROFILE_OP_OVERHEAD,   /* of each op of a schedule: dispatch, bookkeeping */
    /* All ops of one kind in a layer; what is between them is part of the layer's row alone. */
    PROFILE_OP_LAYER_GEMM,
    PROFILE_OP_LAYER_ATTENTION,
    PROFILE_OP_LAYER_NORM,
    PROFILE_OP_LAYER_OTHER,    /* activations, rotary positions, sums, experts' routing */
    PROFILE_OP_ALL_GATHER,     /* bytes over n_ranks */
    PROFILE_OP_REDUCE_SCATTER, /* bytes over n_ranks */
    PROFILE_OP_BROADCAST,      /* bytes over n_ranks */
    PROFILE_OP_COPY_H2D,       /* bytes */
    PROFILE_OP_COPY_D2H,
    PROFILE_OP_COPY_D2D,
    PROFILE_OP_LAUNCH,     /* host time to queue one kernel, or to call one slot */
    PROFILE_OP_ALL_TO_ALL, /* bytes over n_ranks */
    PROFILE_OP_N,
} ProfileOp;

extern const char *const profile_op_names[PROFILE_OP_N + 1];

typedef enum {
    PROFILE_PASS_FORWARD,
    PROFILE_PASS_BACKWARD, /* input and weight gradients */
    PROFILE_PASS_BACKWARD_INPUT,
    PROFILE_PASS_BACKWARD_WEIGHT,
    PROFILE_PASS_N,
} ProfilePass;

extern const char *const profile_pass_names[PROFILE_PASS_N + 1];

/* Whether rows of @op have pass, batch, tokens, context and tp. */
static inline bool
profile_op_has_shape(ProfileOp op)
{
    return op <= PROFILE_OP_HEAD || (op >= PROFILE_OP_LAYER_GEMM && op <= PROFILE_OP_LAYER_OTHER);
}

/* One row of "measured".  Fields that do not apply are 0. */
typedef struct {
    ProfileOp op;
    ProfilePass pass;
    int64_t batch, tokens, context, tp; /* layer, embedding, head */
    /* (interned, nullable) Of layers and of their ops: which of the kinds of the measured model's
     * layers it is.  NULL: they are all of one kind, or count as if they were. */
    const char *kind;
    int64_t n_elements;            /* optimizer */
    int64_t bytes, n_ranks;        /* p2p and collectives; copies have bytes only */
    double median_s, p10_s, p90_s; /* p10_s and p90_s both 0: they are not known */
    /* Of layer, embedding and head on a device that works while the host queues; 0: not known.  How
     * long the host takes to queue the op, which the times above do not include; and what the op
     * takes when caches hold nothing of it, or what the op before has left. */
    double queue_s, cold_s, warm_s;
} ProfileMeasurement;

/* The mean time of such an op by Swanson's rule, 0.3 p10 + 0.4 p50 + 0.3 p90 [Hurst, Brown,
 * Swanson, AAPG Bulletin 84(12), 2000].  A step is the sum of many ops, and the upper tail of
 * timings is the longer one; how far the slowest tenth is beyond p90 does not count. */
static inline double
profile_measurement_mean_s(const ProfileMeasurement *row)
{
    if (row->p90_s <= 0.0)
        return row->median_s;
    return row->median_s + 0.3 * ((row->p10_s - row->median_s) + (row->p90_s - row->median_s));
}

/* What ran on the device at the same time as a layer that was timed once more. */
typedef enum {
    PROFILE_BESIDE_NOTHING, /* nothing; the layer has its share of the device, the rest is idle */
    PROFILE_BESIDE_COMPUTE, /* the same layer, on the other ranks */
    PROFILE_BESIDE_COPY_H2D,
    PROFILE_BESIDE_COPY_D2D,
    PROFILE_BESIDE_ALL_REDUCE,
    PROFILE_BESIDE_N,
} ProfileBeside;

extern const char *const profile_beside_names[PROFILE_BESIDE_N + 1];

/* The time of a layer while @beside runs too, on a device that @n_ranks ranks share, over its time
 * on a device that one rank has for itself. */
typedef struct {
    ProfileBeside beside;
    int64_t n_ranks;
    double factor, p10, p90;
} ProfileInterference;

/* How the timings of layers varied (cost-model.md 5.5): an op that takes d seconds varies by
 * op_fraction / sqrt(1 + d / correlation_s) of its time, and the ops of a rank together, over a
 * second, by rank_fraction.  What of rank_fraction the ops do not explain lasts for the run. */
typedef struct {
    bool is_known;
    double op_fraction, correlation_s, rank_fraction;
} ProfileVariation;

/* How much longer a layer takes on a device that has worked without a break for some time. */
typedef struct {
    int64_t batch, tokens; /* of micro-batches of whole sequences */
    double factor;         /* >= 1 */
} ProfileSustained;

/* How far rows are from what all others predict for them (cost/measured.h), each left out once. */
typedef struct {
    ProfileOp op;
    ProfilePass pass;
    int64_t tp;
    const char *kind; /* (interned, nullable) as in ProfileMeasurement */
    int64_t n_left_out;
    double median_fraction, worst_fraction;
} ProfileFitError;

/* What libraries of before a month reached: the parameter's value times @factor. */
typedef struct {
    int32_t before; /* month (schedule/stack.h) */
    int parameter;  /* row of profile_parameter_info */
    double factor;
} ProfileStackFactor;

typedef struct {
    char *name; /* (owned) */
    ModelCluster *cluster;
    ProfileParameters parameters; /* of the newest libraries */
    GArray *stack_factors;        /* (owned) of ProfileStackFactor */
    /* (owned, nullable each) Where the value of each parameter is from: "fitted to ...",
     * "measured: ...".  NULL: the cluster's sources say it, or it is the default. */
    char *parameter_sources[PROFILE_PARAMETERS_N];
    /* (owned, nullable) The model whose layers were measured. */
    ModelArch *measured_arch;
    char *measured_on; /* (owned, nullable) device and library: "AMD EPYC, OpenBLAS 0.3.21 Zen" */
    /* (owned, nullable) Which attention kernel of the device was timed: "mma", "wgmma". */
    char *measured_attention;
    char *measured_attention_why; /* (owned, nullable) where several were compared, in words */
    Dtype measured_dtype;
    int64_t measured_concurrency; /* how many ranks were busy at once while timing */
    /* The share of timings that were disturbed, among those for which that is known. */
    double measured_disturbed_fraction;
    GArray *measurements; /* of ProfileMeasurement, sorted by all keys */
    GArray *interference; /* of ProfileInterference */
    GArray *sustained;    /* of ProfileSustained, by batch * tokens */
    GArray *fit_errors;   /* of ProfileFitError */
    ProfileVariation variation;
} Profile;

/* Returns: (owned) GPtrArray of (owned) names of the built-in clusters, sorted. */
GPtrArray *profile_builtin_names(void);

/* Returns: (owned) a profile with default parameters and no measurements; it takes @cluster. */
Profile *profile_new(const char *name, ModelCluster *cluster);
void profile_free(Profile *profile);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Profile, profile_free)
Profile *profile_copy(const Profile *profile);

/*
 * Loads the built-in cluster of a name, or else a "degas-profile" file, or a
 * "degas-cluster" file (own.h).  "local-cpu" describes this
 * machine by what the system tells (cores, memory, instruction sets) and modelled rates.
 * Returns: (owned) NULL on JSON_ERROR_INVALID or G_FILE_ERROR; an unknown name suggests the
 * nearest.
 */
Profile *profile_load(const char *name_or_path, GError **error);

/* Writes into the cluster of local-cpu.json what the system tells about this machine: one device
 * for each core that this process may run on, an equal share of memory for each, and peak rates by
 * the instruction sets of the processor.  Defined in local_cpu.c. */
void profile_set_local_cpu(ModelCluster *cluster);

/* Never NULL; errors are recorded in @doc. */
Profile *profile_read(JsonDoc *doc, const JsonValue *object);
void profile_write(JsonWriter *writer, const char *key, const Profile *profile);

/* Reads and writes one row of "measured"; errors are recorded in @doc. */
ProfileMeasurement profile_measurement_read(JsonDoc *doc, const JsonValue *object);
void profile_measurement_write(JsonWriter *writer, const char *key, const ProfileMeasurement *row);

/* Adds a row where it belongs in the order of all keys; replaces a row with equal keys. */
void profile_add(Profile *profile, const ProfileMeasurement *measurement);

/* Gives @profile the parameters that a stack of the month @stack reaches: each times the factors of later
 * months, which are then forgotten.  0: the newest.  For profiles that nobody reads yet. */
void profile_set_stack(Profile *profile, int32_t stack);

/* Whether the measured rows are of layers with the widths of @arch. */
bool profile_matches(const Profile *profile, const ModelArch *arch);

/*
 * Whether rows of @profile are of @part of @arch (@layer: which one), and of which of the measured
 * model's kinds: @kind (out, nullable, interned).  Kinds are told apart by what they are, not by
 * name or number (model_kinds_are_alike()): a profile serves every model with such layers, and its
 * rows of the ends serve models with such ends.
 */
bool profile_has_part(const Profile *profile, const ModelArch *arch, ModelPart part, int64_t layer,
                      const char **kind);
