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

#include "base/text.h"
#include "cli/request/command.h"
#include "cli/request/output.h"

#define VERSION "0.1.0"

/* In the order of the help. */
static const Command *const commands[] = {
    &cmd_plan,     &cmd_sweep,    &cmd_simulate,  &cmd_show,   &cmd_run,  &cmd_profile,
    &cmd_compare,  &cmd_validate, &cmd_calibrate, &cmd_import, &cmd_plot, &cmd_export,
    &cmd_schedule, &cmd_slices,   &cmd_list,      NULL,
};

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
                "Plans, simulates, measures and runs the training of models on many devices.\n"
                "\n");
    for (size_t i = 0; commands[i] != NULL; i++)
        output_printf("  %-10s %s\n", commands[i]->name, commands[i]->summary);
    output_text("\n"
                "  degas plan llama3-70b dgx-h100 --gpus 64 --global-batch 512 -o plan.json\n"
                "  degas simulate plan.json --plot timeline.svg\n"
                "\n"
                "degas COMMAND --help lists a command's options; degas --version the version.\n");
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

/* Paragraphs are filled; lines that begin with a space (examples) and empty ones stay. */
static void
append_details(GString *text, const char *details)
{
    g_auto(GStrv) lines = g_strsplit(details, "\n", -1);
    size_t column = 0;

    for (size_t i = 0; lines[i] != NULL; i++) {
        if (*lines[i] != 0 && *lines[i] != ' ') {
            options_append_words(text, lines[i], 0, &column);
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
    options_append_words(text, usage, strlen(called), &column);
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
    g_autofree char *shown = text_escape(name, 64);

    for (size_t i = 0; commands[i] != NULL; i++) {
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
        g_ptr_array_add(names, (void *)commands[i]->name);
    }
    g_ptr_array_add(names, NULL);
    g_autofree char *suggestion = text_suggestion(name, (const char *const *)names->pdata);
    g_set_error(error, CMD_ERROR, CMD_ERROR_USAGE, "%s: unknown command%s%s", shown,
                *suggestion == 0 ? "; see degas --help" : ";",
                *suggestion == 0 ? "" : suggestion + 1);
    return NULL;
}

static bool
check_arguments(const Command *command, const Options *options, GError **error)
{
    const size_t n = options_n_arguments(options);

    if (n < command->min_arguments)
        return cmd_fail(error, CMD_ERROR_USAGE, "%s: an argument is missing; usage: degas %s %s",
                        command->name, command->name, command->usage);
    if (n <= command->max_arguments)
        return true;
    g_autofree char *shown = text_escape(options_argument(options, command->max_arguments), 64);
    return cmd_fail(error, CMD_ERROR_USAGE, "%s: unexpected argument \"%s\"; usage: degas %s %s",
                    command->name, shown, command->name, command->usage);
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

    fill_standard_streams();
    setlocale(LC_ALL, "");
    setlocale(LC_NUMERIC, "C");
    g_log_writer_default_set_use_stderr(TRUE);
    g_log_set_writer_func(write_log, NULL, NULL);
    /* Both become errors of the write: a reader that left, a file beyond the limit. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);

    int status = run(argc, argv, &error);
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
