/*
 * cli/validate/measured.h - tables of measured training runs: MEASURED.csv of `degas validate` and
 * `degas calibrate`.
 *
 * One row is one run that somebody timed: its model, machine and split, and what was measured.  The
 * columns are those of docs/formats.md; this module reads and checks them, and knows nothing of
 * what a source's framework does (sources.h) or of predictions.
 *
 * What a row leaves blank is unknown: 0, NaN or "".  A row that contradicts itself (degrees that do
 * not multiply to the devices, a time with a unit in a column of milliseconds) is an error that
 * names file, line and column.
 *
 * Errors: CSV_ERROR_INVALID, G_FILE_ERROR.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/csv.h"

typedef enum {
    MEASURED_STATUS_OK,
    MEASURED_STATUS_OOM,   /* the run ended for want of memory */
    MEASURED_STATUS_OTHER, /* it ended for another reason, and says nothing about memory */
} MeasuredStatus;

typedef struct {
    size_t line;
    const char *source, *id, *gpu, *model; /* (borrowed) from the table, as all texts */
    const char *schedule, *recompute, *dtype, *notes;
    int64_t n_devices, devices_per_node;
    int64_t n_layers, hidden, n_heads, n_kv_heads, ffn_hidden;
    int64_t vocab; /* -1: blank; 0: "none" */
    int64_t seq_len, global_batch, micro_batch, n_micro_batches;
    int64_t dp, tp, pp, vpp, cp, ep;
    int zero_stage;        /* -1: blank */
    int sequence_parallel; /* -1: blank, 0, 1 */
    /* Experts, and MTP modules, which have a layer, an embedding's and a head's work of their own;
     * -1 where 0 is not blank. */
    int64_t n_experts, top_k, expert_ffn, n_shared, dense_layers, n_mtp, expert_tp, head_dim;
    int fsdp, overlap_dp, overlap_tp, overlap_ep; /* -1: blank, 0, 1 */
    const char *peft;                             /* "lora": adapters alone are trained */
    int64_t lora_rank;                            /* of them */
    const char *lora_modules;                     /* with commas or + between */
    const char *recompute_modules, *pp_layout, *cuda_graphs, *dispatcher, *grad_dtype;
    const char *fused_ce, *attention_impl, *rank_order, *slices_kind;
    const char *stack_date; /* "YYYY-MM" */
    double node_bits_per_s; /* between nodes, of a whole node; NaN: blank */
    double iteration_s;     /* NaN: not measured */
    double memory_bytes;    /* NaN: not measured */
    MeasuredStatus status;
} MeasuredRow;

typedef struct {
    Csv *csv;     /* (owned) holds the texts */
    GArray *rows; /* of MeasuredRow, in the order of the file */
} MeasuredTable;

/*
 * Reads a table.
 * @bad_rows  (nullable) of (owned) char *: a line is added for each row that is wrong, and the
 * others are read; NULL: the first wrong row is an error.
 */
MeasuredTable *measured_load(const char *path, GPtrArray *bad_rows, GError **error);
void measured_free(MeasuredTable *table);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(MeasuredTable, measured_free)

/* Whether @csv has the columns of runs at all: other tables may lie in the same folder. */
bool measured_is_table_of_runs(const Csv *csv);

/*
 * Returns: (owned, nullable) what @row has in the column @name, as text, a count, true or false;
 * for a name that is no column, the value of the note "@name=..."; NULL where the row does not say.
 */
char *measured_text(const MeasuredRow *row, const char *name);

/* Returns: (owned, nullable) the value of "@key=value" in notes ("a=b; c=d; free text"): up to the
 * next "; ", without the blanks around it; NULL if there is none. */
char *measured_note(const char *notes, const char *key);

/* Whether the notes say "@key=@value". */
bool measured_note_is(const MeasuredRow *row, const char *key, const char *value);

/* The count in the note "@key=...", or @fallback. */
int64_t measured_note_count(const MeasuredRow *row, const char *key, int64_t fallback);

/* A count that the column @stated says, or (where it is 0) the note @key, or @fallback. */
int64_t measured_count(const MeasuredRow *row, int64_t stated, const char *key, int64_t fallback);
