/*
 * cli/validate/sources.h - what the runs of a published source have in common and its rows do not
 * say: which framework, which vocabulary, what its numbers count.
 *
 * Tables, all of them by published meaning: a source is a paper or a repository, never a row.
 * What a row says itself (its columns, "key=value" in its notes) wins over its source.
 */
#ifndef CLI_VALIDATE_SOURCES_H
#define CLI_VALIDATE_SOURCES_H

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "cli/validate/measured.h"

G_BEGIN_DECLS

/* What a source's memory figures count. */
typedef enum {
    VALIDATION_MEMORY_NONE,      /* none, or of unknown base: not scored */
    VALIDATION_MEMORY_ALLOCATED, /* torch.cuda.max_memory_allocated: tensors only */
    VALIDATION_MEMORY_RESERVED,  /* ... reserved: with what the allocator lost */
} ValidationMemory;

typedef struct {
    const char *name;       /* of the column "source"; "" ends the table and is everybody else's */
    int zero_stage;         /* only of rows with this stage; -1: any */
    const char *framework;  /* --framework */
    const char *attention;  /* (nullable) --attention, where the framework's preset is not meant */
    const char *overlap;    /* (nullable) --overlap */
    const char *dropout;    /* (nullable) --dropout */
    const char *loss;       /* (nullable) --loss */
    bool sequence_parallel; /* with tp, of rows that do not say */
    bool expert_tp;         /* tp ranks share experts, of rows that do not say */
    const char *dtype;      /* of rows that do not say */
    const char *recompute;  /* of rows that do not say */
    int64_t vocab;          /* of rows that do not say; 0: those have none */
    int64_t vocab_multiple; /* a vocabulary is padded to a multiple of this times tp; 0: not */
    bool vocab_cut;         /* a vocabulary is cut to a multiple of tp */
    bool ends_short;        /* first and last stage have one layer less than the others */
    bool no_barrier;        /* iterations follow without one: the time is the span */
    ValidationMemory memory;
    bool memory_of_last_rank; /* and not the largest of all ranks */
    const char *why;
} ValidationSource;

/* Never NULL. */
const ValidationSource *validation_source(const MeasuredRow *row);

/* A note of a row that says how it was run: with it, --@option is @value. */
typedef struct {
    const char *key, *prefix; /* "kernel=flash..."; NULL: free text, found anywhere in the
                                notes or in the id (of a test: what it tests) */
    const char *option, *value;
} ValidationNote;

/* Ends with a key of NULL.  Values of "overlap" add up. */
extern const ValidationNote validation_notes[];

/* Words of the column "schedule" -> a schedule family; the first that the text begins with. */
typedef struct {
    const char *prefix, *family;
    bool sliced; /* the notes have its token slices */
} ValidationSchedule;

/* Ends with a prefix of NULL. */
extern const ValidationSchedule validation_schedules[];

/* Words of the column "model" -> family, and a built-in model that knows what no column says. */
typedef struct {
    const char *prefix, *family, *builtin; /* builtin nullable */
} ValidationModel;

/* Ends with a prefix of NULL. */
extern const ValidationModel validation_models[];

/* Words of the column "gpu" -> a built-in cluster. */
typedef struct {
    const char *prefix;
    double node_bits_per_s; /* only of rows with this rate between nodes; 0: any */
    const char *cluster;    /* (nullable) none is built in */
} ValidationCluster;

/* Ends with a prefix of NULL. */
extern const ValidationCluster validation_clusters[];

/* The first that fits the row; NULL: unknown words. */
const ValidationCluster *validation_cluster(const MeasuredRow *row);

/* What is scored of a part of the sources: a line of `make validate`. */
typedef enum {
    VALIDATION_TIME,
    VALIDATION_MEMORY,
    VALIDATION_OOM,
} ValidationQuantity;

typedef struct {
    const char *name;
    ValidationQuantity quantity;
    const char *sources[4]; /* names; NULL-terminated when shorter */
    int64_t max_tp;         /* 0: any */
    /* Goals, as a fraction: mean absolute error, or for VALIDATION_OOM the least precision and
     * recall; 0: none. */
    double raw_goal, calibrated_goal;
    const char *others; /* (nullable) published errors of others on the same rows */
    const char *lacks;  /* (nullable) what the rows do not say and the errors depend on */
} ValidationSet;

/* Ends with a name of NULL. */
extern const ValidationSet validation_sets[];

/* Whether @row belongs to @set and has its quantity. */
bool validation_set_has(const ValidationSet *set, const MeasuredRow *row);

G_END_DECLS

#endif /* CLI_VALIDATE_SOURCES_H */
