/*
 * cli/library/degas.h - libdegas: the planner and the simulator of degas for other programs.  The main header of the
 * room library/, and the only one that is installed; it includes nothing of degas.
 *
 * Values go in and values come out.  A function prints nothing, ends no program, sets no locale and no
 * signal, and keeps nothing from one call to the next.  Any number of threads may call at the same
 * time.  It reads a file only where a request names one.
 *
 *   DegasResult r = {.size = sizeof r};
 *   if (degas_plan("{\"model\":\"llama3-8b\",\"cluster\":\"dgx-h100\",\"gpus\":64,\"global_batch\":512}",
 *                  NULL, &r) == 0)
 *       printf("%.2f s with tp %d, pp %d\n", r.iteration_s, (int)r.tp, (int)r.pp);
 *   else
 *       fprintf(stderr, "%s\n", r.message);
 *   degas_result_clear(&r);
 *
 * A request is a JSON object: "model" and "cluster" (a built-in name, a path, or the object itself)
 * and the flags of `degas plan` or `degas simulate` with '_' for '-', as in docs/formats.md,
 * simulate --batch.  Units in texts are those of the command line.
 *
 * The interface grows by members at the end of DegasResult, which `size` tells apart; what is
 * there keeps its name and meaning as long as the library is libdegas.so.0.
 */
#ifndef DEGAS_H
#define DEGAS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The best plan, or the simulated one.  What is not known is NaN, or 0 for whole numbers. */
typedef struct {
    size_t size;   /* in: sizeof(DegasResult) of the caller */
    char *message; /* what went wrong, one line; NULL: nothing */
    char *json;    /* of degas_plan() the degas-plan, of degas_simulate() the degas-report */
    double iteration_s, tokens_per_s;
    double model_flops_utilization_fraction, bubble_fraction;
    double lower_bound_s;      /* no plan of the searched space is faster; degas_plan() only */
    double cost_per_iteration; /* in the cluster's currency */
    double energy_per_iteration_j;
    int64_t peak_memory_bytes, memory_limit_bytes;
    int64_t n_devices, global_batch, seq_len, micro_batch, n_micro_batches, n_slices;
    int64_t dp, tp, pp, vpp, cp, ep, zero_stage;
    int64_t fits;                     /* 1: into the memory, 0 */
    char schedule[32], recompute[32]; /* names */
} DegasResult;

/* (borrowed, for ever) "0.1.0" */
const char *degas_version(void);

/*
 * Finds the best plan of @request.
 * @stop    (nullable) another thread may set it to a number other than 0, which ends the search with
 *          the best plan so far and status 9
 * @result  (out) its size must be set; cleared by the caller, whatever is returned
 * Returns: an exit status of docs/formats.md: 0; 1: no plan fits; 2 and 3: what is wrong with the
 * request; 4 and 5: files, memory; 9: stopped.  The message says it in words.
 * Cost: that of `degas plan`; "threads" is how many threads it takes (all cores).
 */
int degas_plan(const char *request, const int *stop, DegasResult *result);

/* Simulates @request: a degas-plan, or a request whose degrees are given.  As degas_plan(). */
int degas_simulate(const char *request, DegasResult *result);

/* Frees what a result owns.  A result of zeros is fine. */
void degas_result_clear(DegasResult *result);

#ifdef __cplusplus
}
#endif

#endif
