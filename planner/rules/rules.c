#include "planner/rules/rules.h"

#include <math.h>
#include <string.h>

#include "base/units.h"
#include "planner/rules/dated.h"
#include "planner/rules/layer_flags.h"
#include "schedule/rank_order.h"

void
plan_breach_clear(PlanBreach *breach)
{
    g_clear_pointer(&breach->text, g_free);
    g_clear_pointer(&breach->change, g_free);
}

/* Notes what is broken where that is asked; true, for the rule to return. */
static bool G_GNUC_PRINTF(3, 4)
    broken(PlanBreach *breach, const char *change, const char *format, ...)
{
    va_list args;

    if (breach == NULL)
        return true;
    va_start(args, format);
    breach->text = g_strdup_vprintf(format, args);
    va_end(args);
    breach->change = g_strdup(change);
    return true;
}

static bool
in_set(uint32_t set, int i)
{
    return (set >> i & 1) != 0;
}

/* (owned) the @names of @set: "bf16, fp32". */
static char *
set_text(uint32_t set, const char *const *names)
{
    GString *text = g_string_new(NULL);

    for (int i = 0; names[i] != NULL; i++)
        if (in_set(set, i))
            g_string_append_printf(text, "%s%s", text->len > 0 ? ", " : "", names[i]);
    return g_string_free(text, FALSE);
}

/* --- the job --- */

/* Of the framework's own models, without regard to MTP modules and adapters, which are settings. */
const PlanFrameworkModel *
plan_rules_model(const PlanFrameworkRules *rules, const ModelArch *arch)
{
    const PlanFrameworkModel *model = rules->models;

    while (model != NULL && model->model != NULL && strcmp(model->model, arch->name) != 0)
        model++;
    if (model == NULL || model->model == NULL)
        return NULL;
    g_autoptr(ModelArch) own = model_arch_load(model->model, NULL, NULL);
    if (rules->mtp)
        own->mtp = arch->mtp;
    own->lora = arch->lora;
    g_autofree char *difference = model_arch_difference(arch, own);
    return difference == NULL ? model : NULL;
}

/* A flavour is the model as we have it, whatever a user's file of that name says. */
static bool
breaks_flavour(const PlanRuleCase *c, PlanBreach *breach)
{
    const PlanFrameworkModel *model = c->rules->models;

    while (model->model != NULL && strcmp(model->model, c->arch->name) != 0)
        model++;
    if (model->model == NULL)
        return broken(breach, NULL, "it has no flavour of %s", c->arch->name);
    g_autoptr(ModelArch) flavour = model_arch_load(model->model, NULL, NULL);
    flavour->lora = c->arch->lora;
    g_autofree char *difference = model_arch_difference(c->arch, flavour);
    return difference != NULL &&
           broken(breach, NULL, "it has no flavour of %s whose %s", c->arch->name, difference);
}

static bool
breaks_mtp(const PlanRuleCase *c, PlanBreach *breach)
{
    if (c->arch->mtp.n == 0)
        return false;
    if (!c->rules->mtp)
        return broken(breach, "--mtp 0", "MTP modules are not known here");
    if (plan_layers_are_hybrid(c->arch))
        return false; /* their patterns have letters for the modules, too */
    ModelArch usual = *c->arch;
    usual.mtp.kind = 0;
    g_autofree char *difference = model_arch_difference(c->arch, &usual);
    return difference != NULL &&
           broken(breach, NULL, "the layers of MTP modules are as the model's last: %s",
                  difference);
}

static bool
breaks_adapters(const PlanRuleCase *c, PlanBreach *breach)
{
    return c->arch->lora.rank > 0 && !c->rules->adapters &&
           broken(breach, "--lora-rank 0", "adapters beside frozen weights are not known here");
}

