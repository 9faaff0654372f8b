#include "executor/model/units.h"

#include "executor/device/clock.h"
#include "executor/model/state.h"
#include "executor/transport/collective.h"

/* Gathering one opening of the step at hand. */
typedef struct {
    int64_t begin_ns, end_ns; /* stamps of the backend, or the host's clock */
    int64_t n_bytes;
} Gathering;

/* A shard that was fetched from the host and lent to the other replicas. */
typedef struct {
    const void *data;
    int64_t n_bytes;
} Loan;

/* An opening that is being prefetched. */
typedef struct {
    ExecBlock whole[2]; /* by unit: memory of the whole weights */
    Loan loans[2];      /* EXEC_PREFETCH_MESSAGES */
    ExecMark *there;    /* (owned, nullable) EXEC_PREFETCH_ASIDE: the weights are whole */
} Prefetched;

struct ExecUnits {
    ExecUnitsOptions o;
    /* Of the step's openings the first that is not open yet, that is not being prefetched yet, and
     * whose weights are not being read from the host yet. */
    guint next, n_begun, n_asked;
    Gathering *gatherings;  /* (owned) by opening */
    Prefetched *prefetched; /* (owned) opening i's is at i modulo n_slots(), like its fetches */
};

/* Openings that need something at once: the one at work, those that are prefetched, and the one
 * that is read from the host. */
static guint
n_slots(const ExecUnits *units)
{
    return (guint)units->o.depth + 2;
}

static const ExecUnit *
unit_at(const ExecUnits *units, int32_t unit)
{
    return exec_model_unit(units->o.model, unit);
}

/* Unit @k of opening @i; -1: none. */
static int32_t
opened_unit(const ExecUnits *units, guint i, int k)
{
    return g_array_index(units->o.openings, ExecOpening, i).units[k];
}

static bool
is_apart(const ExecUnits *units, int32_t unit)
{
    return unit >= 0 && exec_model_weights_apart(units->o.model, unit_at(units, unit));
}

ExecDim
exec_region_dim(ExecRegionKind region)
{
    return region == EXEC_REGION_EXPERTS ? EXEC_DIM_EXPERT : EXEC_DIM_DENSE;
}

/* --- this rank's shard of a unit --- */

/* Returns: the element of the whole unit at which the shard begins; @n  (out) its elements. */
static int64_t
own_shard_at(const ExecUnits *units, int32_t unit, int64_t *n)
{
    int64_t begin;

    *n = exec_model_own_shard(units->o.model, unit_at(units, unit), &begin);
    return begin - unit_at(units, unit)->begin;
}

/* Returns: (borrowed) where the shard's weights or gradients lie on the device. */
static void *
own_shard(const ExecUnits *units, int32_t unit, ExecContent content)
{
    const ExecModel *model = units->o.model;
    int64_t begin;

    exec_model_own_shard(model, unit_at(units, unit), &begin);
    const int64_t at = exec_model_at(model, content, unit_at(units, unit), begin);
    return content == EXEC_CONTENT_WEIGHTS ? exec_at(model->backend, model->weights.data, at)
                                           : (float *)model->gradients.data + at;
}

/* Keeps @error in the comm if not @ok; returns @ok. */
static bool
check(const ExecUnits *units, bool ok, GError *error)
{
    if (!ok)
        exec_comm_fail(units->o.comm, error);
    return ok;
}

static bool
take(const ExecUnits *units, int64_t n_bytes, ExecBlock *block)
{
    GError *error = NULL;
    const bool ok =
        exec_pool_take(units->o.model->pool, TRACE_MEMORY_BUFFERS, n_bytes, block, &error);

    return check(units, ok, error);
}

/* --- lifecycle --- */

ExecUnits *
exec_units_new(const ExecUnitsOptions *options)
{
    ExecUnits *units = g_new0(ExecUnits, 1);

    units->o = *options;
    units->gatherings = g_new0(Gathering, options->openings->len);
    units->prefetched = g_new0(Prefetched, n_slots(units));
    return units;
}

