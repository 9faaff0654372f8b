#include "cli/request/request.h"

#include <string.h>

#include "base/text.h"
#include "cli/request/command.h"
#include "cli/request/output.h"
#include "schedule/rank_order.h"

#define MAX_TOP 1000
#define MAX_SLICES 65536

const OptionInfo request_options[] = {
    {"global-batch", "N", "sequences of one iteration, over all devices (required)", 0},
    {"gpus", "N",
     "use N devices: the cluster is cut, or extended by nodes like its last one, to N devices", 0},
    {"seq-len", "N", "tokens of a sequence; default: the model's max_seq_len", 0},
    {"dtype", "T",
     "number format of weights and activations: bf16, fp16, fp32, tf32, fp8; default: bf16 if all "
     "devices compute in it, else fp16 or fp32",
     0},
    {"dp", "N", "data-parallel degree", 0},
    {"tp", "N", "tensor-parallel degree", 0},
    {"pp", "N", "pipeline ranks", 0},
    {"vpp", "N", "virtual stages (chunks) of a pipeline rank", 0},
    {"cp", "N", "context-parallel degree", 0},
    {"ep", "N", "expert-parallel degree; the experts are split over data-parallel ranks", 0},
    {"micro-batch", "N", "sequences of a micro-batch", 0},
    {"schedule", "NAME", "auto, a name of degas list schedules, or several names with commas", 0},
    {"rank-order", "ORDER",
     "in which order the dimensions vary over the ranks, the fastest first: auto, or such as "
     "tp-cp-dp-pp, which is Megatron's",
     0},
    {"group", "N",
     "interleaved schedules: how many micro-batches a rank takes through one chunk before its next "
     "chunk; default: pp",
     0},
    {"slices", "S",
     "cut sequences into slices: auto, off, N slices of equal length, or slices of A,B,C tokens",
     0},
    {"recompute", "R",
     "which activations the backward computes again: auto, none, selective (the core of "
     "attention), full (whole layers)",
     0},
    {"zero", "N",
     "ZeRO stage: auto, 0, 1 (replicas split the optimizer's state), 2 (also gradients), 3 (also "
     "weights)",
     0},
    {"offload", "O",
     "where the optimizer's state is kept: none (on the devices, default), auto, cpu, nvme", 0},
    {"offload-parameters", "on|off",
     "with --zero 3 and --offload: whether the weights are kept there, too; default: off", 0},
    {"prefetch-layers", "N",
     "with --zero 3: how many layers ahead of their use weights are gathered; default: as the "
     "framework does",
     0},
    {"memory-limit", "SIZE", "memory of a device, e.g. 14GiB; default: the device's", 0},
    {"sequence-parallel", "on|off",
     "whether the tp ranks also split norms and residuals, by tokens", 0},
    {"attention", "A",
     "how attention is computed: auto (as the framework does), unfused (products and one softmax "
     "kernel), torch (the softmax in PyTorch's operations), flash (FlashAttention 2 or later), "
     "flash1 (its first version)",
     0},
    {"kernels", "K",
     "which of norms, rotary embedding, SwiGLU and loss are fused kernels: auto (as the framework "
     "does), fused (all), norms (the norms alone), eager (none)",
     0},
    {"loss", "L",
     "how the loss over a split vocabulary is computed: plain (PyTorch's operations, default), "
     "compiled, fused",
     0},
    {"cp-comm-type", "C",
     "how context-parallel ranks exchange: p2p (keys and values pass round a ring, default) or a2a "
     "(each rank gets a share of the heads)",
     0},
    {"expert-tp", "N", "how many ranks of tp share each expert; default: 1", 0},
    {"expert-imbalance", "X",
     "tokens of the busiest expert-parallel rank over their mean; default: the profile's", 0},
    {"deterministic-kernels", "on|off",
     "whether libraries use their deterministic kernels; default: off", 0},
    {"pad-vocab", "on|off",
     "whether the vocabulary is padded to a multiple of 128 tp; default: as the framework does", 0},
    {"dropout", "on|off",
     "whether the model is trained with dropout; default: as the framework does", 0},
    {"overlap", "LIST",
     "which communication runs while ranks compute: none, or some of dp,pp,tp; default: as the "
     "framework does",
     0},
    {"grad-dtype", "T",
     "number format in which gradients are kept and reduced: fp32, bf16, fp16; default: as the "
     "framework does",
     0},
    {"framework", "F",
     "the framework that runs the plan, whose conventions are the defaults of other options: "
     "megatron-lm, megatron-core, megatron-deepspeed, deepspeed, fsdp, terapipe, degas (default)",
     0},
    {"optimizer-step", "on|off",
     "whether the iteration ends with the optimizer's step; default: as the framework does", 0},
    {"price", "X", "price of one device for an hour; default: the cluster's", 0},
    {"currency", "TEXT", "currency of --price; default: the cluster's, or USD", 0},
    {"layers", "N", "N layers in place of the model's number", 0},
    {"vocab", "N", "a vocabulary of N in place of the model's; 0: no embedding, head or loss", 0},
    {NULL, NULL, NULL, 0},
};

