/*
 * schedule/schedule.h - Schedule: the ops of every pipeline rank, in order.  The contract.
 *
 * A schedule family (forwards_first.c, one_f_one_b.c, ...) only produces Schedules; the simulator
 * and the executor interpret the same one, so what was simulated is what is run.  A Schedule names
 * compute ops; sends, receives and their order follow from it (graph.h derives them, once, for
 * everyone). It knows no times, no bytes, no layers.
 *
 * Vocabulary: rank r of n_ranks (the pipeline's width p); chunk c of n_chunks (v, virtual stages
 * per rank); stage = position in a chain of n_ranks * n_chunks model parts (for bidir: two chains
 * of n_ranks); micro-batch; slice s of n_slices (consecutive tokens, s = 0 first).
 *
 * Dependencies (all schedules):
 *   F(m, stage, s) after F(m, stage-1, s); and after F(m, stage, s-1).
 *   B or I(m, stage, s) after B or I(m, stage+1, s); after its own F; and after B or
 *     I(m, stage, s+1): the gradients of K and V of a slice are complete once all later slices were
 *     run backward.
 *   W(m, stage, s) after its own I.
 *
 * Thread-safety: immutable once built.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "schedule/placement.h"

#define SCHEDULE_ERROR (schedule_error_quark())
GQuark schedule_error_quark(void);

typedef enum {
    SCHEDULE_ERROR_SHAPE,      /* the family does not exist at these degrees */
    SCHEDULE_ERROR_INCOMPLETE, /* an op is missing, or it is there twice */
    SCHEDULE_ERROR_DEADLOCK,   /* the order contradicts the dependencies */
    SCHEDULE_ERROR_LIMIT,      /* more ops than memory or int32 counters hold */
    SCHEDULE_ERROR_UNKNOWN,    /* no family of that name */
} ScheduleError;