/* (nullable) Another program that has the model itself: its name. */
static const char *
program_with(const PlanRuleCase *c)
{
    for (int i = 0; i < PLAN_FRAMEWORK_N; i++) {
        const PlanFrameworkFacts *facts = plan_framework((PlanFramework)i);
        const PlanFrameworkRules *rules = facts->rules;
        if (rules != NULL && rules != c->rules && rules->models != NULL &&
            rules->described_by_flags && plan_rules_model(rules, c->arch) != NULL)
            return facts->name;
    }
    return NULL;
}

/* What of the layers flags cannot say, and who has the model all the same. */
static bool
breaks_layers(const PlanRuleCase *c, PlanBreach *breach)
{
    PlanLayerFlags flags;
    g_autofree char *unsaid = plan_layer_flags(c->arch, &flags);
    const char *other = unsaid == NULL || breach == NULL ? NULL : program_with(c);
    g_autofree char *change = other == NULL ? NULL : g_strconcat("--framework ", other, NULL);

    if (unsaid == NULL)
        return false;
    return other == NULL
               ? broken(breach, NULL, "there is no flag for %s", unsaid)
               : broken(breach, change, "there is no flag for %s; %s has the model", unsaid, other);
}

/* What the flags of Megatron-LM cannot say. */
static bool
breaks_flags(const PlanRuleCase *c, PlanBreach *breach)
{
    const ModelArch *arch = c->arch;

    if (arch->vocab == 0)
        return broken(breach, NULL,
                      "a model has embedding and loss: a vocabulary of 0 cannot be expressed");
    if (breaks_layers(c, breach))
        return true;
    if (arch->family == MODEL_FAMILY_LLAMA && arch->rope_base != floor(arch->rope_base))
        return broken(breach, NULL, "the base of rotary positions is a whole number, not %g",
                      arch->rope_base);
    return arch->experts.top_k == 1 && arch->experts.router_scores == MODEL_ROUTER_SOFTMAX &&
           broken(breach, NULL,
                  "one expert of a token (top_k 1) has router_scores softmax-all or sigmoid, "
                  "as its softmax over itself is 1");
}

static bool
breaks_model(const PlanRuleCase *c, PlanBreach *breach)
{
    if (c->model_runs)
        return false;
    if (breaks_mtp(c, breach))
        return true;
    if (c->rules->described_by_flags)
        return plan_rules_model(c->rules, c->arch) == NULL && breaks_flags(c, breach);
    return c->rules->models != NULL && breaks_flavour(c, breach);
}

static bool
breaks_slices(const PlanRuleCase *c, PlanBreach *breach)
{
    if (c->rules->slices || (c->n_slices == 1 && !c->regroups))
        return false;
    if (c->n_slices > 1)
        return broken(breach, "--slices off", INT " token slices cannot be expressed", c->n_slices);
    return broken(breach, "--slices off",
                  "all micro-batches have as many sequences: batch_slices cannot be expressed");
}

static bool
breaks_dtype(const PlanRuleCase *c, PlanBreach *breach)
{
    if (in_set(c->rules->dtypes, (int)c->dtype))
        return false;
    g_autofree char *all = set_text(c->rules->dtypes, dtype_names);
    g_autofree char *change = g_strdup_printf(
        "--dtype %s", dtype_names[in_set(c->rules->dtypes, DTYPE_BF16) ? DTYPE_BF16 : DTYPE_FP16]);
    return broken(breach, change, "number formats are %s, not %s", all, dtype_names[c->dtype]);
}

static bool
breaks_grad_dtype(const PlanRuleCase *c, PlanBreach *breach)
{
    const Dtype dtype = c->conventions->grad_dtype;

    if (in_set(c->rules->grad_dtypes, (int)dtype))
        return false;
    g_autofree char *all = set_text(c->rules->grad_dtypes, dtype_names);
    return broken(breach, "--grad-dtype fp32", "gradients are summed in %s, not %s", all,
                  dtype_names[dtype]);
}

