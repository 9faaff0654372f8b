/* Memory of traces and reports; the declarations are in cli/draw/plot.h. */
#include <string.h>

#include "base/text.h"
#include "base/units.h"
#include "cli/draw/picture.h"
#include "cli/request/command.h"

/* Pixels of the picture, as in memory.gp. */
enum {
    WIDTH = 1200,
    LEFT = 72,
    RIGHT = 28,
    MIDDLE = 760, /* where the bars begin, beside a curve */
    TITLE = 34,
    PANEL_HEADER = 62,
    PANEL_HEIGHT = 260,
    PANEL_FOOTER = 52,
};

const PlotOwner plot_owners[TRACE_MEMORY_N] = {
    {TRACE_MEMORY_WEIGHTS, 0x0072b2, 'W'},     {TRACE_MEMORY_GRADIENTS, 0x56b4e9, 'G'},
    {TRACE_MEMORY_OPTIMIZER, 0x009e73, 'O'},   {TRACE_MEMORY_BUFFERS, 0xcc79a7, 'B'},
    {TRACE_MEMORY_WORKSPACE, 0x999999, 'S'},   {TRACE_MEMORY_KV, 0xf0e442, 'K'},
    {TRACE_MEMORY_ACTIVATIONS, 0xe69f00, 'A'},
};

/* One rank at its peak. */
typedef struct {
    int64_t total_bytes, at_ns;
    int64_t bytes[TRACE_MEMORY_N];
} Peak;

typedef struct {
    const char *name;
    const Trace *trace; /* (borrowed, nullable) of a report */
    GArray *peaks;      /* (owned) of Peak, by rank */
    int32_t fullest;    /* the first rank with the highest peak */
    int32_t shown;      /* the rank whose time is drawn; -1 when added: the fullest */
} Panel;

typedef struct {
    Panel panels[PLOT_MAX_TRACES];
    size_t n_panels;
    bool has_time;
    int64_t most_bytes, span_ns, limit_bytes;
} Memory;

static void
memory_clear(Memory *memory)
{
    for (size_t i = 0; i < memory->n_panels; i++)
        g_array_unref(memory->panels[i].peaks);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Memory, memory_clear)

/* --- peaks --- */

/* Returns: (owned) of Peak, by rank: the first highest point of each.  Cost: O(events).
 * Invariant: bytes[] is what the event's rank holds, by owner, after event i. */
static GArray *
peaks_of_trace(const Trace *trace)
{
    GArray *peaks = g_array_sized_new(FALSE, TRUE, sizeof(Peak), (guint)trace->n_ranks);
    int64_t bytes[TRACE_MEMORY_N] = {0}, total = 0;
    int32_t rank = -1;

    g_array_set_size(peaks, (guint)trace->n_ranks);
    for (guint i = 0; i < trace->memory->len; i++) {
        const TraceMemory *event = &g_array_index(trace->memory, TraceMemory, i);

        if (event->rank != rank) {
            memset(bytes, 0, sizeof bytes);
            total = 0;
            rank = event->rank;
        }
        bytes[event->owner] += event->delta_bytes;
        total += event->delta_bytes;
        Peak *peak = &g_array_index(peaks, Peak, rank);
        if (total > peak->total_bytes) {
            *peak = (Peak){.total_bytes = total, .at_ns = event->at_ns};
            memcpy(peak->bytes, bytes, sizeof bytes);
        }
    }
    return peaks;
}

static GArray *
peaks_of_report(const Report *report)
{
    GArray *peaks = g_array_sized_new(FALSE, TRUE, sizeof(Peak), report->ranks->len);

    for (guint i = 0; i < report->ranks->len; i++) {
        const ReportRank *rank = &g_array_index(report->ranks, ReportRank, i);
        Peak peak = {.total_bytes = rank->peak_memory_bytes, .at_ns = rank->peak_time_ns};

        memcpy(peak.bytes, rank->memory_bytes, sizeof peak.bytes);
        g_array_append_val(peaks, peak);
    }
    return peaks;
}

