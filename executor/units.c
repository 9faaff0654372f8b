#include "executor/units.h"

#include "executor/clock.h"
#include "executor/collective.h"

/* What was fetched and lent. */
typedef struct {
    const void *data;
    int64_t n_bytes;
} Loan;

struct ExecUnits {
    ExecUnitsOptions o;
    /* Of the step's openings: the first that is not open yet, not under way, not asked to be
     * fetched. */
    guint next, n_begun, n_asked;
    /* (owned) opening i's is i modulo depth + 1 */
    int64_t *begins_ns;
    ExecBlock (*wholes)[2]; /* of openings under way */
    Loan *loans;            /* (owned) by slot of what is fetched */
    int64_t end_ns;         /* of the last one gathered */
};

ExecDim
exec_region_dim(ExecRegionKind region)
{
    return region == EXEC_REGION_EXPERTS ? EXEC_DIM_EXPERT : EXEC_DIM_DENSE;
}

/* --- parts --- */

static const ExecUnit *
unit_at(const ExecUnits *units, int32_t unit)
{
    return &g_array_index(units->o.model->units, ExecUnit, unit);
}

static const ExecRegion *
region_of(const ExecUnits *units, int32_t unit)
{
    return &units->o.model->regions[unit_at(units, unit)->region];
}

static const ExecGroup *
group_of(const ExecUnits *units, int32_t unit)
{
    return &units->o.comm->groups[exec_region_dim(unit_at(units, unit)->region)];
}

static bool
is_apart(const ExecUnits *units, int32_t unit)
{
    return unit >= 0 && exec_model_weights_apart(units->o.model, unit_at(units, unit));
}

/* Where this rank's part is in the whole unit. */
static int64_t
part_at(const ExecUnits *units, int32_t unit, int64_t *n)
{
    int64_t begin;

    *n = exec_model_own_part(units->o.model, unit_at(units, unit), &begin);
    return begin - unit_at(units, unit)->begin;
}

/* Where its content is on the device. */
static void *
part_of(const ExecUnits *units, int32_t unit, ExecContent content)
{
    const ExecModel *model = units->o.model;
    int64_t begin;

    exec_model_own_part(model, unit_at(units, unit), &begin);
    const int64_t at = exec_model_at(model, content, unit_at(units, unit), begin);
    return content == EXEC_CONTENT_WEIGHTS ? exec_at(model->backend, model->weights.data, at)
                                           : (float *)model->gradients.data + at;
}

static bool
take(const ExecUnits *units, int64_t n_bytes, ExecBlock *block)
{
    GError *error = NULL;

    if (exec_pool_take(units->o.model->pool, TRACE_MEMORY_BUFFERS, n_bytes, block, &error))
        return true;
    exec_comm_fail(units->o.comm, error);
    return false;
}

/* --- lifecycle --- */

ExecUnits *
exec_units_new(const ExecUnitsOptions *options)
{
    ExecUnits *units = g_new0(ExecUnits, 1);

    units->o = *options;
    units->begins_ns = g_new0(int64_t, (size_t)options->depth + 1);
    units->wholes = g_malloc0_n((size_t)options->depth + 1, sizeof *units->wholes);
    units->loans = g_new0(Loan, (size_t)exec_units_n_fetches(options->depth));
    return units;
}

void
exec_units_free(ExecUnits *units)
{
    if (units == NULL)
        return;
    if (units->o.by_messages && units->o.comm->transport->ops->withdraw != NULL)
        units->o.comm->transport->ops->withdraw(units->o.comm->transport);
    g_array_unref(units->o.openings);
    g_free(units->begins_ns);
    g_free(units->wholes);
    g_free(units->loans);
    g_free(units);
}

/* --- offloaded weights --- */

/* Where the own part of unit @k of opening @i is fetched to. */
static int
slot_of(const ExecUnits *units, guint i, int k)
{
    return 2 * (int)(i % (guint)(units->o.depth + 2)) + k;
}