static bool
breaks_modules(const PlanRuleCase *c, PlanBreach *breach)
{
    const uint32_t set = c->conventions->recompute_modules;

    if (c->rules->modules == 0 || (set & ~c->rules->modules) == 0)
        return false;
    g_autofree char *all = plan_modules_text(c->rules->modules);
    g_autofree char *text = plan_modules_text(set & ~c->rules->modules);
    return broken(breach, "--recompute-modules core_attn",
                  "selective recompute is of %s, not of %s", all, text);
}

static bool
breaks_optimizer(const PlanRuleCase *c, PlanBreach *breach)
{
    const int optimizer = (int)c->conventions->optimizer;

    if (c->rules->optimizers == 0 || in_set(c->rules->optimizers, optimizer))
        return false;
    g_autofree char *all = set_text(c->rules->optimizers, plan_optimizer_names);
    return broken(breach, "--optimizer adamw", "the optimizer is %s, not %s", all,
                  plan_optimizer_names[optimizer]);
}

static bool
breaks_offload_parameters(const PlanRuleCase *c, PlanBreach *breach)
{
    return c->offload_parameters && !c->rules->offload_parameters &&
           broken(breach, "--offload-parameters off", "parameters are not offloaded");
}

/* --- degrees --- */

static bool
breaks_heads(const PlanRuleCase *c, PlanBreach *breach)
{
    return c->arch->n_heads % c->degrees.tp != 0 &&
           broken(breach, "--tp 1", "--tp " INT " divides " INT " heads", c->degrees.tp,
                  c->arch->n_heads);
}

static bool
breaks_kv_heads(const PlanRuleCase *c, PlanBreach *breach)
{
    const PlanKvHeads how = c->rules->kv_heads;
    const int64_t tp = c->degrees.tp, n = c->arch->n_kv_heads;

    if (how == PLAN_KV_HEADS_ANY || n % tp == 0 || (how == PLAN_KV_HEADS_COPIED && tp % n == 0))
        return false;
    return broken(breach, "--tp 1", "--tp " INT " divides " INT " K/V heads%s", tp, n,
                  how == PLAN_KV_HEADS_COPIED ? ", or they divide it" : "");
}

static bool
has_windows_or_sinks(const ModelArch *arch)
{
    bool has = false;

    for (int32_t i = 0; i < model_n_kinds(arch); i++) {
        const ModelArch kind = model_kind_arch(arch, i);
        has = has || kind.window > 0 || kind.sinks;
    }
    return has;
}

static bool
breaks_cp(const PlanRuleCase *c, PlanBreach *breach)
{
    const PlanDegrees *d = &c->degrees;
    const int64_t by_cp = d->cp > 1 ? 2 * d->cp : 1,
                  by_tp = c->rules->tokens_by_tp_and_cp ? d->tp : 1;

    if (d->cp > 1 && !c->rules->cp)
        return broken(breach, "--cp 1", "sequences are not split over ranks by a ring: --cp " INT,
                      d->cp);
    if (d->cp > 1 && c->rules->ring_is_plain && c->conventions->cp_comm == PLAN_CP_P2P &&
        has_windows_or_sinks(c->arch))
        return broken(breach, "--cp-comm-type a2a",
                      "attention with windows or sinks is split by --cp-comm-type a2a alone");
    return c->seq_len % (by_cp * by_tp) != 0 &&
           broken(breach, "--cp 1 --tp 1", "%s, " INT ", divides the sequence of " INT,
                  by_tp > 1 ? "--tp times twice --cp" : "twice --cp", by_cp * by_tp, c->seq_len);
}

static bool
breaks_ep(const PlanRuleCase *c, PlanBreach *breach)
{
    const int64_t ep = c->degrees.ep, n = c->arch->experts.n_experts;

    if (ep > 1 && !c->rules->ep)
        return broken(breach, "--ep 1", "experts are not split over ranks by a setting: --ep " INT,
                      ep);
    return ep > 1 && n % ep != 0 &&
           broken(breach, "--ep 1", "--ep " INT " divides " INT " experts", ep, n);
}

