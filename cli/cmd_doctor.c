/* degas doctor: what this machine has of what degas can use. */
#include <dlfcn.h>
#include <locale.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/host_memory.h"
#include "base/text.h"
#include "cli/help/help.h"
#include "cli/request/command.h"
#include "cli/request/output.h"
#include "executor/device/backend.h"
#include "executor/device/blas.h"
#include "executor/device/cores.h"
#include "executor/device/plugin.h"

static const OptionInfo options_table[] = {
    {"json", NULL, "print a degas-doctor object"},
    {NULL, NULL, NULL},
};

/* --- what is looked for: each function returns (owned) what was found, or NULL with why not --- */

static char *
find_program(char **why)
{
    g_autofree char *path = g_file_read_link("/proc/self/exe", NULL);

    (void)why;
    return g_strdup_printf("degas " DEGAS_VERSION ", %s", path == NULL ? "?" : path);
}

static char *
find_cores(char **why)
{
    const int64_t bytes = host_memory_available_bytes("");

    (void)why;
    if (bytes == INT64_MAX)
        return g_strdup_printf("%d", exec_n_cores());
    return g_strdup_printf("%d, and %s of memory", exec_n_cores(),
                           units_format_bytes((double)bytes).text);
}

static char *
find_blas(char **why)
{
    g_autoptr(GError) error = NULL;
    const ExecBlas *blas = exec_blas_open(&error);

    if (blas == NULL)
        *why = g_strdup(error->message);
    return blas == NULL ? NULL : g_strdup(blas->description);
}

/* The first line that "@name --version" prints. */
static char *
find_command(const char *name, char **why)
{
    g_autofree char *path = g_find_program_in_path(name);
    g_autofree char *text = NULL;
    const char *const argv[] = {path, "--version", NULL};

    if (path == NULL) {
        *why = g_strdup_printf("there is no program %s in PATH", name);
        return NULL;
    }
    if (!g_spawn_sync(NULL, (char **)argv, NULL, G_SPAWN_STDERR_TO_DEV_NULL, NULL, NULL, &text,
                      NULL, NULL, NULL) ||
        text == NULL) {
        *why = g_strdup_printf("%s cannot be run", path);
        return NULL;
    }
    text[strcspn(text, "\n")] = 0;
    return text_escape(*text == 0 ? path : text, 80);
}

static char *
find_gnuplot(char **why)
{
    return find_command("gnuplot", why);
}

static char *
find_mpirun(char **why)
{
    struct rlimit limit;
    g_autofree char *found = find_command("mpirun", why);

    if (found != NULL && getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < (rlim_t)4 << 20) {
        *why = g_strdup("Open MPI writes files of 4 MiB, and ulimit -f allows less");
        return NULL;
    }
    return g_steal_pointer(&found);
}

static char *
find_plugin(const char *name, char **why)
{
    g_autoptr(GError) error = NULL;
    char *path = exec_plugin_path(name, name, &error);

    if (path == NULL)
        *why = g_strdup(error->message);
    return path;
}

static char *
find_mpi_plugin(char **why)
{
    return find_plugin("mpi", why);
}

static char *
find_cuda_plugin(char **why)
{
    return find_plugin("cuda", why);
}

static char *
find_gpus(char **why)
{
    g_autoptr(GError) error = NULL;
    ExecDeviceInfo info = {0};
    const int32_t n = exec_backend_n_devices("cuda", &error);

    if (n < 1 || !exec_device_info("cuda", 0, &info, &error)) {
        *why = g_strdup(error == NULL ? "there is no GPU" : error->message);
        return NULL;
    }
    return g_strdup_printf("%d, %s of %s; driver %s", n, info.name,
                           units_format_bytes((double)info.memory_bytes).text, info.driver_name);
}

