#include "cli/help/schema.h"

#include <string.h>

#include "base/embedded.h"

#define FOLDER "cli/help/schema/"
#define REFERENCE "\"#/$defs/"

GPtrArray *
help_schema_names(void)
{
    GPtrArray *names = embedded_names(FOLDER, ".json");

    g_ptr_array_add(names, NULL);
    return names;
}

/* In the file of jobs, the place of the keys that are options. */
#define OPTIONS_HERE "\"options\": {}"

/* Appends ", "key": schema" of an option. */
static void
append_option(GString *text, const OptionInfo *info)
{
    g_autofree char *key = g_strdelimit(g_strdup(info->name), "-", '_');

    g_string_append_printf(text, "%s\n    \"%s\": {\"type\": %s}", text->len == 0 ? "" : ",", key,
                           info->value == NULL
                               ? "[\"boolean\", \"null\"]"
                               : "[\"string\", \"number\", \"boolean\", \"array\", \"object\", "
                                 "\"null\"]");
}

/* (owned) The options of all @commands that take a job, each once. */
static char *
job_options(const Command *const *commands)
{
    g_autoptr(GHashTable) done = g_hash_table_new(g_str_hash, g_str_equal);
    GString *text = g_string_new(NULL);

    g_hash_table_add(done, (void *)"model"); /* the job's, not the option for recipes */
    for (; *commands != NULL; commands++)
        for (size_t t = 0; (*commands)->takes_job && (*commands)->options[t] != NULL; t++)
            for (const OptionInfo *info = (*commands)->options[t]; info->name != NULL; info++)
                if (g_hash_table_add(done, (void *)info->name))
                    append_option(text, info);
    return g_string_free(text, FALSE);
}

/* Returns: (owned, nullable) the format's own file. */
static char *
own_text(const Command *const *commands, const char *name)
{
    g_autofree char *path = g_strconcat(FOLDER, name, ".json", NULL);
    const EmbeddedFile *file = embedded_find(path);
    const char *here = file == NULL ? NULL : strstr(file->text, OPTIONS_HERE);

    if (here == NULL)
        return file == NULL ? NULL : g_strdup(file->text);
    g_autofree char *keys = job_options(commands);
    GString *text = g_string_new_len(file->text, here - file->text);
    g_string_append(text, keys);
    g_string_append(text, here + strlen(OPTIONS_HERE));
    return g_string_free(text, FALSE);
}

/* Appends the definition of @name, and then of what it refers to, unless that is there. */
static void
append(GString *text, GHashTable *done, const Command *const *commands, const char *name)
{
    g_autofree char *own = own_text(commands, name);

    if (own == NULL || !g_hash_table_add(done, g_strdup(name)))
        return;
    g_string_append_printf(text, "%s\n\"%s\": %s", g_hash_table_size(done) == 1 ? "" : ",", name,
                           g_strchomp(own));
    for (const char *p = own; (p = strstr(p, REFERENCE)) != NULL;) {
        p += strlen(REFERENCE);
        g_autofree char *other = g_strndup(p, strcspn(p, "\""));
        append(text, done, commands, other);
    }
}

char *
help_schema(const Command *const *commands, const char *name)
{
    g_autoptr(GHashTable) done = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    g_autofree char *own = own_text(commands, name);

    if (own == NULL)
        return NULL;
    GString *text =
        g_string_new("{\"$schema\": \"https://json-schema.org/draft/2020-12/schema\",\n");
    g_string_append_printf(
        text, "\"title\": \"degas-%s\",\n\"$ref\": \"#/$defs/%s\",\n\"$defs\": {", name, name);
    append(text, done, commands, name);
    g_string_append(text, "\n}}\n");
    return g_string_free(text, FALSE);
}