/* A slot is read into again when nobody needs what it has lent. */
static bool
regain_slot(ExecUnits *units, int slot, GError **error)
{
    ExecTransport *t = units->o.comm->transport;
    const Loan loan = units->loans[slot];

    units->loans[slot] = (Loan){0};
    return loan.data == NULL || t->ops->lend == NULL ||
           t->ops->regain(t, loan.data, loan.n_bytes, error);
}

/* Lets the reading of opening @i's own parts begin. */
static bool
ask_for(ExecUnits *units, guint i)
{
    const ExecOpening *opening = &g_array_index(units->o.openings, ExecOpening, i);
    const ExecModel *model = units->o.model;
    GError *error = NULL;

    units->n_asked = i + 1;
    for (int k = 0; k < 2; k++) {
        const int32_t unit = opening->units[k];
        int64_t begin;
        if (unit < 0 || !region_of(units, unit)->weights_off)
            continue;
        const int64_t n = exec_model_own_part(model, unit_at(units, unit), &begin);
        const int64_t at =
            exec_model_at(model, EXEC_CONTENT_OPTIMIZER, unit_at(units, unit), begin);
        if (!regain_slot(units, slot_of(units, i, k), &error) ||
            !exec_offload_fetch(model->offload, slot_of(units, i, k),
                                exec_model_weights_part(model), at, n, &error)) {
            exec_comm_fail(units->o.comm, error);
            return false;
        }
    }
    return true;
}

/* This rank's part of unit @k of opening @i: on the device, or fetched; NULL: it could not be. */
static const void *
own_part(ExecUnits *units, guint i, int k)
{
    const int32_t unit = g_array_index(units->o.openings, ExecOpening, i).units[k];
    GError *error = NULL;

    if (!region_of(units, unit)->weights_off)
        return part_of(units, unit, EXEC_CONTENT_WEIGHTS);
    const void *fetched =
        exec_offload_fetched(units->o.model->offload, slot_of(units, i, k), &error);
    if (fetched == NULL)
        exec_comm_fail(units->o.comm, error);
    return fetched;
}

/* --- ahead of use --- */

/* Parts go in pieces as those of collectives do: MPI's lengths are limited. */
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

    part_at(units, unit, &n);
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

/* Room for the whole of unit @k of opening @i, with this rank's own part in its place. */
static bool
begin_whole(ExecUnits *units, guint i, int k, const void *own, ExecBlock *whole)
{
    ExecBackend *backend = units->o.model->backend;
    const int32_t unit = g_array_index(units->o.openings, ExecOpening, i).units[k];
    int64_t n;
    const int64_t at = part_at(units, unit, &n);
    const size_t n_bytes = (size_t)exec_storage_bytes(backend, n);

    if (own == NULL || !take(units, exec_storage_bytes(backend, unit_at(units, unit)->n), whole))
        return false;
    if (region_of(units, unit)->weights_off)
        backend->ops->upload(backend, n_bytes, own, exec_at(backend, whole->data, at));
    else
        backend->ops->copy(backend, n_bytes, own, exec_at(backend, whole->data, at));
    return true;
}

/* Unit @k of opening @i gets under way by messages. */
static bool
begin_unit(ExecUnits *units, guint i, int k)
{
    const int32_t unit = g_array_index(units->o.openings, ExecOpening, i).units[k];
    ExecBlock *whole = &units->wholes[i % (guint)(units->o.depth + 1)][k];
    int64_t n;

    if (!is_apart(units, unit))
        return true;
    const void *own = own_part(units, i, k);
    part_at(units, unit, &n);
    /* Host memory: what was fetched can be lent as it is. */
    if (region_of(units, unit)->weights_off)
        units->loans[slot_of(units, i, k)] =
            (Loan){own, exec_storage_bytes(units->o.model->backend, n)};
    return begin_whole(units, i, k, own, whole) && exchange_parts(units, unit, own, whole->data);
}

