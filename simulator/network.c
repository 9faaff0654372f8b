#include "simulator/network.h"

#include <math.h>
#include <string.h>

#include "base/order.h"
#include "simulator/pairs.h"

void
sim_network_clear(SimNetwork *network)
{
    g_clear_pointer(&network->bytes_per_s, g_free);
    g_clear_pointer(&network->routes, g_free);
    g_clear_pointer(&network->suspects, g_array_unref);
    g_clear_pointer(&network->crossings, g_array_unref);
}

/* --- routes --- */

#define fail(error, what) schedule_refuse(error, SHAPE, "workload: " what)

static bool
check_links(const SimProgram *program, GError **error)
{
    const WorkloadLinks *links = program->workload->links;
    const int64_t n = (int64_t)program->schedule->n_ranks * links->n_levels;

    if (links->n_levels < 1 || links->n_levels > MODEL_CLUSTER_MAX_LEVELS || links->n_links < 0)
        return fail(error, "the number of levels or links is out of range");
    for (int32_t i = 0; i < links->n_links; i++)
        if (!(links->bytes_per_s[i] > 0))
            return fail(error, "a link that carries nothing");
    for (int64_t i = 0; i < links->begin[n]; i++)
        if (links->crossings[i].link < 0 || links->crossings[i].link >= links->n_links ||
            links->crossings[i].n_devices < 0)
            return fail(error, "a crossing of a link that does not exist");
    return true;
}

int64_t
sim_route_of_step(const SimProgram *program, uint32_t step)
{
    const SimPairKind *pair = program->n_pairs == 0 ? NULL : sim_pair_at(program, step);

    return pair != NULL ? sim_route_of_pair(program, pair)
                        : sim_route_of_op(program->steps[step].cost);
}

/* Adds @bytes_per_s of each device of @rank that go to @level (@out) or come from there to the
 * route that begins at @first. */
static void
add_crossings(SimNetwork *network, const WorkloadLinks *links, guint first, int32_t rank,
              int32_t level, double bytes_per_s, double senders_fraction, bool out)
{
    const int64_t at = (int64_t)rank * links->n_levels + level;

    for (int64_t i = links->begin[at]; i < links->begin[at + 1]; i++) {
        const WorkloadCrossing *c = &links->crossings[i];
        const double n = c->n_devices == 0 ? 1.0 : senders_fraction * c->n_devices;
        const SimCrossing crossing = {n * bytes_per_s, 2 * c->link + (out ? 0 : 1)};
        guint k = first;

        while (k < network->crossings->len &&
               g_array_index(network->crossings, SimCrossing, k).link != crossing.link)
            k++;
        if (k < network->crossings->len)
            g_array_index(network->crossings, SimCrossing, k).bytes_per_s += crossing.bytes_per_s;
        else
            g_array_append_val(network->crossings, crossing);
    }
}

/* Ends the route that begins at @first; nothing takes more of a link than it carries. */
static void
end_route(SimNetwork *network, int64_t route, guint first, double device_bytes_per_s)
{
    double most = 1.0;

    for (guint k = first; k < network->crossings->len; k++) {
        const SimCrossing *c = &g_array_index(network->crossings, SimCrossing, k);
        most = fmax(most, c->bytes_per_s / network->bytes_per_s[c->link]);
    }
    for (guint k = first; k < network->crossings->len; k++)
        g_array_index(network->crossings, SimCrossing, k).bytes_per_s /= most;
    network->routes[route] = (SimRoute){.n_crossed = (int32_t)(network->crossings->len - first),
                                        .device_bytes_per_s = device_bytes_per_s,
                                        .visible = 1.0};
}

/* Collectives of @traffic_bytes by level in @ns, of which the rank waits for them during @seen_ns.
 * At the rate of the links they take longer, or as long; what is longer is hidden. */
