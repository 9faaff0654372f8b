#include "profiles/workload/matrices.h"

#include <math.h>

#include "profiles/cost/cost.h"
#include "profiles/workload/build.h"

/* --- what there is --- */

/* So many rows reach every expert of any rank. */
#define MANY_TOKENS (INT64_C(1) << 20)

static size_t
list_ops(const ModelArch *arch, int64_t layer, int64_t tp, int64_t ep, int64_t etp, Dtype dtype,
         ModelOp ops[MODEL_MAX_OPS])
{
    const ModelShape shape = {
        .batch = 1,
        .tokens = MANY_TOKENS,
        .tp = tp,
        .cp = 1,
        .ep = ep,
        .etp = etp,
        .dtype = dtype_stored(dtype),
        .separate_matrices = true,
        .expert_imbalance = 1.0,
    };
    const size_t n = model_ops(arch, MODEL_PART_LAYER, layer, &shape, ops);
    size_t n_products = 0;

    for (size_t i = 0; i < n; i++)
        if (ops[i].kind == MODEL_OP_GEMM && !ops[i].frozen)
            ops[n_products++] = ops[i];
    return n_products;
}

size_t
workload_matrices(const ModelArch *arch, int64_t layer, const PlanDegrees *degrees,
                  const PlanConventions *conventions, Dtype dtype,
                  WorkloadMatrix matrices[MODEL_MAX_OPS])
{
    ModelOp whole[MODEL_MAX_OPS], own[MODEL_MAX_OPS];
    const size_t n = list_ops(arch, layer, 1, degrees->ep, 1, dtype, whole);
    const size_t n_own = list_ops(arch, layer, degrees->tp, degrees->ep,
                                  plan_expert_tp(degrees, conventions), dtype, own);

    g_return_val_if_fail(n == n_own, 0);
    for (size_t i = 0; i < n; i++)
        matrices[i] = (WorkloadMatrix){
            .count = whole[i].count,
            .rows = whole[i].k,
            .cols = whole[i].n,
            .own_rows = own[i].k,
            .own_cols = own[i].n,
            .expert = whole[i].expert,
        };
    return n;
}

WorkloadMatrixElements
workload_matrix_elements(const WorkloadMatrix *matrices, size_t n)
{
    WorkloadMatrixElements sum = {0};

    for (size_t i = 0; i < n; i++) {
        const WorkloadMatrix *m = &matrices[i];
        const int64_t own = workload_build_mul(m->own_rows, m->own_cols);
        int64_t *largest = m->expert ? &sum.largest_expert : &sum.largest_dense;

        workload_build_add(m->expert ? &sum.expert : &sum.dense, workload_build_mul(m->count, own));
        *largest = MAX(*largest, own);
    }
    return sum;
}

/* --- Muon --- */

double
workload_muon_flops(int64_t rows, int64_t cols)
{
    const double a = (double)MIN(rows, cols), b = (double)MAX(rows, cols);

    return PLAN_MUON_ITERATIONS * (4.0 * a * a * b + 2.0 * a * a * a);
}

static double
product_s(const Profile *profile, const ModelDevice *device, Dtype dtype, int64_t m, int64_t n,
          int64_t k)
{
    const double e = (double)dtype_bytes(dtype);
    const ModelOp op = {
        .name = "newton_schulz",
        .kind = MODEL_OP_GEMM,
        .count = 1,
        .m = m,
        .n = n,
        .k = k,
        .forward_flops = 2.0 * (double)m * (double)n * (double)k,
        .weight_bytes = (int64_t)(e * (double)k * (double)n),
        .forward_bytes = (int64_t)(e * (double)m * ((double)k + (double)n)),
        .n_kernels_forward = 1,
        .stored_operands = true,
    };
    const ProfileCost cost =
        profile_cost_op(profile, device, &op, PROFILE_PASS_FORWARD, dtype, NULL);

    return profile_cost_s(&cost);
}

/* All iterations of a matrix whose products X X^T have @side rows and sum over @across elements. */
static double
iterations_s(const Profile *profile, const ModelDevice *device, Dtype dtype, int64_t side,
             int64_t across)
{
    return PLAN_MUON_ITERATIONS * (product_s(profile, device, dtype, side, side, across) +
                                   product_s(profile, device, dtype, side, side, side) +
                                   product_s(profile, device, dtype, side, across, side));
}

/* Bytes of @elements as they travel: in fp32, as the momentum is. */
static int64_t
travelling_bytes(int64_t rows, int64_t cols)
{
    return workload_build_mul(4, workload_build_mul(rows, cols));
}

WorkloadMuonCost
workload_muon_cost(const Profile *profile, const ModelDevice *device, Dtype dtype, PlanMuonTp mode,
                   const WorkloadMatrix *matrices, size_t n, bool expert, const ProfileGroup *tp,
                   const ProfileGroup *replicas)
{
    const Dtype stored = dtype_stored(dtype);
    WorkloadMuonCost sum = {0};
    int64_t exchanged = 0;

    for (size_t i = 0; i < n; i++) {
        const WorkloadMatrix *m = &matrices[i];
        const double count = (double)m->count;
        const bool by_rows = m->own_rows < m->rows, split = by_rows || m->own_cols < m->cols;
        int64_t rows = m->rows, cols = m->cols;
        double compute_s, comm_s = 0.0, share = 1.0;

        if (m->expert != expert)
            continue;
        if (replicas != NULL)
            comm_s +=
                profile_cost_collective_s(profile, MODEL_COMM_ALL_GATHER,
                                          travelling_bytes(m->own_rows, m->own_cols), replicas);
        if (split && mode == PLAN_MUON_DISTRIBUTED) {
            const int64_t side = by_rows ? m->cols : m->rows;
            compute_s =
                iterations_s(profile, device, stored, side, by_rows ? m->own_rows : m->own_cols);
            comm_s +=
                PLAN_MUON_ITERATIONS * profile_cost_collective_s(profile, MODEL_COMM_ALL_REDUCE,
                                                                 travelling_bytes(side, side), tp);
        } else {
            if (split && mode == PLAN_MUON_BLOCKWISE) {
                rows = m->own_rows;
                cols = m->own_cols;
            }
            compute_s = iterations_s(profile, device, stored, MIN(rows, cols), MAX(rows, cols));
        }
        if (split && mode == PLAN_MUON_DUPLICATED)
            comm_s += profile_cost_collective_s(profile, MODEL_COMM_ALL_GATHER,
                                                travelling_bytes(rows, cols), tp);
        if (split && mode == PLAN_MUON_LAYER_SHARDED) {
            share = 1.0 / (double)tp->n;
            workload_build_add(
                &exchanged,
                workload_build_mul(m->count, travelling_bytes(m->own_rows, m->own_cols)));
        }
        sum.compute_s += count * compute_s * share;
        sum.comm_s += count * comm_s;
        sum.largest_s = fmax(sum.largest_s, compute_s + comm_s);
    }
    /* There and back, all matrices at once. */
    if (exchanged > 0)
        sum.comm_s +=
            2.0 * profile_cost_collective_s(profile, MODEL_COMM_ALL_TO_ALL, exchanged, tp);
    return sum;
}
