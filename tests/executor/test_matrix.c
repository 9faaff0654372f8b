/* Tests of the executor's dimensions together: every pair, and random combinations (many with
 * `-m slow`: make test-long; others with SEED=n), loss and every gradient against one device. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "tests/executor/combo.h"

/* --- pairs --- */

/* One dimension at work: sets what it needs. */
typedef void (*Feature)(Combo *c);

#define FEATURE(name, ...)                                                                         \
    static void name(Combo *c)                                                                     \
    {                                                                                              \
        __VA_ARGS__;                                                                               \
    }
FEATURE(with_llama, c->family = MODEL_FAMILY_LLAMA; c->tied = false)
FEATURE(with_experts, with_llama(c); c->n_experts = 4; c->n_shared = 1; c->first_dense = 1)
FEATURE(with_ep, with_llama(c); c->n_experts = 4; c->ep = 2; c->dp = MAX(c->dp, 2))
FEATURE(with_ep4, with_llama(c); c->n_experts = 4; c->n_shared = 2; c->ep = 4; c->dp = 2;
        c->tp = MAX(c->tp, 2))
FEATURE(with_mtp, with_llama(c); c->mtp = 2)
FEATURE(with_kinds, c->mixed = true; c->n_layers = 4)
FEATURE(with_gqa, c->n_kv_heads = 2)
FEATURE(with_one_kv_head, c->n_kv_heads = 1)
FEATURE(with_untied, c->tied = false)
FEATURE(with_dp, c->dp = 2)
FEATURE(with_tp, c->tp = 2)
FEATURE(with_tp4, c->tp = 4)
FEATURE(with_sp, c->tp = MAX(c->tp, 2); c->sequence_parallel = true)
FEATURE(with_scatter, c->tp = MAX(c->tp, 2); c->pp = MAX(c->pp, 2); c->scatter_p2p = true)
FEATURE(with_broadcast, c->tp = MAX(c->tp, 2); c->pp = MAX(c->pp, 2); c->broadcast_p2p = true)
FEATURE(with_padding, c->pads_vocab = true)
FEATURE(with_cp, c->cp = 2)
FEATURE(with_cp3, c->cp = 3) /* 24 tokens: zigzag in sixths */
FEATURE(with_pp, c->pp = MAX(c->pp, 2))
FEATURE(with_slices, c->slices[0] = 12; c->slices[1] = 12)
FEATURE(with_uneven_slices, c->slices[0] = 6; c->slices[1] = 12; c->slices[2] = 6)
FEATURE(with_zb_h1, c->schedule = "zb-h1"; c->pp = 2; c->n_micro_batches = 4)
FEATURE(with_interleaved, c->schedule = "interleaved"; c->pp = 2; c->vpp = 2)
FEATURE(with_zb_v, c->schedule = "zb-v"; c->pp = 2; c->vpp = 2; c->n_micro_batches = 4)
FEATURE(with_dualpipe, c->schedule = "dualpipe"; c->pp = 2; c->vpp = 2; c->n_micro_batches = 4)
FEATURE(with_dualpipev, c->schedule = "dualpipev"; c->pp = 2; c->vpp = 2; c->n_micro_batches = 4)
FEATURE(with_seq1f1b, c->schedule = "seq1f1b"; c->pp = 2; c->slices[0] = 12; c->slices[1] = 12)
FEATURE(with_uneven_batches, c->uneven = true; c->n_micro_batches = MAX(c->n_micro_batches, 3))
FEATURE(with_bf16, c->dtype = DTYPE_BF16)
FEATURE(with_selective, c->recompute = PLAN_RECOMPUTE_SELECTIVE)
FEATURE(with_full, c->recompute = PLAN_RECOMPUTE_FULL)
FEATURE(with_mixed_recompute, c->recompute_varies = true; c->pp = MAX(c->pp, 3); c->n_layers = 5)
FEATURE(with_zero1, c->zero_stage = 1; c->dp = MAX(c->dp, 2))
FEATURE(with_zero2, c->zero_stage = 2; c->dp = MAX(c->dp, 2))
FEATURE(with_zero3, c->zero_stage = 3; c->dp = MAX(c->dp, 3))
FEATURE(with_cpu_offload, c->offload = PLAN_OFFLOAD_CPU)
FEATURE(with_nvme_offload, c->offload = PLAN_OFFLOAD_NVME)
FEATURE(with_cpu_parameters, c->offload = PLAN_OFFLOAD_CPU; c->offload_parameters = true;
        c->zero_stage = 3)
