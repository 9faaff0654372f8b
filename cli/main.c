/*
 * The program: finds the command, parses its options, and turns errors into exit statuses.
 *
 * stdout is checked when all is done: a full disk is exit status 4, a reader that went away is not
 * an error.
 */
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/csv.h"
#include "base/text.h"
#include "cli/request/command.h"
#include "cli/request/output.h"
#include "executor/device/backend.h"
#include "models/arch.h"
#include "planner/slices/slice.h"
#include "profiles/import/import.h"
#include "schedule/plan.h"

#define VERSION "0.1.0"

G_DEFINE_QUARK(cmd_error, cmd_error)

const Command *const commands[] = {
    &cmd_plan,     &cmd_sweep,    &cmd_simulate,  &cmd_show,   &cmd_run,  &cmd_profile,
    &cmd_compare,  &cmd_validate, &cmd_calibrate, &cmd_import, &cmd_plot, &cmd_export,
    &cmd_schedule, &cmd_slices,   &cmd_list,      NULL,
};

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
    GError *blamed;

    if (error == NULL || !g_error_matches(*error, G_FILE_ERROR, G_FILE_ERROR_NOENT) ||
        strchr(name, '/') != NULL || g_str_has_suffix(name, ".json"))
        return false;
    blamed = g_error_new_literal(CMD_ERROR, CMD_ERROR_USAGE, (*error)->message);
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

/*
 * GLib's last words.  Out of memory is a status of its own; debugging messages must not reach
 * stdout, where the product is.
 */
static GLogWriterOutput
write_log(GLogLevelFlags level, const GLogField *fields, gsize n_fields, void *user_data)
{
    for (gsize i = 0; i < n_fields; i++) {
        if ((level & G_LOG_LEVEL_ERROR) != 0 && strcmp(fields[i].key, "MESSAGE") == 0 &&
            strstr(fields[i].value, "failed to allocate") != NULL) {
            static const char message[] = "degas: out of memory\n";
            const ssize_t written = write(STDERR_FILENO, message, sizeof message - 1);

            (void)written; /* nobody is left to tell */
            _exit(CMD_ERROR_LIMIT);
        }
    }
    return g_log_writer_standard_streams(level, fields, n_fields, user_data);
}

/* --- help --- */

static void
print_help(void)
{
    output_text("usage: degas COMMAND [options] ...\n"
                "Takes the bubbles out of training pipelines: plans, simulates, profiles, runs.\n"
                "\n");
    for (size_t i = 0; commands[i] != NULL; i++)
        output_printf("  %-10s %s\n", commands[i]->name, commands[i]->summary);
    output_text("\n"
                "  degas plan llama3-70b dgx-h100 --gpus 64 --global-batch 512 -o plan.json\n"
                "  degas simulate plan.json --plot timeline.svg\n"
                "\n"
                "degas COMMAND --help has the options; degas --version the version.\n");
}

/* A space where no line ends, until all lines are broken. */
#define HELP_NO_BREAK "\001"

/* Returns: (owned) @usage in which what is in brackets stays together. */
static char *
without_breaks(const char *usage)
{
    char *text = g_strdup(usage);
    int depth = 0;

    for (char *p = text; *p != 0; p++) {
        depth += (*p == '[') - (*p == ']');
        if (*p == ' ' && depth > 0)
            *p = *HELP_NO_BREAK;
    }
    return text;
}

/* Appends words, broken into lines of at most 80 columns; @column is where the cursor is. */
static void
append_words(GString *text, const char *line, size_t indent, size_t *column)
{
    g_auto(GStrv) words = g_strsplit(line, " ", -1);

    for (size_t i = 0; words[i] != NULL; i++) {
        const size_t n = strlen(words[i]);

        if (n == 0)
            continue;
        if (*column > indent && *column + 1 + n > 80) {
            g_string_append_printf(text, "\n%*s", (int)indent, "");
            *column = indent;
        } else if (*column > indent) {
            g_string_append_c(text, ' ');
            (*column)++;
        }
        g_string_append(text, words[i]);
        *column += n;
    }
}

/* Paragraphs are filled; lines that begin with a space (examples) and empty ones stay. */
static void
append_details(GString *text, const char *details)
{
    g_auto(GStrv) lines = g_strsplit(details, "\n", -1);
    size_t column = 0;

    for (size_t i = 0; lines[i] != NULL; i++) {
        if (*lines[i] != 0 && *lines[i] != ' ') {
            append_words(text, lines[i], 0, &column);
            continue;
        }
        g_string_append_printf(text, "%s%s\n", column > 0 ? "\n" : "", lines[i]);
        column = 0;
    }
    g_string_append(text, column > 0 ? "\n\n" : "");
}

