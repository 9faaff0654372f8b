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

/* Returns: (owned, nullable) the format's own file. */
static char *
own_text(const char *name)
{
    g_autofree char *path = g_strconcat(FOLDER, name, ".json", NULL);
    const EmbeddedFile *file = embedded_find(path);

    return file == NULL ? NULL : g_strdup(file->text);
}

/* Appends the definition of @name, and then of what it refers to, unless that is there. */
static void
append(GString *text, GHashTable *done, const char *name)
{
    g_autofree char *own = own_text(name);

    if (own == NULL || !g_hash_table_add(done, g_strdup(name)))
        return;
    g_string_append_printf(text, "%s\n\"%s\": %s", g_hash_table_size(done) == 1 ? "" : ",", name,
                           g_strchomp(own));
    for (const char *p = own; (p = strstr(p, REFERENCE)) != NULL;) {
        p += strlen(REFERENCE);
        g_autofree char *other = g_strndup(p, strcspn(p, "\""));
        append(text, done, other);
    }
}

char *
help_schema(const char *name)
{
    g_autoptr(GHashTable) done = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    g_autofree char *own = own_text(name);

    if (own == NULL)
        return NULL;
    GString *text =
        g_string_new("{\"$schema\": \"https://json-schema.org/draft/2020-12/schema\",\n");
    g_string_append_printf(
        text, "\"title\": \"degas-%s\",\n\"$ref\": \"#/$defs/%s\",\n\"$defs\": {", name, name);
    append(text, done, name);
    g_string_append(text, "\n}}\n");
    return g_string_free(text, FALSE);
}
