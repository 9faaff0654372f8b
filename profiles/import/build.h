/*
 * profiles/import/build.h - the readers of profiles/import/import.h.  Internal to profiles/.
 */
#ifndef PROFILES_IMPORT_BUILD_H
#define PROFILES_IMPORT_BUILD_H

#include "profiles/import/import.h"

G_BEGIN_DECLS

#define IMPORT_US_PER_S 1e6
/* 11 days: beyond are wrong units. */
#define IMPORT_MAX_US 1e12

typedef enum {
    IMPORT_COLLECTIVE,
    IMPORT_PRODUCT,
    IMPORT_BATCH,     /* @count products of one shape */
    IMPORT_ATTENTION, /* fused, of @count heads: m queries, n keys, head size k */
    IMPORT_STREAM,    /* bound by memory: its time without ramp-up and gaps */
} ImportKind;

/* A measurement that a profile has no row for: it moves parameters instead. */
typedef struct {
    ImportKind kind;
    ModelComm comm;
    int64_t n_ranks;        /* a collective's */
    int64_t bytes;          /* sent, or read and written; of a product, 0 where not known */
    int64_t count, m, n, k; /* a product's, attention's */
    Dtype dtype;            /* of what is not a collective */
    ModelMemoryKind memory_kind;
    bool backward;
    double causal_fraction; /* attention: the share of the scores that is needed */
    double seconds;
} ImportSample;

typedef struct {
    Profile *profile; /* (owned) what is being made */
    const ProfileImportOptions *options;
    GArray *samples;  /* (owned) of ImportSample */
    const char *tool; /* (static) "nccl-tests", ... */
    char *note;       /* (owned, nullable) what else to say of the file: what was skipped */
} Import;

/* Text of nccl-tests. */
bool import_nccl_text(Import *import, const char *name, const char *text, GError **error);

/* Readers of JSON record what is wrong in @doc. */
void import_nccl_json(Import *import, JsonDoc *doc, const JsonValue *root);
void import_kineto(Import *import, JsonDoc *doc, const JsonValue *root);
void import_terapipe(Import *import, JsonDoc *doc, const JsonValue *root);
void import_terapipe_messages(Import *import, JsonDoc *doc, const JsonValue *root);
void import_sailor(Import *import, JsonDoc *doc, const JsonValue *root);
void import_simumax(Import *import, JsonDoc *doc, const JsonValue *root);
void import_calculon(Import *import, JsonDoc *doc, const JsonValue *root);

/* Compute kernels of a trace's @events become samples; says in the note what became of each.
 * Returns: whether any was taken. */
bool import_kineto_compute(Import *import, JsonDoc *doc, const JsonValue *events);

/* What nccl-tests and NCCL kernels measure: a row, or a sample.  @op is a name without "_perf";
 * false where the profile can make nothing of it. */
bool import_collective(Import *import, const char *op, int64_t n_ranks, int64_t bytes,
                       double seconds, double low_s, double high_s);

/* Whose layers: false after recording that --model is missing or another one. */
bool import_need_arch(Import *import, JsonDoc *doc, const JsonValue *value);

/* Fits the parameters that the samples know. */
void import_fit_samples(Import *import);

G_END_DECLS

#endif /* PROFILES_IMPORT_BUILD_H */