static bool
breaks_tp_with_pp(const PlanRuleCase *c, PlanBreach *breach)
{
    const PlanDegrees *d = &c->degrees;

    return d->tp > 1 && d->pp > 1 && !c->rules->tp_with_pp &&
           broken(breach, "--tp 1",
                  "tensor parallelism is not for pipelines: --tp " INT " with --pp " INT, d->tp,
                  d->pp);
}

/* Megatron's hybrids have their modules where the loss is, and a plan has them behind the last layer. */
static bool
breaks_hybrid_mtp(const PlanRuleCase *c, PlanBreach *breach)
{
    return c->rules->mtp && c->arch->mtp.n > 0 && c->degrees.pp > 1 &&
           plan_layers_are_hybrid(c->arch) &&
           broken(breach, "--pp 1", "MTP modules of hybrids are not for pipelines here: --pp " INT,
                  c->degrees.pp);
}

/* The ranks of experts are numbered apart, in the same order: with pp before dp both need the same
 * number of replicas, so that pipelines are the same (Megatron's --use-tp-pp-dp-mapping). */
static bool
breaks_order(const PlanRuleCase *c, PlanBreach *breach)
{
    const PlanDegrees *d = &c->degrees;
    const int64_t order = plan_rank_order_plain(d), etp = plan_expert_tp(d, c->conventions);

    if (order == PLAN_RANK_ORDER_DEFAULT)
        return false;
    if (order != PLAN_RANK_ORDER_PP_BEFORE_DP || !c->rules->pp_before_dp)
        return broken(breach, "--rank-order tp-cp-dp-pp",
                      "ranks are laid out as tp-cp-dp-pp%s: --rank-order %s cannot be expressed",
                      c->rules->pp_before_dp ? " or tp-cp-pp-dp" : "",
                      plan_rank_order_names[d->rank_order]);
    return d->ep > 1 && d->ep * etp != d->tp * d->cp &&
           broken(breach, "--rank-order tp-cp-dp-pp",
                  "with pp before dp, --ep " INT " times --expert-tp " INT " is --tp " INT
                  " times --cp " INT,
                  d->ep, etp, d->tp, d->cp);
}

static bool
breaks_sequence_parallel(const PlanRuleCase *c, PlanBreach *breach)
{
    const PlanDegrees *d = &c->degrees;
    const PlanSequenceParallel how = c->rules->sequence_parallel;

    if (c->sequence_parallel && c->seq_len / d->cp % d->tp != 0)
        return broken(breach, "--sequence-parallel off",
                      "sequence parallelism: --tp " INT " divides " INT " tokens", d->tp,
                      c->seq_len / d->cp);
    if (d->tp == 1 || c->sequence_parallel == (how != PLAN_SEQUENCE_PARALLEL_NEVER))
        return false;
    if (how == PLAN_SEQUENCE_PARALLEL_NEVER)
        return broken(breach, "--sequence-parallel off", "there is no sequence parallelism");
    if (how == PLAN_SEQUENCE_PARALLEL_ALWAYS)
        return broken(breach, "--sequence-parallel on",
                      "tensor parallelism is always with sequence parallelism");
    if (d->ep > 1)
        return broken(breach, "--sequence-parallel on",
                      "experts with tensor parallelism need sequence parallelism");
    return c->conventions->overlap_tp &&
           broken(breach, "--sequence-parallel on",
                  "overlapping tensor parallelism needs sequence parallelism");
}

/* --- the pipeline --- */

/* (borrowed) The first that runs as many chunks, or the first. */
static const char *
nearest_schedule(const PlanRuleCase *c)
{
    for (size_t i = 0; c->rules->schedules[i] != NULL; i++) {
        const ScheduleFamily *family = schedule_family_find(c->rules->schedules[i], NULL);
        if (c->degrees.vpp >= family->min_chunks && c->degrees.vpp <= family->max_chunks)
            return family->name;
    }
    return c->rules->schedules[0];
}