/* Sets @error to SCHEDULE_ERROR_@code with a message as of printf(); the value is false or NULL. */
#define schedule_refuse(error, code, ...)                                                          \
    (g_set_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_##code, __VA_ARGS__), false)
#define schedule_refuse_null(error, code, ...)                                                     \
    (g_set_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_##code, __VA_ARGS__), NULL)

typedef enum {
    SCHEDULE_OP_FORWARD,         /* F */
    SCHEDULE_OP_BACKWARD,        /* B: input and weight gradients */
    SCHEDULE_OP_BACKWARD_INPUT,  /* I */
    SCHEDULE_OP_BACKWARD_WEIGHT, /* W */
    SCHEDULE_OP_N,
} ScheduleOpKind;

/* "FBIW"[kind] is the letter of files and pictures. */
extern const char schedule_op_letters[SCHEDULE_OP_N + 1];

/* Limits of a Schedule; beyond them SCHEDULE_ERROR_LIMIT, before anything is allocated. */
#ifndef SCHEDULE_MAX_OPS
/* Of all ranks together: 2 GiB of ops.  make fuzz-many has fewer, so that no input takes long. */
#define SCHEDULE_MAX_OPS (INT64_C(1) << 28)
#endif
#define SCHEDULE_MAX_RANKS (INT64_C(1) << 20)
#define SCHEDULE_MAX_CHUNKS 256   /* ScheduleOp.chunk is a byte */
#define SCHEDULE_MAX_SLICES 65536 /* ScheduleOp.slice is two */

/* One op; 8 bytes, so that 10^8 of them fit in memory. */
typedef struct {
    int32_t micro_batch;
    uint16_t slice;
    uint8_t chunk;
    uint8_t kind; /* ScheduleOpKind */
} ScheduleOp;

/* The ops of every rank, in order. */
typedef struct {
    char *name; /* (owned) of its family; of a file, whatever it says */
    int32_t n_ranks;
    int32_t n_chunks;
    int32_t n_micro_batches;
    int32_t n_slices;
    SchedulePlacement placement;
    ScheduleOp *ops;     /* (owned) all ranks' ops, rank after rank */
    int64_t *rank_begin; /* (owned) n_ranks + 1 indices into ops */
    /* (owned, nullable) DualPipe, and where passes are merged: GArray of int64_t indices into ops,
     * ascending; ops i and i+1, a forward and a backward, run overlapped: simulator/pairs.h. */
    GArray *overlap_pairs;
} Schedule;

/* What a family that searches (zb-auto) minimises. */
typedef enum {
    SCHEDULE_OBJECTIVE_MAKESPAN, /* the last end of any rank */
    SCHEDULE_OBJECTIVE_SPAN,     /* the longest first start to last end of a rank: what counts if
                                    the ranks step their optimizer without a barrier */
    SCHEDULE_OBJECTIVE_N,
} ScheduleObjective;

extern const char *const schedule_objective_names[SCHEDULE_OBJECTIVE_N + 1];

/* The times of one stage's ops and the bytes that they hold, the same for every micro-batch;
 * nothing is negative. */
typedef struct {
    int64_t forward_ns, input_ns, weight_ns;
    int64_t backward_ns;                             /* of B; 0: input_ns + weight_ns */
    int64_t forward_message_ns, backward_message_ns; /* to the next stage, to the one before */
    int64_t activation_bytes;                        /* held from F to B or I */
    int64_t weight_activation_bytes;                 /* held from I to W */
} ScheduleStageTimes;

/* Times and limits for a family that is built for them.  Where no stage has bytes and there is no
 * limit_bytes, micro-batches are counted from F to W. */
typedef struct {
    const ScheduleStageTimes *stages; /* (borrowed) n_stages, in chain order */
    int64_t n_stages;                 /* n_ranks * n_chunks, or 1: all stages are alike */
    const int64_t *limit_bytes;       /* (borrowed, nullable) [rank] for all activations */
    int64_t limit_micro_batches; /* whose activation_bytes a rank may hold; 0: no such limit, but
                                   the family's default if limit_bytes is NULL */
    ScheduleObjective objective;
    bool may_fold; /* with n_chunks 1: each stage may be cut into two halves that lie as a V, if
                      that is better; the schedule then has two chunks */
} ScheduleTimes;

/* The shape of the schedule that a family is asked for. */
typedef struct {
    int64_t n_ranks;
    int64_t n_chunks; /* 1 unless the family is interleaved */
    int64_t n_micro_batches;
    int64_t n_slices;           /* 1 unless the family cuts sequences */
    int64_t group;              /* interleaved: micro-batches per group; 0: n_ranks */
    const ScheduleTimes *times; /* (borrowed, nullable) only read by families that say so */
    /* After the warm-up, which is a forward longer and has two for each later rank, each forward and the
     * backward behind it are an overlapped pair  [Megatron-Core: combined_1f1b.py].  Families that have
     * pairs anyway: nothing. */
    bool merges;
} ScheduleShape;

typedef struct ScheduleFamily ScheduleFamily;

/* One family: how its schedules are built, and everything that other modules ask about it.  They
 * read these fields and never compare names, so a new family is its .c file and one line in the
 * list of build.h (and a test, and a row in docs/formats.md). */
struct ScheduleFamily {
    const char *name;     /* "1f1b" */
    const char *summary;  /* one line with the source */
    bool splits_backward; /* has I and W apart */
    bool overlaps;        /* has overlap_pairs */
    bool merges;          /* has them where the shape says so */
    bool slices;          /* accepts n_slices > 1 */
    bool forwards_first;  /* every rank runs all forwards, then all backwards */
    bool groups;          /* accepts a group of micro-batches */
    bool reads_times;     /* its orders are made for ScheduleShape.times */
    bool searches;        /* and cost much more than O(ops) */
    bool seeds_search;    /* a family that searches starts from this one's order where both have as
                             many chunks, and never answers a worse one */
    int32_t min_chunks, max_chunks;
    SchedulePlacement placement; /* loop unless said */

    /* (borrowed, nullable) The same order under the name that is usual where sequences are whole
     * (of terapipe: gpipe) or cut into slices (of gpipe: terapipe). */
    const ScheduleFamily *whole, *sliced;

    /* What torch.distributed.pipelining calls this order; which frameworks run it is said in their
     * rows (framework.c). */
    const char *torch_class; /* (nullable) its class without the prefix "Schedule"; NULL: none can
                                run it */
    const char *torch_class_of_chunks; /* (nullable) another class where ranks have chunks */
    bool torch_reads_ops; /* that class only says where stages lie; it reads the ops of a CSV */

    /* (nullable) How many (micro-batch, slice) pairs of each of its chunks @rank holds at most,
     * where a formula says so.  Where forwards_first is set: all, and this is NULL. */
    int64_t (*in_flight)(const ScheduleShape *shape, int64_t rank);
    /* (nullable) The family's own rules; returns false with SCHEDULE_ERROR_SHAPE naming the rule.
     */
    bool (*check)(const ScheduleShape *shape, GError **error);
    /* (nullable) For families that search: no order of @shape takes less, by shape->times and within its
     * limits, as long as their objective; 0: unknown.  An order need not be found for it.  Only after
     * schedule_shape_check().  Cost: about 6 visits of every op. */
    int64_t (*bound_ns)(const ScheduleShape *shape);
    /* Builds a schedule of @family, which may be another name of the same order.  Only after
     * schedule_shape_check().  Returns: (owned) NULL with SCHEDULE_ERROR_LIMIT. */
    Schedule *(*build)(const ScheduleFamily *family, const ScheduleShape *shape, GError **error);
};

/* All families in the order of docs/formats.md; NULL-terminated array of (borrowed) pointers. */
const ScheduleFamily *const *schedule_families(void);

/* (borrowed) NULL with SCHEDULE_ERROR_UNKNOWN, suggesting the nearest name. */
const ScheduleFamily *schedule_family_find(const char *name, GError **error);

/* Whether a search over @n_chunks chunks per rank starts from this family's order. */
static inline bool
schedule_family_seeds(const ScheduleFamily *family, int64_t n_chunks)
{
    return family->seeds_search && family->min_chunks == n_chunks;
}

/* (borrowed) The family that is usual where none is named: interleaved for several chunks on a
 * rank, else terapipe for sequences that are cut into slices, else 1f1b. */
const ScheduleFamily *schedule_family_usual(int64_t n_chunks, bool is_sliced);

/* Whether the family exists at this shape: positive degrees, chunks, slices and group it knows, its
 * own rules, and the limits above.  Nothing is allocated.  Returns false with SCHEDULE_ERROR_SHAPE
 * or SCHEDULE_ERROR_LIMIT; the message names the degree as the command line does. */
bool schedule_shape_check(const ScheduleFamily *family, const ScheduleShape *shape, GError **error);

/* Finds the family, checks the shape (positive, at most 2^31 - 1 ops per rank, memory), builds.
 * Cost: O(ops). */
Schedule *schedule_new(const char *family, const ScheduleShape *shape, GError **error);

/* Returns: (owned) */
Schedule *schedule_copy(const Schedule *schedule);
void schedule_free(Schedule *schedule);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Schedule, schedule_free)

/* For families and readers: an empty schedule with room for @n_ops in all (NULL with
 * SCHEDULE_ERROR_LIMIT).  rank_begin is all zero, to be filled. */
Schedule *schedule_alloc(const char *name, const ScheduleShape *shape, SchedulePlacement placement,
                         int64_t n_ops, GError **error);

static inline int64_t
schedule_n_ops(const Schedule *schedule)
{
    return schedule->rank_begin[schedule->n_ranks];
}

/* Micro-batches of one chain (of all chunks of a rank, but for bidir): the bound of
 * ScheduleOp.micro_batch. */
int32_t schedule_chain_micro_batches(const Schedule *schedule);

/* (micro-batch, chunk, slice) triples of one rank: its number of F. */
int64_t schedule_n_virtual_ids(const Schedule *schedule);

/* The number of @op's triple: (micro_batch * n_chunks + chunk) * n_slices + slice. */
static inline int64_t
schedule_virtual_id(const Schedule *schedule, ScheduleOp op)
{
    return ((int64_t)op.micro_batch * schedule->n_chunks + op.chunk) * schedule->n_slices +
           op.slice;
}

/* Micro-batches that pass one chunk before a rank's next chunk has its turn, of families that interleave
 * chunks, whole sequences or slices; the last group may have fewer: one_f_one_b.c. */
int64_t schedule_interleaved_group(const ScheduleShape *shape);

/* Stages in one chain: n_ranks * n_chunks, or n_ranks for bidir. */
int32_t schedule_n_stages(const Schedule *schedule);

/* The stage at (rank, chunk), and back.  For bidir the chunk names the chain. */
int32_t schedule_stage(const Schedule *schedule, int32_t rank, int32_t chunk);
int32_t schedule_rank_of_stage(const Schedule *schedule, int32_t stage, int32_t chain);
int32_t schedule_chunk_of_stage(const Schedule *schedule, int32_t stage, int32_t chain);

/* Writes "F3.1s2" into @text (slice only when n_slices > 1); at least 32 bytes. */
void schedule_op_name(const Schedule *schedule, ScheduleOp op, char text[32]);

/* The reverse: reads "F3.1s2", or "F3.1" where n_slices is 1.  Returns false if @text is no op of
 * this schedule (wrong letter, sign, leading zero, out of range); @op is then untouched. */
bool schedule_op_parse(const Schedule *schedule, const char *text, ScheduleOp *op);

/* --- files (json.c): "degas-schedule" --- */

/* Unknown families and placements of others are welcome: what counts is the ranks' lists.  The
 * result is checked (check.h).  NULL on JSON_ERROR_INVALID, G_FILE_ERROR or a SCHEDULE_ERROR. */
Schedule *schedule_load(const char *path, GError **error);
/* As schedule_load(), from a document that the caller has parsed to see its format; finishes @doc.
 */
Schedule *schedule_read(JsonDoc *doc, GError **error);
/* Returns: (owned) the JSON text. */
char *schedule_to_json(const Schedule *schedule, size_t *n_bytes);

/* --- files (csv.c): what PyTorch's _PipelineScheduleRuntime._load_csv reads as compute_only ---
 *
 * One row per rank; cells STAGE OP MICROBATCH ("0F3", ops F, B, I, W), empty cells are idle slots,
 * "(0F8;7B0)OVERLAP_F_B" is an overlapped pair.  Communication cells (SEND_F, UNSHARD, ...) follow
 * from the rest and are passed over when read.
 */

/* The stages must lie as placement loop or v.  The result is checked.  NULL on G_FILE_ERROR or a
 * SCHEDULE_ERROR; messages name row and cell, counted from 1. */
Schedule *schedule_load_csv(const char *path, GError **error);
/* Returns: (owned) NULL with SCHEDULE_ERROR_SHAPE for slices or placement bidir, which it cannot
 * say. */
char *schedule_to_csv(const Schedule *schedule, size_t *n_bytes, GError **error);
