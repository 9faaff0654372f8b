#include "cli/export/export.h"

#include <string.h>

const ExportTarget *const export_targets[] = {&export_megatron,
                                              &export_megatron_bridge,
                                              &export_deepspeed,
                                              &export_torchtitan,
                                              &export_pytorch_csv,
                                              &export_degas,
                                              NULL};

const ExportTarget *
export_target_find(const char *name)
{
    for (size_t i = 0; name != NULL && export_targets[i] != NULL; i++)
        if (strcmp(name, export_targets[i]->name) == 0)
            return export_targets[i];
    return NULL;
}

void
export_breaks(GArray *breaches, const char *change, const char *format, ...)
{
    PlanBreach breach = {.rule = "file", .change = g_strdup(change)};
    va_list args;

    va_start(args, format);
    breach.text = g_strdup_vprintf(format, args);
    va_end(args);
    g_array_append_val(breaches, breach);
}