/* On one rank orders that alternate forward and backward are the same; a program that has none runs
 * all forwards first there, too, and holds what they keep. */
static bool
breaks_schedule(const PlanRuleCase *c, PlanBreach *breach)
{
    const bool is_pipeline = c->degrees.pp > 1 || (c->degrees.vpp > 1 && c->rules->chunks);
    const bool alternates = g_strv_contains(c->rules->schedules, "1f1b");

    if ((!is_pipeline && alternates) || g_strv_contains(c->rules->schedules, c->schedule))
        return false;
    g_autofree char *all = g_strjoinv(", ", (char **)c->rules->schedules);
    g_autofree char *change = g_strconcat("--schedule ", nearest_schedule(c), NULL);
    return broken(breach, change, "pipelines run %s, not %s", all, c->schedule);
}

/* A compiled layer is one node of autograd: I and W would both run its whole backward. */
static bool
breaks_split(const PlanRuleCase *c, PlanBreach *breach)
{
    const PlanDegrees *d = &c->degrees;
    const ScheduleFamily *family = schedule_family_find(c->schedule, NULL);

    return c->rules->compiles_overlap_tp && c->conventions->overlap_tp && d->tp > 1 && d->pp > 1 &&
           family != NULL && family->splits_backward &&
           broken(breach, "--overlap dp,pp",
                  "the compiler, which overlaps tensor parallelism, does not split backwards as %s "
                  "does",
                  c->schedule);
}

static bool
breaks_chunks(const PlanRuleCase *c, PlanBreach *breach)
{
    const PlanDegrees *d = &c->degrees;

    if (d->vpp > 1 && !c->rules->chunks)
        return broken(breach, "--vpp 1", "a rank has one stage: --vpp " INT, d->vpp);
    return d->vpp > 1 && d->pp == 1 &&
           broken(breach, "--vpp 1", "chunks need a pipeline: --vpp " INT " with --pp 1", d->vpp);
}

static bool
breaks_groups(const PlanRuleCase *c, PlanBreach *breach)
{
    const int64_t pp = c->degrees.pp, m = c->n_micro_batches;
    const int64_t group = c->group > 0 ? c->group : pp, rounds = MAX(1, m / pp);

    if (c->family == NULL || !c->family->groups || c->degrees.vpp == 1 || pp == 1)
        return false;
    if (c->rules->groups == PLAN_GROUPS_AT_LEAST_PP) {
        if (pp == 2 && !c->overlap_pp)
            return broken(breach, "--overlap pp",
                          "interleaving 2 ranks needs messages that overlap");
        return (group < pp || group > m || (m % group > 0 && m % group < pp)) &&
               broken(breach, "--vpp 1",
                      "an interleaved group of " INT " micro-batches is at least --pp " INT
                      ", at most all " INT ", and so is what it leaves",
                      group, pp, m);
    }
    if (c->rules->groups != PLAN_GROUPS_ROUNDS)
        return false;
    if (m % rounds != 0)
        return broken(breach, "--vpp 1", "%s has rounds of as many micro-batches: " INT " in " INT,
                      c->schedule, m, rounds);
    return c->group > 0 && c->group != m / rounds &&
           broken(breach, NULL, "a round of %s has " INT " micro-batches, not --group " INT,
                  c->schedule, m / rounds, c->group);
}

static bool
breaks_stages(const PlanRuleCase *c, PlanBreach *breach)
{
    if (c->n_empty > 0 && !c->rules->empty_stages)
        return broken(breach, NULL,
                      "every stage has a layer, the embedding or the head; " INT
                      " stages have none",
                      c->n_empty);
    if (c->n_mtp_stages > 1 || c->mtp_before_chunk)
        return broken(breach, NULL,
                      c->n_mtp_stages > 1 ? "MTP modules are all in one stage"
                                          : "MTP modules are in the last stage of their rank");
    return c->most_layers != c->least_layers && !c->rules->uneven &&
           broken(breach, NULL, "stages have equally many layers, not " INT " to " INT,
                  c->least_layers, c->most_layers);
}

