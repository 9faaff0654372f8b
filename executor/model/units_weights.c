/* Whole weights of units.h: from the copies' parts and from the host, now or ahead of use. */
#include "executor/model/units_state.h"

#include "executor/device/clock.h"
#include "executor/transport/collective.h"

static const ExecRegion *
region_of(const ExecUnits *units, int32_t unit)
{
    return &units->o.model->regions[exec_units_unit(units, unit)->region];
}

static const ExecGroup *
group_of(const ExecUnits *units, int32_t unit)
{
    return &units->o.comm->groups[exec_region_dim(exec_units_unit(units, unit)->region)];
}

static ExecPrefetch *
prefetches(const ExecUnits *units, guint i)
{
    return &units->prefetches[i % exec_units_n_slots(units)];
}

/* --- offloaded weights --- */

/* Where the own part of unit @k of opening @i is fetched to. */
static int
slot_of(const ExecUnits *units, guint i, int k)
{
    return 2 * (int)(i % exec_units_n_slots(units)) + k;
}

/* Where opening @i's parts go when they are fetched nobody needs anything more: it has been
 * uploaded, or copied by those it was lent to. */
static bool
regain_slots(ExecUnits *units, guint i, GError **error)
{
    ExecBackend *backend = units->o.model->backend;
    ExecTransport *t = units->o.comm->transport;
    ExecPrefetch *before = prefetches(units, i);

    if (units->o.by == EXEC_GATHER_ASIDE)
        return before->there == NULL || !exec_offload_has_buffers(units->o.model->offload) ||
               backend->ops->await(backend, before->there, error);
    for (int k = 0; k < 2; k++) {
        const ExecLoan loan = before->loans[k];
        before->loans[k] = (ExecLoan){0};
        if (loan.data != NULL && t->ops->lend != NULL &&
            !t->ops->regain(t, loan.data, loan.n_bytes, error))
            return false;
    }
    return true;
}

/* Lets the reading of opening @i's own parts begin. */
static bool
ask_for(ExecUnits *units, guint i)
{
    const ExecOpening *opening = &g_array_index(units->o.openings, ExecOpening, i);
    const ExecModel *model = units->o.model;
    GError *error = NULL;
    bool ok = true;

    units->n_asked = i + 1;
    for (int k = 0; k < 2 && ok; k++) {
        const int32_t unit = opening->units[k];
        int64_t begin;
        if (unit < 0 || !region_of(units, unit)->weights_off)
            continue;
        const int64_t n = exec_model_own_part(model, exec_units_unit(units, unit), &begin);
        const int64_t at =
            exec_model_at(model, EXEC_CONTENT_OPTIMIZER, exec_units_unit(units, unit), begin);
        ok = (k == 1 || regain_slots(units, i, &error)) &&
             exec_offload_fetch(model->offload, slot_of(units, i, k),
                                exec_model_weights_part(model), at, n, &error);
    }
    if (!ok)
        exec_comm_fail(units->o.comm, error);
    return ok;
}

/* --- parts as messages --- */

/* As those of collectives: MPI's lengths are limited. */
static bool
lend_pieces(ExecTransport *t, int32_t to, int64_t tag, const char *data, int64_t n_bytes,
            GError **error)
{
    for (int64_t at = 0; at < n_bytes; at += EXEC_SEGMENT_BYTES)
        if (!(t->ops->lend != NULL ? t->ops->lend : t->ops->send)(
                t, to, tag, data + at, MIN(EXEC_SEGMENT_BYTES, n_bytes - at), error))
            return false;
    return true;
}

static bool
expect_pieces(ExecTransport *t, int32_t from, int64_t tag, char *data, int64_t n_bytes,
              GError **error)
{
    for (int64_t at = 0; t->ops->expect != NULL && at < n_bytes; at += EXEC_SEGMENT_BYTES)
        if (!t->ops->expect(t, from, tag, data + at, MIN(EXEC_SEGMENT_BYTES, n_bytes - at), error))
            return false;
    return true;
}

