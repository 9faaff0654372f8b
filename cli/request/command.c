#include "cli/request/command.h"

#include <signal.h>
#include <string.h>

#include "base/csv.h"
#include "base/json_yaml.h"
#include "base/text.h"
#include "executor/device/backend.h"
#include "executor/watch/launch.h"
#include "models/arch.h"
#include "planner/slices/slice.h"
#include "profiles/import/import.h"
#include "schedule/plan.h"

G_DEFINE_QUARK(cmd_error, cmd_error)

/* --- errors --- */

bool
cmd_fail(GError **error, CmdError code, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    if (error != NULL)
        *error = g_error_new_valist(CMD_ERROR, (gint)code, format, arguments);
    va_end(arguments);
    return false;
}

/* As the other domains' functions. */
static GQuark
exec_error_quark(void)
{
    return EXEC_ERROR;
}

const CmdStatus cmd_statuses[] = {
    {0, "done"},
    {CMD_ERROR_NO,
     "the answer is no: no plan fits, compare found a difference above its tolerance, run --verify "
     "failed, or the executor or an export target cannot run the plan"},
    {CMD_ERROR_USAGE, "wrong usage: an unknown command, option or built-in name, a value that is "
                      "not valid, degrees that do not divide"},
    {CMD_ERROR_INPUT, "an input file is invalid; the message names file, line, column and path: "
                      "plan.json:12:9: $.degrees.pp: ..."},
    {CMD_ERROR_IO,
     "a file cannot be read or written (it does not exist, the disk is full, stdout is closed)"},
    {CMD_ERROR_LIMIT, "memory ran out, or the request is beyond a stated limit"},
    {CMD_ERROR_MISSING, "a program, library or device that is needed is missing or failed"},
    {CMD_ERROR_RANK_DIED,
     "a rank died during a run, or failed: a message to it was damaged on its way, or another rank "
     "is of another version of degas"},
    {CMD_ERROR_RANK_HUNG, "a rank hung during a run"},
    {CMD_ERROR_INTERRUPTED, "the command was interrupted (Ctrl-C); what was done until then is "
                            "written, such as the best plan so far"},
    {CMD_ERROR_INTERNAL, "an internal error"},
    {0, NULL},
};

#define ANY (-1)

/* The first row of an error's domain and code says its status. */
static const struct {
    GQuark (*domain)(void);
    int code;
    CmdError status;
} statuses[] = {
    {json_error_quark, JSON_ERROR_MEMORY, CMD_ERROR_LIMIT},
    {json_error_quark, ANY, CMD_ERROR_INPUT},
    {csv_error_quark, ANY, CMD_ERROR_INPUT},
    {profile_import_error_quark, PROFILE_IMPORT_ERROR_OPTION, CMD_ERROR_USAGE},
    {profile_import_error_quark, PROFILE_IMPORT_ERROR_MISSING, CMD_ERROR_MISSING},
    {profile_import_error_quark, ANY, CMD_ERROR_INPUT},
    {g_file_error_quark, ANY, CMD_ERROR_IO},
    {schedule_error_quark, SCHEDULE_ERROR_LIMIT, CMD_ERROR_LIMIT},
    {schedule_error_quark, SCHEDULE_ERROR_SHAPE, CMD_ERROR_USAGE},
    {schedule_error_quark, SCHEDULE_ERROR_UNKNOWN, CMD_ERROR_USAGE},
    {schedule_error_quark, ANY, CMD_ERROR_INPUT},
    {plan_error_quark, PLAN_ERROR_INFEASIBLE, CMD_ERROR_NO},
    {plan_error_quark, ANY, CMD_ERROR_USAGE},
    {plan_slice_error_quark, PLAN_SLICE_ERROR_LIMIT, CMD_ERROR_LIMIT},
    {plan_slice_error_quark, ANY, CMD_ERROR_NO},
    {model_arch_error_quark, ANY, CMD_ERROR_USAGE},
    {units_error_quark, ANY, CMD_ERROR_USAGE},
    {exec_error_quark, EXEC_ERROR_MEMORY, CMD_ERROR_LIMIT},
    {exec_error_quark, EXEC_ERROR_UNSUPPORTED, CMD_ERROR_NO},
    {exec_error_quark, EXEC_ERROR_VERIFY, CMD_ERROR_NO},
    {exec_error_quark, EXEC_ERROR_DATA, CMD_ERROR_INPUT},
    {exec_error_quark, EXEC_ERROR_RANK_DIED, CMD_ERROR_RANK_DIED},
    {exec_error_quark, EXEC_ERROR_RANK_HUNG, CMD_ERROR_RANK_HUNG},
    {exec_error_quark, EXEC_ERROR_IO, CMD_ERROR_IO},
    {exec_error_quark, EXEC_ERROR_INTERRUPTED, CMD_ERROR_INTERRUPTED},
    {exec_error_quark, ANY, CMD_ERROR_MISSING},
    {g_thread_error_quark, ANY, CMD_ERROR_LIMIT},
};

int
cmd_exit_status(const GError *error)
{
    if (error->domain == CMD_ERROR)
        return error->code;
    for (size_t i = 0; i < G_N_ELEMENTS(statuses); i++)
        if (error->domain == statuses[i].domain() &&
            (statuses[i].code == ANY || statuses[i].code == error->code))
            return (int)statuses[i].status;
    return CMD_ERROR_INTERNAL;
}

bool
cmd_blame_name(const char *name, GError **error)
{
    if (error == NULL || !g_error_matches(*error, G_FILE_ERROR, G_FILE_ERROR_NOENT) ||
        strchr(name, '/') != NULL || g_str_has_suffix(name, ".json") || json_yaml_is_name(name))
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

/* --- commands --- */

const Command *
cmd_find(const Command *const *commands, const char *name, GError **error)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new();
    g_autofree char *shown = text_escape(name, 64);

    for (; *commands != NULL; commands++) {
        if (strcmp((*commands)->name, name) == 0)
            return *commands;
        g_ptr_array_add(names, (void *)(*commands)->name);
    }
    g_ptr_array_add(names, NULL);
    g_autofree char *suggestion = text_suggestion(name, (const char *const *)names->pdata);
    g_set_error(error, CMD_ERROR, CMD_ERROR_USAGE, "%s: unknown command%s%s", shown,
                *suggestion == 0 ? "; see degas --help" : ";",
                *suggestion == 0 ? "" : suggestion + 1);
    return NULL;
}

/* --- Ctrl-C --- */

/* The one thing a signal handler may write: a lock-free atomic. */
static int is_interrupted;

static void
note(int signal_number)
{
    g_atomic_int_set(&is_interrupted, 1);
}

/* Of a signal that announces the end. */
static void
note_announced(int signal_number)
{
    g_atomic_int_compare_and_exchange(&is_interrupted, 0, EXEC_STOP_PATIENTLY);
}

void
cmd_interrupt_patiently(void)
{
    struct sigaction action = {.sa_handler = note_announced, .sa_flags = SA_RESTART};

    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
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
