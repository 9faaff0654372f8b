#include "cli/draw/picture.h"

#include <glib/gstdio.h>
#include <math.h>
#include <string.h>
#include <sys/wait.h>

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

/* --- the private directory --- */

/* What a script loads, beside what is written for it. */
static const char *const shared_scripts[] = {"common.gp", "axes.gp", "panels.gp"};

static void
remove_directory(const char *dir)
{
    g_autoptr(GDir) entries = g_dir_open(dir, 0, NULL);
    const char *name;

    while (entries != NULL && (name = g_dir_read_name(entries)) != NULL) {
        g_autofree char *path = g_build_filename(dir, name, NULL);

        g_unlink(path);
    }
    g_rmdir(dir);
}

static bool
put(const char *dir, const char *name, const char *text, size_t n_bytes, GError **error)
{
    g_autofree char *path = g_build_filename(dir, name, NULL);

    return g_file_set_contents_full(path, text, (gssize)n_bytes, G_FILE_SET_CONTENTS_NONE, 0600,
                                    error);
}

static bool
put_table(const char *dir, const char *name, const Table *table, GError **error)
{
    size_t n;
    const char *text = table == NULL ? NULL : table_text(table, &n);

    return text == NULL || put(dir, name, text, n, error);
}

static bool
put_script(const char *dir, const char *name, const char *path, GError **error)
{
    const EmbeddedFile *script = embedded_find(path);

    g_assert(script != NULL);
    return put(dir, name, script->text, (size_t)(script->end - script->text), error);
}

static bool
put_all(const Picture *picture, const char *script, const char *dir, GError **error)
{
    for (size_t i = 0; i < G_N_ELEMENTS(shared_scripts); i++) {
        g_autofree char *path = g_strconcat("cli/plots/", shared_scripts[i], NULL);

        if (!put_script(dir, shared_scripts[i], path, error))
            return false;
    }
    return put_table(dir, "data.tsv", picture->data, error) &&
           put_table(dir, "labels.tsv", picture->labels, error) &&
           put(dir, "settings.gp", picture->settings->str, picture->settings->len, error) &&
           put_script(dir, "script.gp", script, error);
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

static bool
spawn(const Picture *picture, const char *gnuplot, const char *dir, const char *format,
      const char *path, GError **error)
{
    const char *argv[] = {gnuplot, "-d", "-c", "script.gp", format, NULL};
    g_auto(GStrv) environment = g_get_environ();
    g_autofree char *complaints = NULL, *text = NULL;
    g_autoptr(GError) failed = NULL;
    int status = 0;

    environment = g_environ_setenv(environment, "LC_ALL", "C", TRUE);
    if (!g_spawn_sync(dir, (char **)argv, environment, G_SPAWN_STDOUT_TO_DEV_NULL, NULL, NULL, NULL,
                      &complaints, &status, &failed)) {
        text = g_strdup_printf("gnuplot cannot be run (%s)", failed->message);
        return leave_data(picture, path, text, error);
    }
    if (!g_spawn_check_wait_status(status, NULL)) {
        g_autofree char *why = first_complaint(complaints);

        text = WIFSIGNALED(status)
                   ? g_strdup_printf("gnuplot was ended by signal %d", WTERMSIG(status))
                   : g_strdup_printf("gnuplot failed (%s)", why);
        return leave_data(picture, path, text, error);
    }
    return true;
}

/* gnuplot exits with 0 on a full disk: only a picture that has its end is one.
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
draw_in(const Picture *picture, const char *script, const char *gnuplot, const char *dir,
        Format format, const char *path, GError **error)
{
    g_autofree char *drawn = g_build_filename(dir, "picture", NULL);
    g_autofree char *text = NULL;
    size_t n = 0;

    if (!put_all(picture, script, dir, error) ||
        !spawn(picture, gnuplot, dir, suffixes[format] + 1, path, error))
        return false;
    if (!file_read(drawn, &text, &n, error))
        return false;
    n = complete_size(text, n, format);
    if (n == 0)
        return cmd_fail(error, CMD_ERROR_IO,
                        "gnuplot's picture is incomplete; is the disk of %s full?",
                        g_get_tmp_dir());
    return file_write(path, text, n, error);
}

static bool
run_gnuplot(const Picture *picture, const char *script, Format format, const char *path,
            GError **error)
{
    g_autofree char *found = g_find_program_in_path("gnuplot");
    g_autofree char *gnuplot = NULL, *dir = NULL;

    if (found == NULL)
        return leave_data(picture, path, "gnuplot not found", error);
    gnuplot = g_canonicalize_filename(found, NULL);
    dir = g_dir_make_tmp("degas-plot-XXXXXX", error);
    if (dir == NULL)
        return false;
    bool done = draw_in(picture, script, gnuplot, dir, format, path, error);
    remove_directory(dir);
    return done;
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