static bool
receive_pieces(ExecTransport *t, int32_t from, int64_t tag, char *data, int64_t n_bytes,
               GError **error)
{
    for (int64_t at = 0; at < n_bytes; at += EXEC_SEGMENT_BYTES)
        if (!t->ops->receive(t, from, tag, data + at, MIN(EXEC_SEGMENT_BYTES, n_bytes - at), error))
            return false;
    return true;
}

/* This rank's part of unit @k of opening @i, in host memory; NULL: it could not be fetched. */
static const void *
own_part(ExecUnits *units, guint i, int k)
{
    const int32_t unit = g_array_index(units->o.openings, ExecOpening, i).units[k];
    GError *error = NULL;

    if (!region_of(units, unit)->weights_off)
        return exec_units_part(units, unit, EXEC_CONTENT_WEIGHTS);
    const void *fetched =
        exec_offload_fetched(units->o.model->offload, slot_of(units, i, k), &error);
    if (fetched == NULL)
        exec_comm_fail(units->o.comm, error);
    return fetched;
}

/* Lends this rank's part of @unit to all other copies, and awaits theirs in @whole. */
static bool
exchange_parts(ExecUnits *units, int32_t unit, const void *part, void *whole)
{
    const ExecGroup *group = group_of(units, unit);
    const ExecBackend *backend = units->o.model->backend;
    ExecTransport *t = units->o.comm->transport;
    GError *error = NULL;
    bool ok = true;
    int64_t n;

    exec_units_part_at(units, unit, &n);
    const int64_t n_bytes = exec_storage_bytes(backend, n);
    /* From the next one on round the ring: not all to the same one first. */
    for (int32_t step = 1; step < group->n && ok; step++) {
        const int32_t to = group->ranks[(group->index + step) % group->n];
        const int32_t i = (group->index + group->n - step) % group->n;
        ok = expect_pieces(t, group->ranks[i], units->o.tag, exec_at(backend, whole, i * n),
                           n_bytes, &error) &&
             lend_pieces(t, to, units->o.tag, part, n_bytes, &error);
    }
    if (!ok)
        exec_comm_fail(units->o.comm, error);
    return ok;
}

/* Unit @k of opening @i gets under way. */
static bool
begin_messages(ExecUnits *units, guint i, int k)
{
    ExecPrefetch *prefetch = prefetches(units, i);
    ExecBackend *backend = units->o.model->backend;
    const int32_t unit = g_array_index(units->o.openings, ExecOpening, i).units[k];
    int64_t n;

    if (prefetch->whole[k].data == NULL)
        return true;
    const int64_t at = exec_units_part_at(units, unit, &n);
    const int64_t n_bytes = exec_storage_bytes(backend, n);
    const void *own = own_part(units, i, k);
    if (own == NULL)
        return false;
    /* Host memory: what was fetched can be lent as it is. */
    if (region_of(units, unit)->weights_off)
        prefetch->loans[k] = (ExecLoan){own, n_bytes};
    backend->ops->copy(backend, (size_t)n_bytes, own,
                       exec_at(backend, prefetch->whole[k].data, at));
    return exchange_parts(units, unit, own, prefetch->whole[k].data);
}

/* The parts of the other copies. */
static bool
receive_parts(ExecUnits *units, int32_t unit, void *whole)
{
    const ExecGroup *group = group_of(units, unit);
    const ExecBackend *backend = units->o.model->backend;
    ExecTransport *t = units->o.comm->transport;
    GError *error = NULL;
    int64_t n;

    exec_units_part_at(units, unit, &n);
    for (int32_t step = 1; step < group->n; step++) {
        const int32_t i = (group->index + group->n - step) % group->n;
        if (receive_pieces(t, group->ranks[i], units->o.tag, exec_at(backend, whole, i * n),
                           exec_storage_bytes(backend, n), &error))
            continue;
        exec_comm_fail(units->o.comm, error);
        return false;
    }
    return true;
}

