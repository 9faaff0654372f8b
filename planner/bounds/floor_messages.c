#include "planner/bounds/floor_messages.h"

#include "profiles/cost/cost.h"
#include "profiles/workload/ops.h"

/* Far beyond the latency. */
#define MOST_BYTES (INT64_C(1) << 30)

/* Bytes of one row of a boundary that one device sends. */
static double
row_bytes(const PlanRequest *request, const PlanPoint *point, bool shares)
{
    const PlanDegrees *d = &point->degrees;
    ModelShape shape = {.batch = 1,
                        .tokens = 1 << 20,
                        .tp = d->tp,
                        .cp = d->cp,
                        .ep = d->ep,
                        .sequence_parallel = point->sequence_parallel,
                        .dtype = request->dtype};

    workload_set_conventions(&request->conventions, &request->profile->parameters, &shape);
    return (double)model_boundary_bytes(request->arch, &shape) / (double)shape.tokens /
           (shares ? (double)d->tp : 1.0) * (1.0 - 1e-6);
}

static void
add(PlanFloorMessage *sum, const PlanFloorMessage *one)
{
    sum->latency_s += one->latency_s;
    sum->row_s += one->row_s;
}

/* From rank @from to rank @to, with @bytes per row; @gathered: per row which the receivers gather of each other then,
 * 0: none. */
static PlanFloorMessage
message_between(const PlanRequest *request, const ProfileMesh *mesh, int64_t from, int64_t to,
                double bytes, double gathered)
{
    const ProfileGroup pair = profile_group_pair(mesh, from, to);
    const ProfileGroup senders = profile_group_of_rank(mesh, PROFILE_GROUP_STAGE, from);
    const int64_t a = from < to ? pair.first : profile_group_last(&pair);
    const int64_t b = from < to ? profile_group_last(&pair) : pair.first;
    const double empty_s = profile_cost_p2p_s(request->profile, 0, a, b, &senders);
    const double most_s = profile_cost_p2p_s(request->profile, MOST_BYTES, a, b, &senders);

    PlanFloorMessage message = {empty_s, (most_s - empty_s) / (double)MOST_BYTES * bytes};

    if (gathered > 0.0) {
        const ProfileGroup group = profile_group_of_rank(mesh, PROFILE_GROUP_TP, to);
        const double first_s =
            profile_cost_collective_s(request->profile, MODEL_COMM_ALL_GATHER, 0, &group);
        const double last_s =
            profile_cost_collective_s(request->profile, MODEL_COMM_ALL_GATHER, MOST_BYTES, &group);
        message.latency_s += first_s;
        message.row_s += (last_s - first_s) / (double)MOST_BYTES * gathered;
    }
    return message;
}

typedef struct {
    const PlanRequest *request;
    const PlanPoint *point;
} Question;

/* All that messages depend on. */
typedef struct {
    PlanMemoKey memo;
    int64_t dp, tp, pp, cp, ep, rank_order, sequence_parallel;
} Key;

static void
messages_free(gpointer data)
{
    PlanFloorMessages *messages = data;

    g_free(messages->to);
    g_free(messages);
}

/* PlanMemoMakeFunc. */
static void *
make_messages(const void *data)
{
    const Question *asked = data;
    const PlanRequest *request = asked->request;
    const PlanPoint *point = asked->point;
    const PlanDegrees *d = &point->degrees;
    const ProfileMesh mesh = plan_layer_mesh(request, d);
    const bool whole = d->tp == 1 || point->sequence_parallel;
    const bool shares = request->conventions.scatter_gather_p2p && !whole;
    PlanFloorMessages *messages = g_new0(PlanFloorMessages, 1);

    messages->to = g_malloc0((size_t)d->pp * sizeof *messages->to);
    if ((request->conventions.broadcast_p2p && !whole) || d->pp == 1)
        return messages;
    const double bytes = row_bytes(request, point, shares);
    const double gathered = shares ? bytes * (double)d->tp : 0.0;
    for (int64_t r = 1; r <= d->pp; r++) {
        const int64_t here = r - 1, next = r % d->pp;
        for (int pass = 0; pass < 2; pass++) {
            const PlanFloorMessage one = message_between(request, &mesh, pass == 0 ? here : next,
                                                         pass == 0 ? next : here, bytes, gathered);
            PlanFloorMessage *sum = r < d->pp ? &messages->to[r][pass] : &messages->round[pass];
            *sum = messages->to[here][pass];
            add(sum, &one);
        }
    }
    return messages;
}

const PlanFloorMessages *
plan_floor_messages(PlanMemo *memo, const PlanRequest *request, const PlanPoint *point)
{
    const PlanDegrees *d = &point->degrees;
    const Question question = {request, point};
    const Key key = {
        .memo = PLAN_MEMO_KEY(Key, PLAN_MEMO_MESSAGES),
        .dp = d->dp,
        .tp = d->tp,
        .pp = d->pp,
        .cp = d->cp,
        .ep = d->ep,
        .rank_order = d->rank_order,
        .sequence_parallel = point->sequence_parallel,
    };

    return plan_memo_get(memo, &key.memo, make_messages, &question, messages_free);
}
