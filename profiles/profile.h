/*
 * profiles/profile.h - Profile: a cluster, how much of it software reaches, and what was measured
 * on it.
 *
 * File "degas-profile": {"format","version","name","cluster":{...models/cluster.h...},
 * "cost"?:{the parameters of parameter.h, all optional}, "cost_sources"?:{parameter: text,...},
 * "measured_model"?:{...models/arch.h...},"measured_on"?,"measured_attention"?,"measured_dtype"?,
 * "measured_concurrency"?,"measured_disturbed_fraction"?,
 * "measured"?:[{"op","pass"?,"batch"?,"tokens"?,"context"?,"tp"?,"n_elements"?,"bytes"?,"n_ranks"?,
 * "median_s","p10_s"?,"p90_s"?},...],"measured_interference"?:[{"beside","n_ranks","factor",
 * "p10"?,"p90"?},...],"measured_variation"?:{"op_fraction","correlation_s","rank_fraction"},
 * "measured_fit"?:[{"op","pass","tp","n_left_out","median_fraction","worst_fraction"},...]}.
 * A built-in cluster is a profile without measurements; `degas profile` writes one with them;
 * `degas calibrate` changes its parameters.
 *
 * Measurements win where they have the shape; the model of cost.h fills the rest.
 *
 * Thread-safety: immutable once loaded; concurrent readers are fine.
 */
#ifndef PROFILES_PROFILE_H
#define PROFILES_PROFILE_H

#include "models/arch.h"
#include "models/cluster.h"
#include "profiles/parameter.h"

G_BEGIN_DECLS

/* What was timed. */
typedef enum {
    PROFILE_OP_LAYER, /* one layer, all its ops */
    PROFILE_OP_EMBEDDING,
    PROFILE_OP_HEAD,       /* with the loss */
    PROFILE_OP_OPTIMIZER,  /* n_elements parameters */
    PROFILE_OP_P2P,        /* bytes from one rank to a neighbour */
    PROFILE_OP_ALL_REDUCE, /* bytes over n_ranks */
    PROFILE_OP_OVERHEAD,   /* per schedule op: dispatch, bookkeeping */
    /* Of one layer, the ops of a kind; what is between them is in the layer's row only. */
    PROFILE_OP_LAYER_GEMM,
    PROFILE_OP_LAYER_ATTENTION,
    PROFILE_OP_LAYER_NORM,
    PROFILE_OP_LAYER_OTHER,    /* activations, rotary positions, sums, experts' routing */
    PROFILE_OP_ALL_GATHER,     /* bytes over n_ranks, as nccl-tests counts them */
    PROFILE_OP_REDUCE_SCATTER, /* likewise */
    PROFILE_OP_BROADCAST,      /* likewise */
    PROFILE_OP_COPY_H2D,       /* bytes */
    PROFILE_OP_COPY_D2H,
    PROFILE_OP_COPY_D2D,
    PROFILE_OP_LAUNCH,     /* host time to queue one kernel, or to call one slot */
    PROFILE_OP_ALL_TO_ALL, /* bytes over n_ranks, as nccl-tests counts them */
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
    int64_t n_elements;                 /* optimizer */
    int64_t bytes, n_ranks;             /* p2p and collectives; of copies bytes */
    double median_s, p10_s, p90_s;      /* p10 and p90 both 0: not known */
} ProfileMeasurement;

/*
 * What one of many such ops takes on the mean, by Swanson's rule, 0.3 p10 + 0.4 p50 + 0.3 p90
 * [Hurst, Brown, Swanson, AAPG Bulletin 84(12), 2000]: a step is the sum of many ops, and timings
 * have a longer upper tail.  How far the slowest tenth is beyond p90 does not count.
 */
static inline double
profile_measurement_mean_s(const ProfileMeasurement *row)
{
    if (row->p90_s <= 0.0)
        return row->median_s;
    return row->median_s + 0.3 * ((row->p10_s - row->median_s) + (row->p90_s - row->median_s));
}