FEATURE(with_nvme_parameters, c->offload = PLAN_OFFLOAD_NVME; c->offload_parameters = true;
        c->zero_stage = 3; c->dp = MAX(c->dp, 2))
FEATURE(with_none_ahead, c->zero_stage = 3; c->dp = MAX(c->dp, 2); c->prefetch_layers = 0)
FEATURE(with_three_ahead, c->zero_stage = 3; c->dp = MAX(c->dp, 2); c->prefetch_layers = 3)
#undef FEATURE

static const Feature features[] = {
    with_llama,
    with_experts,
    with_ep,
    with_ep4,
    with_mtp,
    with_kinds,
    with_gqa,
    with_one_kv_head,
    with_untied,
    with_dp,
    with_tp,
    with_tp4,
    with_sp,
    with_scatter,
    with_broadcast,
    with_padding,
    with_cp,
    with_cp3,
    with_pp,
    with_slices,
    with_uneven_slices,
    with_zb_h1,
    with_interleaved,
    with_zb_v,
    with_dualpipe,
    with_dualpipev,
    with_seq1f1b,
    with_bf16,
    with_uneven_batches,
    with_selective,
    with_full,
    with_mixed_recompute,
    with_zero1,
    with_zero2,
    with_zero3,
    with_cpu_offload,
    with_nvme_offload,
    with_cpu_parameters,
    with_nvme_parameters,
    with_none_ahead,
    with_three_ahead,
};

/* Every kind of attention beside what cuts, moves or computes it again. */
static void
test_every_attention(void)
{
    static const Feature cuts[] = {with_tp,          with_sp,
                                   with_one_kv_head, with_cp,
                                   with_cp3,         with_uneven_slices,
                                   with_zb_h1,       with_seq1f1b,
                                   with_dualpipev,   with_bf16,
                                   with_selective,   with_full,
                                   with_zero3,       with_cpu_parameters};
    int n_run = 0;

    for (size_t i = 0; i < G_N_ELEMENTS(attention_kinds); i++)
        for (size_t j = 0; j < G_N_ELEMENTS(cuts); j++) {
            Combo c = combo_default();
            with_llama(&c);
            c.attention = (int64_t)i + 1;
            c.n_kv_heads = 2;
            cuts[j](&c);
            /* Next to one that cuts in another way. */
            cuts[(j + i + 1) % G_N_ELEMENTS(cuts)](&c);
            if (!combo_supported(&c)) {
                c = combo_default();
                c.attention = (int64_t)i + 1;
                cuts[j](&c);
            }
            if (combo_supported(&c)) {
                combo_check(&c);
                n_run++;
            }
        }
    g_assert_cmpint(n_run, >=, 200);
}

static void
test_all_pairs(void)
{
    int n_run = 0, n_skipped = 0;

    for (size_t i = 0; i < G_N_ELEMENTS(features); i++)
        for (size_t j = i; j < G_N_ELEMENTS(features); j++) {
            Combo c = combo_default();
            features[i](&c);
            features[j](&c);
            if (!combo_supported(&c)) {
                n_skipped++; /* a family that does not slice, two schedules at once */
                continue;
            }
            combo_check(&c);
            n_run++;
        }
    g_test_message("%d pairs, %d that contradict each other", n_run, n_skipped);
    g_assert_cmpint(n_run, >=, 200);
}

