#include "cli/request/request.h"

#include <string.h>

#include "base/text.h"
#include "cli/request/command.h"
#include "cli/request/output.h"
#include "cli/request/subject.h"
#include "schedule/rank_order.h"

#define MAX_TOP 1000
#define MAX_SLICES 65536

static const char *const attentions[] = {"auto",   "unfused", "flash",  "torch",
                                         "flash1", "flash2",  "triton", NULL};
static const char *const kernels[] = {"auto", "fused", "norms", "eager", NULL};
static const char *const zero_stages[] = {"0", "1", "2", "3", NULL};
static const char *const off_on[] = {"off", "on", NULL};
static const char *const overlaps[] = {"none", "dp", "ep", "pp", "tp", NULL};

const OptionInfo request_options[] = {
    {"global-batch", "N", "train N sequences in an iteration: the batch of all devices (required)",
     .common = true},
    {"gpus", "N", "use N devices: the cluster is cut, or extended by nodes like its last one",
     .common = true},
    {"node-devices", "N",
     "use at most N devices of each node, such as 64 of a rack of 72; default: all"},
    {"seq-len", "N", "make sequences of N tokens; default: the most that the model allows",
     .common = true},
    {"dtype", "T",
     "compute in number format T: bf16, fp16, fp32, tf32, or products alone in fp8, nvfp4; "
     "default: bf16 if all devices and the framework compute in it, else fp16 or fp32",
     .words = dtype_names, .common = true},
    {"dp", "N", "train N replicas, each with its part of the batch (data parallel)",
     .common = true},
    {"tp", "N", "divide each matrix over N devices (tensor parallel)", .common = true},
    {"pp", "N", "divide the layers over a pipeline of N ranks (pipeline parallel)", .common = true},
    {"vpp", "N", "give each pipeline rank N chunks of layers (virtual stages)"},
    {"cp", "N", "divide each sequence over N devices (context parallel)"},
    {"ep", "N", "divide the experts over N data-parallel ranks (expert parallel)"},
    {"micro-batch", "N", "put N sequences into a micro-batch", .common = true},
    {"schedule", "SCHEDULE",
     "order the ops of the pipeline by SCHEDULE: auto, a name of degas list schedules, or several "
     "with commas",
     .common = true},
    {"rank-order", "ORDER",
     "let the dimensions vary over the ranks in ORDER, the fastest first: auto, or such as "
     "tp-cp-dp-pp, which is Megatron's"},
    {"group", "N",
     "take N micro-batches through one chunk before the rank's next chunk, in interleaved "
     "schedules; default: pp"},
    {"slices", "S",
     "cut sequences into slices: auto, off, N slices of equal length, or slices of A,B,C tokens"},
    {"recompute", "R",
     "compute activations again in the backward: auto, none, selective (the core of attention), "
     "full (whole layers)",
     .words = plan_recompute_names, .or_auto = true, .common = true},
    {"recompute-modules", "LIST",
     "repeat these modules in selective recompute: some of core_attn (default), layernorm, mlp, "
     "moe, moe_act, mla_up_proj, shared_experts, as in Megatron-Core; or op, PyTorch's policy over "
     "ops (default of torchtitan and fsdp); auto: the search chooses of Megatron-Core's",
     .words = plan_module_names, .or_auto = true},
    {"recompute-method", "M",
     "choose the layers of full recompute by M: uniform (all layers of a stage, in units of "
     "--recompute-num-layers), block (the first --recompute-num-layers of each stage, each for "
     "itself)",
     .words = plan_recompute_method_names},
    {"recompute-num-layers", "N",
     "count the layers of --recompute-method; default: 1, each layer for itself"},
    {"zero", "N",
     "split the state over the replicas (ZeRO stage): auto, 0 (nothing), 1 (the optimizer's "
     "state), 2 (also gradients), 3 (also weights)",
     .words = zero_stages, .or_auto = true, .common = true},
    {"offload", "O",
     "keep the optimizer's state in another place: none (on the devices, default), auto, cpu, nvme",
     .words = plan_offload_names, .or_auto = true},
    {"offload-parameters", "on|off",
     "keep the weights there, too, with --zero 3 and --offload; default: off"},
    {"prefetch-layers", "N",
     "gather weights N layers ahead of their use, with --zero 3; default: as the framework does"},
    {"memory-limit", "SIZE",
     "let a device have SIZE of memory, e.g. 14GiB; default: what the device has", .common = true},
    {"sequence-parallel", "on|off", "let tp ranks also split norms and residuals, by tokens",
     .words = off_on, .or_auto = true},
    {"attention", "A",
     "compute attention by A: auto (as the framework does), unfused (products and one softmax "
     "kernel), torch (the softmax in PyTorch's operations), flash (the fastest fused kernel), "
     "flash1, flash2 (FlashAttention's first and second version), triton (its first in Triton)",
     .words = attentions},
    {"kernels", "K",
     "use fused kernels of norms, rotary embedding, SwiGLU and loss: auto (as the framework does), "
     "fused (all), norms (the norms alone), eager (none)",
     .words = kernels},
    {"loss", "L",
     "compute the loss over a split vocabulary by L: plain (PyTorch's operations), compiled, "
     "fused; "
     "default: as the framework does",
     .words = plan_loss_names},
    {"cp-comm-type", "C",
     "let context-parallel ranks exchange by C: p2p (keys and values pass round a ring, default) "
     "or a2a (each rank gets a share of the heads)",
     .words = plan_cp_comm_names},
    {"cuda-graphs", "G",
     "let the host launch parts at once, as CUDA graphs: none (default), router (of experts), "
     "attention (and router), layer, iteration",
     .words = plan_graphs_names},
    {"quantise", "Q",
     "let numbers share their scales by Q, with --dtype fp8: usual (as the device is usually run, "
     "default), tensor, delayed (a tensor, by earlier steps' largest number), block (of 32, "
     "MXFP8), row",
     .words = plan_quantise_names},
    {"dispatcher", "D", "carry rows to experts by D: alltoall (default), deepep, hybridep",
     .words = plan_dispatcher_names},
    {"expert-tp", "N", "share each expert among N ranks of tp; default: 1"},
    {"expert-imbalance", "X",
     "give the busiest expert-parallel rank X times the mean number of tokens; default: the "
     "profile's"},
    {"expert-capacity", "X",
     "let each expert take X times the mean number of tokens of each rank: drop more, fill up "
     "fewer; "
     "default: none is dropped"},
    {"deterministic-kernels", "on|off", "use the deterministic kernels of libraries; default: off"},
    {"pad-vocab", "on|off",
     "pad the vocabulary to a multiple of 128 tp; default: as the framework does (degas: on GPUs)"},
    {"dropout", "on|off", "train the model with dropout; default: as the framework does"},
    {"overlap", "LIST",
     "let communication run while ranks compute: none, or some of dp,ep,pp,tp; default: as the "
     "framework does",
     .words = overlaps},
    {"grad-dtype", "T",
     "keep and reduce gradients in number format T: fp32, bf16, fp16; default: as the framework "
     "does",
     .words = dtype_names},
    {"wide-reduction", "on|off",
     "sum gradients of 16 bits over replicas in fp32, all of them on each, by buckets that are "
     "cast "
     "there and back; default: off",
     .words = off_on},
    {"framework", "FRAMEWORK",
     "plan for this framework: only what it can run is planned, and its conventions are the "
     "defaults of other options: megatron-core, megatron-lm, megatron-bridge, megatron-deepspeed, "
     "deepspeed, torchtitan, fsdp, terapipe, degas (default)",
     .list = plan_framework_names, .common = true},
    {"stack", "YYYY-MM",
     "the month of the framework's software: what later releases brought is not planned, and what "
     "libraries of that time were slower in is slower; default: the month from which the "
     "framework is described here"},
    {"optimizer", "O",
     "make steps with optimizer O: adamw (default), adamw8bit (moments of a byte, in blocks of "
     "256), muon (matrices of layers are orthogonalised; the rest is AdamW's)",
     .words = plan_optimizer_names, .common = true},
    {"muon-tp-mode", "M",
     "let tp ranks treat a matrix that they split by M, with --optimizer muon: duplicated (all "
     "gather and compute it, default), distributed (each its part, with sums over ranks), "
     "blockwise (each its part alone: another update), layer_sharded (one of them computes it)",
     .words = plan_muon_tp_names},
    {"optimizer-instances", "N",
     "how many groups of replicas each hold all that --zero splits, and split it among themselves: "
     "with --zero 1 Megatron-Core's --num-distributed-optimizer-instances, with 2 or 3 hybrid "
     "sharding of FSDP (torchtitan's data_parallel_replicate_degree); default: 1"},
    {"defer-gradients", "N",
     "of how many micro-batches the weight gradients of the head are made after the last backward "
     "(Megatron-Core's --defer-embedding-wgrad-compute with --wgrad-deferral-limit); default: 0"},
    {"optimizer-step", "on|off",
     "end the iteration with the optimizer's step; default: as the framework does"},
    {"price", "X",
     "pay X for one device for an hour, for several clusters with commas; default: the cluster's "
     "price"},
    {"currency", "TEXT", "name the currency of --price; default: the cluster's, or USD"},
    {"set", "KEY=VALUE,...",
     "change the cluster, to ask what if: any of memory=141GB, memory-bandwidth=4.8TB/s, "
     "flops=2.25PFLOPS (dense bf16), network=400Gbps (of each device, one direction), latency=2us, "
     "LEVEL=900GB/s (a level of its network), power=1000 and price=2.1",
     .common = true},
    {"layers", "N", "take N layers in place of the model's number"},
    {"mtp", "N",
     "train with N modules that predict tokens beyond the next (MTP), behind the last layer; "
     "default: the model's, which built-in and Hugging Face models have 0 of"},
    {"lora-rank", "R",
     "train adapters of rank R beside frozen weights (LoRA); 0: train all weights; default: the "
     "model's, or 0"},
    {"lora-modules", "M,M",
     "put the adapters beside these products: linear_qkv, linear_proj, linear_fc1, linear_fc2 "
     "(default: all four), or with matrices apart linear_q, linear_k, linear_v, linear_fc1_gate, "
     "linear_fc1_up, which Hugging Face calls q_proj, gate_proj and so on; all-linear: each"},
    {"redundant-experts", "N",
     "hold N copies of the hottest experts besides the experts, on the ranks of ep with them; "
     "default: "
     "the model's, or none"},
    {"vocab", "N", "take a vocabulary of N in place of the model's; 0: no embedding, head or loss"},
    {NULL, NULL, NULL},
};