/* Opening @i gets under way, and what the next one needs of the host is read meanwhile. */
static bool
begin_opening(ExecUnits *units, guint i)
{
    units->n_begun = i + 1;
    units->begins_ns[i % (guint)(units->o.depth + 1)] = exec_now_ns();
    if (units->n_asked <= i && !ask_for(units, i))
        return false;
    if (!units->o.by_messages)
        return true;
    for (int k = 0; k < 2; k++)
        if (!begin_unit(units, i, k))
            return false;
    return units->o.depth == 0 || i + 1 >= units->o.openings->len || ask_for(units, i + 1);
}

/* Without messages an opening begins when it is needed. */
static guint
n_ahead(const ExecUnits *units)
{
    return units->o.by_messages ? (guint)units->o.depth : 0;
}

static void
begin_up_to(ExecUnits *units, guint end)
{
    while (units->n_begun < MIN(end, units->o.openings->len) && units->o.comm->error == NULL)
        if (!begin_opening(units, units->n_begun))
            return;
}

void
exec_units_begin_step(ExecUnits *units)
{
    units->next = units->n_begun = units->n_asked = 0;
    begin_up_to(units, n_ahead(units));
}

bool
exec_units_end_step(ExecUnits *units, GError **error)
{
    ExecTransport *t = units->o.comm->transport;

    return !units->o.by_messages || t->ops->lend == NULL || t->ops->regain(t, NULL, 0, error);
}

/* --- whole weights --- */