/* Every kind of blocks beside what works on layers or splits them. */
static void
test_every_variety(void)
{
    static const Feature at_work[] = {with_tp,   with_sp,    with_uneven_slices, with_zb_v,
                                      with_full, with_zero3, with_bf16};

    for (size_t v = 0; v < G_N_ELEMENTS(kinds_varieties); v++)
        for (size_t i = 0; i < G_N_ELEMENTS(at_work); i++) {
            Combo c = combo_default();
            if ((v + i) % 2 == 0)
                with_llama(&c);
            c.n_layers = 4;
            c.variety = 1 + (int)v;
            at_work[i](&c);
            if (combo_arch(&c).experts.n_experts == 0)
                c.ep = 1;
            g_assert_true(combo_supported(&c));
            combo_check(&c);
            c.recompute = PLAN_RECOMPUTE_FULL;
            if (at_work[i] == with_zb_v)
                combo_check(&c);
        }
}

/* MTP modules beside what cuts, moves or computes them again: two of them in one stage with the
 * head, in stages of their own, of several kinds, beside a tied head on another rank than theirs. */
static void
test_modules_of_their_own(void)
{
    static const Feature at_work[] = {with_dp,
                                      with_tp,
                                      with_tp4,
                                      with_sp,
                                      with_scatter,
                                      with_broadcast,
                                      with_padding,
                                      with_cp,
                                      with_cp3,
                                      with_uneven_slices,
                                      with_zb_h1,
                                      with_zb_v,
                                      with_dualpipe,
                                      with_seq1f1b,
                                      with_interleaved,
                                      with_dualpipev,
                                      with_bf16,
                                      with_selective,
                                      with_full,
                                      with_mixed_recompute,
                                      with_zero1,
                                      with_zero2,
                                      with_zero3,
                                      with_experts,
                                      with_ep4,
                                      with_kinds,
                                      with_uneven_batches,
                                      with_cpu_parameters,
                                      with_none_ahead};
    int n_run = 0;

    for (size_t i = 0; i < G_N_ELEMENTS(at_work); i++)
        for (int stages = 1; stages <= 4; stages += 3) {
            Combo c = combo_default();
            with_mtp(&c);
            c.tied = i % 2 == 0;
            c.mtp = 1 + (int64_t)i % 3 % 2;
            at_work[i](&c);
            at_work[(i * 7 + 3) % G_N_ELEMENTS(at_work)](&c);
            c.family = MODEL_FAMILY_LLAMA;
            /* With four stages the modules are apart from the head's, or from each other. */
            c.pp = MAX(c.pp, stages);
            c.lone_head = stages > 1 && i % 3 == 0 && c.schedule[0] != 'd';
            if (!combo_supported(&c))
                continue;
            combo_check(&c);
            n_run++;
        }
    g_test_message("%d combinations", n_run);
    g_assert_cmpint(n_run, >=, 40);
}

/* Every module of selective recompute, alone and with others, where a layer has it: experts with and
 * without a gate and latents beside latent attention, beside what divides them. */
static void
test_every_module_is_repeated(void)
{
    static const Feature at_work[] = {with_dp,
                                      with_tp,
                                      with_sp,
                                      with_ep4,
                                      with_cp,
                                      with_slices,
                                      with_uneven_slices,
                                      with_zero3,
                                      with_bf16,
                                      with_interleaved,
                                      with_zb_h1,
                                      with_zb_v,
                                      with_dualpipe};
    static const char *const varieties[] = {NULL, "share-of-all", "latent"};
    const uint32_t all = (UINT32_C(1) << PLAN_MODULE_OPS) - 1;

    for (int module = 0; module <= PLAN_MODULE_OPS; module++)
        for (size_t i = 0; i < G_N_ELEMENTS(at_work); i++) {
            Combo c = combo_default();
            const char *variety = varieties[((size_t)module + i) % G_N_ELEMENTS(varieties)];
            with_experts(&c);
            c.first_dense = (int64_t)i % 2;
            for (size_t v = 0; variety != NULL && v < G_N_ELEMENTS(kinds_varieties); v++)
                if (strcmp(kinds_varieties[v].name, variety) == 0)
                    c.variety = 1 + (int)v;
            for (size_t a = 0; module >= PLAN_MODULE_MLA_UP && a < G_N_ELEMENTS(attention_kinds);
                 a++)
                if (strcmp(attention_kinds[a].name, i % 2 == 0 ? "latent" : "latent-direct") == 0)
                    c.attention = 1 + (int64_t)a;
            at_work[i](&c);
            c.recompute = PLAN_RECOMPUTE_SELECTIVE;
            c.modules = module == PLAN_MODULE_OPS ? all : UINT32_C(1) << module;
            g_assert_true(combo_supported(&c));
            combo_check(&c);
        }
}