const OptionInfo request_fixed_options[] = {
    {"stage-layers", "A,B,C",
     "give each stage so many layers, from the first stage to the last; default: even"},
    {NULL, NULL, NULL},
};

/* Of --beyond-framework. */
enum {
    BEYOND_OFF,
    BEYOND_COMPARE,
    BEYOND_ON
};
static const char *const beyond_words[] = {"off", "compare", "on", NULL};

const OptionInfo request_search_options[] = {
    {"objective", "O", "make this least: time (default), cost, energy, memory",
     .words = plan_objective_names, .common = true},
    {"beyond-framework", "WHEN",
     "also look at plans that --framework cannot run: off, compare (default: only to say what its "
     "rules cost), on",
     .words = beyond_words},
    {"top", "K",
     "tell the K next best plans that differ in a choice, too, and why each loses; default: 2",
     .common = true},
    {"threads", "N", "search with N threads; the result does not depend on it"},
    {NULL, NULL, NULL},
};

void
request_free(Request *request)
{
    if (request == NULL)
        return;
    model_arch_free(request->arch);
    profile_free(request->profile);
    g_strfreev(request->schedules);
    g_clear_pointer(&request->slices, g_array_unref);
    g_clear_pointer(&request->stage_layers, g_array_unref);
    g_free(request);
}

