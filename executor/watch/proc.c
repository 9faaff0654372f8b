#include "executor/watch/proc.h"

#include <string.h>

char *
exec_proc_text(pid_t pid, const char *name, size_t *n_bytes)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/%s", (int)pid, name);
    char *text = NULL;

    return g_file_get_contents(path, &text, n_bytes, NULL) ? text : NULL;
}

/* "PID (NAME) STATE ...", and a name may have brackets of its own. */
bool
exec_proc_is_stopped(pid_t pid)
{
    g_autofree char *text = exec_proc_text(pid, "stat", NULL);
    const char *bracket = text == NULL ? NULL : strrchr(text, ')');

    return bracket != NULL && g_str_has_prefix(bracket, ") T");
}