/* Full recompute of some layers, and of several together. */
static void
test_layers_are_repeated_together(void)
{
    static const Feature at_work[] = {with_dp,    with_tp,   with_sp,    with_cp,     with_slices,
                                      with_zb_h1, with_zb_v, with_zero2, with_zero3,  with_ep4,
                                      with_kinds, with_bf16, with_mtp,   with_seq1f1b};
    int n_run = 0;

    for (int64_t n = 1; n <= 4; n++)
        for (size_t i = 0; i < G_N_ELEMENTS(at_work); i++) {
            Combo c = combo_default();
            with_experts(&c);
            c.n_layers = 7;
            c.state = i % 5 == 4 ? 1 + (int)(i % 3) : 0;
            at_work[i](&c);
            c.recompute = PLAN_RECOMPUTE_FULL;
            c.recompute_layers = n;
            c.recompute_block = (i + (size_t)n) % 3 == 0;
            if (!combo_supported(&c))
                continue;
            combo_check(&c);
            n_run++;
        }
    g_assert_cmpint(n_run, >=, 50);
}

/* Passes of two micro-batches that compute in turns, in every family that merges them, beside what divides a
 * layer, moves its state or computes it again. */
static void
test_merged_passes(void)
{
    static const struct {
        const char *schedule;
        int64_t pp, vpp;
    } pipelines[] = {{"1f1b", 1, 1},
                     {"1f1b", 2, 1},
                     {"interleaved", 2, 2},
                     {"dualpipe", 2, 2},
                     {"dualpipev", 2, 2}};
    static const Feature at_work[] = {with_dp,        with_tp,
                                      with_sp,        with_cp,
                                      with_ep4,       with_zero1,
                                      with_zero2,     with_full,
                                      with_selective, with_kinds,
                                      with_mtp,       with_bf16,
                                      with_padding,   with_uneven_batches};
    static const char *const varieties[] = {NULL, "share-of-all", "latent"};
    int n_run = 0;

    for (size_t p = 0; p < G_N_ELEMENTS(pipelines); p++)
        for (size_t i = 0; i < G_N_ELEMENTS(at_work); i++) {
            Combo c = combo_default();
            const char *variety = varieties[(p + i) % G_N_ELEMENTS(varieties)];
            with_experts(&c);
            c.n_shared = (int64_t)(i % 2);
            c.first_dense = (int64_t)(i % 3 == 1);
            for (size_t v = 0; variety != NULL && v < G_N_ELEMENTS(kinds_varieties); v++)
                if (strcmp(kinds_varieties[v].name, variety) == 0)
                    c.variety = 1 + (int)v;
            at_work[i](&c);
            c.modules =
                c.recompute == PLAN_RECOMPUTE_SELECTIVE
                    ? (i + p) % 2 == 0 ? 1u << PLAN_MODULE_MOE : 1u << PLAN_MODULE_MOE_ACTIVATION
                    : 0;
            if (c.dp * c.tp * c.cp < 2)
                c.dp = 2;
            c.ep = MAX(c.ep, 2);
            c.schedule = pipelines[p].schedule;
            c.pp = pipelines[p].pp;
            c.vpp = pipelines[p].vpp;
            c.n_micro_batches = 6;
            c.merges = true;
            if (!combo_supported(&c))
                continue;
            combo_check(&c);
            n_run++;
        }
    g_test_message("%d combinations", n_run);
    g_assert_cmpint(n_run, >=, 50);
}

/* --- schedules --- */

