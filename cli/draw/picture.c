#include "cli/draw/picture.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/embedded.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "cli/request/command.h"
#include "cli/request/output.h"

typedef enum {
    FORMAT_SVG,
    FORMAT_PNG,
    FORMAT_TEXT,
    FORMAT_TSV,
    FORMAT_N,
} Format;

static const char *const suffixes[] = {".svg", ".png", ".txt", ".tsv"};

/* By suffix, whatever its case; "-" is text.  FORMAT_N with CMD_ERROR_USAGE if unknown. */
static Format
format_of(const char *path, GError **error)
{
    const char *dot = strrchr(path, '.');
    g_autofree char *shown = text_escape(path, 200);

    if (strcmp(path, "-") == 0)
        return FORMAT_TEXT;
    for (int i = 0; dot != NULL && i < FORMAT_N; i++) {
        if (g_ascii_strcasecmp(dot, suffixes[i]) == 0)
            return (Format)i;
    }
    g_set_error(error, CMD_ERROR, CMD_ERROR_USAGE,
                "%s: a picture's name ends in .svg, .png, .txt or .tsv", shown);
    return FORMAT_N;
}

bool
plot_path_check(const char *path, GError **error)
{
    return format_of(path, error) != FORMAT_N;
}

static void
picture_clear(Picture *picture)
{
    if (picture->settings != NULL)
        g_string_free(picture->settings, TRUE);
    table_free(picture->data);
    table_free(picture->labels);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Picture, picture_clear)

/* --- settings --- */

/* Of an array: the tics of an axis are the most (3 * MAX_DECADES). */
#define MAX_ELEMENTS 128

/* A quote could be doubled, but gnuplot 5.4 misreads one that comes first; so it becomes a
 * typographic one, and what stands between two quotes never has one in it. */
static void
append_quoted(GString *settings, const char *text)
{
    g_autofree char *safe = text_escape(text, 160);

    g_string_append_c(settings, '\'');
    for (const char *c = safe; *c != 0; c++) {
        if (*c == '\'')
            g_string_append(settings, "\u2019");
        else if ((unsigned char)*c >= 0x20)
            g_string_append_c(settings, *c);
    }
    g_string_append(settings, "'\n");
}

void
picture_set(Picture *picture, const char *name, double value)
{
    g_autofree char *digits = json_format_double(value);

    /* A whole number would be an integer, and overflow. */
    g_string_append_printf(picture->settings, "%s = %s%s\n", name,
                           fabs(value) >= G_MAXINT ? "1.0*" : "", digits);
}

void
picture_set_text(Picture *picture, const char *name, const char *value)
{
    g_string_append_printf(picture->settings, "%s = ", name);
    append_quoted(picture->settings, value);
}

/* "array[i + 1]", after the array was declared with its first element; (owned). */
static char *
element_of(Picture *picture, const char *array, size_t i)
{
    g_return_val_if_fail(i < MAX_ELEMENTS, g_strdup(array));
    if (i == 0)
        g_string_append_printf(picture->settings, "array %s[%d]\n", array, MAX_ELEMENTS);
    return g_strdup_printf("%s[%zu]", array, i + 1);
}

void
picture_set_at(Picture *picture, const char *array, size_t i, double value)
{
    g_autofree char *element = element_of(picture, array, i);

    picture_set(picture, element, value);
}

void
picture_set_text_at(Picture *picture, const char *array, size_t i, const char *value)
{
    g_autofree char *element = element_of(picture, array, i);

    picture_set_text(picture, element, value);
}

void
picture_set_rgb_at(Picture *picture, const char *array, size_t i, uint32_t rgb)
{
    char color[8];

    g_snprintf(color, sizeof color, "#%06x", rgb & 0xffffff);
    picture_set_text_at(picture, array, i, color);
}

void
picture_set_titles(Picture *picture, const PlotOptions *options, const char *title,
                   const char *subtitle)
{
    picture_set_text(picture, "title", options->title == NULL ? title : options->title);
    picture_set_text(picture, "subtitle", subtitle);
    picture_set_text(picture, "footer", options->footer == NULL ? "" : options->footer);
}

/* 1, 2 or 5 times a power of ten: the smallest that needs at most @max steps for @span. */
static double
tic_step(double span, int max)
{
    static const int factors[] = {1, 2, 5};

    for (int exponent = -9; exponent < 18; exponent++) {
        const double power = pow(10, exponent);
        for (size_t i = 0; i < G_N_ELEMENTS(factors); i++) {
            if (span <= max * power * factors[i])
                return power * factors[i];
        }
    }
    return span;
}