Request *
request_copy(const Request *request)
{
    Request *copy = g_new0(Request, 1);

    copy->arch = model_arch_copy(request->arch);
    copy->profile = profile_copy(request->profile);
    copy->schedules = g_strdupv(request->schedules);
    copy->slices = request->slices == NULL ? NULL : g_array_copy(request->slices);
    copy->stage_layers = request->stage_layers == NULL ? NULL : g_array_copy(request->stage_layers);
    copy->plan = request->plan;
    copy->any_slices = request->any_slices;
    copy->plan.arch = copy->arch;
    copy->plan.profile = copy->profile;
    copy->plan.schedules = (const char *const *)copy->schedules;
    if (copy->slices != NULL)
        copy->plan.slices = (const int64_t *)(const void *)copy->slices->data;
    return copy;
}

/* --- the flags, one by one, as fields of a PlanRequest --- */

/* The first of bf16, fp16, fp32 that every kind of device computes in, and that keeps @rules. */
static Dtype
default_dtype(const ModelCluster *cluster, const PlanFrameworkRules *rules)
{
    static const Dtype order[] = {DTYPE_BF16, DTYPE_FP16};

    for (size_t i = 0; i < G_N_ELEMENTS(order); i++) {
        bool everywhere = rules == NULL || (rules->dtypes >> order[i] & 1) != 0;

        for (guint d = 0; d < cluster->devices->len; d++)
            everywhere &= g_array_index(cluster->devices, ModelDevice, d).flops_per_s[order[i]] > 0;
        if (everywhere)
            return order[i];
    }
    return DTYPE_FP32;
}

/* An int of the request: the index in the option's words, or PLAN_AUTO for "auto". */
static int
choice_or_auto(Options *options, const char *name, int fallback)
{
    const char *text = options_string(options, name, NULL);

    if (text != NULL && strcmp(text, "auto") == 0)
        return PLAN_AUTO;
    return options_choice(options, name, fallback);
}

static void
read_slices(Request *request, Options *options, RequestKind kind)
{
    PlanRequest *plan = &request->plan;
    const char *text = options_string(options, "slices", NULL);

    plan->slices_mode = kind == REQUEST_SEARCHED ? PLAN_SLICES_AUTO : PLAN_SLICES_OFF;
    if (text == NULL)
        return;
    if (strcmp(text, "auto") == 0) {
        plan->slices_mode = PLAN_SLICES_AUTO;
    } else if (strcmp(text, "off") == 0) {
        plan->slices_mode = PLAN_SLICES_OFF;
    } else if (strchr(text, ',') == NULL) {
        plan->slices_mode = PLAN_SLICES_UNIFORM;
        plan->n_slices = options_int64(options, "slices", 1, MAX_SLICES, 1);
    } else {
        int64_t sum = 0;

        plan->slices_mode = PLAN_SLICES_GIVEN;
        request->slices = options_int64s(options, "slices", 1, MODEL_MAX_SEQ_LEN);
        plan->slices = (const int64_t *)(void *)request->slices->data;
        plan->n_slices = request->slices->len;
        if (plan->n_slices > MAX_SLICES) {
            options_fail(options, "slices", "more than %d slices", MAX_SLICES);
            return;
        }
        for (int64_t i = 0; i < plan->n_slices; i++)
            sum += plan->slices[i];
        if (sum != plan->seq_len)
            options_fail(options, "slices",
                         "the lengths add up to " INT ", but a sequence has " INT
                         " tokens (--seq-len)",
                         sum, plan->seq_len);
    }
}