static char *
find_nccl(char **why)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    int (*get_version)(int *) = NULL;
    int version = 0;

    if (library == NULL) {
        *why = g_strdup(dlerror());
        return NULL;
    }
    *(void **)&get_version = dlsym(library, "ncclGetVersion");
    if (get_version == NULL || get_version(&version) != 0) {
        *why = g_strdup("libnccl.so.2 does not tell its version");
        return NULL;
    }
    return g_strdup_printf("NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

static char *
find_locale(char **why)
{
    const char *charset, *name = setlocale(LC_CTYPE, NULL);

    (void)why;
    return g_get_charset(&charset) ? g_strdup_printf("%s, UTF-8", name)
                                   : g_strdup_printf("%s, %s: terminals get ASCII", name, charset);
}

static char *
find_folder(char **why)
{
    const char *folder = g_get_tmp_dir();

    if (access(folder, W_OK | X_OK) == 0)
        return g_strdup(folder);
    *why = g_strdup_printf("%s cannot be written", folder);
    return NULL;
}

static char *
find_microhttpd(char **why)
{
    void *library = dlopen("libmicrohttpd.so.12", RTLD_NOW | RTLD_LOCAL);
    const char *(*version)(void) = NULL;
    void *symbol = library == NULL ? NULL : dlsym(library, "MHD_get_version");

    memcpy(&version, &symbol, sizeof version);
    if (version == NULL)
        *why = g_strdup("libmicrohttpd.so.12 is not there");
    return version == NULL ? NULL : g_strdup(version());
}

/* --- the table --- */

static const struct {
    const char *name;
    char *(*find)(char **why);
    const char *use; /* what degas needs it for */
    const char *get; /* how to get it; NULL: it is always there */
    bool of_gpu;     /* not missed where there is no NVIDIA GPU */
} items[] = {
    {"program", find_program, "", NULL, false},
    {"cores", find_cores, "plan, sweep, profile and run on CPUs", NULL, false},
    {"locale", find_locale, "text on a terminal", NULL, false},
    {"folder", find_folder, "files while a command runs",
     "set TMPDIR to a folder that can be written", false},
    {"OpenBLAS", find_blas, "profile and run with --device cpu", "apt install libopenblas0-pthread",
     false},
    {"gnuplot", find_gnuplot, "pictures as SVG and PNG", "apt install gnuplot-nox", false},
    {"libmicrohttpd", find_microhttpd, "serve", "apt install libmicrohttpd12", false},
    {"mpirun", find_mpirun, "run --transport mpi", "apt install openmpi-bin", false},
    {"degas-mpi.so", find_mpi_plugin, "run --transport mpi",
     "apt install libopenmpi-dev, then make, which builds the plugin", false},
    {"GPUs", find_gpus, "profile and run with --device cuda", "install NVIDIA's driver", true},
    {"degas-cuda.so", find_cuda_plugin, "profile and run with --device cuda",
     "install the CUDA toolkit with cuBLASLt, then make, which builds the plugin", true},
    {"NCCL", find_nccl, "run --transport nccl, and profile of several GPUs",
     "install NCCL 2.18 or later (libnccl2, or pip install nvidia-nccl-cu13)", true},
};

static bool
has_gpu(void)
{
    return g_file_test("/dev/nvidiactl", G_FILE_TEST_EXISTS) ||
           g_file_test("/proc/driver/nvidia/version", G_FILE_TEST_EXISTS);
}

static int
run(Options *options, GError **error)
{
    g_autoptr(JsonWriter) writer = output_json_new("degas-doctor");
    g_autoptr(OutputTable) table = output_table_new("<|<|<here|<for|<how to get it");
    g_autoptr(GString) missing = g_string_new(NULL);
    const bool gpu = has_gpu();

    json_write_array(writer, "items");
    for (size_t i = 0; i < G_N_ELEMENTS(items); i++) {
        g_autofree char *why = NULL, *found = items[i].find(&why);
        const char *state = found != NULL ? "ok" : items[i].of_gpu && !gpu ? "absent" : "missing";

        output_table_row(table, items[i].name, state, found != NULL ? found : why, items[i].use,
                         found != NULL ? "" : items[i].get, NULL);
        json_write_object(writer, NULL);
        json_write_string(writer, "name", items[i].name);
        json_write_string(writer, "state", state);
        json_write_string(writer, "found", found);
        json_write_string(writer, "why", why);
        json_write_string(writer, "use", items[i].use);
        json_write_string(writer, "get", items[i].get);
        json_write_object_end(writer);
        if (strcmp(state, "missing") == 0)
            g_string_append_printf(missing, "%s%s", missing->len == 0 ? "" : ", ", items[i].name);
    }
    json_write_array_end(writer);
    json_write_object_end(writer);
    if (options_has(options, "json")) {
        if (!output_json(g_steal_pointer(&writer), NULL, error))
            return -1;
    } else {
        output_table_print(table, 0);
    }
    if (missing->len > 0) {
        cmd_fail(error, CMD_ERROR_MISSING, "doctor: missing: %s", missing->str);
        return -1;
    }
    return 0;
}

const Command cmd_doctor = {
    .name = "doctor",
    .usage = "[--json]",
    .summary = "say what this machine has of what degas can use",
    .details = "ok: it is there.  missing: degas would use it here; the table says for what, and\n"
               "how to get it.  absent: it is of GPUs, and this machine has none.  Planning and\n"
               "simulating need nothing of all this.\n"
               "\n"
               "Exit status 6: something is missing.\n",
    .options = {options_table},
    .run = run,
};
