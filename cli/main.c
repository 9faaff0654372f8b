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
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/help/help.h"
#include "cli/request/command.h"
#include "cli/request/output.h"

const Command *const cmd_all[] = {
    &cmd_plan,       &cmd_sweep,   &cmd_serve,    &cmd_simulate, &cmd_check,     &cmd_show,
    &cmd_run,        &cmd_profile, &cmd_compare,  &cmd_validate, &cmd_calibrate, &cmd_import,
    &cmd_plot,       &cmd_export,  &cmd_schedule, &cmd_slices,   &cmd_list,      &cmd_help,
    &cmd_completion, &cmd_doctor,  &cmd_schema,   &cmd_init,     NULL,
};

/* GLib's last words.  Out of memory is a status of its own; debugging messages must not reach
 * stdout, where the product is. */
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

/* --- running --- */

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
    if (options_help(options) != OPTIONS_NO_HELP) {
        g_autofree char *text = help_command(command, options_help(options) == OPTIONS_SHORT_HELP);

        output_text(text);
        return 0;
    }
    if ((command->takes_job && !options_add_job(options, error)) ||
        !check_arguments(command, options, error))
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
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        g_autofree char *text = help_overview(cmd_all, name[1] == 'h');

        output_text(text);
        return 0;
    }
    if (strcmp(name, "--version") == 0) {
        output_text("degas " DEGAS_VERSION "\n");
        return 0;
    }
    command = cmd_find(cmd_all, name, error);
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
            output_note("%s", message);
        status =
            g_error_matches(error, G_FILE_ERROR, G_FILE_ERROR_PIPE) ? 0 : cmd_exit_status(error);
    }
    return output_finish() ? status : CMD_ERROR_IO;
}
