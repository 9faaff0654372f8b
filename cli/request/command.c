#include "cli/request/command.h"

#include <signal.h>
#include <string.h>

#include "base/csv.h"
#include "executor/device/backend.h"
#include "models/arch.h"
#include "planner/slices/slice.h"
#include "profiles/import/import.h"
#include "schedule/plan.h"

G_DEFINE_QUARK(cmd_error, cmd_error)

/* --- errors --- */

static int
exec_status(int code)
{
    switch (code) {
    case EXEC_ERROR_MEMORY:
        return CMD_ERROR_LIMIT;
    case EXEC_ERROR_UNSUPPORTED:
    case EXEC_ERROR_VERIFY:
        return CMD_ERROR_NO;
    case EXEC_ERROR_DATA:
        return CMD_ERROR_INPUT;
    case EXEC_ERROR_RANK_DIED:
        return CMD_ERROR_RANK_DIED;
    case EXEC_ERROR_RANK_HUNG:
        return CMD_ERROR_RANK_HUNG;
    case EXEC_ERROR_IO:
        return CMD_ERROR_IO;
    case EXEC_ERROR_INTERRUPTED:
        return CMD_ERROR_INTERRUPTED;
    default:
        return CMD_ERROR_MISSING;
    }
}

static int
schedule_status(int code)
{
    switch (code) {
    case SCHEDULE_ERROR_LIMIT:
        return CMD_ERROR_LIMIT;
    case SCHEDULE_ERROR_SHAPE:
    case SCHEDULE_ERROR_UNKNOWN:
        return CMD_ERROR_USAGE;
    default:
        return CMD_ERROR_INPUT;
    }
}

int
cmd_exit_status(const GError *error)
{
    if (error->domain == CMD_ERROR)
        return error->code;
    if (error->domain == JSON_ERROR || error->domain == CSV_ERROR)
        return CMD_ERROR_INPUT;
    if (error->domain == PROFILE_IMPORT_ERROR)
        return error->code == PROFILE_IMPORT_ERROR_OPTION ? CMD_ERROR_USAGE : CMD_ERROR_INPUT;
    if (error->domain == G_FILE_ERROR)
        return CMD_ERROR_IO;
    if (error->domain == SCHEDULE_ERROR)
        return schedule_status(error->code);
    if (error->domain == PLAN_ERROR)
        return error->code == PLAN_ERROR_INFEASIBLE ? CMD_ERROR_NO : CMD_ERROR_USAGE;
    if (error->domain == PLAN_SLICE_ERROR)
        return error->code == PLAN_SLICE_ERROR_LIMIT ? CMD_ERROR_LIMIT : CMD_ERROR_NO;
    if (error->domain == MODEL_ARCH_ERROR || error->domain == UNITS_ERROR)
        return CMD_ERROR_USAGE;
    if (error->domain == EXEC_ERROR)
        return exec_status(error->code);
    return CMD_ERROR_INTERNAL;
}

bool
cmd_blame_name(const char *name, GError **error)
{
    if (error == NULL || !g_error_matches(*error, G_FILE_ERROR, G_FILE_ERROR_NOENT) ||
        strchr(name, '/') != NULL || g_str_has_suffix(name, ".json"))
        return false;
    GError *blamed = g_error_new_literal(CMD_ERROR, CMD_ERROR_USAGE, (*error)->message);
    g_clear_error(error);
    g_propagate_error(error, blamed);
    return false;
}

bool
cmd_blame_file(const char *path, GError **error)
{
    const GError *e = error == NULL ? NULL : *error;

    if (e == NULL || e->domain == CMD_ERROR || cmd_exit_status(e) != CMD_ERROR_USAGE)
        return false;
    GError *blamed = g_error_new(CMD_ERROR, CMD_ERROR_INPUT, "%s: %s", path, e->message);
    g_clear_error(error);
    g_propagate_error(error, blamed);
    return false;
}

/* --- Ctrl-C --- */

/* The one thing a signal handler may write: a lock-free atomic. */
static int is_interrupted;

static void
note(int signal_number)
{
    g_atomic_int_set(&is_interrupted, 1);
}

const int *
cmd_interrupt_watch(void)
{
    struct sigaction action = {.sa_handler = note, .sa_flags = (int)SA_RESETHAND | SA_RESTART};

    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    return &is_interrupted;
}