/* Adds @panel, whose peaks the picture owns from now on. */
static void
memory_add(Memory *memory, const Panel *panel)
{
    Panel *added = &memory->panels[memory->n_panels++];
    int64_t most = -1;

    *added = *panel;
    for (guint i = 0; i < panel->peaks->len; i++) {
        const Peak *peak = &g_array_index(panel->peaks, Peak, i);

        if (peak->total_bytes > most) {
            most = peak->total_bytes;
            added->fullest = (int32_t)i;
        }
    }
    if (panel->shown < 0)
        added->shown = added->fullest;
    memory->most_bytes = MAX(memory->most_bytes, most);
    if (panel->trace != NULL) {
        memory->has_time = true;
        memory->span_ns = MAX(memory->span_ns, panel->trace->makespan_ns);
    }
}

/* Whether anyone holds anything of plot_owners[@k] at a peak. */
static bool
memory_has(const Memory *memory, size_t k)
{
    for (size_t p = 0; p < memory->n_panels; p++) {
        const GArray *peaks = memory->panels[p].peaks;

        for (guint i = 0; i < peaks->len; i++) {
            if (g_array_index(peaks, Peak, i).bytes[plot_owners[k].owner] > 0)
                return true;
        }
    }
    return false;
}

/* --- tables --- */

static void
add_row(Table *data, size_t p, const char *part, int32_t rank, int64_t at_ns,
        const int64_t bytes[TRACE_MEMORY_N])
{
    table_add_int64(data, (int64_t)p);
    table_add_text(data, part);
    table_add_int64(data, rank);
    table_add_int64(data, at_ns);
    for (size_t k = 0; k < TRACE_MEMORY_N; k++)
        table_add_int64(data, bytes[plot_owners[k].owner]);
}

/* What a rank holds within one bin of time: where it begins, its highest, where it ends. */
typedef struct {
    int64_t bin;
    Peak top, last;
} Bin;

static void
add_bin(Table *data, size_t p, int32_t rank, const Bin *bin)
{
    if (bin->top.at_ns < bin->last.at_ns)
        add_row(data, p, "time", rank, bin->top.at_ns, bin->top.bytes);
    add_row(data, p, "time", rank, bin->last.at_ns, bin->last.bytes);
}

/* One rank's bytes as a staircase.
 * Invariant: now is what the rank holds before event i; rows up to the open bin are written. */
static void
add_curve(Table *data, const Memory *memory, size_t p, int64_t n_bins)
{
    const Panel *panel = &memory->panels[p];
    const GArray *events = panel->trace->memory;
    const int64_t bin_ns = MAX(memory->span_ns / n_bins, 1);
    Peak now = {0};
    Bin open = {.bin = -1};

    for (guint i = 0; i < events->len; i++) {
        const TraceMemory *event = &g_array_index(events, TraceMemory, i);

        if (event->rank != panel->shown)
            continue;
        if (event->at_ns / bin_ns != open.bin) {
            if (open.bin >= 0)
                add_bin(data, p, panel->shown, &open);
            if (open.bin >= 0)
                add_row(data, p, "time", panel->shown, event->at_ns, now.bytes);
            open = (Bin){.bin = event->at_ns / bin_ns};
        }
        now.bytes[event->owner] += event->delta_bytes;
        now.total_bytes += event->delta_bytes;
        now.at_ns = event->at_ns;
        if (now.total_bytes >= open.top.total_bytes)
            open.top = now;
        open.last = now;
    }
    if (open.bin >= 0)
        add_bin(data, p, panel->shown, &open);
    add_row(data, p, "time", panel->shown, panel->trace->makespan_ns, now.bytes);
}

/* Returns: (owned) rows of parts `peak` (each rank at its peak) and `time` (the shown rank as a
 * staircase, at most one step up and one down in each of @n_bins of the longest trace). */
static Table *
memory_table(const Memory *memory, int64_t n_bins)
{
    /* The owners in their order above. */
    Table *data = table_new_line("trace\tpart\trank\tat_ns\tweights_bytes\tgradients_bytes\t"
                                 "optimizer_bytes\tbuffers_bytes\tworkspace_bytes\tkv_bytes\t"
                                 "activations_bytes");

    for (size_t p = 0; p < memory->n_panels; p++) {
        const Panel *panel = &memory->panels[p];

        for (guint i = 0; i < panel->peaks->len; i++) {
            const Peak *peak = &g_array_index(panel->peaks, Peak, i);

            add_row(data, p, "peak", (int32_t)i, peak->at_ns, peak->bytes);
        }
        if (panel->trace != NULL)
            add_curve(data, memory, p, n_bins);
    }
    return data;
}

