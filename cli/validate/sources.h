/*
 * cli/validate/sources.h - what the runs of a published source have in common and its rows do not
 * say: which framework ran them, which vocabulary they have, what their numbers count.
 *
 * These conventions are data: the file sources.json beside this one, which is compiled into the
 * program.  A new source is a row of its "sources"; the structs below say what its keys mean, and
 * the tables of fields in sources.c which of them a row must have.  Tables of words are searched
 * from the first row on; the first whose prefix the text begins with counts.  Everything is by
 * published meaning: a source is a paper or a repository, never a row.  What a row of measurements
 * says itself (its columns, "key=value" in its notes) wins over its source.
 *
 * Knows nothing of predictions.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"
#include "cli/validate/measured.h"

/* What a source's memory figures count. */
typedef enum {
    VALIDATION_MEMORY_NONE,      /* none, or of unknown base: not scored */
    VALIDATION_MEMORY_ALLOCATED, /* torch.cuda.max_memory_allocated: tensors only */
    VALIDATION_MEMORY_RESERVED,  /* ... reserved: with what the allocator lost */
} ValidationMemory;

/* A row of "sources".  Texts are absent (NULL) where the framework's preset is meant. */
typedef struct {
    const char *name;      /* of the column "source"; a final '*' stands for any rest */
    int64_t zero_stage;    /* the row is of runs with this ZeRO stage only; -1: of all */
    const char *framework; /* --framework */
    const char *attention, *overlap, *dropout, *loss, *quantise,
        *grad_dtype; /* (nullable) the flags of these names */
    /* The rest is of runs whose rows leave the column blank. */
    const char *schedule; /* (nullable) of pipelines */
    const char *dtype, *recompute;
    bool sequence_parallel; /* with tp */
    bool expert_tp;         /* tp ranks share experts */
    bool
        is_functional; /* its runs are tests of functions, of a few layers: their times say no accuracy */
    int64_t vocab;            /* 0: the models have no embedding, head or loss */
    int64_t vocab_multiple;   /* a vocabulary is padded to a multiple of this times tp; 0: not */
    int64_t lora_rank;        /* of adapters; 0: not stated */
    const char *lora_modules; /* (nullable) */
    bool wide_reduction;      /* --wide-reduction */
    bool vocab_cut;           /* a vocabulary is cut to a multiple of tp */
    bool ends_short;          /* first and last stage have one layer less than the others */
    int64_t zero;             /* the ZeRO stage */
    int64_t pipeline_batch;   /* with pp the column micro_batch is what a pipeline cuts into
                                 micro-batches of so many sequences; 0: it is the micro-batch */
    /* (nullable) "YYYY-MM": of stacks before that month the pipeline cuts it into as many
     * micro-batches as it has ranks instead. */
    const char *pipeline_ranks_before;
    int64_t
        pipeline_chunks;   /* of interleaved schedules; 0: the least that divides a rank's layers */
    int64_t pipeline_zero; /* with pp the ZeRO stage is this where the row says 3; 0: as it says */
    bool dated;            /* stack_date of a row is the month of its framework's software */
    const char *stack;     /* (nullable) --stack of rows that say none */
    bool tuned;            /* its authors looked for the fastest configuration of each job */
    int memory;            /* ValidationMemory */
    bool memory_of_last_rank; /* and not the largest of all ranks */
    const char *why;          /* where all this is published */
} ValidationSource;

/* A row of "notes": where a run's columns or notes hold it, the flag --@option is @value. */
typedef struct {
    const char *key;
    const char
        *prefix; /* of what the column @key holds, or of the value of "@key=..." in the notes;
                           NULL: @key is free text, found anywhere in the notes or in the id (of a
                           test: what it tests) */
    const char *before; /* (nullable) "YYYY-MM": of stacks before that month, or of none stated */
    const char *option,
        *value; /* values of "overlap" add up, and "-dp" takes "dp" away; of "refused"
                                   the value says why such runs are not predicted; "chunks": a chunk
                                   is a layer; "samples": tokens of the samples of which sequences
                                   are packed */
} ValidationNote;

/* A row of "schedules", "models", "clusters", "dtypes" or "modules": what words of the column of that name
 * mean.  Each table has those members that its comment names. */
