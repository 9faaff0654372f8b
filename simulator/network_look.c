/* Whether links suffice at given times; the declaration is in simulator/network.h. */
#include "simulator/network.h"

#include <math.h>

/* Goes through the transfers of one stream that cross a link, in the order of time. */
typedef struct {
    int32_t stream, link;
    int64_t next, end; /* indices: of ops, or of pieces */
    bool active;       /* the transfer at hand: */
    int64_t start_ns, end_ns;
    double bytes_per_s;
} Cursor;

typedef struct {
    const SimNetwork *network; /* (borrowed) */
    const SimProgram *program; /* (borrowed) */
    const SimTimes *times;     /* (borrowed) */
} Look;

/* What @way takes of the cursor's link. */
static double
taken_of_link(const Look *look, const Cursor *cursor, int64_t number)
{
    const SimRoute *route = &look->network->routes[number];

    for (int32_t k = 0; k < route->n_crossed; k++)
        if (route->crossed[k].link == cursor->link)
            return route->crossed[k].bytes_per_s;
    return 0;
}

/* What the op at @index of its rank's order puts on the cursor's stream; false: nothing. */
static bool
read_op(const Look *look, Cursor *cursor, int64_t index)
{
    const int32_t n_ranks = look->program->schedule->n_ranks;
    const uint32_t step = look->program->step_of[index];
    const SimStep s = look->program->steps[step];
    const SimCostDetail *detail = &look->program->details[s.cost];

    if (cursor->stream >= n_ranks) { /* an overlapped message */
        if (look->program->costs[s.cost].stream != cursor->stream - n_ranks + 1)
            return false;
        cursor->end_ns = look->times->ready_ns[step + 1];
        cursor->start_ns = cursor->end_ns - detail->out.ns;
        cursor->bytes_per_s = taken_of_link(look, cursor, sim_route_of_message(s.cost));
        return true;
    }
    /* The compute stream: a blocking message and the op, as if both took what takes more. */
    const SimOpTimes at = sim_times_step(look->times, look->program, step);
    cursor->start_ns = at.begin_ns;
    cursor->end_ns = at.end_ns;
    cursor->bytes_per_s = taken_of_link(look, cursor, sim_route_of_step(look->program, step));
    if (detail->in.compute_ns > 0)
        cursor->bytes_per_s =
            fmax(cursor->bytes_per_s,
                 taken_of_link(look, cursor,
                               sim_route_of_message(look->program->steps[s.producer - 1].cost)));
    return true;
}

static void
advance(const Look *look, Cursor *cursor)
{
    const int32_t n_ranks = look->program->schedule->n_ranks;

    cursor->active = false;
    while (!cursor->active && cursor->next < cursor->end) {
        const int64_t i = cursor->next++;
        if (cursor->stream < 3 * n_ranks) {
            cursor->active = read_op(look, cursor, i);
            continue;
        }
        const SimPiece *piece = &g_array_index(look->times->pieces, SimPiece, (guint)i);
        const bool gathers = piece->kind == TRACE_EVENT_DP_GATHER;
        cursor->active = piece->rank == cursor->stream - 3 * n_ranks;
        cursor->start_ns = piece->start_ns;
        cursor->end_ns = piece->end_ns;
        cursor->bytes_per_s =
            taken_of_link(look, cursor, sim_route_of_dp(look->program, piece->rank, gathers));
    }
}

static Cursor
cursor_at(const Look *look, const SimSuspect *suspect)
{
    const Schedule *schedule = look->program->schedule;
    const int32_t n_ranks = schedule->n_ranks;
    Cursor cursor = {.stream = suspect->stream, .link = suspect->link};

    if (suspect->stream >= 3 * n_ranks) {
        cursor.end = look->times->pieces->len;
    } else {
        const int32_t rank =
            suspect->stream < n_ranks ? suspect->stream : (suspect->stream - n_ranks) / 2;
        cursor.next = schedule->rank_begin[rank];
        cursor.end = schedule->rank_begin[rank + 1];
    }
    advance(look, &cursor);
    return cursor;
}

/* Whether the transfers of @cursors, streams on one link, never take more than it carries. */
static bool
link_suffices(const Look *look, Cursor *cursors, guint n)
{
    const double most = look->network->bytes_per_s[cursors[0].link] * (1 + SIM_LINK_TOLERANCE);

    for (;;) {
        Cursor *first = NULL;
        double taken = 0;
        for (guint i = 0; i < n; i++)
            if (cursors[i].active && (first == NULL || cursors[i].end_ns < first->end_ns))
                first = &cursors[i];
        if (first == NULL)
            return true;
        /* What has begun before the first ends is there with it, in the last instant before. */
        for (guint i = 0; i < n; i++)
            if (cursors[i].active && cursors[i].start_ns < first->end_ns)
                taken += cursors[i].bytes_per_s;
        if (taken > most && first->start_ns < first->end_ns)
            return false;
        advance(look, first);
    }
}

bool
sim_network_suffices(const SimNetwork *network, const SimProgram *program, const SimTimes *times)
{
    const GArray *suspects = network->suspects;
    g_autoptr(GArray) cursors = g_array_new(FALSE, FALSE, sizeof(Cursor));

    if (suspects->len == 0)
        return true;
    const Look look = {network, program, times};
    /* suspects[begin .. end) are the streams of one link. */
    for (guint begin = 0, end = 0; begin < suspects->len; begin = end) {
        const int32_t link = g_array_index(suspects, SimSuspect, begin).link;
        g_array_set_size(cursors, 0);
        for (; end < suspects->len; end++) {
            const SimSuspect *suspect = &g_array_index(suspects, SimSuspect, end);
            if (suspect->link != link)
                break;
            const Cursor cursor = cursor_at(&look, suspect);
            g_array_append_val(cursors, cursor);
        }
        if (!link_suffices(&look, (Cursor *)(void *)cursors->data, cursors->len))
            return false;
    }
    return true;
}