/* --- settings --- */

static void
set_owners(Picture *picture, const Memory *memory)
{
    size_t n = 0;

    picture_set(picture, "n_owners", TRACE_MEMORY_N);
    for (size_t k = 0; k < TRACE_MEMORY_N; k++) {
        const char *name = trace_memory_names[plot_owners[k].owner];

        picture_set_text_at(picture, "owner_name", k, name);
        picture_set_at(picture, "owner_color", k, plot_owners[k].rgb);
        if (!memory_has(memory, k))
            continue;
        picture_set_text_at(picture, "legend_name", n, name);
        picture_set_at(picture, "legend_color", n++, plot_owners[k].rgb);
    }
    picture_set(picture, "n_legend", (double)n);
}

/* A limit that would squeeze what it limits is told, not drawn. */
static bool
limit_is_drawn(const Memory *memory)
{
    return memory->limit_bytes > 0 && memory->limit_bytes / 4 <= memory->most_bytes;
}

static void
set_bytes_axis(Picture *picture, const Memory *memory)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    const double most =
        (double)MAX(MAX(memory->most_bytes, limit_is_drawn(memory) ? memory->limit_bytes : 0), 1);
    double scale = 1;
    size_t i = 0;
    g_autofree char *text =
        g_strdup_printf("limit %s", units_format_bytes((double)memory->limit_bytes).text);

    for (; i + 1 < G_N_ELEMENTS(units) && most >= 1024 * scale; i++)
        scale *= 1024;
    picture_set_text(picture, "byte_unit", units[i]);
    picture_set(picture, "byte_scale", scale);
    picture_set(picture, "top_bytes", 1.1 * most / scale);
    picture_set(picture, "limit", limit_is_drawn(memory) ? (double)memory->limit_bytes / scale : 0);
    picture_set_text(picture, "limit_text", text);
}

/* "rank 3, the fullest: 13.4 GiB at 1.2 s". */
static char *
about_time(const Panel *panel)
{
    const Peak *peak = &g_array_index(panel->peaks, Peak, panel->shown);

    return g_strdup_printf("rank %d%s: %s at %s", panel->shown,
                           panel->shown == panel->fullest ? ", the fullest" : ", its peak",
                           units_format_bytes((double)peak->total_bytes).text,
                           units_format_s(units_s_from_ns(peak->at_ns)).text);
}

static char *
about_peaks(const Memory *memory, const Panel *panel)
{
    const UnitsText bytes =
        units_format_bytes((double)g_array_index(panel->peaks, Peak, panel->fullest).total_bytes);

    if (memory->has_time)
        return g_strdup("each rank at its peak");
    if (memory->limit_bytes <= 0)
        return g_strdup_printf("each rank at its peak: at most %s", bytes.text);
    return g_strdup_printf("each rank at its peak: at most %s of %s", bytes.text,
                           units_format_bytes((double)memory->limit_bytes).text);
}

static int
bars_left(const Memory *memory)
{
    return memory->has_time ? MIDDLE : LEFT;
}

static void
set_panel(Picture *picture, const Memory *memory, size_t p, int top)
{
    const Panel *panel = &memory->panels[p];
    const double px = (double)(WIDTH - RIGHT - bars_left(memory)) / panel->peaks->len;
    g_autofree char *time = about_time(panel);
    g_autofree char *peaks = about_peaks(memory, panel);
    int32_t step = 1;

    while (step * px < 26)
        step *= 2;
    picture_set_text_at(picture, "name", p, panel->name);
    picture_set_text_at(picture, "about_time", p, time);
    picture_set_text_at(picture, "about_peaks", p, peaks);
    picture_set_at(picture, "panel_top", p, top);
    picture_set_at(picture, "n_ranks", p, panel->peaks->len);
    picture_set_at(picture, "rank_step", p, step);
    picture_set_at(picture, "bar_width", p, px >= 4 ? 0.8 : 1);
}

