/*
 * profiles/workload/matrices.h - the matrices of a layer, and what Muon's step over them takes.
 *
 * The matrices are the operands of the products that models/ops.h lists for a layer, with queries,
 * keys, values and SwiGLU's halves apart where the model has separate ones: what Muon orthogonalises
 * whole.  Formulas and sources: docs/cost-model.md 5.2.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "models/ops.h"
#include "profiles/cost/collective.h"
#include "profiles/profile.h"
#include "schedule/plan.h"

/* @count matrices of one shape, [rows, cols] as a whole and on one device. */
typedef struct {
    int64_t count, rows, cols;
    int64_t own_rows, own_cols;
    bool expert;
} WorkloadMatrix;

/* Lists the matrices of layer @layer that a device has parts of; experts are those of its ep rank.
 * @matrices  (out) room for MODEL_MAX_OPS.  Returns: how many. */
size_t workload_matrices(const ModelArch *arch, int64_t layer, const PlanDegrees *degrees,
                         const PlanConventions *conventions, Dtype dtype,
                         WorkloadMatrix matrices[MODEL_MAX_OPS]);

/* Elements of the matrices on one device. */
typedef struct {
    int64_t dense, expert;
    int64_t largest_dense, largest_expert; /* ... of the largest one */
} WorkloadMatrixElements;

WorkloadMatrixElements workload_matrix_elements(const WorkloadMatrix *matrices, size_t n);

/*
 * FLOPs of Muon's Newton-Schulz iterations on one matrix of @rows x @cols; with a the smaller side
 * and b the larger one, X X^T takes 2 a^2 b, its square 2 a^3, and the product with X 2 a^2 b:
 *
 *   5 (4 a^2 b + 2 a^3)
 */
double workload_muon_flops(int64_t rows, int64_t cols);

/* What Muon's step of some matrices takes on a device, beyond reading and writing its state. */
typedef struct {
    double compute_s, comm_s;
    double largest_s; /* both, of the one that takes longest */
} WorkloadMuonCost;

/*
 * The cost of the matrices, experts' or the others', if this device does all that its tp group
 * leaves to it: all matrices, or its part of each, by plan_muon_tp.
 * @tp  (borrowed) over which the matrices are split: the tp group or, of experts, those that share
 *      each of them
 * @replicas  (nullable) each matrix is gathered over this group first, since its ranks hold shards
 */
WorkloadMuonCost workload_muon_cost(const Profile *profile, const ModelDevice *device, Dtype dtype,
                                    PlanMuonTp mode, const WorkloadMatrix *matrices, size_t n,
                                    bool expert, const ProfileGroup *tp,
                                    const ProfileGroup *replicas);
