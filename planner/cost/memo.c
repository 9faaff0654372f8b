#include "planner/cost/memo.h"

#include <string.h>

struct PlanMemo {
    GMutex lock;
    GCond made;          /* an answer that other threads wait for may be there */
    GHashTable *answers; /* of (owned) PlanMemoKey * -> (owned) Answer *; looked up only */
    PlanMemo *shapes;    /* (borrowed, nullable) has what depends on the shape of schedules alone */
};

typedef struct {
    void *value;         /* (owned, nullable) NULL: a thread is making it */
    GDestroyNotify free; /* how */
} Answer;

static void
answer_free(gpointer data)
{
    Answer *answer = data;

    if (answer->value != NULL)
        answer->free(answer->value);
    g_free(answer);
}

static guint
hash_key(gconstpointer data)
{
    const int64_t *words = data, n_words = words[0];
    uint64_t hash = 0;

    for (int64_t i = 0; i < n_words; i++)
        hash = hash * 1000003 + (uint64_t)words[i];
    return (guint)(hash ^ hash >> 32);
}

static gboolean
keys_equal(gconstpointer a, gconstpointer b)
{
    const PlanMemoKey *x = a, *y = b;

    return x->n_words == y->n_words && memcmp(a, b, (size_t)x->n_words * sizeof(int64_t)) == 0;
}

PlanMemo *
plan_memo_new(void)
{
    PlanMemo *memo = g_new0(PlanMemo, 1);

    g_mutex_init(&memo->lock);
    g_cond_init(&memo->made);
    memo->answers = g_hash_table_new_full(hash_key, keys_equal, g_free, answer_free);
    return memo;
}

PlanMemo *
plan_memo_new_beside(PlanMemo *other)
{
    PlanMemo *memo = plan_memo_new();

    memo->shapes = other;
    return memo;
}

void
plan_memo_free(PlanMemo *memo)
{
    if (memo == NULL)
        return;
    g_hash_table_unref(memo->answers);
    g_cond_clear(&memo->made);
    g_mutex_clear(&memo->lock);
    g_free(memo);
}

const void *
plan_memo_get(PlanMemo *memo, const PlanMemoKey *key, PlanMemoMakeFunc make, const void *question,
              GDestroyNotify free_answer)
{
    if (memo->shapes != NULL && (key->kind == PLAN_MEMO_FLIGHT || key->kind == PLAN_MEMO_FULLEST))
        return plan_memo_get(memo->shapes, key, make, question, free_answer);
    g_mutex_lock(&memo->lock);
    Answer *answer;
    while ((answer = g_hash_table_lookup(memo->answers, key)) != NULL && answer->value == NULL)
        g_cond_wait(&memo->made, &memo->lock);
    if (answer != NULL) {
        const void *value = answer->value;
        g_mutex_unlock(&memo->lock);
        return value;
    }
    answer = g_new(Answer, 1);
    *answer = (Answer){NULL, free_answer};
    g_hash_table_insert(memo->answers, g_memdup2(key, (size_t)key->n_words * sizeof(int64_t)),
                        answer);
    g_mutex_unlock(&memo->lock);
    void *value = make(question);
    g_mutex_lock(&memo->lock);
    answer->value = value;
    if (value == NULL)
        g_hash_table_remove(memo->answers, key);
    g_cond_broadcast(&memo->made);
    g_mutex_unlock(&memo->lock);
    return value;
}

const void *
plan_memo_get_of_shape(PlanMemo *memo, PlanMemoKind kind, const PlanMemoShape *question,
                       PlanMemoMakeFunc make, GDestroyNotify free_answer)
{
    const ScheduleShape *shape = question->shape;
    const struct {
        PlanMemoKey memo;
        int64_t family, n_ranks, n_chunks, n_micro_batches, n_slices, group, merges;
    } key = {
        .memo = PLAN_MEMO_KEY(key, kind),
        .family = (int64_t)(intptr_t)question->family,
        .n_ranks = shape->n_ranks,
        .n_chunks = shape->n_chunks,
        .n_micro_batches = shape->n_micro_batches,
        .n_slices = shape->n_slices,
        .group = shape->group,
        .merges = shape->merges,
    };

    return plan_memo_get(memo, &key.memo, make, question, free_answer);
}