static void
fill(Picture *picture, const void *content, const PlotOptions *options)
{
    const Memory *memory = content;
    int y = options->title == NULL ? -12 : TITLE - 12;

    picture->data = memory_table(memory, 2 * (MIDDLE - LEFT)); /* bins of half a pixel */
    picture_set_titles(picture, options, "", "");
    picture_set(picture, "n_panels", (double)memory->n_panels);
    for (size_t p = 0; p < memory->n_panels; p++) {
        set_panel(picture, memory, p, y + PANEL_HEADER);
        y += PANEL_HEADER + PANEL_HEIGHT + PANEL_FOOTER;
    }
    picture_set(picture, "panels_end", y);
    picture_set(picture, "middle", bars_left(memory));
    picture_set(picture, "has_time", memory->has_time);
    picture_set_time_unit(picture, MAX(memory->span_ns, 1));
    set_bytes_axis(picture, memory);
    set_owners(picture, memory);
}

/* --- text --- */

/* A bar of letters: each owner's share is the difference of two rounded sums. */
static void
append_bar(GString *text, const Peak *peak, double bytes_per_cell)
{
    double sum = 0;
    int at = 0;

    for (size_t k = 0; k < TRACE_MEMORY_N; k++) {
        sum += (double)peak->bytes[plot_owners[k].owner];
        for (; at < (int)(sum / bytes_per_cell + 0.5); at++)
            g_string_append_c(text, plot_owners[k].letter);
    }
}

static void
append_panel(GString *text, const Memory *memory, const Panel *panel, int columns)
{
    const int n_cells = MAX(columns - 24, 10);
    const double most = (double)MAX(memory->most_bytes, memory->limit_bytes);
    g_autofree char *name = text_escape(panel->name, 160);
    g_autofree char *about = about_peaks(memory, panel);

    g_string_append_printf(text, "%s: %s\n", name, about);
    for (guint i = 0; i < panel->peaks->len; i++) {
        const Peak *peak = &g_array_index(panel->peaks, Peak, i);
        g_string_append_printf(text, "%8u %10s |", i,
                               units_format_bytes((double)peak->total_bytes).text);
        append_bar(text, peak, MAX(most, 1) / n_cells);
        g_string_append_c(text, '\n');
    }
}

static void
append_text(GString *text, const void *content, const PlotOptions *options)
{
    const Memory *memory = content;

    for (size_t p = 0; p < memory->n_panels; p++)
        append_panel(text, memory, &memory->panels[p],
                     options->columns > 0 ? options->columns : 100);
    for (size_t k = 0; k < TRACE_MEMORY_N; k++) {
        if (memory_has(memory, k))
            g_string_append_printf(text, "%c %s   ", plot_owners[k].letter,
                                   trace_memory_names[plot_owners[k].owner]);
    }
    g_string_truncate(text, text->len - 3);
    g_string_append_c(text, '\n');
}

static bool
draw(const Memory *memory, const PlotOptions *options, const char *path, GError **error)
{
    static const PictureKind kind = {
        .script = "cli/plots/memory.gp",
        .fill = fill,
        .append_text = append_text,
    };

    if (memory->most_bytes <= 0)
        return cmd_fail(error, CMD_ERROR_USAGE, "there is no memory to draw: it was not simulated");
    return picture_draw(&kind, memory, options, path, error);
}

bool
plot_memory(const PlotTrace *traces, size_t n_traces, const PlotOptions *options, const char *path,
            GError **error)
{
    g_auto(Memory) memory = {.limit_bytes = options->limit_bytes};

    g_return_val_if_fail(n_traces > 0 && n_traces <= PLOT_MAX_TRACES, false);
    for (size_t i = 0; i < n_traces; i++) {
        if (options->rank > traces[i].trace->n_ranks)
            return cmd_fail(error, CMD_ERROR_USAGE, "--rank: %d, but the trace's are 0 to %d",
                            options->rank - 1, traces[i].trace->n_ranks - 1);
        memory_add(&memory, &(Panel){.name = traces[i].name,
                                     .trace = traces[i].trace,
                                     .shown = options->rank - 1,
                                     .peaks = peaks_of_trace(traces[i].trace)});
    }
    return draw(&memory, options, path, error);
}

bool
plot_report_memory(const Report *report, const char *name, const PlotOptions *options,
                   const char *path, GError **error)
{
    g_auto(Memory) memory = {.limit_bytes = options->limit_bytes > 0 ? options->limit_bytes
                                                                     : report->memory_limit_bytes};

    memory_add(&memory, &(Panel){.name = name, .peaks = peaks_of_report(report)});
    return draw(&memory, options, path, error);
}