static void
read_schedules(Request *request, Options *options, RequestKind kind)
{
    const char *text = options_string(options, "schedule", NULL);
    GError *error = NULL;

    if (text != NULL && strcmp(text, "auto") != 0) {
        request->schedules = options_words(options, "schedule");
        for (size_t i = 0; request->schedules[i] != NULL && *request->schedules[i] != 0; i++) {
            if (schedule_family_find(request->schedules[i], &error) == NULL) {
                options_fail(options, "schedule", "%s", error->message);
                g_clear_error(&error);
            }
        }
        if (kind == REQUEST_FIXED && g_strv_length(request->schedules) > 1)
            options_fail(options, "schedule", "one schedule can be simulated, not several");
    }
    request->plan.schedules = (const char *const *)request->schedules;
}

static void
read_recompute(PlanRequest *plan, Options *options)
{
    PlanConventions *conventions = &plan->conventions;
    g_auto(GStrv) words = options_words(options, "recompute-modules");

    plan->searches_modules = words != NULL && g_strcmp0(words[0], "auto") == 0 && words[1] == NULL;
    for (size_t i = 0; !plan->searches_modules && words != NULL && words[i] != NULL; i++) {
        int module = 0;
        while (module < PLAN_MODULE_N && strcmp(words[i], plan_module_names[module]) != 0)
            module++;
        if (module == PLAN_MODULE_N)
            options_fail(
                options, "recompute-modules",
                "expected auto, or some of core_attn, layernorm, mlp, moe, moe_act, mla_up_proj, "
                "shared_experts, op, got \"%s\"",
                words[i]);
        else
            conventions->recompute_modules |= UINT32_C(1) << module;
    }
    if ((conventions->recompute_modules >> PLAN_MODULE_OPS & 1) != 0 &&
        conventions->recompute_modules != UINT32_C(1) << PLAN_MODULE_OPS)
        options_fail(options, "recompute-modules", "op is chosen alone");
    conventions->recompute_method =
        (PlanRecomputeMethod)options_choice(options, "recompute-method", 0);
    conventions->recompute_layers =
        options_int64(options, "recompute-num-layers", 1, MODEL_MAX_LAYERS, 0);
    if (conventions->recompute_method == PLAN_RECOMPUTE_BLOCK &&
        !options_has(options, "recompute-num-layers"))
        options_fail(options, "recompute-method", "block needs --recompute-num-layers");
}

static void
read_overlap(PlanConventions *conventions, Options *options)
{
    g_auto(GStrv) words = options_words(options, "overlap");

    if (words == NULL)
        return;
    conventions->overlap_dp = conventions->overlap_pp = conventions->overlap_tp =
        conventions->overlap_ep = false;
    if (strcmp(words[0], "none") == 0 && words[1] == NULL)
        return;
    for (size_t i = 0; words[i] != NULL; i++) {
        if (strcmp(words[i], "dp") == 0)
            conventions->overlap_dp = true;
        else if (strcmp(words[i], "pp") == 0)
            conventions->overlap_pp = true;
        else if (strcmp(words[i], "tp") == 0)
            conventions->overlap_tp = true;
        else if (strcmp(words[i], "ep") == 0 &&
                 plan_framework(conventions->framework)->merges_passes)
            conventions->overlap_ep = true;
        else if (strcmp(words[i], "ep") == 0)
            options_fail(options, "overlap",
                         "ep: %s does not merge the passes of two micro-batches",
                         plan_framework(conventions->framework)->name);
        else
            options_fail(options, "overlap", "expected none or some of dp,ep,pp,tp, got \"%s\"",
                         words[i]);
    }
}

/* Groups of replicas that each hold what ZeRO splits, of stages with which the framework has them. */
static void
read_instances(PlanConventions *conventions, Options *options)
{
    const PlanFrameworkFacts *facts = plan_framework(conventions->framework);
    const char *zero = options_string(options, "zero", "");
    g_autoptr(GString) stages = g_string_new(NULL);
    bool is_there = false;

    conventions->optimizer_instances =
        options_int64(options, "optimizer-instances", 1, SCHEDULE_MAX_RANKS, 0);
    for (int i = 0; i <= 3; i++) {
        if ((facts->instances >> i & 1) == 0)
            continue;
        is_there |= zero[0] == '0' + i && zero[1] == 0;
        g_string_append_printf(stages, "%s%d", stages->len > 0 ? " or " : "", i);
    }
    if (conventions->optimizer_instances > 1 && facts->instances == 0)
        options_fail(options, "optimizer-instances", "%s has one", facts->name);
    else if (conventions->optimizer_instances > 1 && !is_there)
        options_fail(options, "optimizer-instances", "needs --zero %s", stages->str);
}