/* Every family, with two chunks where it has chunks, two slices where it slices, beside tp 2; with
 * every way to recompute; of attention, of mixers with a state, and with MTP modules. */
static void
test_every_schedule(void)
{
    const ScheduleFamily *const *families = schedule_families();

    for (size_t i = 0; families[i] != NULL; i++)
        for (int recompute = 0; recompute < PLAN_RECOMPUTE_N; recompute++) {
            Combo c = combo_default();
            c.recompute = (PlanRecompute)recompute;
            with_llama(&c);
            c.tp = c.pp = 2;
            c.schedule = families[i]->name;
            c.vpp = MAX(families[i]->min_chunks, MIN(2, families[i]->max_chunks));
            c.n_micro_batches = 4;
            if (families[i]->slices)
                with_slices(&c);
            g_test_message("%s, recompute %s", c.schedule, plan_recompute_names[recompute]);
            g_assert_true(combo_supported(&c));
            combo_check(&c);
            /* A mixer with a state beside attention; MTP modules. */
            Combo other = c;
            other.state = 1 + (int)((i + (size_t)recompute) % STATES_N);
            other.n_layers = 4;
            g_assert_true(combo_supported(&other));
            combo_check(&other);
            other = c;
            other.mtp = 1 + (int64_t)(i % 2);
            g_assert_true(combo_supported(&other));
            combo_check(&other);
        }
}

/* Waves: three chunks, whose last one ends on the last rank, and four, beside what cuts, moves or computes them again. */
static void
test_waves(void)
{
    static const Feature at_work[] = {with_llama, with_kinds,     with_mtp,  with_tp,
                                      with_dp,    with_selective, with_full, with_mixed_recompute,
                                      with_zero3, with_experts,   with_cp};

    for (size_t i = 0; i < G_N_ELEMENTS(at_work); i++)
        for (int vpp = 3; vpp <= 4; vpp++) {
            Combo c = combo_default();
            at_work[i](&c);
            c.schedule = "hanayo";
            c.pp = vpp == 3 ? 3 : 2;
            c.vpp = vpp;
            c.n_layers = vpp == 3 ? 9 : 8;
            c.n_micro_batches = 5;
            g_assert_true(combo_supported(&c));
            combo_check(&c);
        }
}

/* --- orders of dimensions --- */

/* All four dimensions, in every order; with ZeRO 3, whose parts follow the copies' order; with
 * experts, spread over tp and dp ranks, where the order keeps their groups whole. */
static void
test_every_rank_order(void)
{
    int n_experts = 0;

    for (int order = 0; order < PLAN_RANK_ORDER_N; order++) {
        Combo c = combo_default();
        with_llama(&c);
        c.dp = c.tp = c.cp = c.pp = 2;
        c.rank_order = order;
        c.n_micro_batches = 4;
        c.zero_stage = order % 2 == 0 ? 3 : 0;
        g_assert_true(combo_supported(&c));
        combo_check(&c);
        c.n_experts = c.ep = 4;
        if (!combo_supported(&c))
            continue;
        n_experts++;
        combo_check(&c);
    }
    /* tp, cp, dp in their order, pp anywhere. */
    g_assert_cmpint(n_experts, ==, 4);
}

/* --- random combinations --- */

typedef struct {
    uint64_t seed, n_drawn;
} Dice;

static int64_t
roll(Dice *dice, int64_t n)
{
    return (int64_t)(random_at(dice->seed, dice->n_drawn++) % (uint64_t)n);
}

static void
roll_slices(Dice *dice, Combo *c)
{
    static const int64_t cuts[][4] = {{24}, {12, 12}, {8, 16}, {6, 12, 6}, {4, 8, 8, 4}, {20, 4}};

    memcpy(c->slices, cuts[roll(dice, G_N_ELEMENTS(cuts))], sizeof c->slices);
}

/* @c, or if it is of the usual kinds, half the time, with attention of another kind besides: drawn by
 * itself, so that combinations are what they are without. */
