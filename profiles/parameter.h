/*
 * profiles/parameter.h - the free parameters of the cost and memory models, declared once.
 *
 * A number that no data sheet has and that is not measured on the machine itself is a parameter of
 * this table: what it means, its default, its bounds, and how far from its prior calibration
 * expects it.  The struct, the "cost" object of a profile file, `degas calibrate` and
 * `degas simulate --explain` are made from the table, so that a parameter is added in one line.
 *
 * X(name, default, min, max, fit, spread, what)
 *
 *   default  what a well-tuned library reaches; sources in docs/cost-model.md 4
 *   fit      what it is fitted to: TIME (iteration times), MEMORY (peaks), or FIXED: it is not
 *            fitted, since it is a shape or nothing in a training run tells it from others
 *   spread   one standard deviation of the prior: a share of the value where min > 0, and in the
 *            parameter's own unit where min is 0
 *
 * No parameter may stand for one configuration, row or paper: it must mean something about a
 * machine or a library, so that it is right for rows that it was not fitted to.
 */
#pragma once

#include <glib.h>
#include <stddef.h>

#define PROFILE_PARAMETERS(X)                                                                      \
    X(gemm_fraction, 0.80, 0.05, 1.0, TIME, 0.10,                                                  \
      "share of peak that a very large matrix product reaches")                                    \
    X(gemm_k_half, 128.0, 0.0, 8192.0, TIME, 64.0,                                                 \
      "inner dimension at which a product loses half its rate")                                    \
    X(device_spread, 0.0, 0.0, 0.2, TIME, 0.01,                                                    \
      "how much devices of a kind differ where power limits them, one standard deviation")         \
    X(fp8_fraction, 1.0, 0.05, 2.0, TIME, 0.10,                                                    \
      "rate of products in fp8 and below against gemm_fraction")                                   \
    X(quantise_bytes, 5.0, 0.0, 64.0, TIME, 2.0,                                                   \
      "bytes that quantising one operand of a product moves")                                      \
    X(gemm_tile_m, 128.0, 8.0, 512.0, FIXED, 0.0, "rows of an output tile")                        \
    X(gemm_tile_n, 128.0, 8.0, 512.0, FIXED, 0.0, "columns of an output tile")                     \
    X(gemm_tail_fraction, 1.0, 0.0, 1.0, FIXED, 0.0,                                               \
      "of what a product's last wave leaves idle, the share that is paid")                         \
    X(gemm_unaligned_fraction, 1.0, 0.05, 1.0, TIME, 0.20,                                         \
      "rate of products whose rows begin at multiples of 2 or 4 bytes against 16")                 \
    X(grouped_fraction, 0.90, 0.05, 1.0, TIME, 0.15,                                               \
      "rate of grouped products (experts) against plain ones")                                     \
    X(grouped_fp8_fraction, 0.90, 0.05, 1.0, TIME, 0.15, "the same in fp8 and below")              \
    X(attention_forward_fraction, 0.55, 0.01, 1.0, TIME, 0.20,                                     \
      "share of peak, fused attention, forward")                                                   \
    X(attention_backward_fraction, 0.45, 0.01, 1.0, TIME, 0.20,                                    \
      "share of peak, fused attention, backward")                                                  \
    X(attention_forward_keys, 0.0, 0.0, 65536.0, FIXED, 0.0,                                       \
      "keys of a query that take as long as what fused attention does once a block, forward")      \
    X(attention_backward_keys, 0.0, 0.0, 65536.0, FIXED, 0.0,                                      \
      "queries of a key likewise, backward")                                                       \
    X(attention_forward_narrow_fraction, 1.0, 0.05, 1.0, FIXED, 0.0,                               \
      "rate of fused attention at a head size of 64 against 128, forward")                         \
    X(attention_backward_narrow_fraction, 1.0, 0.05, 1.0, FIXED, 0.0, "the same backward")         \
    X(flash1_fraction, 0.5, 0.05, 1.0, TIME, 0.20,                                                 \
      "rate of FlashAttention's first version against attention_..._fraction")                     \
    X(flash2_fraction, 1.0, 0.05, 1.0, TIME, 0.20,                                                 \
      "rate of FlashAttention's second version against attention_..._fraction")                    \
    X(gemm_memory_fraction, 0.85, 0.05, 1.0, FIXED, 0.0,                                           \
      "share of memory bandwidth that products reach")                                             \
    X(memory_fraction, 0.70, 0.05, 1.0, TIME, 0.15,                                                \
      "share of memory bandwidth that other kernels reach")                                        \
    X(loss_fraction, 0.70, 0.05, 1.0, TIME, 0.15,                                                  \
      "share of memory bandwidth that the loss's kernels reach")                                   \
    X(permute_fraction, 0.30, 0.02, 1.0, TIME, 0.25,                                               \
      "share of memory bandwidth that sorting rows by expert reaches")                             \
    X(kernel_s, 3e-6, 0.0, 1e-3, TIME, 1.5e-6, "ramp-up and drain of one kernel on the device")    \
    X(memory_kernel_s, 10e-6, 0.0, 1e-3, TIME, 10e-6,                                              \
      "the same of a kernel bound by memory, with the gap before it")                              \
    X(host_kernel_s, 8e-6, 0.0, 1e-2, TIME, 1e-6, "host time to issue one kernel")                 \
    X(host_collective_s, 80e-6, 0.0, 1e-2, TIME, 40e-6, "host time to issue one collective")       \
    X(host_skew_s, 0.0, 0.0, 1e-2, TIME, 20e-6,                                                    \
      "host time that a collective waits for the slowest of its ranks, per rank")                  \
    X(host_layer_s, 0.0, 0.0, 1e-1, TIME, 1e-3,                                                    \
      "host time per layer, both passes, beyond the framework's")                                  \
    X(link_fraction, 0.80, 0.05, 1.0, TIME, 0.10,                                                  \
      "share of a link's rate in a node that collectives reach")                                   \
    X(link_step_s, 0.0, 0.0, 1e-2, TIME, 10e-6,                                                    \
      "time of a step of a ring in a node beyond the link's latency")                              \
    X(network_fraction, 0.85, 0.05, 1.0, TIME, 0.15,                                               \
      "share of the rate between nodes, collectives")                                              \
    X(p2p_fraction, 0.80, 0.05, 1.0, TIME, 0.15,                                                   \
      "share of a link's rate in a node that one message reaches")                                 \
    X(network_p2p_fraction, 0.80, 0.05, 1.0, TIME, 0.20,                                           \
      "share of the rate between nodes, one message")                                              \
    X(collective_s, 15e-6, 0.0, 1e-2, TIME, 10e-6, "launch and synchronisation of one collective") \
    X(network_step_s, 14e-6, 0.0, 1e-2, TIME, 7e-6,                                                \
      "least time of one step of a ring between nodes")                                            \
    X(network_inner_step_s, 3e-6, 0.0, 1e-2, TIME, 3e-6,                                           \
      "least time of a step inside a node, of a ring that leaves it")                              \
    X(p2p_s, 10e-6, 0.0, 1e-2, TIME, 10e-6, "launch and synchronisation of one message")           \
    X(message_buffer_bytes, 8388608.0, 0.0, 1e10, FIXED, 0.0,                                      \
      "what the transport holds of a message it sends")                                            \
    X(interference_fraction, 0.19, 0.0, 1.0, TIME, 0.10,                                           \
      "slowdown of compute while collectives run beside it")                                       \
    X(message_interference_fraction, 0.0, 0.0, 1.0, FIXED, 0.0,                                    \
      "slowdown of compute while pipeline messages run beside it")                                 \
    X(expert_imbalance, 1.0, 1.0, 1e6, FIXED, 0.0,                                                 \
      "load of the fullest expert rank over the mean")                                             \
    X(offload_bytes_per_s, 12e9, 1e6, 1e13, TIME, 0.20, "device to host memory, one direction")    \
    X(nvme_bytes_per_s, 3e9, 1e6, 1e13, TIME, 0.30, "host to NVMe, one direction, per device")     \
    X(context_bytes, 0.6e9, 0.0, 1e10, MEMORY, 0.3e9, "memory of driver context and libraries")    \
    X(blas_workspace_bytes, 33.6e6, 0.0, 1e10, MEMORY, 16e6,                                       \
      "workspace of cuBLAS, of each of the two threads that call it")                              \
    X(workspace_bytes, 33.6e6, 0.0, 1e10, MEMORY, 16e6,                                            \
      "what other libraries ask the framework's allocator for")                                    \
    X(driver_bytes, 0.8e9, 0.0, 1e10, FIXED, 0.0, "memory of a device that no program sees")       \
    X(communicator_bytes, 0.25e9, 0.0, 1e10, FIXED, 0.0, "memory of one communicator's buffers")   \
    X(allocator_fraction, 0.15, 0.0, 0.5, MEMORY, 0.02,                                            \
      "lost to fragmentation, of what comes and goes")

/* All members are doubles, in the order of the table. */
typedef struct {
#define X(name, value, min, max, fit, spread, what) double name;
    PROFILE_PARAMETERS(X)
#undef X
} ProfileParameters;

#define X(name, value, min, max, fit, spread, what) +1
enum {
    PROFILE_PARAMETERS_N = 0 PROFILE_PARAMETERS(X)
};
#undef X

typedef enum {
    PROFILE_FIT_FIXED,
    PROFILE_FIT_TIME,
    PROFILE_FIT_MEMORY,
} ProfileFit;

typedef struct {
    const char *name;       /* static: "gemm_fraction" */
    size_t offset;          /* of the member in ProfileParameters */
    double value, min, max; /* default and bounds */
    ProfileFit fit;
    double spread;
    const char *what;
} ProfileParameterInfo;

extern const ProfileParameterInfo profile_parameter_info[PROFILE_PARAMETERS_N];

/* Reads and writes the parameter in row @i of the table. */
double profile_parameter(const ProfileParameters *parameters, int i);
void profile_parameter_set(ProfileParameters *parameters, int i, double value);