/* --- experts' exchanges behind another micro-batch --- */

static bool
merges(const PlanRuleCase *c)
{
    return plan_rules_merge(c->rules, c->conventions, c->arch, c->degrees.ep);
}

static bool
breaks_merged_mtp(const PlanRuleCase *c, PlanBreach *breach)
{
    return merges(c) && c->arch->mtp.n > 1 &&
           broken(breach, "--overlap dp,pp",
                  "exchanges of experts overlap with at most one MTP module, not " INT,
                  c->arch->mtp.n);
}

static bool
breaks_merged_chunks(const PlanRuleCase *c, PlanBreach *breach)
{
    const PlanDegrees *d = &c->degrees;

    return merges(c) && d->pp > 1 && d->vpp == 1 &&
           broken(breach, "--overlap dp,pp",
                  "exchanges of experts overlap in a pipeline of several chunks a rank alone: "
                  "--pp " INT " with --vpp 1",
                  d->pp);
}

static bool
breaks_merged_recompute(const PlanRuleCase *c, PlanBreach *breach)
{
    if (!merges(c))
        return false;
    if (c->recompute == PLAN_RECOMPUTE_FULL || c->recompute == PLAN_RECOMPUTE_N)
        return broken(breach, "--overlap dp,pp",
                      "exchanges of experts do not overlap where layers are computed again");
    return c->recompute == PLAN_RECOMPUTE_SELECTIVE &&
           in_set(c->conventions->recompute_modules, PLAN_MODULE_MOE) &&
           broken(breach, "--recompute-modules core_attn",
                  "exchanges of experts do not overlap where experts are computed again");
}

/* --- memory --- */

/* (owned) "--zero N": the nearest stage of @set to @zero that is above 0, else 0. */
static char *
zero_flag(uint32_t set, int zero)
{
    for (int away = 1; away <= 3; away++)
        for (int side = -1; side <= 1; side += 2) {
            const int stage = zero + side * away;
            if (stage >= 1 && stage <= 3 && in_set(set, stage))
                return g_strdup_printf("--zero %d", stage);
        }
    return g_strdup("--zero 0");
}

/* What all of @plan's degrees and its offloading allow. */
static uint32_t
zero_set(const PlanRuleCase *c)
{
    const PlanFrameworkRules *rules = c->rules;
    uint32_t set = rules->zero;

    set &= c->degrees.pp > 1 ? rules->zero_with_pp : set;
    set &= c->degrees.tp > 1 ? rules->zero_with_tp : set;
    set &= c->degrees.cp > 1 && rules->cp ? rules->zero_with_cp : set;
    return set & (c->offload == PLAN_OFFLOAD_CPU    ? rules->zero_on_cpu
                  : c->offload == PLAN_OFFLOAD_NVME ? rules->zero_on_nvme
                                                    : set);
}

static bool
breaks_zero_of(const PlanRuleCase *c, uint32_t set, const char *with, PlanBreach *breach)
{
    static const char *const names[] = {"0", "1", "2", "3", NULL};

    if (in_set(set, c->zero_stage))
        return false;
    g_autofree char *all = set_text(set, names);
    g_autofree char *change = zero_flag(zero_set(c), c->zero_stage);
    return broken(breach, change, "ZeRO is %s%s, not %d", all, with, c->zero_stage);
}

static bool
breaks_zero(const PlanRuleCase *c, PlanBreach *breach)
{
    return breaks_zero_of(c, c->rules->zero, "", breach);
}

/* One replica is not sharded, whatever it is called. */
static bool
breaks_zero_with_pp(const PlanRuleCase *c, PlanBreach *breach)
{
    return c->degrees.pp > 1 && (c->zero_stage > 0 || c->degrees.dp > 1) &&
           breaks_zero_of(c, c->rules->zero_with_pp, " with a pipeline", breach);
}

