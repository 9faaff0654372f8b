#include "cli/draw/timeline.h"

#include <math.h>
#include <string.h>

#include "base/units.h"
#include "cli/request/output.h"

/* Okabe and Ito, "Color Universal Design", 2008, with grey for waiting. */
const TimelineStyle timeline_styles[TIMELINE_KIND_N] = {
    [TIMELINE_FORWARD] = {"forward", 0x0072b2, 0xffffff, "█", '#'},
    [TIMELINE_BACKWARD] = {"backward", 0xe69f00, 0x000000, "▒", '='},
    [TIMELINE_BACKWARD_INPUT] = {"input gradient", 0xd55e00, 0xffffff, "▓", '+'},
    [TIMELINE_BACKWARD_WEIGHT] = {"weight gradient", 0x009e73, 0xffffff, "░", '-'},
    [TIMELINE_RECOMPUTE] = {"recompute", 0x7f4a00, 0xffffff, "▚", ':'},
    [TIMELINE_MESSAGE] = {"message", 0xcc79a7, 0x000000, "╌", '~'},
    [TIMELINE_WAIT] = {"waiting", 0xdddddd, 0x000000, "·", '.'},
    [TIMELINE_DP] = {"data parallel", 0x56b4e9, 0x000000, "≈", '%'},
    [TIMELINE_OPTIMIZER] = {"optimizer", 0xf0e442, 0x000000, "◆", '*'},
};

static TimelineKind
kind_of(uint8_t event_kind)
{
    switch ((TraceEventKind)event_kind) {
    case TRACE_EVENT_FORWARD:
        return TIMELINE_FORWARD;
    case TRACE_EVENT_BACKWARD:
        return TIMELINE_BACKWARD;
    case TRACE_EVENT_BACKWARD_INPUT:
        return TIMELINE_BACKWARD_INPUT;
    case TRACE_EVENT_BACKWARD_WEIGHT:
        return TIMELINE_BACKWARD_WEIGHT;
    case TRACE_EVENT_WAIT:
        return TIMELINE_WAIT;
    case TRACE_EVENT_DP_REDUCE:
    case TRACE_EVENT_DP_GATHER:
        return TIMELINE_DP;
    case TRACE_EVENT_OPTIMIZER:
        return TIMELINE_OPTIMIZER;
    default:
        return TIMELINE_MESSAGE;
    }
}

/* A box being merged: how long each kind is in it. */
typedef struct {
    TimelineBox box;
    int64_t kind_ns[TIMELINE_KIND_N];
    bool is_open, is_merged;
} Merge;

/*
 * The mean colour of what was merged, gaps being white.  In steps of 8, so that neighbours of about
 * the same mix have the same colour.
 */
static uint32_t
mixed_rgb(const Merge *merge)
{
    const double all = (double)(merge->box.end_ns - merge->box.begin_ns);
    uint32_t rgb = 0;

    for (int shift = 0; shift < 24; shift += 8) {
        double sum = 0xff * all;

        for (size_t k = 0; k < TIMELINE_KIND_N; k++)
            sum -= (double)merge->kind_ns[k] * (0xff - (timeline_styles[k].rgb >> shift & 0xff));
        rgb |= MIN((uint32_t)(sum / all / 8 + 0.5) * 8, 0xff) << shift;
    }
    return rgb;
}

static void
merge_flush(Merge *merge, GArray *boxes)
{
    TimelineBox *box = &merge->box;

    if (!merge->is_open)
        return;
    if (merge->is_merged) {
        box->micro_batch = -1;
        box->rgb = mixed_rgb(merge);
        for (int k = 0; k < TIMELINE_KIND_N; k++) {
            if (merge->kind_ns[k] > merge->kind_ns[box->kind])
                box->kind = (uint8_t)k;
        }
    }
    g_array_append_val(boxes, *box);
    *merge = (Merge){0};
}

/* Invariant: what is in @boxes and the open merge do not overlap and are in order. */
static void
merge_add(Merge *merge, GArray *boxes, const TimelineBox *box, int64_t min_ns)
{
    const bool is_small = box->end_ns - box->begin_ns < min_ns;
    const TimelineBox *open = &merge->box;

    if (merge->is_open &&
        (!is_small || open->row != box->row || open->is_aside != box->is_aside ||
         box->begin_ns - open->end_ns >= min_ns || open->end_ns - open->begin_ns >= min_ns))
        merge_flush(merge, boxes);
    if (!is_small) {
        g_array_append_vals(boxes, box, 1);
        return;
    }
    if (!merge->is_open) {
        *merge = (Merge){.box = *box, .is_open = true};
    } else {
        merge->box.end_ns = box->end_ns;
        merge->is_merged = true;
    }
    merge->kind_ns[box->kind] += box->end_ns - box->begin_ns;
}