const OptionInfo request_fixed_options[] = {
    {"stage-layers", "A,B,C",
     "layers of each stage, from the first stage to the last; default: even", 0},
    {NULL, NULL, NULL, 0},
};

const OptionInfo request_search_options[] = {
    {"objective", "O", "what the best plan has least of: time (default), cost, energy, memory", 0},
    {"top", "K", "also write the K next best plans, as alternatives; default: 0", 0},
    {"threads", "N", "threads of the search; the result does not depend on it", 0},
    {NULL, NULL, NULL, 0},
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
    copy->plan.arch = copy->arch;
    copy->plan.profile = copy->profile;
    copy->plan.schedules = (const char *const *)copy->schedules;
    if (copy->slices != NULL)
        copy->plan.slices = (const int64_t *)(const void *)copy->slices->data;
    return copy;
}

/* --- models and clusters as the flags change them --- */

ModelArch *
request_load_model(const char *name_or_path, GError **error)
{
    g_autoptr(GPtrArray) warnings = NULL;
    ModelArch *arch = model_arch_load(name_or_path, &warnings, error);

    if (arch == NULL)
        cmd_blame_name(name_or_path, error);
    for (guint i = 0; warnings != NULL && i < warnings->len; i++)
        output_note("note: %s", (const char *)g_ptr_array_index(warnings, i));
    return arch;
}

/* Replaces the model by one with other --layers and --vocab, checked as a file would be. */
static bool
change_model(Request *request, Options *options, GError **error)
{
    size_t n_bytes;

    if (!options_has(options, "layers") && !options_has(options, "vocab"))
        return true;
    request->arch->n_layers =
        options_int64(options, "layers", 1, MODEL_MAX_LAYERS, request->arch->n_layers);
    request->arch->vocab =
        options_int64(options, "vocab", 0, MODEL_MAX_VOCAB, request->arch->vocab);
    if (!options_finish(options, error))
        return false;
    g_autoptr(JsonWriter) writer = json_writer_new();
    model_arch_write(writer, NULL, request->arch);
    g_autofree char *text = json_writer_steal(writer, &n_bytes);
    g_autoptr(JsonDoc) doc =
        json_doc_parse("the model with --layers and --vocab", text, n_bytes, error);
    if (doc == NULL)
        return false;
    g_autoptr(ModelArch) changed = model_arch_read(doc, json_doc_root(doc, "degas-model", 1));
    if (!json_doc_finish(doc, error))
        return false;
    model_arch_free(request->arch);
    request->arch = g_steal_pointer(&changed);
    return true;
}

static void
resize_cluster(Request *request, int64_t n_devices)
{
    ModelCluster *resized = model_cluster_resized(request->profile->cluster, n_devices);

    model_cluster_free(request->profile->cluster);
    request->profile->cluster = resized;
}

