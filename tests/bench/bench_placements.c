/*
 * What other placements of chunks on ranks would give: the shortest step that a search of divisions finds for stacks
 * of real models, with chunks in a loop (the order of interleaved 1F1B, and one that is made for the stages' times),
 * in a wave, and with the ranks of each chunk in any order.  --tiny: one stack and a short search, as a test.
 *
 * Layers, embedding and head take what the cost model says of dgx-h100 with tp 8, a message 0.5 % of an average layer;
 * memory is that of interleaved 1F1B.  Divisions and orders of ranks are changed at random, first for the load of the
 * busiest rank, then for the time.  Columns are times over the mean load of the ranks, less 1.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/random.h"
#include "base/units.h"
#include "planner/cost/layer_cost.h"
#include "schedule/schedule.h"

#define MOST_UNITS 160
#define MOST_RANKS 8
#define MOST_CHUNKS 4
#define MOST_STAGES (MOST_RANKS * MOST_CHUNKS)

typedef enum {
    LOOP_INTERLEAVED,
    LOOP,
    WAVE,
    ANY,
    N_WAYS
} Way;

/* What Hugging Face's JambaConfig says by default, which is Jamba v0.1. */
static const char jamba[] =
    "{\"model_type\": \"jamba\", \"vocab_size\": 65536, \"tie_word_embeddings\": false, "
    "\"hidden_size\": 4096, \"intermediate_size\": 14336, \"num_hidden_layers\": 32, "
    "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"hidden_act\": \"silu\", "
    "\"max_position_embeddings\": 262144, \"num_experts_per_tok\": 2, \"num_experts\": 16, "
    "\"expert_layer_period\": 2, \"expert_layer_offset\": 1, \"attn_layer_period\": 8, "
    "\"attn_layer_offset\": 4, \"mamba_d_state\": 16, \"mamba_d_conv\": 4, \"mamba_expand\": 2, "
    "\"mamba_dt_rank\": 256, \"mamba_conv_bias\": true, \"mamba_proj_bias\": false}";

static const struct {
    const char *model; /* built in, or the text of a config.json of Hugging Face */
    const char *name;
    int64_t seq_len, mtp;
} stacks[] = {
    {"nemotron-h-56b", "nemotron-h-56b", 8192, 0},
    {"gemma3-27b", "gemma3-27b", 8192, 0},
    {"gemma3-27b", "gemma3-27b", 131072, 0},
    {"deepseek-v3", "deepseek-v3", 8192, 1},
    {"gpt-oss-120b", "gpt-oss-120b", 8192, 0},
    {"gpt-oss-20b", "gpt-oss-20b", 131072, 0},
    {"qwen3-next-80b", "qwen3-next-80b", 8192, 0},
    {"qwen3-next-80b", "qwen3-next-80b", 131072, 0},
    {"nemotron3-nano", "nemotron3-nano", 131072, 0},
    {"llama4-maverick", "llama4-maverick", 8192, 0},
    {jamba, "jamba", 8192, 0},
    {jamba, "jamba", 131072, 0},
    {"glm-4.5", "glm-4.5", 8192, 1},
    {"llama3-8b", "llama3-8b", 8192, 0},
};

/* A stack on p ranks of v chunks, and one division of it and place of its stages. */
typedef struct {
    int n_units, p, v, m;
    double before[MOST_UNITS + 1]; /* seconds of the units before this one, forward and backward */
    double message_s;
    int first[MOST_STAGES + 1]; /* unit of each stage */
    int rank[MOST_STAGES];
    uint64_t random;
} Stack;

static double
stage_s(const Stack *s, int k)
{
    return s->before[s->first[k + 1]] - s->before[s->first[k]];
}

/* --- times --- */

typedef struct {
    double s;
    int rank;
} Event;

/* The stages of each rank, what has come and gone, and what will happen. */
typedef struct {
    int stages[MOST_RANKS][MOST_CHUNKS];
    double *ready[2][MOST_STAGES];
    int arrived[2][MOST_STAGES], done[2][MOST_STAGES], held[MOST_RANKS];
    double free_s[MOST_RANKS];
    bool was_back[MOST_RANKS];
    GArray *events; /* of Event, unsorted: there are few */
} List;

static void
add_event(List *list, double s, int rank)
{
    const Event event = {s, rank};

    g_array_append_val(list->events, event);
}