static void
read_stack(PlanConventions *conventions, Options *options)
{
    const PlanFrameworkFacts *facts = plan_framework(conventions->framework);
    const char *text = options_string(options, "stack", NULL);

    if (text == NULL)
        return;
    if (strlen(text) != strlen("YYYY-MM") || !plan_stack_read(text, &conventions->stack))
        options_fail(options, "stack", "expected a month as YYYY-MM, got \"%s\"", text);
    else if (facts->stack == NULL)
        options_fail(options, "stack", "%s has no dated releases", facts->name);
}

static void
read_conventions(PlanRequest *plan, PlanFramework framework, Options *options)
{
    PlanConventions *conventions = &plan->conventions;

    *conventions = plan_conventions(framework);
    read_stack(conventions, options);
    int attention = options_choice(options, "attention", 0);
    if (attention > 0)
        conventions->attention = (PlanAttention)(attention - 1);
    int kernel = options_choice(options, "kernels", 0);
    if (kernel > 0)
        conventions->kernels = (PlanKernels)(kernel - 1);
    conventions->dropout = options_on_off(options, "dropout", conventions->dropout);
    if (plan_stack_compiles_loss(conventions))
        conventions->loss = PLAN_LOSS_COMPILED;
    conventions->loss = (PlanLoss)options_choice(options, "loss", (int)conventions->loss);
    conventions->cp_comm =
        (PlanCpComm)options_choice(options, "cp-comm-type", (int)conventions->cp_comm);
    conventions->cuda_graphs = (PlanGraphs)options_choice(options, "cuda-graphs", 0);
    if (conventions->cuda_graphs != PLAN_GRAPHS_NONE && !plan_framework(framework)->captures_graphs)
        options_fail(options, "cuda-graphs", "%s captures none", plan_framework(framework)->name);
    conventions->quantise = (PlanQuantise)options_choice(options, "quantise", 0);
    conventions->dispatcher = (PlanDispatcher)options_choice(options, "dispatcher", 0);
    if (conventions->dispatcher != PLAN_DISPATCHER_ALLTOALL &&
        !plan_framework(framework)->sorts_received)
        options_fail(options, "dispatcher", "%s has alltoall alone",
                     plan_framework(framework)->name);
    conventions->expert_tp = options_int64(options, "expert-tp", 1, SCHEDULE_MAX_RANKS, 1);
    conventions->expert_imbalance =
        options_quantity(options, "expert-imbalance", UNITS_KIND_NUMBER, 0.0);
    if (options_has(options, "expert-imbalance") &&
        !(conventions->expert_imbalance >= 1.0 &&
          conventions->expert_imbalance <= PLAN_MAX_IMBALANCE))
        options_fail(options, "expert-imbalance", "expected a factor from 1 to 1e6");
    conventions->expert_capacity =
        options_quantity(options, "expert-capacity", UNITS_KIND_NUMBER, 0.0);
    if (options_has(options, "expert-capacity")) {
        if (!(conventions->expert_capacity >= 1.0 &&
              conventions->expert_capacity <= PLAN_MAX_IMBALANCE))
            options_fail(options, "expert-capacity", "expected a factor from 1 to 1e6");
        if (!plan_framework(framework)->sorts_received)
            options_fail(options, "expert-capacity", "%s drops no tokens",
                         plan_framework(framework)->name);
        if (conventions->dispatcher != PLAN_DISPATCHER_ALLTOALL)
            options_fail(options, "expert-capacity", "needs --dispatcher alltoall");
        if (options_has(options, "expert-imbalance"))
            options_fail(options, "expert-capacity", "leaves no --expert-imbalance");
    }
    conventions->deterministic =
        options_on_off(options, "deterministic-kernels", conventions->deterministic);
    conventions->pads_vocab =
        options_on_off(options, "pad-vocab",
                       plan_framework_pads_vocab(
                           framework, plan->profile->parameters.gemm_unaligned_fraction < 1));
    if (plan_framework(framework)->grads_as_model)
        conventions->grad_dtype = dtype_stored(plan->dtype);
    conventions->grad_dtype =
        (Dtype)options_choice(options, "grad-dtype", (int)conventions->grad_dtype);
    conventions->wide_reduction = options_on_off(options, "wide-reduction", false);
    read_overlap(conventions, options);
    read_recompute(plan, options);
    conventions->optimizer = (PlanOptimizer)options_choice(options, "optimizer", 0);
    conventions->muon_tp = (PlanMuonTp)options_choice(options, "muon-tp-mode", 0);
    if (options_has(options, "muon-tp-mode") && conventions->optimizer != PLAN_OPTIMIZER_MUON)
        options_fail(options, "muon-tp-mode", "needs --optimizer muon");
    read_instances(conventions, options);
    conventions->deferred_gradients = options_int64(options, "defer-gradients", 0, INT32_MAX, 0);
    if (conventions->deferred_gradients > 0 && !plan_framework(framework)->defers_gradients)
        options_fail(options, "defer-gradients", "%s defers none", plan_framework(framework)->name);
    conventions->optimizer_step =
        options_on_off(options, "optimizer-step", conventions->optimizer_step);
}