static void
add_collectives(SimNetwork *network, const SimProgram *program, int64_t route, int32_t rank,
                const double *traffic_bytes, int64_t ns, int64_t seen_ns)
{
    const WorkloadLinks *links = program->workload->links;
    const guint first = network->crossings->len;
    double most_bytes = 0.0, sent_s = 0.0;

    for (int32_t level = 0; level < links->n_levels && ns > 0; level++) {
        const double bytes_per_s = traffic_bytes[level] / (1e-9 * (double)ns);
        if (!(traffic_bytes[level] > 0))
            continue;
        most_bytes = fmax(most_bytes, traffic_bytes[level]);
        add_crossings(network, links, first, rank, level, bytes_per_s, 1.0, true);
        add_crossings(network, links, first, rank, level, bytes_per_s, 1.0, false);
    }
    for (guint k = first; k < network->crossings->len; k++) {
        const SimCrossing *c = &g_array_index(network->crossings, SimCrossing, k);
        sent_s = fmax(sent_s, c->bytes_per_s / network->bytes_per_s[c->link] * 1e-9 * (double)ns);
    }
    sent_s = fmin(fmax(sent_s, 1e-9 * (double)seen_ns), 1e-9 * (double)MAX(ns, 1));
    end_route(network, route, first, most_bytes / fmax(sent_s, 1e-9));
    if (sent_s > 0)
        network->routes[route].visible = fmin(1.0, 1e-9 * (double)seen_ns / sent_s);
}

static void
add_op(SimNetwork *network, const SimProgram *program, int64_t cost)
{
    const SimCostDetail *detail = &program->details[cost];
    const float *sent_bytes =
        sim_program_workload_op(program, cost)->traffic_bytes[sim_op_kind(cost)];
    double traffic_bytes[MODEL_CLUSTER_MAX_LEVELS];

    for (int i = 0; i < MODEL_CLUSTER_MAX_LEVELS; i++)
        traffic_bytes[i] = (double)sent_bytes[i];
    add_collectives(network, program, sim_route_of_op(cost), detail->rank, traffic_bytes,
                    detail->op_ns, sim_collectives_ns(program, cost));
}

/* Two overlapped ops: what their collectives take longer than their computing is waited for. */
static void
add_pair(SimNetwork *network, const SimProgram *program, const SimPairKind *kind)
{
    const uint32_t costs[2] = {kind->first, kind->second};
    double traffic_bytes[MODEL_CLUSTER_MAX_LEVELS] = {0};
    int64_t computing_ns = 0;

    for (int i = 0; i < 2; i++) {
        const WorkloadOp *op = sim_program_workload_op(program, costs[i]);
        computing_ns += program->details[costs[i]].op_ns - sim_hidden_ns(program, costs[i]);
        for (int level = 0; level < MODEL_CLUSTER_MAX_LEVELS; level++)
            traffic_bytes[level] += (double)op->traffic_bytes[sim_op_kind(costs[i])][level];
    }
    add_collectives(network, program, sim_route_of_pair(program, kind),
                    program->details[kind->first].rank, traffic_bytes, kind->ns,
                    MAX(kind->ns - computing_ns, 0));
}

static bool
add_message(SimNetwork *network, const SimProgram *program, int64_t cost, GError **error)
{
    const WorkloadLinks *links = program->workload->links;
    const SimCostDetail *detail = &program->details[cost];
    const WorkloadMessage *message = workload_message(sim_program_workload_op(program, cost),
                                                      cost % SIM_KIND_N == SCHEDULE_OP_FORWARD);
    const int32_t level = message->level;
    const guint first = network->crossings->len;
    double bytes_per_s = 0.0;

    if (detail->out.exists && detail->out.ns > 0) {
        bytes_per_s = (double)message->sent_bytes / (1e-9 * (double)detail->out.ns);
        if (level < 0 || level >= links->n_levels || message->sent_bytes < 0)
            return fail(error, "a message's level or bytes are out of range");
    }
    if (bytes_per_s > 0) {
        add_crossings(network, links, first, detail->rank, level, bytes_per_s,
                      links->senders_fraction, true);
        add_crossings(network, links, first, detail->out.peer, level, bytes_per_s,
                      links->senders_fraction, false);
    }
    end_route(network, sim_route_of_message(cost), first, bytes_per_s);
    return true;
}

/* --- what may be on a link at once --- */

/* A stream runs one transfer at a time: the compute stream of a rank, one of sim_stream(), or the
 * dp stream of a rank. */
static int32_t
stream_of(const SimProgram *program, int64_t route)
{
    const int32_t n_ranks = program->schedule->n_ranks;
    const int64_t cost = route / 2, pair = route - 2 * program->n_costs - 2 * (int64_t)n_ranks;

    if (pair >= 0)
        return program->details[program->pair_kinds[pair].first].rank;
    if (cost >= program->n_costs)
        return 3 * n_ranks + (int32_t)(cost - program->n_costs);
    const SimCostDetail *detail = &program->details[cost];
    if (route == sim_route_of_op(cost))
        return detail->rank;
    if (program->workload->blocking_messages) /* it arrives on the receiver's compute stream */
        return detail->out.exists ? detail->out.peer : detail->rank;
    return detail->out.exists ? n_ranks - 1 + sim_stream(program, detail->rank, detail->out.peer)
                              : detail->rank;
}