static void
print_command_help(const Command *command)
{
    g_autoptr(GString) text = g_string_new(NULL);

    g_autofree char *called = g_strdup_printf("usage: degas %s ", command->name);
    g_autofree char *usage = without_breaks(command->usage);
    size_t column = strlen(called);

    g_string_append(text, called);
    append_words(text, usage, strlen(called), &column);
    g_strdelimit(text->str, HELP_NO_BREAK, ' ');
    g_string_append_printf(text, "\n%s\n\n", command->summary);
    if (command->details != NULL)
        append_details(text, command->details);
    for (size_t i = 0; command->options[i] != NULL; i++) {
        const char *heading = command->headings[i];

        if (i == 0 || heading != NULL)
            g_string_append_printf(text, "%s%s:\n", i == 0 ? "" : "\n",
                                   heading == NULL ? "Options" : heading);
        options_append_help(text, command->options[i]);
    }
    g_string_append(text, "  -h, --help                this text\n");
    output_text(text->str);
}

/* --- running --- */

static const Command *
find_command(const char *name, GError **error)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new();
    g_autofree char *suggestion = NULL;
    g_autofree char *shown = text_escape(name, 64);

    for (size_t i = 0; commands[i] != NULL; i++) {
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
        g_ptr_array_add(names, (void *)commands[i]->name);
    }
    g_ptr_array_add(names, NULL);
    suggestion = text_suggestion(name, (const char *const *)names->pdata);
    g_set_error(error, CMD_ERROR, CMD_ERROR_USAGE, "%s: unknown command%s%s", shown,
                *suggestion == 0 ? "; see degas --help" : ";",
                *suggestion == 0 ? "" : suggestion + 1);
    return NULL;
}

static bool
check_arguments(const Command *command, const Options *options, GError **error)
{
    const size_t n = options_n_arguments(options);

    if (n >= command->min_arguments && n <= command->max_arguments)
        return true;
    if (n > command->max_arguments) {
        g_autofree char *shown = text_escape(options_argument(options, command->max_arguments), 64);

        g_set_error(error, CMD_ERROR, CMD_ERROR_USAGE,
                    "%s: unexpected argument \"%s\"; usage: degas %s %s", command->name, shown,
                    command->name, command->usage);
    } else {
        g_set_error(error, CMD_ERROR, CMD_ERROR_USAGE,
                    "%s: an argument is missing; usage: degas %s %s", command->name, command->name,
                    command->usage);
    }
    return false;
}

static int
run_command(const Command *command, int argc, char **argv, GError **error)
{
    g_autoptr(Options) options = options_parse(command->options, argc, argv, error);

    if (options == NULL) {
        g_prefix_error(error, "%s: ", command->name);
        return -1;
    }
    if (options_help(options)) {
        print_command_help(command);
        return 0;
    }
    if (!check_arguments(command, options, error))
        return -1;
    return command->run(options, error);
}

static int
run(int argc, char **argv, GError **error)
{
    const char *name = argc < 2 ? NULL : argv[1];
    const Command *command;

    if (name == NULL) {
        g_set_error_literal(error, CMD_ERROR, CMD_ERROR_USAGE,
                            "a command is missing; degas --help lists them");
        return -1;
    }
    if (strcmp(name, "help") == 0 && argc == 2)
        name = "--help";
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        print_help();
        return 0;
    }
    if (strcmp(name, "--version") == 0) {
        output_text("degas " VERSION "\n");
        return 0;
    }
    if (strcmp(name, "help") == 0) {
        command = find_command(argv[2], error);
        if (command == NULL)
            return -1;
        print_command_help(command);
        return 0;
    }
    command = find_command(name, error);
    return command == NULL ? -1 : run_command(command, argc - 1, argv + 1, error);
}

/* A closed standard stream would be the number of the next file that is opened. */
static void
fill_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        /* the wrong direction, so that using it is an error as before */
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd)
            _exit(CMD_ERROR_IO);
    }
}

int
main(int argc, char **argv)
{
    g_autoptr(GError) error = NULL;
    int status;

    fill_standard_streams();
    setlocale(LC_ALL, "");
    setlocale(LC_NUMERIC, "C");
    g_log_writer_default_set_use_stderr(TRUE);
    g_log_set_writer_func(write_log, NULL, NULL);
    /* Both become errors of the write: a reader that left, a file beyond the limit. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);

    status = run(argc, argv, &error);
    if (status < 0) {
        g_autofree char *message = text_escape(error->message, 4000);

        /* The product so far, if any, comes first. */
        fflush(stdout);
        if (!g_error_matches(error, G_FILE_ERROR, G_FILE_ERROR_PIPE))
            fprintf(stderr, "degas: %s\n", message);
        status =
            g_error_matches(error, G_FILE_ERROR, G_FILE_ERROR_PIPE) ? 0 : cmd_exit_status(error);
    }
    return output_finish() ? status : CMD_ERROR_IO;
}
