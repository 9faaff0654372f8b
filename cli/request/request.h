/*
 * cli/request/request.h - Request: what the flags of plan, simulate and sweep, or a line of
 * simulate --batch, ask for: a model and a cluster (subject.h), and a PlanRequest.
 *
 * The main header of the room request/, which leads from command lines and files to what the
 * libraries are asked, and prints text: commands (command.h), flags (options.h), output.h, plan
 * files (job.h), searches, sweeps.  All of cli/ comes in; nothing here draws.
 *
 * One table has every flag of a job.  The presets of --framework are applied first, then the other
 * flags.
 */
#pragma once

#include "cli/request/conditions.h"
#include "planner/search.h"

/* The flags: of a job and its split; those that only a fixed split has; of the search. */
extern const OptionInfo request_options[];
extern const OptionInfo request_fixed_options[];
extern const OptionInfo request_search_options[];

/* A PlanRequest, and what it borrows; all (owned). */
typedef struct {
    ModelArch *arch;
    Profile *profile;
    char **schedules;
    GArray *slices;
    GArray *stage_layers; /* (nullable) of int64_t: --stage-layers */
    PlanRequest plan;
    bool compares_rules;       /* say what the framework's rules cost */
    PlanSlicesMode any_slices; /* those of plan, were there no rules */
} Request;

/* What it means that a flag is absent. */
typedef enum {
    REQUEST_SEARCHED, /* plan, sweep: the planner searches it */
    REQUEST_FIXED,    /* simulate: the plainest choice */
} RequestKind;

/*
 * Reads the flags of a job.
 * @arch, @profile  (taken) as loaded; --gpus, --layers and --vocab change them here.
 * @options         made from tables that hold request_options.
 * Returns: (owned) NULL on CMD_ERROR_USAGE, or JSON_ERROR_INVALID for a JSON request.
 */
Request *request_new(ModelArch *arch, Profile *profile, Options *options, RequestKind kind,
                     GError **error);

/* Loads @model and @cluster (names or files), tells on stderr what was approximated, and calls
 * request_new(). */
Request *request_load(const char *model, const char *cluster, Options *options, RequestKind kind,
                      GError **error);

/* The plan of a REQUEST_FIXED request: plan_from_request(), with the stages of --stage-layers.
 * Errors: PLAN_ERROR_INVALID. */
Plan *request_plan(const Request *request, GError **error);

/* (owned) with copies of all that it borrows, so that it outlives @request. */
Request *request_copy(const Request *request);

void request_free(Request *request);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Request, request_free)

/*
 * Reads a request of `degas simulate --batch`: a JSON object with "model" and "cluster" (a name, a
 * path or an object) and the flags of `degas simulate` as keys, '_' for '-'.  "id" is the caller's.
 * With @kind REQUEST_SEARCHED the flags are those of `degas plan`.
 *
 * @given       (nullable) a cluster that takes the place of the object's.
 * @conditions  (out, nullable) cleared by the caller; NULL: their keys are unknown ones.
 * Returns: (owned) NULL on JSON_ERROR_INVALID, CMD_ERROR, G_FILE_ERROR.
 */
Request *request_read(JsonDoc *doc, const JsonValue *object, RequestKind kind, const Profile *given,
                      Conditions *conditions, GError **error);