void
exec_units_free(ExecUnits *units)
{
    if (units == NULL)
        return;
    if (units->o.prefetch == EXEC_PREFETCH_MESSAGES &&
        units->o.comm->transport->ops->withdraw != NULL)
        units->o.comm->transport->ops->withdraw(units->o.comm->transport);
    g_array_unref(units->o.openings);
    for (guint i = 0; units->o.prefetch == EXEC_PREFETCH_ASIDE && i < n_slots(units); i++)
        units->o.model->backend->ops->forget(units->o.model->backend, units->prefetched[i].there);
    g_free(units->gatherings);
    g_free(units->prefetched);
    g_free(units);
}

static const ExecRegion *
region_of(const ExecUnits *units, int32_t unit)
{
    return &units->o.model->layout.regions[unit_at(units, unit)->region];
}

static Prefetched *
prefetched(const ExecUnits *units, guint i)
{
    return &units->prefetched[i % n_slots(units)];
}

/* --- offloaded weights --- */

/* The buffer that this rank's shard of unit @k of opening @i is fetched into. */
static int
slot_of(const ExecUnits *units, guint i, int k)
{
    return 2 * (int)(i % n_slots(units)) + k;
}

/* Waits until nobody reads the buffers that opening @i's shards are fetched into: what is there has
 * been uploaded, or copied by the replicas that it was lent to. */
static bool
regain_slots(ExecUnits *units, guint i, GError **error)
{
    ExecBackend *backend = units->o.model->backend;
    ExecTransport *t = units->o.comm->transport;
    Prefetched *before = prefetched(units, i); /* an earlier opening */

    if (units->o.prefetch == EXEC_PREFETCH_ASIDE)
        return before->there == NULL || !exec_offload_has_buffers(units->o.model->offload) ||
               backend->ops->await(backend, before->there, error);
    for (int k = 0; k < 2; k++) {
        const Loan loan = before->loans[k];
        before->loans[k] = (Loan){0};
        if (loan.data != NULL && t->ops->lend != NULL &&
            !t->ops->regain(t, loan.data, loan.n_bytes, error))
            return false;
    }
    return true;
}

/* Begins to read this rank's shards of opening @i from the host. */
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
        const int64_t n = exec_model_own_shard(model, unit_at(units, unit), &begin);
        const int64_t at =
            exec_model_at(model, EXEC_CONTENT_OPTIMIZER, unit_at(units, unit), begin);
        ok = (k == 1 || regain_slots(units, i, &error)) &&
             exec_offload_fetch(model->offload, slot_of(units, i, k),
                                exec_model_weights_array(model), at, n, &error);
    }
    return check(units, ok, error);
}

/* --- shards as messages --- */

typedef bool (*MoveFunc)(ExecTransport *t, int32_t peer, int64_t tag, void *data, int64_t n_bytes,
                         GError **error);

/* Moves @data in segments as long as those of collectives: MPI's lengths are limited. */
static bool
move_segments(ExecTransport *t, MoveFunc move, int32_t peer, int64_t tag, void *data,
              int64_t n_bytes, GError **error)
{
    for (int64_t at = 0; move != NULL && at < n_bytes; at += EXEC_SEGMENT_BYTES)
        if (!move(t, peer, tag, (char *)data + at, MIN(EXEC_SEGMENT_BYTES, n_bytes - at), error))
            return false;
    return true;
}

static bool
lend(ExecTransport *t, int32_t to, int64_t tag, void *data, int64_t n_bytes, GError **error)
{
    return (t->ops->lend != NULL ? t->ops->lend : t->ops->send)(t, to, tag, data, n_bytes, error);
}

