/* degas schema: the JSON Schema of a kind of file. */
#include <string.h>

#include "base/text.h"
#include "cli/help/schema.h"
#include "cli/request/command.h"
#include "cli/request/output.h"

static const OptionInfo options_table[] = {
    {NULL, NULL, NULL},
};

static int
run(Options *options, GError **error)
{
    const char *name = options_argument(options, 0);
    g_autoptr(GPtrArray) names = help_schema_names();

    if (name == NULL) {
        for (guint i = 0; names->pdata[i] != NULL; i++)
            output_printf("%s\n", (char *)names->pdata[i]);
        return 0;
    }
    if (g_str_has_prefix(name, "degas-"))
        name += strlen("degas-");
    g_autofree char *text = help_schema(cmd_all, name);
    if (text == NULL) {
        g_autofree char *shown = text_escape(name, 64);
        g_autofree char *suggestion = text_suggestion(name, (const char *const *)names->pdata);

        cmd_fail(error, CMD_ERROR_USAGE, "schema: no format \"%s\"%s; degas schema lists them",
                 shown, suggestion);
        return -1;
    }
    output_text(text);
    return 0;
}

const Command cmd_schema = {
    .name = "schema",
    .usage = "[FORMAT]",
    .summary = "print the JSON Schema of a kind of file",
    .details =
        "FORMAT is that of the file's key \"format\", with or without degas-.  Without it the\n"
        "formats are listed.  Editors and validators take the schema:\n"
        "\n"
        "  degas schema plan > plan.schema.json\n",
    .options = {options_table},
    .max_arguments = 1,
    .run = run,
};