/* --- whole weights --- */

/* This rank's part of unit @k of opening @i to @to on the device. */
static bool
place_own_part(ExecUnits *units, guint i, int k, void *to)
{
    ExecBackend *backend = units->o.model->backend;
    const int32_t unit = g_array_index(units->o.openings, ExecOpening, i).units[k];
    GError *error = NULL;
    int64_t n;

    exec_units_part_at(units, unit, &n);
    if (!region_of(units, unit)->weights_off) {
        backend->ops->copy(backend, (size_t)exec_storage_bytes(backend, n),
                           exec_units_part(units, unit, EXEC_CONTENT_WEIGHTS), to);
        return true;
    }
    if (exec_offload_upload(units->o.model->offload, slot_of(units, i, k), backend, to, &error))
        return true;
    exec_comm_fail(units->o.comm, error);
    return false;
}

/* Unit @k of opening @i, in @whole. */
static bool
make_whole(ExecUnits *units, guint i, int k, const ExecBlock *whole)
{
    const int32_t unit = g_array_index(units->o.openings, ExecOpening, i).units[k];
    const ExecBackend *backend = units->o.model->backend;
    int64_t n;
    const int64_t at = exec_units_part_at(units, unit, &n);

    if (!place_own_part(units, i, k, exec_at(backend, whole->data, at)))
        return false;
    exec_comm_all_gather(units->o.comm, exec_region_dim(exec_units_unit(units, unit)->region),
                         backend->storage, exec_units_unit(units, unit)->n, whole->data);
    return units->o.comm->error == NULL;
}

/* Whole weights of opening @i in @whole: those that are apart. */
static bool
make_opening_whole(ExecUnits *units, guint i, ExecBlock whole[2])
{
    for (int k = 0; k < 2 && units->o.comm->error == NULL; k++)
        if (whole[k].data != NULL && !make_whole(units, i, k, &whole[k]))
            return false;
    return units->o.comm->error == NULL;
}

/* Of the whole weights of unit @k of opening @i; 0: they are not apart. */
static int64_t
whole_bytes(const ExecUnits *units, guint i, int k)
{
    const int32_t unit = g_array_index(units->o.openings, ExecOpening, i).units[k];

    return exec_units_is_apart(units, unit)
               ? exec_storage_bytes(units->o.model->backend, exec_units_unit(units, unit)->n)
               : 0;
}

static bool
take_whole(ExecUnits *units, guint i, ExecBlock whole[2])
{
    for (int k = 0; k < 2; k++) {
        const int64_t n_bytes = whole_bytes(units, i, k);
        if (n_bytes == 0)
            continue;
        if (!exec_units_take(units, n_bytes, &whole[k]))
            return false;
        units->gatherings[i].n_bytes += whole[k].n_bytes;
    }
    return true;
}

/* --- ahead of use --- */

/* Into memory that ops before this may have given back: the second queue begins behind them. */
static bool
gather_aside(ExecUnits *units, guint i)
{
    ExecBackend *backend = units->o.model->backend;
    ExecPrefetch *prefetch = prefetches(units, i);

    backend->ops->begin_aside(backend);
    exec_backend_stamp(backend, &units->gatherings[i].begin_ns);
    const bool ok = make_opening_whole(units, i, prefetch->whole);
    exec_backend_stamp(backend, &units->gatherings[i].end_ns);
    backend->ops->end_aside(backend, &prefetch->there);
    return ok;
}

/* Opening @i gets under way, and what the next one needs of the host is read meanwhile. */
static bool
begin_opening(ExecUnits *units, guint i)
{
    units->n_begun = i + 1;
    units->gatherings[i] = (ExecGathering){.begin_ns = exec_now_ns()};
    if (units->n_asked <= i && !ask_for(units, i))
        return false;
    if (units->o.by == EXEC_GATHER_NOW)
        return true;
    if (!take_whole(units, i, prefetches(units, i)->whole))
        return false;
    if (units->o.by == EXEC_GATHER_ASIDE
            ? !gather_aside(units, i)
            : !begin_messages(units, i, 0) || !begin_messages(units, i, 1))
        return false;
    return units->o.depth == 0 || i + 1 >= units->o.openings->len || ask_for(units, i + 1);
}