/* What ran beside a layer while it was timed once more. */
typedef enum {
    PROFILE_BESIDE_NOTHING, /* its share of the device is smaller, the other shares are idle */
    PROFILE_BESIDE_COMPUTE, /* the other ranks run the same layer */
    PROFILE_BESIDE_COPY_H2D,
    PROFILE_BESIDE_COPY_D2D,
    PROFILE_BESIDE_ALL_REDUCE,
    PROFILE_BESIDE_N,
} ProfileBeside;

extern const char *const profile_beside_names[PROFILE_BESIDE_N + 1];

/* The layer's time beside @beside on a device shared by @n_ranks, over the time of a rank that has
 * the device for itself. */
typedef struct {
    ProfileBeside beside;
    int64_t n_ranks;
    double factor, p10, p90;
} ProfileInterference;

/* How layers' timings varied (cost-model.md 5.5): an op that takes d seconds by op_fraction /
 * sqrt(1 + d / correlation_s) of its time, a rank's second by rank_fraction: what is beyond that of
 * its ops lasts. */
typedef struct {
    bool is_known;
    double op_fraction, correlation_s, rank_fraction;
} ProfileVariation;

/* How far rows are from what the others predict for them (measured.h), left out in turn. */
typedef struct {
    ProfileOp op;
    ProfilePass pass;
    int64_t tp;
    int64_t n_left_out;
    double median_fraction, worst_fraction;
} ProfileFitError;

typedef struct {
    char *name; /* (owned) */
    ModelCluster *cluster;
    ProfileParameters parameters;
    /* (owned, nullable each) where a parameter's value is from, by row of the table: "fitted to
     * ...", "measured: ..."; NULL: the profile's sources say it, else it is the default. */
    char *parameter_sources[PROFILE_PARAMETERS_N];
    /* Measured for one architecture's layer shape; (owned, nullable). */
    ModelArch *measured_arch;
    char *measured_on; /* (owned, nullable) device and library, e.g. "AMD EPYC, OpenBLAS 0.3.21 Zen"
                        */
    /* (owned, nullable) which of a device's attention kernels was timed: "mma", "wgmma" */
    char *measured_attention;
    Dtype measured_dtype;
    int64_t measured_concurrency; /* ranks that were busy at once while timing */
    /* Of the timings that could tell, those during which others had the core. */
    double measured_disturbed_fraction;
    GArray *measurements; /* of ProfileMeasurement, sorted by all keys */
    GArray *interference; /* of ProfileInterference */
    GArray *fit_errors;   /* of ProfileFitError */
    ProfileVariation variation;
} Profile;

/* Returns: (owned) GPtrArray of (owned) names of the built-in clusters, sorted. */
GPtrArray *profile_builtin_names(void);

/* A profile around (taken) @cluster with default parameters and no measurements. */
Profile *profile_new(const char *name, ModelCluster *cluster);
void profile_free(Profile *profile);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Profile, profile_free)
Profile *profile_copy(const Profile *profile);

/* A built-in cluster's name, or a "degas-profile" file.  NULL on JSON_ERROR_INVALID, G_FILE_ERROR;
 * an unknown name suggests the nearest built-in.  "local-cpu" without a measured file describes
 * this machine by what the system tells about it (cores, memory) and modelled rates. */
Profile *profile_load(const char *name_or_path, GError **error);

/* Writes into the cluster of local-cpu.json what the system tells about this machine: one device
 * for each core that this process may run on, an equal share of memory for each, and peak rates by
 * the instruction sets of the processor.  Defined in local_cpu.c. */
void profile_set_local_cpu(ModelCluster *cluster);

/* Never NULL; errors are recorded in @doc. */
Profile *profile_read(JsonDoc *doc, const JsonValue *object);
void profile_write(JsonWriter *writer, const char *key, const Profile *profile);

/* One row of "measured"; errors are recorded in @doc. */
ProfileMeasurement profile_measurement_read(JsonDoc *doc, const JsonValue *object);
void profile_measurement_write(JsonWriter *writer, const char *key, const ProfileMeasurement *row);

/* Adds a row (keeps order); replaces one with equal keys. */
void profile_add(Profile *profile, const ProfileMeasurement *measurement);

/* Whether the measured rows are of this layer shape. */
bool profile_matches(const Profile *profile, const ModelArch *arch);

G_END_DECLS

#endif /* PROFILES_PROFILE_H */