static void
change_price(ModelCluster *cluster, Options *options)
{
    const char *currency = options_string(options, "currency", NULL);

    if (options_has(options, "price")) {
        cluster->price_per_device_hour = options_quantity(options, "price", UNITS_KIND_NUMBER, 0);
        if (!(cluster->price_per_device_hour > 0 && cluster->price_per_device_hour <= 1e6))
            options_fail(options, "price", "expected a value above 0 and at most 1e6");
        for (guint i = 0; i < cluster->devices->len; i++)
            g_array_index(cluster->devices, ModelDevice, i).price_per_hour = 0;
        g_free(cluster->price_source);
        cluster->price_source = g_strdup("--price");
    } else if (currency != NULL) {
        options_fail(options, "currency", "needs --price: the cluster's price is not converted");
    }
    if (currency != NULL || (cluster->currency == NULL && cluster->price_per_device_hour > 0)) {
        g_free(cluster->currency);
        cluster->currency = g_strdup(currency == NULL ? "USD" : currency);
    }
}

static bool
change_cluster(Request *request, Options *options, GError **error)
{
    const int64_t n = options_int64(options, "gpus", 1, MODEL_CLUSTER_MAX_DEVICES, 0);

    change_price(request->profile->cluster, options);
    if (!options_finish(options, error))
        return false;
    if (n > 0)
        resize_cluster(request, n);
    return true;
}

/* Degrees that are all given say how many devices there are, unless --gpus does. */
static bool
fit_cluster(Request *request, Options *options, GError **error)
{
    const PlanRequest *plan = &request->plan;
    const int64_t has = model_cluster_n_devices(request->profile->cluster);
    int64_t needs;

    if (options_has(options, "gpus"))
        return true;
    if (__builtin_mul_overflow(plan->dp, plan->tp, &needs) ||
        __builtin_mul_overflow(needs, plan->pp, &needs) ||
        __builtin_mul_overflow(needs, plan->cp, &needs) || needs > MODEL_CLUSTER_MAX_DEVICES)
        return cmd_fail(error, CMD_ERROR_LIMIT, "dp x tp x pp x cp is more than " INT " devices",
                        MODEL_CLUSTER_MAX_DEVICES);
    if (needs > has)
        resize_cluster(request, needs);
    return true;
}

Profile *
request_load_cluster(const char *name_or_path, GError **error)
{
    Profile *profile = profile_load(name_or_path, error);

    if (profile == NULL)
        cmd_blame_name(name_or_path, error);
    return profile;
}

/* --- the flags, one by one, as fields of a PlanRequest --- */

/* The first of bf16, fp16, fp32 that every kind of device computes in. */
static Dtype
default_dtype(const ModelCluster *cluster)
{
    static const Dtype order[] = {DTYPE_BF16, DTYPE_FP16};

    for (size_t i = 0; i < G_N_ELEMENTS(order); i++) {
        bool everywhere = true;

        for (guint d = 0; d < cluster->devices->len; d++)
            everywhere &= g_array_index(cluster->devices, ModelDevice, d).flops_per_s[order[i]] > 0;
        if (everywhere)
            return order[i];
    }
    return DTYPE_FP32;
}

