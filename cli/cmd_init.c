/* degas init: a commented file to begin with. */
#include <string.h>

#include "base/embedded.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/request/command.h"
#include "cli/request/output.h"

#define FOLDER "cli/help/init/"

static const OptionInfo options_table[] = {
    {"output", "FILE", "write to FILE, which must not be there yet; default: stdout",
     .common = true},
    {NULL, NULL, NULL},
};

static int
run(Options *options, GError **error)
{
    const char *kind = options_argument(options, 0);
    const char *path = options_string(options, "output", NULL);
    g_autofree char *name = g_strconcat(FOLDER, kind, ".yaml", NULL);
    const EmbeddedFile *file = embedded_find(name);

    if (!options_finish(options, error))
        return -1;
    if (file == NULL) {
        g_autofree char *shown = text_escape(kind, 64);

        cmd_fail(error, CMD_ERROR_USAGE, "init: expected cluster, model or job, got \"%s\"", shown);
        return -1;
    }
    if (path == NULL || strcmp(path, "-") == 0) {
        output_text(file->text);
        return 0;
    }
    if (g_file_test(path, G_FILE_TEST_EXISTS)) {
        cmd_fail(error, CMD_ERROR_IO, "%s: is there already, and may hold somebody's work", path);
        return -1;
    }
    return file_write(path, file->text, (size_t)(file->end - file->text), error) ? 0 : -1;
}

const Command cmd_init = {
    .name = "init",
    .usage = "cluster|model|job [-o FILE.yaml]",
    .summary = "write a commented file of one's own: a cluster, a model, a job",
    .details = "The file is an example that works as it is, with every key explained.\n"
               "\n"
               "  degas init cluster -o ours.yaml\n"
               "  degas init job -o job.yaml; degas plan job.yaml\n",
    .options = {options_table},
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
