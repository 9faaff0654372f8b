/*
 * profiles/import/readers.h - the readers of profiles/import/import.h, one for each kind of file.
 *
 * Internal to this room.  A new format is a reader here and a row of the table in import.c that
 * tells its files by their keys.
 */
#pragma once

#include "profiles/import/import.h"

#define IMPORT_US_PER_S 1e6
/* 11 days: beyond are wrong units. */
#define IMPORT_MAX_US 1e12

typedef enum {
    IMPORT_COLLECTIVE,
    IMPORT_MESSAGE, /* from @group's first device to the first that is on another node */
    IMPORT_PRODUCT,
    IMPORT_BATCH,     /* @count products of one shape */
    IMPORT_ATTENTION, /* fused, of @count heads: m queries, n keys, head size k */
    IMPORT_STREAM,    /* bound by memory: its time without ramp-up and gaps */
} ImportKind;

/* A measurement that a profile has no row for: parameters of the profile are fitted to it. */
typedef struct {
    ImportKind kind;
    ModelComm comm;
    ProfileGroup group;     /* a collective's, a message's */
    int64_t bytes;          /* sent, or read and written; of a product, 0 where not known */
    int64_t count, m, n, k; /* a product's, attention's */
    Dtype dtype;            /* of what is not a collective */
    ModelMemoryKind memory_kind;
    bool backward;
    double causal_fraction; /* attention: the share of the scores that is needed */
    double seconds;
} ImportSample;

/* A file that is being imported. */
typedef struct {
    Profile *profile; /* (owned) what is being made */
    const ProfileImportOptions *options;
    guint n_before;        /* rows of the profile before */
    GArray *samples;       /* (owned) of ImportSample */
    ModelCluster *cluster; /* (owned) while fitting: with as many nodes as the samples are of */
    const char *tool;      /* (static) "nccl-tests", ... */
    char *note;            /* (owned, nullable) what else to say of the file: what was skipped */
    GError *refusal;       /* (owned, nullable) what must be given before this file can be read */
} Import;

/* --- readers, one for each kind of file; those of JSON record what is wrong in @doc --- */

/* Defined in nccl.c; @name of the file is for messages. */
bool import_nccl_text(Import *import, const char *name, const char *text, GError **error);
void import_nccl_json(Import *import, JsonDoc *doc, const JsonValue *root);

/* Defined in kineto.c. */
void import_kineto(Import *import, JsonDoc *doc, const JsonValue *root);
/* The same of any trace; returns whether anything was taken, @import->note says what was not. */
bool import_events(Import *import, JsonDoc *doc, const JsonValue *root);

/* Defined in nsys.c; an SQLite database is in @bytes, which SQLite may not change. */
bool import_nsys(Import *import, const char *name, char *bytes, size_t n_bytes, GError **error);

/* Defined in layers.c: measured layers, and TeraPipe's messages. */
void import_terapipe(Import *import, JsonDoc *doc, const JsonValue *root);
void import_terapipe_messages(Import *import, JsonDoc *doc, const JsonValue *root);
void import_sailor(Import *import, JsonDoc *doc, const JsonValue *root);

/* Defined in system.c: descriptions of machines. */
void import_simumax(Import *import, JsonDoc *doc, const JsonValue *root);
void import_calculon(Import *import, JsonDoc *doc, const JsonValue *root);

/* --- what readers share, defined in import.c --- */

/*
 * Adds a time of the collective @op, named as nccl-tests names its programs without "_perf".  Where
 * @group is in one node of the cluster, all-reduces and messages become rows: @other_s is a second
 * time of it, and p10_s and p90_s of a row are the smaller and the larger of the two.  All else
 * becomes a sample: rows do not say which devices they are of, so one between nodes would stand for
 * a group in a node too.
 * Returns: false for an op that a profile cannot hold, and where @import->refusal is set: the
 * cluster has no links between nodes.
 */
bool import_collective(Import *import, const char *op, const ProfileGroup *group, int64_t bytes,
                       double seconds, double other_s);

/*
 * The group of @n_ranks of which @hosts (nullable: not known; name -> GINT_TO_POINTER of its ranks)
 * each have some: those of fewer ranks than a node of the cluster has devices are spread over it.
 * Not known, they fill one node after the other.  @import->refusal is set where a host has more
 * ranks than a node has devices, or where hosts differ.
 */
ProfileGroup import_group_on_hosts(Import *import, int64_t n_ranks, GHashTable *hosts);

/* Sets the model whose layers were timed, which --model says.  Returns false after recording that
 * it is missing, or that the profile has rows of another model. */
bool import_need_arch(Import *import, JsonDoc *doc, const JsonValue *value);
