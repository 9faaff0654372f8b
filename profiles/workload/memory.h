/*
 * profiles/workload/memory.h - how many bytes a plan keeps on a device: state, activations,
 * workspace.
 *
 * Functions of a model, a plan's numbers and its conventions, which need no Workload: the planner
 * bounds memory with the same ones that the Workload is made of.  Rules and sources:
 * docs/cost-model.md 6.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "models/ops.h"
#include "profiles/parameter.h"
#include "schedule/plan.h"

/* --- state --- */

/* The parameters of a pipeline rank's stages on one device. */
typedef struct {
    int64_t dense, expert;
    int64_t own_dense, own_expert; /* the parts that the plan's optimizer steps itself */
    /* With an optimizer of whole matrices: elements of the largest one, which has one replica. */
    int64_t largest_dense, largest_expert;
    /* The part of dense that is a table of which several ranks have a copy, and the outermost of
     * these ranks: the embedding's, a tied head's, and those of MTP modules. */
    int64_t tied;
    int32_t tied_first, tied_last;
} WorkloadParameters;

/* Bytes of the weight, gradient and optimizer's state of one parameter (cost-model.md 6.1), and of
 * the copy that is gathered where the weight itself is sharded also below ZeRO 3 (FSDP); else 0.
 * optimizer_bytes are AdamW's; own_bytes are those of the optimizer's own parameters, which also have
 * block_bytes for each block_elements of them (0: they have no blocks). */
typedef struct {
    int64_t weight_bytes, gradient_bytes, optimizer_bytes, gathered_bytes;
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

/* The parameters of a device of which only these are known, so that its state is no larger: all of
 * them are those that the optimizer steps itself, in shards as small as can be. */
WorkloadParameters workload_parameters_least(int64_t dense, int64_t expert);

/* How many of @dense and @expert parameters of a device have weights that ZeRO 3 gathers for the
 * time of an op, because replicas split them or because they are offloaded. */
int64_t workload_gathered_elements(const PlanDegrees *degrees, const WorkloadSharding *sharding,
                                   const PlanConventions *conventions, int64_t dense,
                                   int64_t expert);

/* Bytes of a checkpoint: weight and optimizer's state of each parameter once, no gradients. */
double workload_checkpoint_bytes(const ModelArch *arch, const Plan *plan);

/* --- the device --- */

/* Bytes of a device that the driver's context and libraries keep (cost-model.md 6.3). */
int64_t workload_library_bytes(const ProfileParameters *parameters,
                               const PlanConventions *conventions);

/*
 * The usable memory of a device of @device_bytes: what a rank's peak may reach.  The driver and the
 * communicators take their part, and the allocator loses a share of all that comes and goes beyond
 * @static_bytes (cost-model.md 6.4).  At least 1; it grows with @static_bytes, but by less.
 */
int64_t workload_usable_of(const ProfileParameters *parameters, const PlanDegrees *degrees,
                           int64_t device_bytes, int64_t static_bytes);

/* --- activations and workspace of a part --- */

/* What the ops of a layer, the embedding or the head save and need without recompute. */
typedef struct {
    int64_t saved_bytes; /* from forward to backward... */
    /* ... of which K and V and states; states; what selective recompute does not keep */
    int64_t saved_kv_bytes, saved_state_bytes, selective_again_bytes;
    int64_t selective_again_kv_bytes; /* K and V that it does not keep either, unless sliced */
    /* What of both is there at once in a backward: modules of the mixer, or those behind it. */
    int64_t selective_once_bytes;
    int64_t weight_saved_bytes; /* from I to W: inputs of products, gradients of their outputs */
    /* The largest of any op, beyond what is saved: in an F, in a B, in an I, and in an F that saves
     * nothing, as recompute's first one. */
    int64_t forward_transient_bytes, backward_transient_bytes, input_transient_bytes;
    int64_t passing_transient_bytes;
    /* Of late ops (ModelOp): what of saved_bytes they save, and what they take in a backward. */
    int64_t late_saved_bytes, late_backward_bytes;
    int64_t late_again_bytes; /* of late_saved_bytes, what selective recompute does not keep */
    int64_t early_saved_for_weight_bytes; /* inputs of products that are saved by ops that are not
                                             late */
    /* What degas's executor takes for such a layer as scratch, within the transients of B and of I; in a
     * stage it is that of the neediest layer.  0: other frameworks, the ends. */
    ModelScratchBytes scratch;
} WorkloadPartBytes;

WorkloadPartBytes workload_part_bytes(const ModelArch *arch, ModelPart part, int64_t layer,
                                      const ModelShape *shape);

/* What a part keeps between its ops, and what each op takes while it runs. */
typedef struct {
    int64_t kept_bytes;        /* from F to B, without K and V of slices */
    int64_t kv_bytes;          /* from F to B: K and V of slices, and states */
    int64_t state_bytes;       /* of these, states */
    int64_t weight_kept_bytes; /* from I to W */
    /* While an F, a B or an I runs, beyond what it finds.  Where an I leaves more than it finds,
     * the difference is allocated when it begins and is not part of input_workspace_bytes. */
    int64_t forward_workspace_bytes, backward_workspace_bytes, input_workspace_bytes;
    int64_t late_kept_bytes; /* of kept_bytes, what F takes when it comes to the layer */
    int64_t
        late_backward_bytes; /* beyond that, while the backward of the layer itself is at work */
    /* The part of input_workspace_bytes that holds, recomputed, what only input gradients read. */
    int64_t again_input_bytes;
} WorkloadKeptBytes;

/*
 * What a part keeps under @recompute (NONE for the embedding and the head).
 * @sliced          K and V are kept apart, since later slices read them.
 * @boundary_bytes  of a layer's input; 0 for the embedding and the head.
 */
WorkloadKeptBytes workload_kept_bytes(const WorkloadPartBytes *part, PlanRecompute recompute,
                                      bool sliced, int64_t boundary_bytes);