/* Ways in the order of their streams: @ordered[stream_begin[s] ..) are those of stream s. */
static int64_t *
order_routes(const SimProgram *program, int64_t n_routes, int64_t *stream_begin, int32_t n_streams)
{
    int64_t *ordered = g_new(int64_t, (size_t)MAX(n_routes, 1));
    g_autofree int64_t *next = g_new0(int64_t, (size_t)n_streams + 1);

    for (int64_t route = 0; route < n_routes; route++)
        next[stream_of(program, route) + 1]++;
    for (int32_t s = 0; s < n_streams; s++)
        next[s + 1] += next[s];
    memcpy(stream_begin, next, sizeof *next * ((size_t)n_streams + 1));
    for (int64_t route = 0; route < n_routes; route++)
        ordered[next[stream_of(program, route)]++] = route;
    return ordered;
}

/* What one stream takes of links at the most. */
typedef struct {
    double *most;    /* (owned) [link] 0 between two streams */
    GArray *touched; /* of int32_t: links that have more than 0 */
} Most;

static void
take_most(const SimNetwork *network, const int64_t *routes, int64_t n, Most *most)
{
    for (int64_t i = 0; i < n; i++) {
        const SimRoute *route = &network->routes[routes[i]];
        for (int32_t k = 0; k < route->n_crossed; k++) {
            const SimCrossing *c = &route->crossed[k];
            if (most->most[c->link] == 0)
                g_array_append_val(most->touched, c->link);
            most->most[c->link] = fmax(most->most[c->link], c->bytes_per_s);
        }
    }
}

static gint
compare_suspects(gconstpointer left, gconstpointer right)
{
    const SimSuspect *a = left, *b = right;

    ORDER_BY(a->link, b->link);
    return ORDER(a->stream, b->stream);
}

/* Fills suspects: the links of which all streams together may want too much. */
static void
find_suspects(SimNetwork *network, const SimProgram *program, int64_t n_routes)
{
    const int32_t n_streams = 4 * program->schedule->n_ranks;
    g_autofree int64_t *begin = g_new(int64_t, (size_t)n_streams + 1);
    g_autofree int64_t *ordered = order_routes(program, n_routes, begin, n_streams);
    g_autofree double *sum = g_new0(double, (size_t)network->n_links + 1);
    g_autofree double *room = g_new0(double, (size_t)network->n_links + 1);
    Most most = {room, g_array_new(FALSE, FALSE, sizeof(int32_t))};
    guint n = 0;

    for (int32_t s = 0; s < n_streams; s++) {
        take_most(network, &ordered[begin[s]], begin[s + 1] - begin[s], &most);
        for (guint i = 0; i < most.touched->len; i++) {
            const SimSuspect suspect = {g_array_index(most.touched, int32_t, i), s};
            sum[suspect.link] += most.most[suspect.link];
            most.most[suspect.link] = 0;
            g_array_append_val(network->suspects, suspect);
        }
        g_array_set_size(most.touched, 0);
    }
    for (guint i = 0; i < network->suspects->len; i++) {
        const SimSuspect suspect = g_array_index(network->suspects, SimSuspect, i);
        if (sum[suspect.link] > network->bytes_per_s[suspect.link] * (1 + SIM_LINK_TOLERANCE))
            g_array_index(network->suspects, SimSuspect, n++) = suspect;
    }
    g_array_set_size(network->suspects, n);
    g_array_sort(network->suspects, compare_suspects);
    g_array_unref(most.touched);
}

/* Lets the routes know where their crossings are, now that these have all been found. */
static void
point_routes(SimNetwork *network, int64_t n_routes)
{
    const SimCrossing *crossed = (const SimCrossing *)(const void *)network->crossings->data;

    for (int64_t route = 0; route < n_routes; route++) {
        network->routes[route].crossed = crossed;
        crossed += network->routes[route].n_crossed;
    }
}

/* Forgets the crossings of links that never fill: nobody need look at them. */
static void
keep_suspects(SimNetwork *network, int64_t n_routes)
{
    g_autofree bool *can_fill = g_new0(bool, (size_t)network->n_links + 1);
    SimCrossing *kept = (SimCrossing *)(void *)network->crossings->data;
    const SimCrossing *crossing = kept;

    for (guint i = 0; i < network->suspects->len; i++)
        can_fill[g_array_index(network->suspects, SimSuspect, i).link] = true;
    /* Routes before this one have their crossings before kept; its own begin at crossing. */
    for (int64_t route = 0; route < n_routes; route++) {
        const SimCrossing *end = crossing + network->routes[route].n_crossed;
        network->routes[route].crossed = kept;
        for (; crossing < end; crossing++)
            if (can_fill[crossing->link])
                *kept++ = *crossing;
        network->routes[route].n_crossed = (int32_t)(kept - network->routes[route].crossed);
    }
}