static Event
take_event(List *list)
{
    guint first = 0;

    for (guint i = 1; i < list->events->len; i++) {
        const Event *a = &g_array_index(list->events, Event, i);
        const Event *b = &g_array_index(list->events, Event, first);
        if (a->s < b->s || (a->s <= b->s && a->rank < b->rank))
            first = i;
    }
    const Event event = g_array_index(list->events, Event, first);
    g_array_remove_index_fast(list->events, first);
    return event;
}

/* The stage whose op @rank runs next, by the rule of schedule/hanayo.c; -1: none is ready. */
static int
choose(const Stack *s, const List *list, int rank, int back, double now_s, int most_held)
{
    for (int i = 0; i < s->v; i++) {
        const int k = list->stages[rank][back ? i : s->v - 1 - i], n = list->done[back][k];
        if (!back && k == list->stages[rank][0] && list->held[rank] >= most_held)
            continue;
        if (n < list->arrived[back][k] && list->ready[back][k][n] <= now_s)
            return k;
    }
    return -1;
}

static double
list_s(const Stack *s, List *list, int most_held, bool alternates)
{
    const int n = s->p * s->v;
    double longest = 0.0;
    int filled[MOST_RANKS] = {0};

    memset(list->arrived, 0, sizeof list->arrived);
    memset(list->done, 0, sizeof list->done);
    memset(list->held, 0, sizeof list->held);
    memset(list->free_s, 0, sizeof list->free_s);
    memset(list->was_back, 0, sizeof list->was_back);
    for (int k = 0; k < n; k++)
        list->stages[s->rank[k]][filled[s->rank[k]]++] = k;
    for (int i = 0; i < s->m; i++)
        list->ready[0][0][i] = 0.0;
    list->arrived[0][0] = s->m;
    add_event(list, 0.0, s->rank[0]);
    while (list->events->len > 0) {
        const Event event = take_event(list);
        const int r = event.rank;
        int back = alternates && list->was_back[r] ? 0 : 1;
        if (list->free_s[r] > event.s)
            continue;
        int k = choose(s, list, r, back, event.s, most_held);
        if (k < 0)
            k = choose(s, list, r, back = 1 - back, event.s, most_held);
        if (k < 0)
            continue;
        const double end_s = event.s + stage_s(s, k) * (back ? 2.0 : 1.0) / 3.0;
        const int to = back ? k - 1 : MIN(k + 1, n - 1), to_back = back || to == k;
        list->done[back][k]++;
        list->held[r] += back ? -1 : 1;
        list->was_back[r] = back;
        list->free_s[r] = end_s;
        longest = fmax(longest, end_s);
        add_event(list, end_s, r);
        if (to >= 0) {
            const double at_s = end_s + (s->rank[to] == r ? 0.0 : s->message_s);
            list->ready[to_back][to][list->arrived[to_back][to]++] = at_s;
            add_event(list, at_s, s->rank[to]);
        }
    }
    return longest;
}

/* The orders that schedule/hanayo.c compares. */
static double
best_list_s(const Stack *s, List *list)
{
    double best = INFINITY;

    for (int i = 0; i < 4; i++)
        best = fmin(best, list_s(s, list, (s->v + (i < 2)) * s->p - 1, i % 2 == 0));
    return best;
}

/* The order of interleaved 1F1B: each op as soon as its rank and its input are. */
static double
interleaved_s(const Stack *s, const Schedule *order, List *list)
{
    const int last = s->p * s->v - 1;
    int64_t at[MOST_RANKS];
    double now[MOST_RANKS] = {0.0}, longest = 0.0;

    for (int r = 0; r < s->p; r++)
        at[r] = order->rank_begin[r];
    for (int k = 0; k <= last; k++)
        for (int back = 0; back < 2; back++)
            for (int i = 0; i < s->m; i++)
                list->ready[back][k][i] = -1.0; /* here: its end */
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < s->p; r++)
            for (; at[r] < order->rank_begin[r + 1]; at[r]++) {
                const ScheduleOp op = order->ops[at[r]];
                const int k = op.chunk * s->p + r, back = op.kind == SCHEDULE_OP_BACKWARD;
                const int from = back ? MIN(k + 1, last) : k - 1;
                const double ready =
                    from < 0 ? 0.0 : list->ready[back && from != k][from][op.micro_batch];
                if (ready < 0.0)
                    break;
                now[r] = fmax(now[r], ready + (from < 0 || from == k ? 0.0 : s->message_s)) +
                         stage_s(s, k) * (back ? 2.0 : 1.0) / 3.0;
                list->ready[back][k][op.micro_batch] = now[r];
                longest = fmax(longest, now[r]);
                moved = true;
            }
    }
    return longest;
}

