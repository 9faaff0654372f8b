#include "cli/draw/plot_memory_picture.h"

#include <string.h>

void
memory_picture_clear(MemoryPicture *picture)
{
    for (size_t i = 0; i < picture->n_panels; i++)
        g_array_unref(picture->panels[i].peaks);
}
/* --- peaks --- */

/* Invariant: bytes[] is what the event's rank holds, by owner, after event i. */
GArray *
memory_peaks_of_trace(const Trace *trace)
{
    GArray *peaks = g_array_sized_new(FALSE, TRUE, sizeof(MemoryPeak), (guint)trace->n_ranks);
    int64_t bytes[TRACE_MEMORY_N] = {0}, total = 0;
    int32_t rank = -1;

    g_array_set_size(peaks, (guint)trace->n_ranks);
    for (guint i = 0; i < trace->memory->len; i++) {
        const TraceMemory *event = &g_array_index(trace->memory, TraceMemory, i);
        MemoryPeak *peak;

        if (event->rank != rank) {
            memset(bytes, 0, sizeof bytes);
            total = 0;
            rank = event->rank;
        }
        bytes[event->owner] += event->delta_bytes;
        total += event->delta_bytes;
        peak = &g_array_index(peaks, MemoryPeak, rank);
        if (total > peak->total_bytes) {
            *peak = (MemoryPeak){.total_bytes = total, .at_ns = event->at_ns};
            memcpy(peak->bytes, bytes, sizeof bytes);
        }
    }
    return peaks;
}

GArray *
memory_peaks_of_report(const Report *report)
{
    GArray *peaks = g_array_sized_new(FALSE, TRUE, sizeof(MemoryPeak), report->ranks->len);

    for (guint i = 0; i < report->ranks->len; i++) {
        const ReportRank *rank = &g_array_index(report->ranks, ReportRank, i);
        MemoryPeak peak = {.total_bytes = rank->peak_memory_bytes, .at_ns = rank->peak_time_ns};

        memcpy(peak.bytes, rank->memory_bytes, sizeof peak.bytes);
        g_array_append_val(peaks, peak);
    }
    return peaks;
}

void
memory_picture_add(MemoryPicture *picture, const MemoryPanel *panel)
{
    MemoryPanel *added = &picture->panels[picture->n_panels++];
    int64_t most = -1;

    *added = *panel;
    for (guint i = 0; i < panel->peaks->len; i++) {
        const MemoryPeak *peak = &g_array_index(panel->peaks, MemoryPeak, i);

        if (peak->total_bytes > most) {
            most = peak->total_bytes;
            added->fullest = (int32_t)i;
        }
    }
    if (panel->shown < 0)
        added->shown = added->fullest;
    picture->most_bytes = MAX(picture->most_bytes, most);
    if (panel->trace != NULL) {
        picture->has_time = true;
        picture->span_ns = MAX(picture->span_ns, panel->trace->makespan_ns);
    }
}

const MemoryPeak *
memory_panel_highest(const MemoryPanel *panel)
{
    return &g_array_index(panel->peaks, MemoryPeak, panel->fullest);
}

bool
memory_picture_has(const MemoryPicture *picture, size_t k)
{
    for (size_t p = 0; p < picture->n_panels; p++) {
        const GArray *peaks = picture->panels[p].peaks;

        for (guint i = 0; i < peaks->len; i++) {
            if (g_array_index(peaks, MemoryPeak, i).bytes[plot_owners[k].owner] > 0)
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
    MemoryPeak top, last;
} Bin;

static void
add_bin(Table *data, size_t p, int32_t rank, const Bin *bin)
{
    if (bin->top.at_ns < bin->last.at_ns)
        add_row(data, p, "time", rank, bin->top.at_ns, bin->top.bytes);
    add_row(data, p, "time", rank, bin->last.at_ns, bin->last.bytes);
}

/*
 * One rank's bytes as a staircase.
 * Invariant: now is what the rank holds before event i; rows up to the open bin are written.
 */
static void
add_curve(Table *data, const MemoryPicture *picture, size_t p, int64_t n_bins)
{
    const MemoryPanel *panel = &picture->panels[p];
    const GArray *memory = panel->trace->memory;
    const int64_t bin_ns = MAX(picture->span_ns / n_bins, 1);
    MemoryPeak now = {0};
    Bin open = {.bin = -1};

    for (guint i = 0; i < memory->len; i++) {
        const TraceMemory *event = &g_array_index(memory, TraceMemory, i);

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

Table *
memory_picture_table(const MemoryPicture *picture, int64_t n_bins)
{
    /* The owners in their order above. */
    static const char *const header[] = {"trace",
                                         "part",
                                         "rank",
                                         "at_ns",
                                         "weights_bytes",
                                         "gradients_bytes",
                                         "optimizer_bytes",
                                         "buffers_bytes",
                                         "workspace_bytes",
                                         "kv_bytes",
                                         "activations_bytes",
                                         NULL};
    Table *data = table_new(header);

    for (size_t p = 0; p < picture->n_panels; p++) {
        const MemoryPanel *panel = &picture->panels[p];

        for (guint i = 0; i < panel->peaks->len; i++) {
            const MemoryPeak *peak = &g_array_index(panel->peaks, MemoryPeak, i);

            add_row(data, p, "peak", (int32_t)i, peak->at_ns, peak->bytes);
        }
        if (panel->trace != NULL)
            add_curve(data, picture, p, n_bins);
    }
    return data;
}