/* An int of the request: the index in @names, or PLAN_AUTO for "auto". */
static int
choice_or_auto(Options *options, const char *name, const char *const *names, int fallback)
{
    const char *text = options_string(options, name, NULL);

    if (text != NULL && strcmp(text, "auto") == 0)
        return PLAN_AUTO;
    return options_choice(options, name, names, fallback);
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
read_overlap(PlanConventions *conventions, Options *options)
{
    g_auto(GStrv) words = options_words(options, "overlap");

    if (words == NULL)
        return;
    conventions->overlap_dp = conventions->overlap_pp = conventions->overlap_tp = false;
    if (strcmp(words[0], "none") == 0 && words[1] == NULL)
        return;
    for (size_t i = 0; words[i] != NULL; i++) {
        if (strcmp(words[i], "dp") == 0)
            conventions->overlap_dp = true;
        else if (strcmp(words[i], "pp") == 0)
            conventions->overlap_pp = true;
        else if (strcmp(words[i], "tp") == 0)
            conventions->overlap_tp = true;
        else
            options_fail(options, "overlap", "expected none or some of dp,pp,tp, got \"%s\"",
                         words[i]);
    }
}

static void
read_conventions(PlanConventions *conventions, Options *options)
{
    static const char *const attentions[] = {"auto", "unfused", "flash", "torch", "flash1", NULL};
    const int framework =
        options_choice(options, "framework", plan_framework_names(), PLAN_FRAMEWORK_DEGAS);
    static const char *const kernels[] = {"auto", "fused", "norms", "eager", NULL};
    int attention, kernel;

    *conventions = plan_conventions((PlanFramework)framework);
    attention = options_choice(options, "attention", attentions, 0);
    if (attention > 0)
        conventions->attention = (PlanAttention)(attention - 1);
    kernel = options_choice(options, "kernels", kernels, 0);
    if (kernel > 0)
        conventions->kernels = (PlanKernels)(kernel - 1);
    conventions->dropout = options_on_off(options, "dropout", conventions->dropout);
    conventions->loss =
        (PlanLoss)options_choice(options, "loss", plan_loss_names, (int)conventions->loss);
    conventions->cp_comm = (PlanCpComm)options_choice(options, "cp-comm-type", plan_cp_comm_names,
                                                      (int)conventions->cp_comm);
    conventions->expert_tp = options_int64(options, "expert-tp", 1, SCHEDULE_MAX_RANKS, 1);
    conventions->expert_imbalance =
        options_quantity(options, "expert-imbalance", UNITS_KIND_NUMBER, 0.0);
    if (options_has(options, "expert-imbalance") &&
        !(conventions->expert_imbalance >= 1.0 &&
          conventions->expert_imbalance <= PLAN_MAX_IMBALANCE))
        options_fail(options, "expert-imbalance", "expected a factor from 1 to 1e6");
    conventions->deterministic =
        options_on_off(options, "deterministic-kernels", conventions->deterministic);
    conventions->pads_vocab = options_on_off(options, "pad-vocab", conventions->pads_vocab);
    conventions->grad_dtype =
        (Dtype)options_choice(options, "grad-dtype", dtype_names, (int)conventions->grad_dtype);
    read_overlap(conventions, options);
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
    plan->vpp = options_int64(options, "vpp", 1, SCHEDULE_MAX_CHUNKS, fallback);
    plan->cp = options_int64(options, "cp", 1, SCHEDULE_MAX_RANKS, fallback);
    plan->ep = options_int64(options, "ep", 1, SCHEDULE_MAX_RANKS, fallback);
    plan->micro_batch = options_int64(options, "micro-batch", 1, JSON_MAX_INT, fallback);
    plan->dp = options_int64(options, "dp", 1, MODEL_CLUSTER_MAX_DEVICES,
                             kind == REQUEST_FIXED ? remaining_dp(plan, options) : 0);
}

/* Fills request->plan from @options, with what they mean when absent; mistakes are recorded in
 * @options. */
static void
read_plan(Request *request, Options *options, RequestKind kind)
{
    static const char *const zero_stages[] = {"0", "1", "2", "3", NULL};
    static const char *const off_on[] = {"off", "on", NULL};
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
    plan->dtype = (Dtype)options_choice(options, "dtype", dtype_names,
                                        (int)default_dtype(request->profile->cluster));
    read_degrees(plan, options, kind);
    plan->n_devices = options_int64(options, "gpus", 1, MODEL_CLUSTER_MAX_DEVICES, 0);
    plan->group = options_int64(options, "group", 1, INT32_MAX, 0);
    read_schedules(request, options, kind);
    read_slices(request, options, kind);
    plan->recompute = choice_or_auto(options, "recompute", plan_recompute_names,
                                     fixed ? PLAN_RECOMPUTE_NONE : PLAN_AUTO);
    plan->zero_stage = choice_or_auto(options, "zero", zero_stages, fixed ? 0 : PLAN_AUTO);
    plan->offload = choice_or_auto(options, "offload", plan_offload_names, PLAN_OFFLOAD_NONE);
    plan->offload_parameters = options_choice(options, "offload-parameters", off_on, 0) == 1;
    plan->prefetch_layers = (int32_t)options_int64(options, "prefetch-layers", 0, PLAN_MAX_PREFETCH,
                                                   PLAN_PREFETCH_AUTO);
    plan->sequence_parallel =
        choice_or_auto(options, "sequence-parallel", off_on, fixed ? 0 : PLAN_AUTO);
    read_conventions(&plan->conventions, options);
    plan->rank_order = read_rank_order(&plan->conventions, options, kind);
    plan->overlap_pp_given = options_has(options, "overlap");
    plan->memory_limit_bytes = options_bytes(options, "memory-limit", 0);
    if (options_has(options, "memory-limit") && plan->memory_limit_bytes == 0)
        options_fail(options, "memory-limit", "expected a size above 0");
    plan->objective = PLAN_OBJECTIVE_TIME;
    plan->threads = 1;
}

/* --- the whole request --- */

Request *
request_new(ModelArch *arch, Profile *profile, Options *options, RequestKind kind, GError **error)
{
    g_autoptr(Request) request = g_new0(Request, 1);

    request->arch = arch;
    request->profile = profile;
    if (!change_model(request, options, error) || !change_cluster(request, options, error))
        return NULL;
    read_plan(request, options, kind);
    if (kind == REQUEST_FIXED)
        request->stage_layers = options_int64s(options, "stage-layers", 1, MODEL_MAX_LAYERS);
    if (kind == REQUEST_SEARCHED) {
        PlanRequest *plan = &request->plan;

        plan->objective = (PlanObjective)options_choice(options, "objective", plan_objective_names,
                                                        PLAN_OBJECTIVE_TIME);
        plan->top = options_int64(options, "top", 0, MAX_TOP, 0);
        plan->threads = options_threads(options);
    }
    if (!options_finish(options, error) ||
        (kind == REQUEST_FIXED && !fit_cluster(request, options, error)))
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
    g_autoptr(Plan) plan = plan_from_request(&request->plan, error);
    const GArray *layers = request->stage_layers;
    int64_t first = 0;

    if (plan == NULL || layers == NULL)
        return g_steal_pointer(&plan);
    if (layers->len != plan->stages->len) {
        g_set_error(error, PLAN_ERROR, PLAN_ERROR_INVALID,
                    "--stage-layers: %u stages, but pp x vpp is %u", layers->len,
                    plan->stages->len);
        return NULL;
    }
    for (guint i = 0; i < layers->len; i++) {
        PlanStage *stage = &g_array_index(plan->stages, PlanStage, i);

        stage->first_layer = first;
        stage->n_layers = g_array_index(layers, int64_t, i);
        first += stage->n_layers;
    }
    return plan_check(plan, request->arch->n_layers, error) ? g_steal_pointer(&plan) : NULL;
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
request_read(JsonDoc *doc, const JsonValue *object, const Profile *given, Conditions *conditions,
             GError **error)
{
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
    g_autoptr(Options) options = options_read(conditions == NULL ? fewer : tables, doc, object);
    if (!json_doc_finish(doc, error))
        return NULL;
    if (conditions != NULL)
        conditions_read(conditions, options);
    return request_new(g_steal_pointer(&arch), g_steal_pointer(&profile), options, REQUEST_FIXED,
                       error);
}