/* This rank's shard of unit @k of opening @i, in host memory; NULL: it could not be fetched. */
static void *
fetched_shard(ExecUnits *units, guint i, int k)
{
    const int32_t unit = opened_unit(units, i, k);
    GError *error = NULL;

    if (!region_of(units, unit)->weights_off)
        return own_shard(units, unit, EXEC_CONTENT_WEIGHTS);
    void *fetched = exec_offload_fetched(units->o.model->offload, slot_of(units, i, k), &error);
    check(units, fetched != NULL, error);
    return fetched;
}

/* Lends this rank's @shard of @unit to all other replicas and expects theirs in @whole; with @shard
 * NULL, receives those. */
static bool
exchange_shards(ExecUnits *units, int32_t unit, void *shard, void *whole)
{
    const ExecGroup *group = &units->o.comm->groups[exec_region_dim(unit_at(units, unit)->region)];
    const ExecBackend *backend = units->o.model->backend;
    ExecTransport *t = units->o.comm->transport;
    GError *error = NULL;
    bool ok = true;
    int64_t n;

    own_shard_at(units, unit, &n);
    const int64_t n_bytes = exec_storage_bytes(backend, n);
    /* Every rank begins with the next one round the ring, so that not all lend to the same first.
     */
    for (int32_t step = 1; step < group->n && ok; step++) {
        const int32_t to = group->ranks[(group->index + step) % group->n];
        const int32_t i = (group->index + group->n - step) % group->n;
        ok = move_segments(t, shard != NULL ? t->ops->expect : t->ops->receive, group->ranks[i],
                           units->o.tag, exec_at(backend, whole, i * n), n_bytes, &error) &&
             (shard == NULL || move_segments(t, lend, to, units->o.tag, shard, n_bytes, &error));
    }
    return check(units, ok, error);
}

/* Begins to prefetch unit @k of opening @i. */
static bool
begin_messages(ExecUnits *units, guint i, int k)
{
    Prefetched *p = prefetched(units, i);
    ExecBackend *backend = units->o.model->backend;
    const int32_t unit = opened_unit(units, i, k);
    int64_t n;

    if (p->whole[k].data == NULL)
        return true;
    const int64_t at = own_shard_at(units, unit, &n);
    const int64_t n_bytes = exec_storage_bytes(backend, n);
    void *own = fetched_shard(units, i, k);
    if (own == NULL)
        return false;
    /* The device's memory is the host's here: what was fetched is lent as it is. */
    if (region_of(units, unit)->weights_off)
        p->loans[k] = (Loan){own, n_bytes};
    backend->ops->copy(backend, (size_t)n_bytes, own, exec_at(backend, p->whole[k].data, at));
    return exchange_shards(units, unit, own, p->whole[k].data);
}

/* --- whole weights --- */

/* Writes this rank's shard of unit @k of opening @i to @to on the device. */
static bool
write_own_shard(ExecUnits *units, guint i, int k, void *to)
{
    ExecBackend *backend = units->o.model->backend;
    const int32_t unit = opened_unit(units, i, k);
    GError *error = NULL;
    int64_t n;

    own_shard_at(units, unit, &n);
    if (!region_of(units, unit)->weights_off) {
        backend->ops->copy(backend, (size_t)exec_storage_bytes(backend, n),
                           own_shard(units, unit, EXEC_CONTENT_WEIGHTS), to);
        return true;
    }
    const bool ok =
        exec_offload_upload(units->o.model->offload, slot_of(units, i, k), backend, to, &error);
    return check(units, ok, error);
}

/* Gathers the weights of unit @k of opening @i into @whole. */
static bool
gather_unit(ExecUnits *units, guint i, int k, const ExecBlock *whole)
{
    const int32_t unit = opened_unit(units, i, k);
    const ExecBackend *backend = units->o.model->backend;
    int64_t n;
    const int64_t at = own_shard_at(units, unit, &n);

    if (!write_own_shard(units, i, k, exec_at(backend, whole->data, at)))
        return false;
    exec_comm_all_gather(units->o.comm, exec_region_dim(unit_at(units, unit)->region),
                         backend->storage, unit_at(units, unit)->n, whole->data);
    return units->o.comm->error == NULL;
}