double
picture_time_step(double span)
{
    return tic_step(span, 12);
}

double
picture_set_time_unit(Picture *picture, int64_t span_ns)
{
    static const struct {
        const char *name;
        double ns;
    } units[] = {{"s", 1e9}, {"ms", 1e6}, {"µs", 1e3}, {"ns", 1}};
    size_t i = 0;

    while (i + 1 < G_N_ELEMENTS(units) && (double)span_ns <= units[i].ns)
        i++;
    picture_set_text(picture, "time_unit", units[i].name);
    picture_set(picture, "time_scale", units[i].ns);
    picture_set(picture, "span", (double)span_ns / units[i].ns);
    picture_set(picture, "tic_step", picture_time_step((double)span_ns / units[i].ns));
    return units[i].ns;
}

/* "50 k" */
static char *
tic_name(double value)
{
    static const char *const prefixes[] = {"", " k", " M", " G", " T", " P"};
    size_t i = 0;

    for (; value >= 1000 && i + 1 < G_N_ELEMENTS(prefixes); i++)
        value /= 1000;
    g_autofree char *digits = json_format_double(value);
    return g_strconcat(digits, prefixes[i], NULL);
}

/* More tics than this are too many. */
#define MAX_LOG_TICS 10
#define MAX_DECADES 40

void
picture_set_range(Picture *picture, const char *axis, double low, double high)
{
    /* The finest of these that does not crowd the axis; a number that is no factor is 0. */
    static const double factors[][8] = {
        {1, 1.5, 2, 3, 4, 5, 6, 8}, {1, 2, 3, 5, 7}, {1, 2, 5}, {1}};
    static const double densities[] = {8, 5, 3}; /* factors in a decade */
    const double n_decades = low > 0 ? log10(high / low) : INFINITY;
    size_t set = 0;
    g_autofree char *tic = g_strconcat(axis, "_tic", NULL);
    g_autofree char *tic_names = g_strconcat(axis, "_tic_name", NULL);
    int decade = low > 0 ? (int)floor(log10(low)) : 0;
    size_t n = 0;

    while (set < G_N_ELEMENTS(densities) && densities[set] * n_decades > MAX_LOG_TICS)
        set++;
    for (int d = 0; d < MAX_DECADES; d++, decade++) {
        for (size_t i = 0; i < G_N_ELEMENTS(factors[set]) && factors[set][i] > 0; i++) {
            const double value = pow(10, decade) * factors[set][i];
            g_autofree char *name = tic_name(value);

            if (value < low || value > high)
                continue;
            picture_set_at(picture, tic, n, value);
            picture_set_text_at(picture, tic_names, n++, name);
        }
    }
    const struct {
        const char *name;
        double value;
    } settings[] = {{"n_tics", (double)n}, {"low", low}, {"high", high}};
    for (size_t i = 0; i < G_N_ELEMENTS(settings); i++) {
        g_autofree char *name = g_strdup_printf("%s_%s", axis, settings[i].name);

        picture_set(picture, name, settings[i].value);
    }
}

/* --- gnuplot's files --- */

/* What a script loads, beside what is written for it: "common_gp" is the variable with its path. */
static const char *const shared_scripts[] = {"common", "axes", "panels"};

/* Descriptors in gnuplot of what it reads: the first, and so on. */
#define FIRST_DESCRIPTOR 3

/* All that gnuplot reads and writes: files in memory, which end with the last process that has them open.
 * So whatever ends degas or gnuplot, no file is left. */
typedef struct {
    int picture;    /* what gnuplot writes to its stdout; -1: not made yet */
    int complaints; /* and to its stderr */
    GArray *read;   /* (owned) int; descriptor FIRST_DESCRIPTOR + i of gnuplot is element i */
} Files;

static void
close_file(void *fd)
{
    close(*(int *)fd);
}

static void
files_clear(Files *files)
{
    g_array_unref(files->read);
    if (files->picture >= 0)
        close(files->picture);
    if (files->complaints >= 0)
        close(files->complaints);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Files, files_clear)

