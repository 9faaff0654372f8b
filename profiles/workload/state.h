/*
 * profiles/workload/state.h - how many bytes of parameters, gradients and optimizer's state a device
 * holds.
 *
 * Functions of a model, a plan's numbers and its conventions, which need no Workload: the planner
 * bounds memory with the same ones that the Workload is made of.  Rules and sources:
 * docs/cost-model.md 6.1.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "models/arch.h"
#include "schedule/plan.h"

/* The parameters of a pipeline rank's stages on one device. */
typedef struct {
    int64_t dense, expert;
    int64_t trained_dense,
        trained_expert;            /* the parts that have gradients and the optimizer's state */
    int64_t own_dense, own_expert; /* the parts that the plan's optimizer steps itself */
    /* With an optimizer of whole matrices: elements of the largest one, which has one replica. */
    int64_t largest_dense, largest_expert;
    /* The part of dense that is a table of which several ranks have a copy, and the outermost of
     * these ranks: the embedding's, a tied head's, and those of MTP modules. */
    int64_t tied;
    int32_t tied_first, tied_last;
} WorkloadParameters;

/* Bytes of the weight, gradient and optimizer's state of one parameter (cost-model.md 6.1), of a weight that
 * is frozen, and of
 * the copy that is gathered where the weight itself is sharded also below ZeRO 3 (FSDP); else 0.
 * optimizer_bytes are AdamW's; own_bytes are those of the optimizer's own parameters, which also have
 * block_bytes for each block_elements of them (0: they have no blocks). */
typedef struct {
    int64_t weight_bytes, frozen_bytes, gradient_bytes, optimizer_bytes, gathered_bytes;
    int64_t own_bytes, block_elements, block_bytes;
} WorkloadParameterBytes;

WorkloadParameterBytes workload_parameter_bytes(Dtype dtype, const PlanConventions *conventions);

/* How the state is split over replicas, and what of it is in host memory or a file instead. */
typedef struct {
    int32_t zero_stage;
    PlanOffload offload;
    bool offload_parameters;
} WorkloadSharding;

/* Bytes of the state that one device holds. */
typedef struct {
    int64_t weights_bytes, gradients_bytes, optimizer_bytes;
} WorkloadStateBytes;

/* The state of a device whose stages have the parameters @n.  The ZeRO stage splits each kind over
 * the ranks that hold the same ones; the largest shard counts. */
WorkloadStateBytes workload_state_bytes(const PlanDegrees *degrees,
                                        const WorkloadSharding *sharding,
                                        const PlanConventions *conventions,
                                        const WorkloadParameterBytes *bytes,
                                        const WorkloadParameters *n);

/* Parameters of some parts of a model on one device; trained ones are the part that has gradients and the
 * optimizer's state. */
typedef struct {
    int64_t dense, expert, trained_dense, trained_expert;
} WorkloadParameterCounts;

/* The parameters of a device of which only these are known, so that its state is no larger: all
 * trained ones are those that the optimizer steps itself, in shards as small as can be. */
WorkloadParameters workload_parameters_least(const WorkloadParameterCounts *n);

/* How many of @dense and @expert parameters of a device have weights that ZeRO 3 gathers for the
 * time of an op, because replicas split them or because they are offloaded. */
int64_t workload_gathered_elements(const PlanDegrees *degrees, const WorkloadSharding *sharding,
                                   const PlanConventions *conventions, int64_t dense,
                                   int64_t expert);

/* Bytes of a checkpoint: weight and optimizer's state of each trained parameter once, no gradients. */
double workload_checkpoint_bytes(const ModelArch *arch, const Plan *plan);