static Combo
with_some_attention(Combo c, const Dice *dice)
{
    const uint64_t drawn = random_at(dice->seed + 1, dice->n_drawn);
    Combo other = c;

    other.attention = (int64_t)(drawn / 2 % G_N_ELEMENTS(attention_kinds)) + 1;
    return drawn % 2 == 0 && c.variety == 0 && combo_supported(&other) ? other : c;
}

/* @c, or a third of the time with MTP modules besides, likewise. */
static Combo
with_some_modules(Combo c, const Dice *dice)
{
    const uint64_t drawn = random_at(dice->seed + 2, dice->n_drawn);
    Combo other = c;

    other.mtp = 1 + (int64_t)(drawn / 3 % 3);
    other.lone_head = drawn / 9 % 3 == 0 && c.schedule[0] != 'd';
    return drawn % 3 == 0 && combo_supported(&other) ? other : c;
}

/* @c, or half the time that it repeats modules, with a set of them drawn by itself, likewise. */
static Combo
with_some_repeated(Combo c, const Dice *dice)
{
    const uint64_t drawn = random_at(dice->seed + 3, dice->n_drawn);

    if (drawn % 2 == 0 && (c.recompute == PLAN_RECOMPUTE_SELECTIVE || c.recompute_varies))
        c.modules = 1 + (uint32_t)(drawn / 2 % ((UINT64_C(1) << PLAN_MODULE_OPS) - 1));
    return c;
}

/* @c, or half the time that its experts are on several ranks, with merged passes, likewise. */
static Combo
with_some_merged(Combo c, const Dice *dice)
{
    Combo other = c;

    other.merges = true;
    return c.ep > 1 && random_at(dice->seed + 4, dice->n_drawn) % 2 == 0 && combo_supported(&other)
               ? other
               : c;
}

/* At most 16 ranks; what contradicts itself is drawn again. */
static Combo
roll_combo(Dice *dice)
{
    static const int64_t degrees[] = {1, 1, 2, 2, 3, 4};
    const ScheduleFamily *const *families = schedule_families();
    int64_t n_families = 0;

    while (families[n_families] != NULL)
        n_families++;
    for (;;) {
        Combo c = combo_default();
        const ScheduleFamily *family = families[roll(dice, n_families)];
        c.family = roll(dice, 2) == 0 ? MODEL_FAMILY_GPT : MODEL_FAMILY_LLAMA;
        c.tied = roll(dice, 2) == 0;
        if (c.family == MODEL_FAMILY_LLAMA && roll(dice, 2) == 0) {
            c.n_experts = 4;
            c.ep = INT64_C(1) << roll(dice, 3);
            c.n_shared = roll(dice, 3);
            c.first_dense = roll(dice, 3);
        }
        c.mixed = roll(dice, 4) == 0;
        if (roll(dice, 3) == 0)
            c.variety = 1 + (int)roll(dice, G_N_ELEMENTS(kinds_varieties));
        c.n_kv_heads = INT64_C(1) << roll(dice, 3);
        c.dp = degrees[roll(dice, 6)];
        c.tp = INT64_C(1) << roll(dice, 3);
        c.cp = degrees[roll(dice, 5)];
        c.pp = degrees[roll(dice, 6)];
        c.vpp = family->min_chunks + roll(dice, 2);
        c.sequence_parallel = roll(dice, 2) == 0;
        c.scatter_p2p = roll(dice, 3) == 0;
        c.broadcast_p2p = !c.scatter_p2p && roll(dice, 3) == 0;
        c.schedule = family->name;
        c.n_micro_batches = 1 + roll(dice, 8);
        c.micro_batch = 1 + roll(dice, 3);
        c.uneven = roll(dice, 3) == 0;
        roll_slices(dice, &c);
        c.recompute = (PlanRecompute)roll(dice, PLAN_RECOMPUTE_N);
        c.recompute_varies = roll(dice, 3) == 0;
        c.zero_stage = (int32_t)roll(dice, 4);
        c.offload = (PlanOffload)roll(dice, PLAN_OFFLOAD_N);
        c.rank_order = roll(dice, 2) * roll(dice, PLAN_RANK_ORDER_N);
        c.offload_parameters =
            c.zero_stage == 3 && c.offload != PLAN_OFFLOAD_NONE && roll(dice, 2) == 0;
        c.prefetch_layers = (int32_t)roll(dice, 5) - 1;
        c.pads_vocab = roll(dice, 3) == 0;
        if (c.dp * c.tp * c.cp * c.pp <= 16 && c.dp * c.tp * c.cp * c.pp > 1 && combo_supported(&c))
            return with_some_merged(
                with_some_repeated(with_some_modules(with_some_attention(c, dice), dice), dice),
                dice);
    }
}