/* A new file in memory with this text; -1 if there is none to be had. */
static int
memory_file(const char *text, size_t n_bytes, GError **error)
{
    const int fd = memfd_create("degas-plot", MFD_CLOEXEC);
    const int code = fd < 0 ? errno : file_move(fd, true, (char *)text, n_bytes, 0);

    if (code == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    cmd_fail(error, CMD_ERROR_IO, "the numbers of a picture cannot be written to memory (%s)",
             g_strerror(code));
    return -1;
}

static char *
gnuplots_path(guint i)
{
    return g_strdup_printf("/dev/fd/%u", FIRST_DESCRIPTOR + i);
}

/* Adds a file that gnuplot reads.  @settings (nullable): @variable becomes its path there. */
static bool
put(Files *files, GString *settings, const char *variable, const char *text, size_t n_bytes,
    GError **error)
{
    const int fd = memory_file(text, n_bytes, error);
    g_autofree char *path = gnuplots_path(files->read->len);

    if (fd < 0)
        return false;
    g_array_append_val(files->read, fd);
    if (settings != NULL)
        g_string_append_printf(settings, "%s = '%s'\n", variable, path);
    return true;
}

static bool
put_table(Files *files, GString *settings, const char *variable, const Table *table, GError **error)
{
    size_t n;
    const char *text = table == NULL ? NULL : table_text(table, &n);

    return text == NULL || put(files, settings, variable, text, n, error);
}

static bool
put_script(Files *files, GString *settings, const char *variable, const char *path, GError **error)
{
    const EmbeddedFile *script = embedded_find(path);

    g_assert(script != NULL);
    return put(files, settings, variable, script->text, (size_t)(script->end - script->text),
               error);
}

/* The last two are the settings, which name the others, and the script. */
static bool
put_all(Files *files, const Picture *picture, const char *script, GError **error)
{
    GString *settings = picture->settings;

    files->picture = memory_file("", 0, error);
    if (files->picture < 0)
        return false;
    files->complaints = memory_file("", 0, error);
    if (files->complaints < 0)
        return false;
    for (size_t i = 0; i < G_N_ELEMENTS(shared_scripts); i++) {
        g_autofree char *path = g_strdup_printf("cli/plots/%s.gp", shared_scripts[i]);
        g_autofree char *variable = g_strdup_printf("%s_gp", shared_scripts[i]);

        if (!put_script(files, settings, variable, path, error))
            return false;
    }
    return put_table(files, settings, "data_tsv", picture->data, error) &&
           put_table(files, settings, "labels_tsv", picture->labels, error) &&
           put(files, NULL, NULL, settings->str, settings->len, error) &&
           put_script(files, NULL, NULL, script, error);
}

/* What gnuplot wrote there. */
static bool
written(int fd, char **text, size_t *n_bytes, GError **error)
{
    g_autofree char *path = g_strdup_printf("/dev/fd/%d", fd);

    return file_read(path, text, n_bytes, error);
}

/* --- running --- */

/* Leaves the numbers beside the target; always false. */
static bool
leave_data(const Picture *picture, const char *path, const char *why, GError **error)
{
    g_autofree char *beside =
        g_strdup_printf("%.*s.tsv", (int)(strrchr(path, '.') - path), path); /* for curve.svg */
    g_autofree char *shown = text_escape(beside, 200);
    size_t n;
    const char *data = table_text(picture->data, &n);

    return file_write(beside, data, n, error) &&
           cmd_fail(error, CMD_ERROR_MISSING, "%s; the data is in %s", why, shown);
}

/* The first line of what gnuplot has to say that says something. */
static char *
first_complaint(const char *text)
{
    g_auto(GStrv) lines = g_strsplit(text, "\n", 0);
    const char *found = "no message";

    for (size_t i = 0; lines[i] != NULL; i++) {
        g_strstrip(lines[i]);
        if (strstr(lines[i], "line ") != NULL && strstr(lines[i], "warning:") == NULL) {
            found = lines[i];
            break;
        }
    }
    return text_escape(found, 300);
}

/* Runs gnuplot to its end.  Returns: whether it could be started.  @status as of waitpid() */
static bool
spawn(const Files *files, const char *gnuplot, const char *format, int *status, GError **error)
{
    const guint n = files->read->len;
    g_autofree char *settings = gnuplots_path(n - 2), *script = gnuplots_path(n - 1);
    const char *argv[] = {gnuplot, "-d", "-c", script, format, settings, NULL};
    g_auto(GStrv) environment = g_environ_setenv(g_get_environ(), "LC_ALL", "C", TRUE);
    g_autofree int *targets = g_new(int, n);
    GPid child;

    for (guint i = 0; i < n; i++)
        targets[i] = FIRST_DESCRIPTOR + (int)i;
    if (!g_spawn_async_with_pipes_and_fds(NULL, argv, (const char *const *)environment,
                                          G_SPAWN_DO_NOT_REAP_CHILD, NULL, NULL, -1, files->picture,
                                          files->complaints, (const int *)(void *)files->read->data,
                                          targets, n, &child, NULL, NULL, NULL, error))
        return false;
    *status = 0; /* it stays so where whoever started degas ignores SIGCHLD: the picture tells */
    while (waitpid(child, status, 0) < 0 && errno == EINTR)
        continue;
    return true;
}

/* Why there is no picture: (owned); NULL if gnuplot says that it drew one. */
static char *
draw(const Files *files, const char *gnuplot, const char *format)
{
    g_autoptr(GError) failed = NULL;
    g_autofree char *complaints = NULL;
    size_t n;
    int status;

    if (!spawn(files, gnuplot, format, &status, &failed))
        return g_strdup_printf("gnuplot cannot be run (%s)", failed->message);
    if (WIFSIGNALED(status))
        return g_strdup_printf("gnuplot was ended by signal %d", WTERMSIG(status));
    if (WEXITSTATUS(status) == 0)
        return NULL;
    g_autofree char *why =
        first_complaint(written(files->complaints, &complaints, &n, NULL) ? complaints : "");
    return g_strdup_printf("gnuplot failed (%s)", why);
}

/* gnuplot exits with 0 where it cannot write: only a picture that has its end is one.
 * Returns: the bytes of the picture without empty lines after it; 0 if it is incomplete. */
static size_t
complete_size(const char *text, size_t n, Format format)
{
    static const char png_end[] = "IEND\xae\x42\x60\x82";
    static const char svg_end[] = "</svg>\n";
    const char *end = format == FORMAT_SVG ? svg_end : png_end;
    const size_t n_end = strlen(end);

    while (format == FORMAT_SVG && n > 1 && text[n - 1] == '\n' && text[n - 2] == '\n')
        n--;
    return n > n_end && memcmp(text + n - n_end, end, n_end) == 0 ? n : 0;
}

static bool
run_gnuplot(const Picture *picture, const char *script, Format format, const char *path,
            GError **error)
{
    g_autofree char *found = g_find_program_in_path("gnuplot");
    g_autofree char *gnuplot = NULL, *why = NULL, *text = NULL;
    g_auto(Files) files = {-1, -1, g_array_new(FALSE, FALSE, sizeof(int))};
    size_t n = 0;

    if (found == NULL)
        return leave_data(picture, path, "gnuplot not found", error);
    gnuplot = g_canonicalize_filename(found, NULL);
    g_array_set_clear_func(files.read, close_file);
    if (!put_all(&files, picture, script, error))
        return false;
    why = draw(&files, gnuplot, suffixes[format] + 1);
    if (why != NULL)
        return leave_data(picture, path, why, error);
    if (!written(files.picture, &text, &n, error))
        return false;
    n = complete_size(text, n, format);
    if (n == 0)
        return cmd_fail(error, CMD_ERROR_IO, "gnuplot's picture is incomplete");
    return file_write(path, text, n, error);
}

/* --- all formats --- */

void
picture_append_title(GString *text, const char *title)
{
    g_autofree char *shown = text_escape(title, 160);

    g_string_append_printf(text, "%s\n\n", shown);
}

static bool
write_text(const PictureKind *kind, const void *content, const PlotOptions *options,
           const char *path, GError **error)
{
    g_autoptr(GString) text = g_string_new(NULL);

    if (options->title != NULL && !kind->has_own_title)
        picture_append_title(text, options->title);
    kind->append_text(text, content, options);
    if (strcmp(path, "-") != 0)
        return file_write(path, text->str, text->len, error);
    output_text(text->str);
    return true;
}

bool
picture_draw(const PictureKind *kind, const void *content, const PlotOptions *options,
             const char *path, GError **error)
{
    const Format format = format_of(path, error);
    g_auto(Picture) picture = {0};

    if (format == FORMAT_N)
        return false;
    if (format == FORMAT_TEXT)
        return write_text(kind, content, options, path, error);
    picture.settings = g_string_new(NULL);
    kind->fill(&picture, content, options);
    if (format == FORMAT_TSV) {
        size_t n;
        const char *data = table_text(picture.data, &n);

        return file_write(path, data, n, error);
    }
    return run_gnuplot(&picture, kind->script, format, path, error);
}
