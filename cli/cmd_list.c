/* degas list: what is built in. */
#include <string.h>

#include "base/units.h"
#include "cli/request/command.h"
#include "cli/request/output.h"
#include "profiles/profile.h"
#include "schedule/schedule.h"

static const OptionInfo options_table[] = {
    {"json", NULL, "print a degas-list object: {\"format\":\"degas-list\",...,\"names\":[...]}"},
    {NULL, NULL, NULL},
};

static const char *const kinds[] = {"models", "clusters", "schedules", NULL};

static bool
print_models(GError **error)
{
    g_autoptr(OutputTable) table =
        output_table_new("<model|parameters|layers|hidden|heads|vocabulary|sequence");
    g_autoptr(GPtrArray) names = model_arch_builtin_names();

    for (guint i = 0; i < names->len; i++) {
        g_autoptr(ModelArch) arch = model_arch_load(g_ptr_array_index(names, i), NULL, error);

        if (arch == NULL)
            return false;
        const int64_t numbers[] = {arch->n_layers, arch->hidden, arch->n_heads, arch->vocab,
                                   arch->max_seq_len};
        output_table_row(table, arch->name, units_format_count((double)model_parameters(arch)).text,
                         NULL);
        for (size_t k = 0; k < G_N_ELEMENTS(numbers); k++)
            output_table_printf(table, INT, numbers[k]);
    }
    output_table_print(table, 0);
    return true;
}

static bool
print_clusters(GError **error)
{
    g_autoptr(OutputTable) table = output_table_new("<cluster|devices|<device|memory|fastest");
    g_autoptr(GPtrArray) names = profile_builtin_names();

    for (guint i = 0; i < names->len; i++) {
        g_autoptr(Profile) profile = profile_load(g_ptr_array_index(names, i), error);
        double fastest = 0;

        if (profile == NULL)
            return false;
        const ModelDevice *device = model_cluster_device(profile->cluster, 0);
        for (int d = 0; d < DTYPE_N; d++)
            fastest = MAX(fastest, device->flops_per_s[d]);
        output_table_row(table, g_ptr_array_index(names, i),
                         output_int64(model_cluster_n_devices(profile->cluster)).text, device->name,
                         units_format_bytes((double)device->memory_bytes).text,
                         units_format_flops(fastest).text, NULL);
    }
    output_table_print(table, 0);
    return true;
}

static void
print_schedules(void)
{
    g_autoptr(OutputTable) table = output_table_new("<schedule|<slices|<chunks|<");

    for (const ScheduleFamily *const *f = schedule_families(); *f != NULL; f++) {
        output_table_row(table, (*f)->name, (*f)->slices ? "yes" : "no", NULL);
        if ((*f)->min_chunks == (*f)->max_chunks)
            output_table_printf(table, "%d", (*f)->min_chunks);
        else
            output_table_printf(table, "%d or more", (*f)->min_chunks);
        output_table_add(table, (*f)->summary);
    }
    output_table_print(table, 0);
}

static GPtrArray *
schedule_names(void)
{
    GPtrArray *names = g_ptr_array_new_with_free_func(g_free);

    for (const ScheduleFamily *const *f = schedule_families(); *f != NULL; f++)
        g_ptr_array_add(names, g_strdup((*f)->name));
    return names;
}

static bool
print_json(int kind, GError **error)
{
    JsonWriter *writer = output_json_new("degas-list");
    g_autoptr(GPtrArray) names = kind == 0   ? model_arch_builtin_names()
                                 : kind == 1 ? profile_builtin_names()
                                             : schedule_names();

    json_write_string(writer, "kind", kinds[kind]);
    json_write_array(writer, "names");
    for (guint i = 0; i < names->len; i++)
        json_write_string(writer, NULL, g_ptr_array_index(names, i));
    json_write_array_end(writer);
    json_write_object_end(writer);
    return output_json(writer, NULL, error);
}

static int
run(Options *options, GError **error)
{
    const char *what = options_argument(options, 0);
    int kind = 0;

    while (kinds[kind] != NULL && strcmp(kinds[kind], what) != 0)
        kind++;
    if (kinds[kind] == NULL) {
        g_set_error(error, CMD_ERROR, CMD_ERROR_USAGE,
                    "list: expected models, clusters or schedules, got \"%s\"", what);
        return -1;
    }
    if (options_has(options, "json"))
        return print_json(kind, error) ? 0 : -1;
    if (kind == 0)
        return print_models(error) ? 0 : -1;
    if (kind == 1)
        return print_clusters(error) ? 0 : -1;
    print_schedules();
    return 0;
}

const Command cmd_list = {
    .name = "list",
    .usage = "models|clusters|schedules [--json]",
    .summary = "list the built-in models, clusters or schedules",
    .options = {options_table},
    .min_arguments = 1,
    .max_arguments = 1,
    .common = true,
    .run = run,
};