/* About the load of the busiest rank: smooth, so that every move counts. */
static double
load_s(const Stack *s)
{
    const double mean = s->before[s->n_units] / s->p;
    double load[MOST_RANKS] = {0.0}, sum = 0.0;

    for (int k = 0; k < s->p * s->v; k++)
        load[s->rank[k]] += stage_s(s, k);
    for (int r = 0; r < s->p; r++)
        sum += pow(load[r] / mean, 16.0);
    return mean * pow(sum / s->p, 1.0 / 16.0);
}

/* --- the search --- */

static int
below(Stack *s, int n)
{
    return (int)(random_next(&s->random) % (uint64_t)n);
}

static void
begin(Stack *s, bool in_wave)
{
    const int n = s->p * s->v;

    s->first[0] = 0;
    s->first[n] = s->n_units;
    for (int k = 1, unit = 0; k < n; k++) {
        const double at = s->before[s->n_units] * k / n;
        while (unit < s->n_units && s->before[unit + 1] - at < at - s->before[unit])
            unit++;
        s->first[k] = MAX(unit, s->first[k - 1] + 1);
    }
    for (int k = n - 1; k >= 1; k--)
        s->first[k] = MIN(s->first[k], s->first[k + 1] - 1);
    for (int k = 0; k < n; k++)
        s->rank[k] = in_wave && k / s->p % 2 == 1 ? s->p - 1 - k % s->p : k % s->p;
}

/* Moves some borders by a unit, or exchanges two ranks of a chunk.  False: a stage would be empty. */
static bool
move(Stack *s, bool any)
{
    const int n = s->p * s->v;

    if (any && below(s, 5) < 2) {
        const int chunk = below(s, s->v) * s->p, a = chunk + below(s, s->p),
                  b = chunk + below(s, s->p), rank = s->rank[a];
        s->rank[a] = s->rank[b];
        s->rank[b] = rank;
        return a != b;
    }
    const int from = 1 + below(s, n - 1), step = below(s, 2) == 0 ? 1 : -1;
    const int more = below(s, 2) * below(s, 3), to = MIN(n - 1, from + more);
    for (int k = from; k <= to; k++)
        s->first[k] += step;
    return s->first[from] > s->first[from - 1] && s->first[to] < s->first[to + 1];
}

static double
cost(const Stack *s, Way way, const Schedule *order, List *list)
{
    return way == LOOP_INTERLEAVED ? interleaved_s(s, order, list) : best_list_s(s, list);
}

/* The shortest step found, over the mean load of all micro-batches. */
static double
search(Stack *s, Way way, int n_moves, List *list)
{
    const ScheduleShape shape = {s->p, s->v, s->m, 1, 0, NULL};
    g_autoptr(Schedule) order = schedule_new("interleaved", &shape, NULL);
    const double mean = s->before[s->n_units] / s->p * s->m;
    double best = INFINITY;

    for (int round = 0; round < 4; round++) {
        begin(s, way == WAVE || (way == ANY && round % 2 == 1));
        /* Half of the rounds begin with the best load, half with equal stages. */
        for (int phase = round < 2; phase < 2; phase++) {
            const int n = phase == 0 ? 40 * n_moves : way == ANY ? 2 * n_moves : n_moves;
            double now = phase == 0 ? load_s(s) * s->m : cost(s, way, order, list);
            for (int i = 0; i < n; i++) {
                const double left = 1.0 - (double)i / n;
                const double heat = (phase == 0 ? 0.01 : 0.004) * left * left * mean + 1e-7 * mean;
                const Stack was = *s;
                const bool moved = move(s, way == ANY);
                const double next = !moved       ? INFINITY
                                    : phase == 0 ? load_s(s) * s->m
                                                 : cost(s, way, order, list);
                const double luck = (double)below(s, 1 << 30) / (1 << 30);
                if (next <= now || luck < exp((now - next) / heat)) {
                    now = next;
                    best = phase == 1 ? fmin(best, now) : best;
                } else {
                    const uint64_t random = s->random;
                    *s = was;
                    s->random = random;
                }
            }
        }
    }
    return best / mean;
}

