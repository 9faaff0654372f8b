/*
 * profiles/profile.h - Profile: a cluster, how much of it software reaches, and what was measured
 * on it.
 *
 * File "degas-profile": {"format","version","name","cluster":{...models/cluster.h...},
 * "cost"?:{parameters, all optional},
 * "measured_model"?:{...models/arch.h...},"measured_on"?,"measured_dtype"?,"measured_concurrency"?,
 * "measured"?:[{"op","pass"?,"batch"?,"tokens"?,"context"?,"tp"?,"n_elements"?,"bytes"?,"n_ranks"?,
 * "median_s","p10_s"?,"p90_s"?},...]}.  A built-in cluster is a profile without
 * measurements; `degas profile` writes one with them; `degas calibrate` changes its parameters.
 *
 * Measurements win where they have the shape; the model of cost.h fills the rest.
 *
 * Thread-safety: immutable once loaded; concurrent readers are fine.
 */
#ifndef PROFILES_PROFILE_H
#define PROFILES_PROFILE_H

#include "models/arch.h"
#include "models/cluster.h"

G_BEGIN_DECLS

/*
 * Parameters of the cost model, with bounds for calibration.  X(name, default, min, max, what)
 * The defaults describe a well-tuned library of the device's time; sources at docs/cost-model.md 4.
 */
#define PROFILE_PARAMETERS(X)                                                                      \
    X(gemm_fraction, 0.80, 0.05, 1.0, "share of peak that a very large matrix product reaches")    \
    X(gemm_k_half, 128.0, 0.0, 8192.0, "inner dimension at which a product loses half its rate")   \
    X(gemm_tile_m, 128.0, 8.0, 512.0, "rows of an output tile")                                    \
    X(gemm_tile_n, 128.0, 8.0, 512.0, "columns of an output tile")                                 \
    X(grouped_fraction, 0.90, 0.05, 1.0, "rate of grouped products (experts) against plain ones")  \
    X(attention_forward_fraction, 0.55, 0.01, 1.0, "share of peak, fused attention, forward")      \
    X(attention_backward_fraction, 0.45, 0.01, 1.0, "share of peak, fused attention, backward")    \
    X(gemm_memory_fraction, 0.85, 0.05, 1.0, "share of memory bandwidth that products reach")      \
    X(memory_fraction, 0.70, 0.05, 1.0, "share of memory bandwidth that other kernels reach")      \
    X(kernel_s, 3e-6, 0.0, 1e-3, "ramp-up and drain of one kernel on the device")                  \
    X(host_kernel_s, 8e-6, 0.0, 1e-2, "host time to issue one kernel")                             \
    X(host_collective_s, 80e-6, 0.0, 1e-2, "host time to issue one collective")                    \
    X(host_layer_s, 0.0, 0.0, 1e-1, "host time per layer, both passes, beyond the framework's")    \
    X(link_fraction, 0.80, 0.05, 1.0, "share of a link's rate in a node that collectives reach")   \
    X(network_fraction, 0.85, 0.05, 1.0, "share of the rate between nodes, collectives")           \
    X(p2p_fraction, 0.80, 0.05, 1.0, "share of a link's rate in a node that one message reaches")  \
    X(network_p2p_fraction, 0.80, 0.05, 1.0, "share of the rate between nodes, one message")       \
    X(collective_s, 15e-6, 0.0, 1e-2, "launch and synchronisation of one collective")              \
    X(network_step_s, 14e-6, 0.0, 1e-2, "least time of one step of a ring between nodes")          \
    X(p2p_s, 10e-6, 0.0, 1e-2, "launch and synchronisation of one message")                        \
    X(message_buffer_bytes, 8388608.0, 0.0, 1e10,                                                  \
      "what the transport holds of a message it sends")                                            \
    X(interference_fraction, 0.0, 0.0, 1.0, "slowdown of compute while communication overlaps it") \
    X(offload_bytes_per_s, 12e9, 1e6, 1e13, "device to host memory, one direction")                \
    X(nvme_bytes_per_s, 3e9, 1e6, 1e13, "host to NVMe, one direction, per device")                 \
    X(context_bytes, 0.6e9, 0.0, 1e10, "memory of driver context and libraries")                   \
    X(allocator_fraction, 0.02, 0.0, 0.5, "memory lost to fragmentation, of what is allocated")