/* The data-parallel degree that --gpus leaves when everything is fixed. */
static int64_t
remaining_dp(const PlanRequest *plan, Options *options)
{
    const int64_t gpus = options_int64(options, "gpus", 1, MODEL_CLUSTER_MAX_DEVICES, 0);
    int64_t used;

    if (gpus == 0)
        return 1;
    if (__builtin_mul_overflow(plan->tp * plan->pp, plan->cp, &used) || gpus % used != 0) {
        options_fail(options, "gpus", INT " devices are no multiple of tp x pp x cp = " INT, gpus,
                     used);
        return 1;
    }
    return gpus / used;
}

/* The index of --rank-order.  Without the flag a framework that lays out its ranks in one way
 * only has the default order. */
static int
read_rank_order(const PlanConventions *conventions, Options *options, RequestKind kind)
{
    const char *text = options_string(options, "rank-order", NULL);
    const bool is_auto = text != NULL && strcmp(text, "auto") == 0;

    if (text == NULL)
        return kind == REQUEST_SEARCHED && plan_framework(conventions->framework)->any_rank_order
                   ? PLAN_AUTO
                   : PLAN_RANK_ORDER_DEFAULT;
    if (is_auto && kind == REQUEST_SEARCHED)
        return PLAN_AUTO;
    const int order = plan_rank_order_find(text);
    if (order >= 0)
        return order;
    g_autofree char *shown = text_escape(text, 64);
    options_fail(options, "rank-order",
                 "expected %stp, cp, dp and pp, each once, from the fastest to the slowest, as "
                 "tp-cp-dp-pp, got \"%s\"",
                 kind == REQUEST_SEARCHED ? "auto or " : "", shown);
    return PLAN_RANK_ORDER_DEFAULT;
}

static void
read_degrees(PlanRequest *plan, Options *options, RequestKind kind)
{
    const int64_t fallback = kind == REQUEST_FIXED ? 1 : 0;

    plan->tp = options_int64(options, "tp", 1, SCHEDULE_MAX_RANKS, fallback);
    plan->pp = options_int64(options, "pp", 1, SCHEDULE_MAX_RANKS, fallback);
    plan->vpp = options_int64(options, "vpp", 1, SCHEDULE_MAX_CHUNKS, 0);
    plan->cp = options_int64(options, "cp", 1, SCHEDULE_MAX_RANKS, fallback);
    plan->ep = options_int64(options, "ep", 1, SCHEDULE_MAX_RANKS, fallback);
    plan->micro_batch = options_int64(options, "micro-batch", 1, JSON_MAX_INT, fallback);
    plan->dp = options_int64(options, "dp", 1, MODEL_CLUSTER_MAX_DEVICES,
                             kind == REQUEST_FIXED ? remaining_dp(plan, options) : 0);
}

/* Experts that --ep cannot divide, whatever the other degrees are. */
static void
check_ep(const Request *request, Options *options)
{
    const PlanRequest *plan = &request->plan;
    const ModelShape shape = {.batch = 1,
                              .tokens = plan->seq_len,
                              .tp = 1,
                              .cp = 1,
                              .ep = plan->ep,
                              .dtype = plan->dtype,
                              .expert_imbalance = 1};
    g_autoptr(GError) error = NULL;

    if (plan->ep > 1 && !model_shape_check(request->arch, &shape, &error))
        options_fail(options, "ep", "%s", error->message);
}

/* Windows and chunks that no sequence fills: whoever asked for them expects less work than there is. */
/* Sequences that nobody asked for and few pretrain with. */
#define LONG_SEQUENCE 32768

static void
note_windows(const ModelArch *arch, int64_t seq_len)
{
    for (int32_t i = 0; i < model_n_kinds(arch); i++) {
        const ModelArch kind = model_kind_arch(arch, i);
        const int64_t reach = MAX(kind.window, kind.chunk);

        if (model_has_attention(&kind) && reach > seq_len)
            output_note("note: %s: a %s of " INT " tokens is longer than sequences of " INT
                        " (--seq-len), which it leaves whole",
                        model_kind_name(arch, i), kind.window > 0 ? "window" : "chunk", reach,
                        seq_len);
    }
}

/* Fills request->plan from @options, with what they mean when absent; mistakes are recorded in
 * @options. */