/* The parts of the other copies, as they sent them. */
static bool
receive_parts(ExecUnits *units, int32_t unit, void *whole)
{
    const ExecGroup *group = group_of(units, unit);
    const ExecBackend *backend = units->o.model->backend;
    ExecTransport *t = units->o.comm->transport;
    GError *error = NULL;
    int64_t n;

    part_at(units, unit, &n);
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

/* Unit @k of opening @i. */
static bool
make_whole(ExecUnits *units, guint i, int k, ExecBlock *whole)
{
    const int32_t unit = g_array_index(units->o.openings, ExecOpening, i).units[k];

    if (units->o.by_messages) {
        ExecBlock *begun = &units->wholes[i % (guint)(units->o.depth + 1)][k];
        *whole = *begun;
        *begun = (ExecBlock){0};
        return receive_parts(units, unit, whole->data);
    }
    if (!begin_whole(units, i, k, own_part(units, i, k), whole))
        return false;
    exec_comm_all_gather(units->o.comm, exec_region_dim(unit_at(units, unit)->region),
                         units->o.model->backend->storage, unit_at(units, unit)->n, whole->data);
    return units->o.comm->error == NULL;
}

/* Tells of an opening's weights that were under way behind computing: one after the other. */
static void
tell(ExecUnits *units, guint i, int64_t n_bytes)
{
    const int64_t begin_ns = MAX(units->begins_ns[i % (guint)(units->o.depth + 1)], units->end_ns);

    units->end_ns = exec_now_ns();
    if (units->o.gathered != NULL && units->o.by_messages)
        units->o.gathered(units->o.user_data, begin_ns, units->end_ns, n_bytes);
}

static bool
open_weights(ExecOpenUnits *open)
{
    ExecUnits *units = open->owner;
    const guint i = units->next;
    int64_t n_bytes = 0;

    g_assert(i < units->o.openings->len);
    const ExecOpening *opening = &g_array_index(units->o.openings, ExecOpening, i);
    g_assert(opening->units[0] == open->units[0] && opening->units[1] == open->units[1]);
    begin_up_to(units, i + 1);
    for (int k = 0; k < 2 && units->o.comm->error == NULL; k++) {
        if (!is_apart(units, opening->units[k]))
            continue;
        if (!make_whole(units, i, k, &open->weights[k]))
            return false;
        n_bytes += open->weights[k].n_bytes;
    }
    tell(units, i, n_bytes);
    units->next = i + 1;
    /* Without messages nothing is sent yet, but the host may read. */
    if (!units->o.by_messages && units->o.depth > 0 && i + 1 < units->o.openings->len)
        ask_for(units, i + 1);
    begin_up_to(units, i + 1 + n_ahead(units));
    return units->o.comm->error == NULL;
}

/* --- gradients --- */

static bool
open_gradients(ExecOpenUnits *open, int i)
{
    const ExecUnits *units = open->owner;
    ExecBackend *backend = units->o.model->backend;
    const int32_t unit = open->units[i];
    int64_t n;
    const int64_t at = part_at(units, unit, &n);

    if (!take(units, unit_at(units, unit)->n * (int64_t)sizeof(float), &open->gradients[i]))
        return false;
    float *gradients = open->gradients[i].data;
    backend->ops->zero(backend, (size_t)open->gradients[i].n_bytes, gradients);
    backend->ops->copy(backend, (size_t)n * sizeof *gradients,
                       part_of(units, unit, EXEC_CONTENT_GRADIENTS), gradients + at);
    return true;
}

/* --- opening and closing --- */

static bool
open_unit(ExecOpenUnits *open, int i, unsigned what)
{
    ExecModel *model = open->owner->o.model;
    const ExecUnit *unit = unit_at(open->owner, open->units[i]);
    const bool sharded = model->regions[unit->region].sharded[EXEC_CONTENT_GRADIENTS];

    if (what & EXEC_OPEN_GRADIENTS && sharded && !open_gradients(open, i))
        return false;
    const ExecBlock *weights = &open->weights[i], *gradients = &open->gradients[i];
    if (sharded || exec_model_weights_apart(model, unit))
        exec_model_bind(
            model, unit,
            weights->data != NULL ? weights->data : exec_model_kept_weights(model, unit),
            gradients->data != NULL ? gradients->data : exec_model_kept_gradients(model, unit));
    return true;
}

bool
exec_units_open(ExecOpenUnits *open, ExecUnits *units, ExecComm *comm, unsigned what, int32_t a,
                int32_t b)
{
    *open = (ExecOpenUnits){.owner = units, .units = {a, b}};
    if (units == NULL || comm->error != NULL)
        return comm->error == NULL;
    if (what & EXEC_OPEN_WEIGHTS && (is_apart(units, a) || is_apart(units, b)) &&
        !open_weights(open))
        return false;
    for (int i = 0; i < 2; i++)
        if (open->units[i] >= 0 && !open_unit(open, i, what))
            return false;
    return comm->error == NULL;
}

static void
close_unit(ExecOpenUnits *open, int i)
{
    ExecUnits *units = open->owner;
    ExecModel *model = units->o.model;
    ExecBackend *backend = model->backend;
    const ExecUnit *unit = unit_at(units, open->units[i]);
    int64_t n;
    const int64_t at = part_at(units, open->units[i], &n);

    if (open->gradients[i].data != NULL) {
        float *gradients = open->gradients[i].data;
        exec_comm_reduce_scatter(units->o.comm, exec_region_dim(unit->region), DTYPE_FP32, unit->n,
                                 gradients);
        backend->ops->copy(backend, (size_t)n * sizeof *gradients, gradients + at,
                           part_of(units, open->units[i], EXEC_CONTENT_GRADIENTS));
    }
    if (open->weights[i].data != NULL || open->gradients[i].data != NULL)
        exec_model_bind(model, unit, exec_model_kept_weights(model, unit),
                        exec_model_kept_gradients(model, unit));
    exec_pool_give(model->pool, &open->weights[i]);
    exec_pool_give(model->pool, &open->gradients[i]);
}

void
exec_units_close(ExecOpenUnits *open)
{
    for (int i = 0; open->owner != NULL && i < 2; i++)
        if (open->units[i] >= 0)
            close_unit(open, i);
}
