/*
 * cli/slice_inputs.h - what the flags of `degas slices` describe: the times of all stages,
 * messages, memory.
 */
#ifndef CLI_SLICE_INPUTS_H
#define CLI_SLICE_INPUTS_H

#include "cli/request/options.h"
#include "planner/slices/stages.h"

G_BEGIN_DECLS

extern const OptionInfo slice_inputs_options[];
extern const OptionInfo slice_inputs_variants[];

typedef struct {
    PlanSliceProblem problem; /* n_stages: of the chain */
    PlanSliceStage *stages;   /* (owned) [problem.n_stages] */
    bool stages_differ;
    int64_t n_ranks, n_chunks;
    const char *schedule;   /* (borrowed) */
    GPtrArray *grids;       /* (owned) all grids of times */
    int64_t *delay;         /* (owned, nullable) */
    int64_t n_approximated; /* times between measured ones */
} SliceInputs;

/* Reads flags and files.  Returns: (owned) NULL on CMD_ERROR_USAGE or an error of slice_costs.h. */
SliceInputs *slice_inputs_load(Options *options, GError **error);
void slice_inputs_free(SliceInputs *inputs);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(SliceInputs, slice_inputs_free)

/* Whether the answer is that of all forwards and then all backwards. */
bool slice_inputs_is_fill_drain(const SliceInputs *inputs);

G_END_DECLS

#endif /* CLI_SLICE_INPUTS_H */