static void
read_plan(Request *request, Options *options, RequestKind kind)
{
    PlanRequest *plan = &request->plan;
    const bool fixed = kind == REQUEST_FIXED;

    plan->arch = request->arch;
    plan->profile = request->profile;
    if (!options_has(options, "global-batch"))
        options_fail(options, "global-batch",
                     "is missing; it is the number of sequences of one iteration");
    plan->global_batch = options_int64(options, "global-batch", 1, INT64_C(1) << 31, 1);
    plan->seq_len =
        options_int64(options, "seq-len", 1, MODEL_MAX_SEQ_LEN, request->arch->max_seq_len);
    note_windows(request->arch, plan->seq_len);
    if (!options_has(options, "seq-len") && plan->seq_len > LONG_SEQUENCE)
        output_note("note: sequences of " INT " tokens, the longest that %s allows; --seq-len says "
                    "how long they are, pretraining mostly takes 4096 or 8192",
                    plan->seq_len, request->arch->name);
    /* A table of learned positions has a row for each token. */
    if (request->arch->family == MODEL_FAMILY_GPT)
        request->arch->max_seq_len = MAX(request->arch->max_seq_len, plan->seq_len);
    const PlanFramework framework =
        (PlanFramework)options_choice(options, "framework", PLAN_FRAMEWORK_DEGAS);
    const int beyond = kind == REQUEST_SEARCHED
                           ? options_choice(options, "beyond-framework", BEYOND_COMPARE)
                           : BEYOND_ON;
    const PlanFrameworkRules *rules = beyond == BEYOND_ON ? NULL : plan_framework(framework)->rules;
    request->compares_rules = beyond == BEYOND_COMPARE;
    plan->dtype = (Dtype)options_choice(options, "dtype",
                                        (int)default_dtype(request->profile->cluster, rules));
    read_conventions(plan, framework, options);
    read_degrees(plan, options, kind);
    check_ep(request, options);
    plan->n_devices = options_int64(options, "gpus", 1, MODEL_CLUSTER_MAX_DEVICES, 0);
    plan->group = options_int64(options, "group", 1, INT32_MAX, 0);
    read_schedules(request, options, kind);
    read_slices(request, options, kind);
    plan->recompute = choice_or_auto(options, "recompute", fixed ? PLAN_RECOMPUTE_NONE : PLAN_AUTO);
    if (fixed && plan->searches_modules)
        options_fail(options, "recompute-modules", "auto: plan and sweep search; one job has some");
    plan->zero_stage = choice_or_auto(options, "zero", fixed ? 0 : PLAN_AUTO);
    plan->offload = choice_or_auto(options, "offload", PLAN_OFFLOAD_NONE);
    plan->offload_parameters = options_on_off(options, "offload-parameters", false);
    plan->prefetch_layers = (int32_t)options_int64(options, "prefetch-layers", 0, PLAN_MAX_PREFETCH,
                                                   PLAN_PREFETCH_AUTO);
    plan->sequence_parallel = choice_or_auto(options, "sequence-parallel", fixed ? 0 : PLAN_AUTO);
    plan->rank_order = read_rank_order(&plan->conventions, options, kind);
    plan->overlap_pp_given = options_has(options, "overlap");
    plan->memory_limit_bytes = options_bytes(options, "memory-limit", 0);
    if (options_has(options, "memory-limit") && plan->memory_limit_bytes == 0)
        options_fail(options, "memory-limit", "expected a size above 0");
    plan->objective = PLAN_OBJECTIVE_TIME;
    plan->threads = 1;
    request->any_slices = plan->slices_mode;
    if (rules != NULL)
        plan_request_set_rules(plan);
}

/* What is to be small has to be known, of every device. */
static void
check_objective(const PlanRequest *plan, Options *options)
{
    const ModelCluster *cluster = plan->profile->cluster;

    for (guint i = 0; i < cluster->devices->len; i++) {
        const ModelDevice *device = &g_array_index(cluster->devices, ModelDevice, i);
        g_autofree char *name = text_escape(device->name, 64);

        if (plan->objective == PLAN_OBJECTIVE_COST && !(cluster->price_per_device_hour > 0) &&
            !(device->price_per_hour > 0))
            options_fail(options, "objective",
                         "the price of a %s is not known; --price says what it costs in an hour",
                         name);
        if (plan->objective == PLAN_OBJECTIVE_ENERGY && !(device->power_w > 0))
            options_fail(options, "objective",
                         "the power of a %s is not known; --set power=W says it", name);
    }
}

/* --- the whole request --- */