bool
sim_network_init(SimNetwork *network, const SimProgram *program, GError **error)
{
    const Workload *workload = program->workload;
    const WorkloadLinks *links = workload->links;
    const int64_t n_routes =
        2 * program->n_costs + 2 * (int64_t)program->schedule->n_ranks + program->n_pair_kinds;

    if (!check_links(program, error))
        return false;
    *network = (SimNetwork){.n_links = 2 * links->n_links};
    network->bytes_per_s = g_new(double, (size_t)MAX(network->n_links, 1));
    network->suspects = g_array_new(FALSE, FALSE, sizeof(SimSuspect));
    for (int32_t i = 0; i < network->n_links; i++)
        network->bytes_per_s[i] = links->bytes_per_s[i / 2];
    network->routes = g_new0(SimRoute, (size_t)MAX(n_routes, 1));
    /* With room, so that its data is there even where no route crosses another. */
    network->crossings = g_array_sized_new(FALSE, FALSE, sizeof(SimCrossing), 1);
    for (int64_t cost = 0; cost < program->n_costs; cost++) {
        if (program->counts[cost] == 0) { /* nothing goes there */
            network->routes[sim_route_of_op(cost)] = (SimRoute){.visible = 1.0};
            network->routes[sim_route_of_message(cost)] = (SimRoute){.visible = 1.0};
            continue;
        }
        add_op(network, program, cost);
        if (!add_message(network, program, cost, error))
            return false;
    }
    for (int32_t rank = 0; rank < program->schedule->n_ranks; rank++) {
        const WorkloadRank *work = &workload->ranks[rank];
        add_collectives(network, program, sim_route_of_dp(program, rank, false), rank,
                        work->dp_reduce_traffic_bytes, work->dp_reduce_ns, work->dp_reduce_ns);
        add_collectives(network, program, sim_route_of_dp(program, rank, true), rank,
                        work->dp_gather_traffic_bytes, work->dp_gather_ns, work->dp_gather_ns);
    }
    for (int32_t i = 0; i < program->n_pair_kinds; i++)
        add_pair(network, program, &program->pair_kinds[i]);
    point_routes(network, n_routes);
    find_suspects(network, program, n_routes);
    keep_suspects(network, n_routes);
    return true;
}

/* --- whether links suffice at given times --- */

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

/* What the route of @number takes of the cursor's link. */
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

/* Until when the transfers of @cursors, streams on one link, do not take more than it carries, or
 * @until_ns if that is earlier. */
static int64_t
link_suffices_until(const Look *look, Cursor *cursors, guint n, int64_t until_ns)
{
    const double most = look->network->bytes_per_s[cursors[0].link] * (1 + SIM_LINK_TOLERANCE);

    for (;;) {
        Cursor *first = NULL;
        double taken = 0;
        for (guint i = 0; i < n; i++)
            if (cursors[i].active && (first == NULL || cursors[i].end_ns < first->end_ns))
                first = &cursors[i];
        if (first == NULL)
            return until_ns;
        /* What has begun before the first ends is there with it, in the last instant before. */
        int64_t begin_ns = first->end_ns;
        for (guint i = 0; i < n; i++)
            if (cursors[i].active && cursors[i].start_ns < first->end_ns) {
                taken += cursors[i].bytes_per_s;
                begin_ns = MIN(begin_ns, cursors[i].start_ns);
            }
        if (taken > most && first->start_ns < first->end_ns)
            return MIN(begin_ns, until_ns);
        /* Nothing that begins before then is left. */
        if (begin_ns >= until_ns)
            return until_ns;
        advance(look, first);
    }
}

int64_t
sim_network_suffices_until(const SimNetwork *network, const SimProgram *program,
                           const SimTimes *times)
{
    const GArray *suspects = network->suspects;
    g_autoptr(GArray) cursors = g_array_new(FALSE, FALSE, sizeof(Cursor));
    int64_t until_ns = INT64_MAX;
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
        until_ns =
            link_suffices_until(&look, (Cursor *)(void *)cursors->data, cursors->len, until_ns);
    }
    return until_ns;
}