static void
test_random_combinations(void)
{
    const int n = g_test_slow() ? 2000 : 240;
    const char *seed = g_getenv("SEED");
    Dice dice = {.seed = seed == NULL ? 2024 : strtoull(seed, NULL, 10)};

    for (int i = 0; i < n; i++) {
        const Combo c = roll_combo(&dice);
        combo_check(&c);
    }
}

/* Mixers with a state beside attention.  Their vectors have one element for each of 8 heads: two of
 * them alone hold little but rounding. */
static void
test_random_states(void)
{
    Dice dice = {.seed = 2025};

    if (!g_test_slow()) {
        g_test_skip("a long test; test_state_mixer has each in nine combinations");
        return;
    }
    for (int i = 0; i < 300;) {
        Combo c = roll_combo(&dice);
        c.state = 1 + i % STATES_N;
        c.mixed = false;
        c.variety = 0;
        c.n_experts = 0;
        c.ep = 1;
        if (c.state <= STATES_HEADS_N)
            c.tp = MIN(c.tp, 2);
        if (!combo_supported(&c))
            continue;
        combo_check(&c);
        i++;
    }
}

/* --- faults inside layers --- */

/* Rank 3 fails in its second backward, where its tp, cp and ep peers wait inside a layer. */
static bool
fail_rank_3(int32_t rank, int64_t step, ScheduleOp op, void *user_data, GError **error)
{
    if (rank != 3 || op.kind != SCHEDULE_OP_BACKWARD || op.micro_batch != 1)
        return true;
    g_set_error(error, EXEC_ERROR, EXEC_ERROR_FAILED, "out of ideas");
    return false;
}

static void
with_merged_passes(Combo *c)
{
    with_ep4(c);
    c->merges = true;
    c->n_micro_batches = 4;
}

static void
test_failure_inside_a_layer_stops_all(void)
{
    static const Feature dimensions[] = {with_tp4,   with_sp,    with_cp,           with_ep4,
                                         with_zero2, with_zero3, with_merged_passes};

    for (size_t i = 0; i < G_N_ELEMENTS(dimensions); i++) {
        Combo c = combo_default();
        dimensions[i](&c);
        c.dp = MAX(c.dp, 4 / (c.tp * c.cp)); /* four ranks or more */
        const ModelArch arch = combo_arch(&c);
        g_autoptr(Plan) plan = combo_plan(&c);
        g_autoptr(GError) error = NULL;
        g_auto(ExecRunResult) result = {0};
        ExecRunOptions options = combo_options(&c, &arch, plan);
        options.before_op = fail_rank_3;
        const int64_t begin_us = g_get_monotonic_time();
        g_assert_false(exec_run(&options, &result, &error));
        g_assert_error(error, EXEC_ERROR, EXEC_ERROR_RANK_DIED);
        g_test_message("%s", error->message);
        g_assert_nonnull(strstr(error->message, "rank 3 failed in B1.0 of step 0: out of ideas"));
        g_assert_cmpint(g_get_monotonic_time() - begin_us, <, 30 * G_USEC_PER_SEC);
    }
}

/* --- training --- */

/* Less than the gradient's norm in most steps. */
#define CLIP_NORM 0.5f