typedef struct {
    const char *prefix;
    const char *family;     /* schedules, models: degas's family */
    bool sliced;            /* schedules: the notes have its token slices */
    const char *builtin;    /* (nullable) models: a built-in one, which knows what no column says */
    bool qk_norm, qkv_bias; /* models: what their layers have beyond their family's */
    const char *refused;    /* (nullable) models: why no model of ours is like them */
    const char *cluster;  /* (nullable) clusters: the built-in one; NULL: known, none is built in */
    int64_t node_devices; /* clusters: so many of a node's devices are used by jobs that divide into
                             such nodes, and not into whole ones; 0: all are */
    double node_bits_per_s; /* clusters: only of runs with this rate between nodes; 0: of any */
    const char *dtype;      /* dtypes: degas's number format */
    const char *module;     /* modules: of --recompute-modules; prefix is the whole word */
} ValidationWord;

/* A row of "reasons": why the authors of a tuned source did not have the split that a search finds, as their code,
 * papers or later runs show.  The first row counts that a run agrees with.  For readers alone: nothing is
 * predicted by it. */
typedef struct {
    const char *source;      /* as a source's name */
    const char *model, *gpu; /* what its names begin with */
    const char *dtype;       /* (nullable) what its format begins with */
    const char *from,
        *before; /* (nullable) "YYYY-MM": of stacks from that month on, before that month */
    int64_t fewer_layers; /* of models cut to fewer layers than this; 0: of all */
    const char *why;
} ValidationReason;

/* What is scored of a part of the sources: a line of `make validate`. */
typedef enum {
    VALIDATION_TIME,
    VALIDATION_MEMORY,
    VALIDATION_OOM,
} ValidationQuantity;

extern const char *const validation_quantity_names[];

#define VALIDATION_MAX_SOURCES 4

/* A row of "sets".  Goals are what the project wants to reach; the published errors of others on
 * the same rows stand beside them. */
typedef struct {
    const char *name;
    int quantity;                                    /* ValidationQuantity */
    const char *sources[VALIDATION_MAX_SOURCES + 1]; /* names; NULL-terminated; none: all */
    int64_t max_tp;                                  /* 0: any */
    /* Goals, as a fraction: mean absolute error, or for VALIDATION_OOM the least precision and
     * recall; 0: none. */
    double raw_goal, calibrated_goal;
    const char *others; /* (nullable) published errors of others on the same rows */
    const char *left;   /* (nullable) which errors are left, and why as far as is known */
    const char *lacks;  /* (nullable) what the rows do not say and the errors depend on */
} ValidationSet;

/* The whole file.  Each table ends with a row of zeros, whose first member is NULL; the last source
 * has the name "" and is everybody else's. */
typedef struct {
    const ValidationSource *sources;
    const ValidationNote *notes;
    const ValidationWord *schedules, *models, *clusters, *dtypes, *modules;
    const ValidationReason *reasons;
    const ValidationSet *sets;
    size_t n_sets;
    JsonDoc *doc; /* (owned) holds the texts */
} ValidationConventions;

/* The built-in file; lives as long as the program.  Callable from any thread. */
const ValidationConventions *validation_conventions(void);

/*
 * Reads such a file: unknown and missing keys, names of frameworks, families, number formats that
 * are none, sets of sources that have no row are errors.  @name stands for the file in messages.
 * @conventions  (out) cleared by the caller, whatever is returned.
 * Returns: false with JSON_ERROR_INVALID.
 */
bool validation_conventions_read(const char *name, const char *text, size_t n_bytes,
                                 ValidationConventions *conventions, GError **error);
void validation_conventions_clear(ValidationConventions *conventions);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(ValidationConventions, validation_conventions_clear)

/* (nullable) Why the authors of a run did not have a better split, as far as the table of reasons knows. */
const char *validation_reason(const MeasuredRow *row);

/* The source of a run.  Never NULL. */
const ValidationSource *validation_source(const MeasuredRow *row);

/* The first row of @words that @text begins with; NULL: unknown words.
 * @is_name  of a model: neither the case of ASCII letters nor blanks, "-" and "_" matter. */
const ValidationWord *validation_word(const ValidationWord *words, const char *text, bool is_name);

/* The row of "clusters" that fits a run; NULL: unknown words. */
const ValidationWord *validation_cluster(const MeasuredRow *row);

/* Whether @row has a measured @quantity. */
bool validation_has_quantity(const MeasuredRow *row, ValidationQuantity quantity);

/* Whether @row belongs to @set and has its quantity, which its source counts as we do. */
bool validation_set_has(const ValidationSet *set, const MeasuredRow *row);