/* Gathers the weights of opening @i into those blocks of @whole that are taken. */
static bool
gather_opening(ExecUnits *units, guint i, ExecBlock whole[2])
{
    for (int k = 0; k < 2 && units->o.comm->error == NULL; k++)
        if (whole[k].data != NULL && !gather_unit(units, i, k, &whole[k]))
            return false;
    return units->o.comm->error == NULL;
}

/* Bytes of the whole weights of unit @k of opening @i; 0 where the rank keeps them whole. */
static int64_t
whole_bytes(const ExecUnits *units, guint i, int k)
{
    const int32_t unit = opened_unit(units, i, k);

    return is_apart(units, unit)
               ? exec_storage_bytes(units->o.model->backend, unit_at(units, unit)->n)
               : 0;
}

static bool
take_whole(ExecUnits *units, guint i, ExecBlock whole[2])
{
    for (int k = 0; k < 2; k++) {
        const int64_t n_bytes = whole_bytes(units, i, k);
        if (n_bytes == 0)
            continue;
        if (!take(units, n_bytes, &whole[k]))
            return false;
        units->gatherings[i].n_bytes += whole[k].n_bytes;
    }
    return true;
}

/* --- prefetching --- */

/* Gathers in the second queue, which begins behind the ops so far: they may have used the memory.
 */
static bool
gather_aside(ExecUnits *units, guint i)
{
    ExecBackend *backend = units->o.model->backend;
    Prefetched *p = prefetched(units, i);

    backend->ops->begin_aside(backend);
    exec_backend_stamp(backend, &units->gatherings[i].begin_ns);
    const bool ok = gather_opening(units, i, p->whole);
    exec_backend_stamp(backend, &units->gatherings[i].end_ns);
    backend->ops->end_aside(backend, &p->there);
    return ok;
}

/* Begins to prefetch opening @i, and to read from the host what the next one needs. */
static bool
begin_opening(ExecUnits *units, guint i)
{
    units->n_begun = i + 1;
    units->gatherings[i] = (Gathering){.begin_ns = exec_now_ns()};
    if (units->n_asked <= i && !ask_for(units, i))
        return false;
    if (units->o.prefetch == EXEC_PREFETCH_NONE)
        return true;
    if (!take_whole(units, i, prefetched(units, i)->whole))
        return false;
    if (units->o.prefetch == EXEC_PREFETCH_ASIDE
            ? !gather_aside(units, i)
            : !begin_messages(units, i, 0) || !begin_messages(units, i, 1))
        return false;
    return units->o.depth == 0 || i + 1 >= units->o.openings->len || ask_for(units, i + 1);
}

/* How many openings are prefetched beside the one at work, at most. */
static guint
n_prefetched(const ExecUnits *units)
{
    return units->o.prefetch == EXEC_PREFETCH_NONE ? 0 : (guint)units->o.depth;
}

/* Prefetches as many of the openings from @units->next on as depth and bytes allow. */
static void
prefetch(ExecUnits *units)
{
    const guint end = MIN(units->next + n_prefetched(units), units->o.openings->len);
    int64_t n_bytes = 0;

    for (guint i = units->next; i < end && units->o.comm->error == NULL; i++) {
        n_bytes += whole_bytes(units, i, 0) + whole_bytes(units, i, 1);
        if (n_bytes > units->o.prefetch_bytes || (i == units->n_begun && !begin_opening(units, i)))
            return;
    }
}

void
exec_units_begin_step(ExecUnits *units)
{
    units->next = units->n_begun = units->n_asked = 0;
    prefetch(units);
}

bool
exec_units_end_step(ExecUnits *units, GError **error)
{
    ExecTransport *t = units->o.comm->transport;

    return units->o.prefetch != EXEC_PREFETCH_MESSAGES || t->ops->lend == NULL ||
           t->ops->regain(t, NULL, 0, error);
}