/* Losses of @n steps (owned). */
static double *
losses_of(const Combo *c, int64_t n)
{
    const ModelArch arch = combo_arch(c);
    g_autoptr(Plan) plan = combo_plan(c);
    g_autoptr(GError) error = NULL;
    g_auto(ExecRunResult) result = {0};
    ExecRunOptions options = combo_options(c, &arch, plan);

    options.verify = false;
    options.n_steps = n;
    options.learning_rate = 1e-2f;
    options.clip_norm = CLIP_NORM;
    g_assert_true(exec_run(&options, &result, &error));
    g_assert_no_error(error);
    return g_steal_pointer(&result.losses);
}

/* Ten steps stay on one device's path: by then biases are not zero any more, norms not one, and all
 * copies of a parameter must have made the same steps, with gradients clipped by the same norm.
 * Every dimension for both families, and with every stage of ZeRO. */
static void
test_training_does_not_depend_on_degrees(void)
{
    enum {
        N = 10
    };
    static const Feature dimensions[] = {
        with_dp,
        with_tp,
        with_tp4,
        with_sp,
        with_scatter,
        with_cp,
        with_pp,
        with_interleaved,
        with_zb_v,
        with_dualpipe,
        with_dualpipev,
        with_uneven_slices,
        with_ep,
        with_ep4,
        with_zb_h1,
        with_full,
        with_cpu_offload,
        with_nvme_offload,
        with_cpu_parameters,
        with_nvme_parameters,
    };

    for (size_t i = 0; i < G_N_ELEMENTS(dimensions); i++)
        for (int variant = 0; variant < 5; variant++) {
            Combo c = combo_default(), one;
            c.family = variant % 2 == 0 ? MODEL_FAMILY_GPT : MODEL_FAMILY_LLAMA;
            dimensions[i](&c);
            c.zero_stage = c.offload_parameters ? 3 : MAX(variant - 1, 0);
            if (c.zero_stage > 0)
                c.dp = MAX(c.dp, 2);
            one = c;
            one.dp = one.tp = one.cp = one.pp = one.vpp = one.ep = 1;
            one.sequence_parallel = one.scatter_p2p = one.broadcast_p2p = false;
            one.schedule = "1f1b";
            one.n_micro_batches = c.dp * c.n_micro_batches;
            one.n_layers = combo_arch(&c).n_layers;
            one.recompute = PLAN_RECOMPUTE_NONE;
            one.zero_stage = 0;
            one.offload_parameters = false;
            memset(one.slices + 1, 0, sizeof one.slices - sizeof one.slices[0]);
            one.slices[0] = 24;
            g_autofree char *text = combo_text(&c);
            g_autofree double *losses = losses_of(&c, N), *expected = losses_of(&one, N);
            double worst = 0;
            for (int64_t s = 0; s < N; s++)
                worst = fmax(worst, fabs(losses[s] - expected[s]));
            g_test_message("%s: %.1e", text, worst);
            g_assert_cmpfloat(worst, <=, 1e-4);
        }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/matrix/all-pairs", test_all_pairs);
    g_test_add_func("/executor/matrix/every-variety", test_every_variety);
    g_test_add_func("/executor/matrix/every-attention", test_every_attention);
    g_test_add_func("/executor/matrix/modules-of-their-own", test_modules_of_their_own);
    g_test_add_func("/executor/matrix/every-module-is-repeated", test_every_module_is_repeated);
    g_test_add_func("/executor/matrix/layers-are-repeated-together",
                    test_layers_are_repeated_together);
    g_test_add_func("/executor/matrix/merged-passes", test_merged_passes);
    g_test_add_func("/executor/matrix/every-schedule", test_every_schedule);
    g_test_add_func("/executor/matrix/waves", test_waves);
    g_test_add_func("/executor/matrix/every-rank-order", test_every_rank_order);
    g_test_add_func("/executor/matrix/random-combinations", test_random_combinations);
    g_test_add_func("/executor/matrix/random-states", test_random_states);
    g_test_add_func("/executor/matrix/failure-inside-a-layer-stops-all",
                    test_failure_inside_a_layer_stops_all);
    g_test_add_func("/executor/matrix/training-does-not-depend-on-degrees",
                    test_training_does_not_depend_on_degrees);
    return g_test_run();
}