Request *
request_new(ModelArch *arch, Profile *profile, Options *options, RequestKind kind, GError **error)
{
    g_autoptr(Request) request = g_new0(Request, 1);

    request->arch = arch;
    request->profile = profile;
    if (!request_change_model(request, options, error) ||
        !request_change_cluster(request, options, error))
        return NULL;
    read_plan(request, options, kind);
    profile_set_stack(request->profile, plan_stack(&request->plan.conventions));
    if (kind == REQUEST_FIXED)
        request->stage_layers = options_int64s(options, "stage-layers", 0, MODEL_MAX_LAYERS);
    if (kind == REQUEST_SEARCHED) {
        PlanRequest *plan = &request->plan;

        plan->objective = (PlanObjective)options_choice(options, "objective", PLAN_OBJECTIVE_TIME);
        check_objective(plan, options);
        plan->top = options_int64(options, "top", 0, MAX_TOP, 0);
        plan->threads = options_threads(options);
    }
    if (!options_finish(options, error) ||
        (kind == REQUEST_FIXED && !request_fit_cluster(request, options, error)))
        return NULL;
    return g_steal_pointer(&request);
}

Request *
request_load(const char *model, const char *cluster, Options *options, RequestKind kind,
             GError **error)
{
    g_autoptr(ModelArch) arch = request_load_model(model, error);

    if (arch == NULL)
        return NULL;
    g_autoptr(Profile) profile = request_load_cluster(cluster, error);
    if (profile == NULL)
        return NULL;
    return request_new(g_steal_pointer(&arch), g_steal_pointer(&profile), options, kind, error);
}

Plan *
request_plan(const Request *request, GError **error)
{
    const GArray *layers = request->stage_layers;
    PlanRequest even = request->plan;
    ModelArch arch = *request->arch;
    int64_t first = 0;

    /* Stages that are given may be fewer layers than stages: for the even ones there are enough. */
    if (layers != NULL)
        arch.n_layers = MAX(arch.n_layers, layers->len);
    even.arch = &arch;
    g_autoptr(Plan) plan = plan_from_request(&even, error);

    if (plan == NULL || layers == NULL)
        return g_steal_pointer(&plan);
    if (layers->len != plan->stages->len)
        return plan_invalid_null(error, "--stage-layers: %u stages, but pp x vpp is %u",
                                 layers->len, plan->stages->len);
    for (guint i = 0; i < layers->len; i++) {
        PlanStage *stage = &g_array_index(plan->stages, PlanStage, i);

        stage->first_layer = first;
        stage->n_layers = g_array_index(layers, int64_t, i);
        first += stage->n_layers;
    }
    return plan_check(plan, model_n_stacked(request->arch), error) ? g_steal_pointer(&plan) : NULL;
}

/* --- a request as a JSON object --- */

static ModelArch *
read_model(JsonDoc *doc, const JsonValue *object, GError **error)
{
    const JsonValue *value = json_member(doc, object, "model");

    if (value != NULL && json_is_object(value)) {
        g_autoptr(ModelArch) arch = model_arch_read(doc, value);

        return json_doc_finish(doc, error) ? g_steal_pointer(&arch) : NULL;
    }
    const char *name = json_string(doc, object, "model");

    return json_doc_finish(doc, error) ? model_arch_load(name, NULL, error) : NULL;
}

/* A profile, or the cluster in it alone. */
static Profile *
read_cluster(JsonDoc *doc, const JsonValue *object, GError **error)
{
    const JsonValue *value = json_member(doc, object, "cluster");

    if (value != NULL && json_is_object(value)) {
        g_autoptr(Profile) profile = NULL;

        if (json_has(doc, value, "cluster")) {
            profile = profile_read(doc, value);
        } else {
            ModelCluster *cluster = model_cluster_read(doc, value);

            profile = profile_new(cluster->name, cluster);
        }
        return json_doc_finish(doc, error) ? g_steal_pointer(&profile) : NULL;
    }
    const char *name = json_string(doc, object, "cluster");

    return json_doc_finish(doc, error) ? profile_load(name, error) : NULL;
}

Request *
request_read(JsonDoc *doc, const JsonValue *object, RequestKind kind, const Profile *given,
             Conditions *conditions, GError **error)
{
    static const OptionInfo *const searched[] = {request_options, request_search_options, NULL};
    static const OptionInfo *const tables[] = {request_options, request_fixed_options,
                                               conditions_options, NULL};
    static const OptionInfo *const fewer[] = {request_options, request_fixed_options, NULL};

    json_ignore(doc, object, "id");
    g_autoptr(ModelArch) arch = read_model(doc, object, error);
    if (arch == NULL)
        return NULL;
    if (given != NULL)
        json_ignore(doc, object, "cluster");
    g_autoptr(Profile) profile =
        given != NULL ? profile_copy(given) : read_cluster(doc, object, error);
    if (profile == NULL)
        return NULL;
    g_autoptr(Options) options = options_read(kind == REQUEST_SEARCHED ? searched
                                              : conditions == NULL     ? fewer
                                                                       : tables,
                                              doc, object);
    if (!json_doc_finish(doc, error))
        return NULL;
    if (conditions != NULL)
        conditions_read(conditions, options);
    return request_new(g_steal_pointer(&arch), g_steal_pointer(&profile), options, kind, error);
}