/* Gatherings follow each other: the second is counted from when the first has ended. */
void
exec_units_tell_step(ExecUnits *units)
{
    int64_t last_ns = 0;

    if (units->o.gathered == NULL || n_prefetched(units) == 0)
        return;
    for (guint i = 0; i < units->next; i++) {
        const Gathering *g = &units->gatherings[i];
        units->o.gathered(units->o.user_data, MAX(g->begin_ns, last_ns), g->end_ns, g->n_bytes);
        last_ns = g->end_ns;
    }
}

/* --- opening weights --- */

/* Waits for what was prefetched: on the host now; on a device its ops wait for the second queue. */
static bool
arrive(ExecUnits *units, guint i, ExecBlock whole[2])
{
    ExecBackend *backend = units->o.model->backend;
    Prefetched *p = prefetched(units, i);

    for (int k = 0; k < 2; k++) {
        whole[k] = p->whole[k];
        p->whole[k] = (ExecBlock){0};
        if (units->o.prefetch == EXEC_PREFETCH_MESSAGES && whole[k].data != NULL &&
            !exchange_shards(units, opened_unit(units, i, k), NULL, whole[k].data))
            return false;
    }
    if (units->o.prefetch == EXEC_PREFETCH_ASIDE)
        backend->ops->join(backend, p->there);
    else
        units->gatherings[i].end_ns = exec_now_ns();
    return true;
}

static bool
make_opening(ExecUnits *units, guint i, ExecBlock whole[2])
{
    if (units->n_begun == i && !begin_opening(units, i))
        return false;
    return units->o.prefetch == EXEC_PREFETCH_NONE
               ? take_whole(units, i, whole) && gather_opening(units, i, whole)
               : arrive(units, i, whole);
}

/* Makes the weights of @open's units whole; they are the next opening of the step. */
static bool
open_weights(ExecOpenUnits *open)
{
    ExecUnits *units = open->owner;
    const guint i = units->next;

    g_assert(i < units->o.openings->len);
    g_assert(opened_unit(units, i, 0) == open->units[0] &&
             opened_unit(units, i, 1) == open->units[1]);
    if (!make_opening(units, i, open->weights))
        return false;
    units->next = i + 1;
    /* Nothing is prefetched to the device, but the host reads what the next opening needs. */
    if (units->o.prefetch == EXEC_PREFETCH_NONE && units->o.depth > 0 &&
        i + 1 < units->o.openings->len)
        ask_for(units, i + 1);
    prefetch(units);
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
    const int64_t at = own_shard_at(units, unit, &n);

    if (!take(units, unit_at(units, unit)->n * (int64_t)sizeof(float), &open->gradients[i]))
        return false;
    float *gradients = open->gradients[i].data;
    backend->ops->zero(backend, (size_t)open->gradients[i].n_bytes, gradients);
    backend->ops->copy(backend, (size_t)n * sizeof *gradients,
                       own_shard(units, unit, EXEC_CONTENT_GRADIENTS), gradients + at);
    return true;
}

/* --- opening and closing --- */

static bool
open_unit(ExecOpenUnits *open, int i, unsigned what)
{
    ExecModel *model = open->owner->o.model;
    const ExecUnit *unit = unit_at(open->owner, open->units[i]);
    const bool sharded = model->layout.regions[unit->region].sharded[EXEC_CONTENT_GRADIENTS];

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
    const int64_t at = own_shard_at(units, open->units[i], &n);

    if (open->gradients[i].data != NULL) {
        float *gradients = open->gradients[i].data;
        exec_comm_reduce_scatter(units->o.comm, exec_region_dim(unit->region), DTYPE_FP32, unit->n,
                                 gradients);
        backend->ops->copy(backend, (size_t)n * sizeof *gradients, gradients + at,
                           own_shard(units, open->units[i], EXEC_CONTENT_GRADIENTS));
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