static bool
breaks_zero_with_tp(const PlanRuleCase *c, PlanBreach *breach)
{
    return c->degrees.tp > 1 &&
           breaks_zero_of(c, c->rules->zero_with_tp, " with tensor parallelism", breach);
}

static bool
breaks_zero_with_cp(const PlanRuleCase *c, PlanBreach *breach)
{
    return c->degrees.cp > 1 && c->rules->cp &&
           breaks_zero_of(c, c->rules->zero_with_cp, " with context parallelism", breach);
}

static bool
breaks_offload(const PlanRuleCase *c, PlanBreach *breach)
{
    const bool to_cpu = c->offload == PLAN_OFFLOAD_CPU;
    const uint32_t set = to_cpu ? c->rules->zero_on_cpu : c->rules->zero_on_nvme;

    if (c->offload == PLAN_OFFLOAD_NONE)
        return false;
    if (set == 0)
        return broken(breach, c->rules->zero_on_cpu != 0 ? "--offload cpu" : "--offload none",
                      "nothing is offloaded to the %s", to_cpu ? "CPU" : "NVMe");
    return breaks_zero_of(c, set,
                          to_cpu ? " where the CPU has the optimizer's state"
                                 : " where NVMe has the optimizer's state",
                          breach);
}

static bool
breaks_recompute(const PlanRuleCase *c, PlanBreach *breach)
{
    if (c->recompute == PLAN_RECOMPUTE_N)
        return broken(breach, "--recompute full",
                      "all stages recompute alike: mixed recompute cannot be expressed");
    if (in_set(c->rules->recomputes, c->recompute))
        return false;
    g_autofree char *all = set_text(c->rules->recomputes, plan_recompute_names);
    return broken(breach, "--recompute full", "recompute is %s, not %s", all,
                  plan_recompute_names[c->recompute]);
}

/* --- the table --- */

static const struct {
    const char *name;
    PlanAspect aspect;
    bool (*breaks)(const PlanRuleCase *c, PlanBreach *breach);
} table[] = {
    {"model", PLAN_ASPECT_JOB, breaks_model},
    {"adapters", PLAN_ASPECT_JOB, breaks_adapters},
    {"slices", PLAN_ASPECT_JOB, breaks_slices},
    {"dtype", PLAN_ASPECT_JOB, breaks_dtype},
    {"grad-dtype", PLAN_ASPECT_JOB, breaks_grad_dtype},
    {"optimizer", PLAN_ASPECT_JOB, breaks_optimizer},
    {"recompute-modules", PLAN_ASPECT_JOB, breaks_modules},
    {"offload-parameters", PLAN_ASPECT_JOB, breaks_offload_parameters},
    {"heads", PLAN_ASPECT_DEGREES, breaks_heads},
    {"kv-heads", PLAN_ASPECT_DEGREES, breaks_kv_heads},
    {"cp", PLAN_ASPECT_DEGREES, breaks_cp},
    {"ep", PLAN_ASPECT_DEGREES, breaks_ep},
    {"tp-with-pp", PLAN_ASPECT_DEGREES, breaks_tp_with_pp},
    {"overlap-ep-with-mtp", PLAN_ASPECT_DEGREES, breaks_merged_mtp},
    {"mtp-with-pp", PLAN_ASPECT_DEGREES, breaks_hybrid_mtp},
    {"rank-order", PLAN_ASPECT_ORDER, breaks_order},
    {"sequence-parallel", PLAN_ASPECT_BATCH, breaks_sequence_parallel},
    {"schedule", PLAN_ASPECT_SCHEDULE, breaks_schedule},
    {"split-backward", PLAN_ASPECT_SCHEDULE, breaks_split},
    {"vpp", PLAN_ASPECT_SCHEDULE, breaks_chunks},
    {"overlap-ep-with-pp", PLAN_ASPECT_SCHEDULE, breaks_merged_chunks},
    {"group", PLAN_ASPECT_SHAPE, breaks_groups},
    {"stages", PLAN_ASPECT_SHAPE, breaks_stages},
    {"zero", PLAN_ASPECT_SAVERS, breaks_zero},
    {"zero-with-pp", PLAN_ASPECT_SAVERS, breaks_zero_with_pp},
    {"zero-with-tp", PLAN_ASPECT_SAVERS, breaks_zero_with_tp},
    {"zero-with-cp", PLAN_ASPECT_SAVERS, breaks_zero_with_cp},
    {"offload", PLAN_ASPECT_SAVERS, breaks_offload},
    {"recompute", PLAN_ASPECT_RECOMPUTE, breaks_recompute},
    {"overlap-ep-with-recompute", PLAN_ASPECT_RECOMPUTE, breaks_merged_recompute},
};

