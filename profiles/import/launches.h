/*
 * profiles/import/launches.h - which call on the CPU launched a kernel of a PyTorch trace.
 *
 * Internal to this room.  A kernel and the call of CUDA that launched it have one `correlation`.
 * What that call belongs to is its "External id"; but in traces of 2022 and 2023 this is the
 * correlation again, which says nothing.  There it belongs to the innermost operator that was
 * running on its thread when it was made.
 */
#pragma once

#include "profiles/import/readers.h"

typedef struct {
    int64_t id; /* "External id" of the operator; -1: not known */
    /* (borrowed, nullable) the innermost event around it that says what NCCL was asked for: called
     * "nccl:...", or with "Collective name" among its arguments */
    const JsonValue *message;
} ImportLaunch;

/* The launches of a trace, opaque. */
typedef struct ImportLaunches ImportLaunches;

/* @events must outlive it.  Cost: O(n log n). */
ImportLaunches *import_launches_new(JsonDoc *doc, const JsonValue *events);
void import_launches_free(ImportLaunches *launches);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ImportLaunches, import_launches_free)

/* Returns: (borrowed, nullable) the launch of the kernel with @args (nullable). */
const ImportLaunch *import_launches_find(const ImportLaunches *launches, JsonDoc *doc,
                                         const JsonValue *args);

/* The operator of the kernel with @args (nullable): "External id", or -1. */
int64_t import_launches_operator(const ImportLaunches *launches, JsonDoc *doc,
                                 const JsonValue *args);

/* --- what the readers of a trace ask of an event --- */

typedef enum {
    IMPORT_EVENT_OTHER,
    IMPORT_EVENT_OPERATOR, /* also a range that the user named */
    IMPORT_EVENT_LAUNCH,   /* a call of CUDA */
    IMPORT_EVENT_KERNEL,
    IMPORT_EVENT_NCCL, /* a kernel of NCCL */
} ImportEvent;

/* What kind of event it is; categories have had other names before 2022 ("Kernel"). */
ImportEvent import_event_kind(JsonDoc *doc, const JsonValue *event);

/* The text of @key; "" where it is none. */
const char *import_event_text(JsonDoc *doc, const JsonValue *event, const char *key);

/* (nullable) its arguments. */
const JsonValue *import_event_args(JsonDoc *doc, const JsonValue *event);

/* "External id" of @args (nullable); -1 where it has none. */
int64_t import_event_id(JsonDoc *doc, const JsonValue *args);

/* Beginning and duration in microseconds. */
double import_event_start_us(JsonDoc *doc, const JsonValue *event);
double import_event_us(JsonDoc *doc, const JsonValue *event);