/* Openings that are under way beside the one at work. */
static guint
n_ahead(const ExecUnits *units)
{
    return units->o.by == EXEC_GATHER_NOW ? 0 : (guint)units->o.depth;
}

/* As many openings after @units->next - 1, which is at work, as may be under way. */
static void
begin_ahead(ExecUnits *units)
{
    const guint end = MIN(units->next + n_ahead(units), units->o.openings->len);
    int64_t n_bytes = 0;

    for (guint i = units->next; i < end && units->o.comm->error == NULL; i++) {
        n_bytes += whole_bytes(units, i, 0) + whole_bytes(units, i, 1);
        if (n_bytes > units->o.ahead_bytes || (i == units->n_begun && !begin_opening(units, i)))
            return;
    }
}

void
exec_units_begin_step(ExecUnits *units)
{
    units->next = units->n_begun = units->n_asked = 0;
    begin_ahead(units);
}

bool
exec_units_end_step(ExecUnits *units, GError **error)
{
    ExecTransport *t = units->o.comm->transport;

    return units->o.by != EXEC_GATHER_MESSAGES || t->ops->lend == NULL ||
           t->ops->regain(t, NULL, 0, error);
}

/* One after the other: the second begins when the first is there. */
void
exec_units_tell_step(ExecUnits *units)
{
    int64_t last_ns = 0;

    if (units->o.gathered == NULL || n_ahead(units) == 0)
        return;
    for (guint i = 0; i < units->next; i++) {
        const ExecGathering *g = &units->gatherings[i];
        units->o.gathered(units->o.user_data, MAX(g->begin_ns, last_ns), g->end_ns, g->n_bytes);
        last_ns = g->end_ns;
    }
}

/* --- opening weights --- */

/* What was under way arrives: on the host now; compute slots wait for the second queue. */
static bool
arrive(ExecUnits *units, guint i, ExecBlock whole[2])
{
    const ExecOpening *opening = &g_array_index(units->o.openings, ExecOpening, i);
    ExecBackend *backend = units->o.model->backend;
    ExecPrefetch *prefetch = prefetches(units, i);

    for (int k = 0; k < 2; k++) {
        whole[k] = prefetch->whole[k];
        prefetch->whole[k] = (ExecBlock){0};
        if (units->o.by == EXEC_GATHER_MESSAGES && whole[k].data != NULL &&
            !receive_parts(units, opening->units[k], whole[k].data))
            return false;
    }
    if (units->o.by == EXEC_GATHER_ASIDE)
        backend->ops->join(backend, prefetch->there);
    else
        units->gatherings[i].end_ns = exec_now_ns();
    return true;
}

static bool
make_opening(ExecUnits *units, guint i, ExecBlock whole[2])
{
    if (units->n_begun == i && !begin_opening(units, i))
        return false;
    return units->o.by == EXEC_GATHER_NOW
               ? take_whole(units, i, whole) && make_opening_whole(units, i, whole)
               : arrive(units, i, whole);
}

bool
exec_units_open_weights(ExecOpenUnits *open)
{
    ExecUnits *units = open->owner;
    const guint i = units->next;

    g_assert(i < units->o.openings->len);
    const ExecOpening *opening = &g_array_index(units->o.openings, ExecOpening, i);
    g_assert(opening->units[0] == open->units[0] && opening->units[1] == open->units[1]);
    if (!make_opening(units, i, open->weights))
        return false;
    units->next = i + 1;
    /* Nothing is sent yet, but the host may read. */
    if (units->o.by == EXEC_GATHER_NOW && units->o.depth > 0 && i + 1 < units->o.openings->len)
        ask_for(units, i + 1);
    begin_ahead(units);
    return units->o.comm->error == NULL;
}
