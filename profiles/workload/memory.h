/*
 * profiles/workload/memory.h - how many bytes of activations and workspace the ops of a plan keep on a
 * device.
 *
 * Functions of a model, a plan's numbers and its conventions, which need no Workload: the planner
 * bounds memory with the same ones that the Workload is made of.  State is in state.h, what does not
 * come and go with ops in buffers.h.  Rules and sources: docs/cost-model.md 6.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "models/ops.h"
#include "schedule/plan.h"

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
 * Returns: the gradients of @kv_bytes of keys and values of a slice, of which @state_bytes are states.
 * @adds_states  the slice's states have their gradients: of frameworks that sum them over slices in fp32,
 *               where states have one gradient that goes from slice to slice, those of one slice
 */
int64_t workload_kv_gradient_bytes(Dtype dtype, const PlanConventions *conventions,
                                   int64_t kv_bytes, int64_t state_bytes, bool adds_states);

/*
 * What a part keeps under @recompute (NONE for the embedding and the head).
 * @sliced          K and V are kept apart, since later slices read them.
 * @boundary_bytes  of a layer's input; 0 for the embedding and the head.
 */
WorkloadKeptBytes workload_kept_bytes(const WorkloadPartBytes *part, PlanRecompute recompute,
                                      bool sliced, int64_t boundary_bytes);