bool
plan_rules_keep(const PlanRuleCase *c, PlanAspect aspect, PlanBreach *breach)
{
    for (size_t i = 0; c->rules != NULL && i < G_N_ELEMENTS(table); i++)
        if (table[i].aspect == aspect && table[i].breaks(c, breach)) {
            if (breach != NULL)
                breach->rule = table[i].name;
            return false;
        }
    size_t row = 0;
    return c->rules == NULL || !plan_rules_dated(c, aspect, &row, breach);
}

static void
clear_breach(gpointer data)
{
    plan_breach_clear(data);
}

GArray *
plan_rules_broken(PlanFramework framework, const ModelArch *arch, const Plan *plan)
{
    GArray *all = g_array_new(FALSE, FALSE, sizeof(PlanBreach));

    g_array_set_clear_func(all, clear_breach);
    if (plan_framework(framework)->rules == NULL)
        return all;
    const char *recompute = plan_recompute_name(plan);
    PlanRuleCase c = {
        .rules = plan_framework(framework)->rules,
        .arch = arch,
        .conventions = &plan->conventions,
        .seq_len = plan->seq_len,
        .dtype = plan->dtype,
        .n_slices = plan->slices->len,
        .regroups = plan->micro_batch_sequences != NULL,
        .offload_parameters = plan->offload_parameters,
        .degrees = plan->degrees,
        .sequence_parallel = plan->sequence_parallel,
        .schedule = plan->schedule,
        .family = schedule_family_find(plan->schedule, NULL),
        .n_micro_batches = plan->n_micro_batches,
        .group = plan->group,
        .overlap_pp = plan->conventions.overlap_pp,
        .least_layers = plan->stages->len > 0 ? INT64_MAX : 0,
        .zero_stage = plan->zero_stage,
        .offload = plan->offload,
    };
    for (guint i = 0; i < plan->stages->len; i++) {
        const PlanStage *stage = &g_array_index(plan->stages, PlanStage, i);
        const int64_t n = stage->n_layers;
        c.least_layers = MIN(c.least_layers, n);
        c.most_layers = MAX(c.most_layers, n);
        c.n_empty += n == 0 && !stage->embedding && !stage->head;
        const bool has_mtp = n > 0 && model_n_mtp_before(arch, stage->first_layer + n) > 0;
        c.n_mtp_stages += has_mtp;
        for (guint k = i + 1; has_mtp && k < plan->stages->len; k++)
            c.mtp_before_chunk |= g_array_index(plan->stages, PlanStage, k).rank == stage->rank;
    }
    while (c.recompute < PLAN_RECOMPUTE_N &&
           strcmp(recompute, plan_recompute_names[c.recompute]) != 0)
        c.recompute++;
    for (size_t i = 0; i < G_N_ELEMENTS(table); i++) {
        PlanBreach breach = {.rule = table[i].name};
        if (table[i].breaks(&c, &breach))
            g_array_append_val(all, breach);
    }
    size_t row = 0;
    for (PlanBreach breach; plan_rules_dated(&c, PLAN_ASPECT_N, &row, &breach);)
        g_array_append_val(all, breach);
    return all;
}