typedef struct {
#define X(name, value, min, max, what) double name;
    PROFILE_PARAMETERS(X)
#undef X
} ProfileParameters;

/* What was timed. */
typedef enum {
    PROFILE_OP_LAYER, /* one layer, all its ops */
    PROFILE_OP_EMBEDDING,
    PROFILE_OP_HEAD,       /* with the loss */
    PROFILE_OP_OPTIMIZER,  /* n_elements parameters */
    PROFILE_OP_P2P,        /* bytes from one rank to a neighbour */
    PROFILE_OP_ALL_REDUCE, /* bytes over n_ranks */
    PROFILE_OP_OVERHEAD,   /* per schedule op: dispatch, bookkeeping */
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

/* One row of "measured".  Fields that do not apply are 0. */
typedef struct {
    ProfileOp op;
    ProfilePass pass;
    int64_t batch, tokens, context, tp; /* layer, embedding, head */
    int64_t n_elements;                 /* optimizer */
    int64_t bytes, n_ranks;             /* p2p, all_reduce */
    double median_s, p10_s, p90_s;
} ProfileMeasurement;

typedef struct {
    char *name; /* (owned) */
    ModelCluster *cluster;
    ProfileParameters parameters;
    /* Measured for one architecture's layer shape; (owned, nullable). */
    ModelArch *measured_arch;
    char *measured_on; /* (owned, nullable) device and library, e.g. "AMD EPYC, OpenBLAS 0.3.21 Zen"
                        */
    Dtype measured_dtype;
    int64_t measured_concurrency; /* ranks that were busy at once while timing */
    GArray *measurements;         /* of ProfileMeasurement, sorted by all keys */
} Profile;

/* Returns: (owned) GPtrArray of (owned) names of the built-in clusters, sorted. */
GPtrArray *profile_builtin_names(void);

/* "gemm_fraction", ..., in the order of ProfileParameters, whose members are all doubles. */
#define X(name, value, min, max, what) +1
enum {
    PROFILE_PARAMETERS_N = 0 PROFILE_PARAMETERS(X)
};
#undef X
typedef struct {
    const char *name;
    double value, min, max; /* default and bounds */
    const char *what;
} ProfileParameterInfo;
extern const ProfileParameterInfo profile_parameter_info[PROFILE_PARAMETERS_N];

/* A profile around (taken) @cluster with default parameters and no measurements. */
Profile *profile_new(const char *name, ModelCluster *cluster);
void profile_free(Profile *profile);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Profile, profile_free)
Profile *profile_copy(const Profile *profile);

/* A built-in cluster's name, or a "degas-profile" file.  NULL on JSON_ERROR_INVALID, G_FILE_ERROR;
 * an unknown name suggests the nearest built-in.  "local-cpu" without a measured file describes
 * this machine by what the system tells about it (cores, memory) and modelled rates. */
Profile *profile_load(const char *name_or_path, GError **error);
/* Returns: (owned) the text of "local-cpu": one device per core that this process may run on, equal
 * shares of memory, peak rates from the instruction sets of the processor (local_cpu.c). */
char *profile_describe_local_cpu(void);

/* Never NULL; errors are recorded in @doc. */
Profile *profile_read(JsonDoc *doc, const JsonValue *object);
void profile_write(JsonWriter *writer, const char *key, const Profile *profile);

/* Adds a row (keeps order); replaces one with equal keys. */
void profile_add(Profile *profile, const ProfileMeasurement *measurement);

/* Whether the measured rows are of this layer shape. */
bool profile_matches(const Profile *profile, const ModelArch *arch);

G_END_DECLS

#endif /* PROFILES_PROFILE_H */