/* The box of an event: two where a part of it recomputes. */
static void
add_event(Merge *merge, GArray *boxes, TimelineBox box, float recompute_fraction, int64_t min_ns)
{
    TimelineBox recompute = box;

    if (recompute_fraction > 0) {
        recompute.end_ns =
            box.begin_ns +
            (int64_t)((double)recompute_fraction * (double)(box.end_ns - box.begin_ns) + 0.5);
        recompute.kind = TIMELINE_RECOMPUTE;
        recompute.rgb = timeline_styles[TIMELINE_RECOMPUTE].rgb;
        merge_add(merge, boxes, &recompute, min_ns);
        box.begin_ns = recompute.end_ns;
    }
    if (box.end_ns > box.begin_ns)
        merge_add(merge, boxes, &box, min_ns);
}

Timeline *
timeline_new(const Trace *trace, int64_t min_ns)
{
    Timeline *timeline = g_new0(Timeline, 1);
    Merge merge = {0};

    timeline->n_rows = trace->n_ranks;
    timeline->end_ns = trace->makespan_ns;
    timeline->boxes = g_array_new(FALSE, FALSE, sizeof(TimelineBox));
    for (guint i = 0; i < trace->events->len; i++) {
        const TraceEvent *event = &g_array_index(trace->events, TraceEvent, i);
        const bool has_op = event->kind <= TRACE_EVENT_WAIT;

        if (event->stream != TRACE_STREAM_COMPUTE && event->stream != TRACE_STREAM_DP)
            continue;
        if (event->end_ns <= event->start_ns)
            continue;
        const TimelineBox box = {
            .begin_ns = event->start_ns,
            .end_ns = event->end_ns,
            .row = event->rank,
            .micro_batch = has_op ? event->op.micro_batch : -1,
            .slice = event->op.slice,
            .chunk = event->op.chunk,
            .rgb = timeline_styles[kind_of(event->kind)].rgb,
            .kind = (uint8_t)kind_of(event->kind),
            .is_aside = event->stream == TRACE_STREAM_DP,
        };
        add_event(&merge, timeline->boxes, box, event->recompute_fraction, min_ns);
    }
    merge_flush(&merge, timeline->boxes);
    return timeline;
}

void
timeline_free(Timeline *timeline)
{
    if (timeline == NULL)
        return;
    g_array_unref(timeline->boxes);
    g_free(timeline);
}

static void
append_count(GString *text, int32_t n, const char *one)
{
    g_string_append_printf(text, ", %d %s%s", n, one, n == 1 ? "" : "s");
}

char *
timeline_title(const Trace *trace)
{
    GString *title = g_string_new(trace->schedule);
    g_autofree char *time = units_format_s(units_s_from_ns(trace->makespan_ns));

    append_count(title, trace->n_ranks, "rank");
    if (trace->n_chunks > 1)
        append_count(title, trace->n_chunks, "chunk");
    append_count(title, trace->n_micro_batches, "micro-batch");
    if (trace->n_micro_batches != 1)
        g_string_insert(title, (gssize)title->len - 1, "e"); /* micro-batches */
    if (trace->n_slices > 1)
        append_count(title, trace->n_slices, "slice");
    g_string_append_printf(title, ": %s %s", trace->measured ? "measured" : "iteration", time);
    if (!isnan(trace->bubble_fraction)) {
        g_autofree char *bubble = output_percent(trace->bubble_fraction);

        g_string_append_printf(title, ", bubble %s", bubble);
    }
    return g_string_free(title, FALSE);
}

void
timeline_label(const Trace *trace, const TimelineBox *box, char text[32])
{
    if (box->micro_batch < 0 || box->kind == TIMELINE_RECOMPUTE)
        *text = 0;
    else if (trace->n_slices > 1 && trace->n_micro_batches > 1)
        g_snprintf(text, 32, "%d.%d", box->micro_batch, box->slice);
    else
        g_snprintf(text, 32, "%d", trace->n_slices > 1 ? box->slice : box->micro_batch);
}

/* @rgb on the way to white: @share 0 is @rgb. */
static uint32_t
lighter(uint32_t rgb, double share)
{
    uint32_t out = 0;

    for (int shift = 0; shift < 24; shift += 8) {
        const double c = rgb >> shift & 0xff;

        out |= (uint32_t)(c + (255 - c) * share + 0.5) << shift;
    }
    return out;
}

uint32_t
timeline_box_rgb(const Trace *trace, const TimelineBox *box)
{
    const double parity = box->micro_batch % 2;

    if (box->micro_batch < 0)
        return box->rgb;
    if (trace->n_slices > 1)
        return lighter(box->rgb, 0.55 * box->slice / (trace->n_slices - 1));
    if (trace->n_chunks > 1)
        return lighter(box->rgb, 0.45 * box->chunk / (trace->n_chunks - 1) + 0.14 * parity);
    return lighter(box->rgb, 0.3 * parity);
}

uint32_t
timeline_label_rgb(uint32_t rgb)
{
    /* The luma of ITU-R BT.601, in thousandths. */
    const uint32_t luma = 299 * (rgb >> 16 & 0xff) + 587 * (rgb >> 8 & 0xff) + 114 * (rgb & 0xff);

    return luma > 130000 ? 0x000000 : 0xffffff;
}