/* --- stacks --- */

static ModelArch *
load(const char *model)
{
    g_autoptr(GError) error = NULL;

    if (model[0] != '{')
        return model_arch_load(model, NULL, NULL);
    g_autoptr(JsonDoc) doc = json_doc_parse("config.json", model, strlen(model), &error);
    ModelArch *arch = model_arch_read_huggingface(doc, "jamba", NULL);
    json_doc_finish(doc, &error);
    g_assert_no_error(error);
    return arch;
}

static void
fill(Stack *stack, const Profile *profile, size_t i)
{
    g_autoptr(ModelArch) arch = load(stacks[i].model);
    arch->mtp.n = stacks[i].mtp;
    const PlanRequest request = {.arch = arch,
                                 .profile = profile,
                                 .global_batch = 1,
                                 .seq_len = stacks[i].seq_len,
                                 .dtype = DTYPE_BF16,
                                 .conventions = plan_conventions(PLAN_FRAMEWORK_DEGAS),
                                 .threads = 1};
    const PlanLayerShape shape = {{.dp = 1, .tp = 8, .pp = 1, .vpp = 1, .cp = 1, .ep = 1}, 1, true};
    const int n = (int)model_n_stacked(arch);
    int64_t layer_ns[MOST_UNITS], end_ns[2];

    g_assert_cmpint(n + 2, <=, MOST_UNITS);
    plan_layer_times(&request, &shape, PLAN_RECOMPUTE_NONE, 0, layer_ns, end_ns);
    *stack = (Stack){.n_units = n + 2, .random = 1};
    for (int k = 0; k < n + 2; k++)
        stack->before[k + 1] = stack->before[k] + units_s_from_ns(k == 0       ? end_ns[0]
                                                                  : k == n + 1 ? end_ns[1]
                                                                               : layer_ns[k - 1]);
    stack->message_s = 0.005 * stack->before[n + 2] / (n + 2);
}

int
main(int argc, char **argv)
{
    const bool is_tiny = argc > 1 && strcmp(argv[1], "--tiny") == 0;
    g_autoptr(Profile) profile = profile_load("dgx-h100", NULL);
    List list = {.events = g_array_new(FALSE, FALSE, sizeof(Event))};
    double most = -1.0;

    for (int back = 0; back < 2; back++)
        for (int k = 0; k < MOST_STAGES; k++)
            list.ready[back][k] = g_new0(double, 4 * MOST_RANKS);
    printf("stack\tp\tm\tinterleaved\tloop\twave\tany\twave gains\tany gains\n");
    for (size_t i = 0; i < (is_tiny ? 1 : G_N_ELEMENTS(stacks)); i++)
        for (int p = 2; p <= (is_tiny ? 2 : MOST_RANKS); p *= 2) {
            double best[N_WAYS];
            Stack stack;
            fill(&stack, profile, i);
            stack.p = p;
            stack.m = 4 * p;
            for (int way = 0; way < N_WAYS; way++) {
                best[way] = INFINITY;
                for (stack.v = 2; stack.v <= MOST_CHUNKS; stack.v++)
                    if (p * stack.v <= stack.n_units)
                        best[way] =
                            fmin(best[way], search(&stack, (Way)way, is_tiny ? 2 : 150, &list));
            }
            const double loop = fmin(best[LOOP_INTERLEAVED], best[LOOP]);
            const double known = fmin(loop, best[WAVE]);
            printf("%s, %d\t%d\t%d\t%.1f %%\t%.1f %%\t%.1f %%\t%.1f %%\t%.1f %%\t%.1f %%\n",
                   stacks[i].name, (int)stacks[i].seq_len, p, stack.m,
                   100.0 * (best[LOOP_INTERLEAVED] - 1.0), 100.0 * (best[LOOP] - 1.0),
                   100.0 * (best[WAVE] - 1.0), 100.0 * (best[ANY] - 1.0),
                   100.0 * (1.0 - best[WAVE] / loop), 100.0 * (1.0 - best[ANY] / known));
            fflush(stdout);
            most = fmax(most, 1.0 - best[ANY] / known);
        }
    printf("# no order of ranks gains more than %.1f %% on loop and wave\n", 100.0 * most);
    for (int back = 0; back < 2; back++)
        for (int k = 0; k < MOST_STAGES; k++)
            g_free(list.ready[back][k]);
    g_array_unref(list.events);
    return 0;
}
