/*
 * profiles/cost/cost.h - what a layer, the embedding, the head or a step of the optimizer takes,
 * measured or modelled.
 *
 * The room profiles/cost/ answers in seconds (double) what something takes on a device of a
 * profile's cluster: here parts of a model, the sums of their ops; in op.h what one op computes, in
 * collective.h what is communicated, in measured.h what lies between measured rows, and in mesh.h
 * which devices form the groups of a plan.  The rooms workload/ and import/, and the planner, ask
 * here; the workload rounds once to nanoseconds.  Formulas and their sources: docs/cost-model.md.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "profiles/cost/op.h"

/* A layer, the embedding or the head, as one pipeline rank runs it. */
typedef struct {
    const ModelArch *arch;
    ModelPart part;
    int64_t layer;
    ModelShape shape;
    int64_t rank;                        /* the number of the device that computes */
    ProfileGroup groups[MODEL_GROUP_N];  /* by ModelGroup */
    bool overlap_tp, overlap_tp_forward; /* ... of all passes; of the forward alone */
    /* Without overlap_tp: the backward's collectives of the input of tp's products run beside these
     * products (ModelColumns). */
    bool sums_beside;
    bool overlap_ep; /* experts' collectives hide behind the computing of another micro-batch */
    /* Bytes that adding the gradient of one weight to those of earlier micro-batches moves through
     * memory, beyond what the product writes; 0: there is nothing to add to. */
    double accumulate_bytes_per_weight;
    bool accumulate_in_product; /* the product that makes a gradient adds it; else kernels do */
    /* Of the framework for each kernel, forward and backward, beyond the profile's. */
    double host_kernel_s, host_backward_kernel_s;
    double
        host_expert_s; /* ... for each expert whose operands are quantised, of a product and pass */
} ProfileQuery;

/* The cost of a part in one pass.  Where the profile has rows of such parts it is measured, or
 * interpolated between them; else it is the sum of the part's modelled ops. */
ProfileCost profile_cost_part(const Profile *profile, const ProfileQuery *query, ProfilePass pass);

/* What a part costs in all passes, and what selective recompute repeats of it: those of
 * profile_cost_part() and profile_cost_recompute(), for which the part's ops are listed once. */
typedef struct {
    ProfileCost passes[PROFILE_PASS_N];
    ProfileCost
        first[PROFILE_PASS_N]; /* where there are no gradients yet that one's own are added to */
    ProfileCost selective;     /* 0 of embedding and head */
} ProfilePartCosts;

ProfilePartCosts profile_cost_passes(const Profile *profile, const ProfileQuery *query);

/* Returns: what computing a pass of @forward again takes, as full recompute does. */
ProfileCost profile_cost_again(const ProfileCost *forward);

/* What recompute adds to the backward of a layer: its whole forward if @full, else what selective
 * recompute repeats (ModelOp.again_fraction); all of it in part_s[PROFILE_PART_RECOMPUTE]. */
ProfileCost profile_cost_recompute(const Profile *profile, const ProfileQuery *query, bool full);

/* Seconds of the optimizer's step over @n_elements parameters on @device, which moves
 * @bytes_per_element through memory for each, unless the profile has measured the optimizer. */
double profile_cost_optimizer_s(const Profile *profile, const ModelDevice *device,
                                int64_t n_elements, double bytes_per_element);

/* Lower bounds of sums over all slices, in seconds. */
typedef struct {
    double forward_s, backward_s;
    double
        selective_s; /* of what selective recompute repeats; 0 where the profile has measured rows */
} ProfileSlicedFloors;

/*
 * A lower bound of the sum of each pass over all slices, however the tokens of @query (which has no
 * context) are cut.
 *
 *   modelled  all ops of the device, each at what it takes at the least per token: products in tiles
 *             that are whole in all dimensions but the tokens and leave no wave unfilled, attention
 *             with all multiprocessors busy, memory and collectives as for the whole sequence, since
 *             what a collective takes per byte falls with its bytes; each launch once, no host time
 *   measured  the fitted law, whose features of slices add up to the sequence's (but the constant,
 *             which comes at least once), times the least deviation of any row (cost-model.md 7)
 */
ProfileSlicedFloors profile_cost_sliced_floors(const Profile *profile, const ProfileQuery *query);

/* Lower bounds of a pass of attention over all slices, its kernels' launches left out. */
typedef struct {
    double all_s;
    double beside_rows_s; /* without what profile_cost_slice_floors() counts by rows */
    /* Of a backward, what slices take more where their contexts together are as long as the sequence. */
    double contexts_s;
} ProfileAttentionFloor;

/* The same as profile_cost_sliced_floors() of @pass (FORWARD or BACKWARD) of its attention alone.  Of
 * beside_rows_s a slice without context takes at least as much as it has of all pairs of a query and a key. */
ProfileAttentionFloor profile_cost_sliced_attention_floor(const Profile *profile,
                                                          const ProfileQuery *query,
                                                          ProfilePass pass);

/* What a device does, and its host, side by side: the pass takes the longer. */
typedef struct {
    double device_s, host_s;
} ProfileSliceFloor;

typedef struct {
    ProfileSliceFloor forward, backward;
} ProfileSliceFloors;

/*
 * A lower bound of each pass of one slice with the sequences and tokens of @query, whatever its
 * context.
 * It counts what depends on the number of tokens alone: products
 * with weights, memory-bound ops, what blocks of fused attention do once, collectives that nothing
 * hides, launches, adding gradients, and the host.  It depends on the product of tokens and sequences only and never falls where that
 * grows.  0 where the profile has measured rows, which may fall.
 */
ProfileSliceFloors profile_cost_slice_floors(const Profile *profile, const ProfileQuery *query);
