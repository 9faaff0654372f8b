#include "cli/request/request.h"

#include "cli/request/command.h"
#include "cli/request/output.h"
#include "cli/request/request_read.h"

#define MAX_THREADS 1024
#define MAX_TOP 1000

const OptionInfo request_options[] = {
    {"global-batch", "N", "sequences of one iteration, over all devices (required)", 0},
    {"gpus", "N", "cut or extend the cluster to N devices", 0},
    {"seq-len", "N", "tokens of a sequence; default: the model's max_seq_len", 0},
    {"dtype", "T", "bf16, fp16, fp32, fp8; default: bf16 where the devices have it", 0},
    {"dp", "N", "data-parallel degree", 0},
    {"tp", "N", "tensor-parallel degree", 0},
    {"pp", "N", "pipeline ranks", 0},
    {"vpp", "N", "virtual stages (chunks) of a pipeline rank", 0},
    {"cp", "N", "context-parallel degree", 0},
    {"ep", "N", "expert-parallel degree, inside dp", 0},
    {"micro-batch", "N", "sequences of a micro-batch", 0},
    {"schedule", "NAME", "auto, one of degas list schedules, or several with commas", 0},
    {"rank-order", "ORDER",
     "dimensions over ranks, fastest first: auto, or as tp-cp-dp-pp, which is Megatron's", 0},
    {"group", "N", "interleaved schedules: micro-batches of a group; default: pp", 0},
    {"slices", "S", "cut sequences: auto, off, N equal slices, or lengths A,B,C", 0},
    {"recompute", "R", "activations computed again: auto, none, selective, full", 0},
    {"zero", "N", "ZeRO stage: auto, 0, 1, 2, 3", 0},
    {"offload", "O", "none (default), auto, cpu, nvme: where optimizer state lives", 0},
    {"offload-parameters", "on|off", "with --zero 3: weights live there too; default: off", 0},
    {"prefetch-layers", "N", "ZeRO 3: layers gathered ahead of use; default: the framework's", 0},
    {"memory-limit", "SIZE", "memory of a device, e.g. 14GiB; default: the device's", 0},
    {"sequence-parallel", "on|off", "split norms and residuals over tp ranks as well", 0},
    {"attention", "A", "auto (the framework's), unfused, torch (softmax too), flash, flash1", 0},
    {"kernels", "K", "norms, rotary, SwiGLU, loss: auto (the framework's), fused, norms, eager", 0},
    {"loss", "L", "the split vocabulary's: plain (default), compiled, fused", 0},
    {"cp-comm-type", "C", "context parallel: p2p (a ring, default) or a2a (shares of heads)", 0},
    {"expert-tp", "N", "ranks of tp that share each expert; default: 1", 0},
    {"expert-imbalance", "X", "fullest expert rank's load over the mean; default: the profile's",
     0},
    {"deterministic-kernels", "on|off", "libraries' deterministic mode; default: off", 0},
    {"pad-vocab", "on|off", "to a multiple of 128 tp; default: as the framework does", 0},
    {"dropout", "on|off", "whether the model is trained with it; default: the framework's", 0},
    {"overlap", "LIST", "communication hidden behind computing: none, or of dp,pp,tp", 0},
    {"grad-dtype", "T", "fp32, bf16, fp16: gradients as kept and reduced", 0},
    {"framework", "F",
     "presets what its runs do: megatron-lm, megatron-core, megatron-deepspeed, deepspeed, fsdp, "
     "terapipe, degas (default); flags win",
     0},
    {"optimizer-step", "on|off", "whether the iteration ends with it", 0},
    {"price", "X", "price of one device for an hour; default: the cluster's", 0},
    {"currency", "TEXT", "of the price; default: the cluster's, or USD", 0},
    {"layers", "N", "give the model N layers", 0},
    {"vocab", "N", "give the model this vocabulary; 0: no embedding, head or loss", 0},
    {NULL, NULL, NULL, 0},
};

const OptionInfo request_fixed_options[] = {
    {"stage-layers", "A,B,C", "layers of each stage, in order of the chain; default: even", 0},
    {NULL, NULL, NULL, 0},
};

const OptionInfo request_search_options[] = {
    {"objective", "O", "time (default), cost, energy, memory", 0},
    {"top", "K", "keep the K next best plans as alternatives", 0},
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
    if (request->slices != NULL)
        g_array_unref(request->slices);
    if (request->stage_layers != NULL)
        g_array_unref(request->stage_layers);
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

ModelArch *
request_load_model(const char *name_or_path, GError **error)
{
    g_autoptr(GPtrArray) warnings = NULL;
    g_autoptr(GError) local = NULL;
    ModelArch *arch = model_arch_load(name_or_path, &warnings, &local);

    if (arch == NULL) {
        cmd_blame_name(name_or_path, &local);
        g_propagate_error(error, g_steal_pointer(&local));
    }

    for (guint i = 0; warnings != NULL && i < warnings->len; i++)
        output_note("note: %s", (const char *)g_ptr_array_index(warnings, i));
    return arch;
}

/* Replaces the model by one with other --layers and --vocab, checked as a file would be. */
static bool
change_model(Request *request, Options *options, GError **error)
{
    g_autoptr(JsonWriter) writer = NULL;
    g_autoptr(JsonDoc) doc = NULL;
    g_autoptr(ModelArch) changed = NULL;
    g_autofree char *text = NULL;
    size_t n_bytes;

    if (!options_has(options, "layers") && !options_has(options, "vocab"))
        return true;
    request->arch->n_layers =
        options_int64(options, "layers", 1, MODEL_MAX_LAYERS, request->arch->n_layers);
    request->arch->vocab =
        options_int64(options, "vocab", 0, MODEL_MAX_VOCAB, request->arch->vocab);
    if (!options_finish(options, error))
        return false;
    writer = json_writer_new();
    model_arch_write(writer, NULL, request->arch);
    text = json_writer_steal(writer, &n_bytes);
    doc = json_doc_parse("the model with --layers and --vocab", text, n_bytes, error);
    if (doc == NULL)
        return false;
    changed = model_arch_read(doc, json_doc_root(doc, "degas-model", 1));
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
            options_fail(options, "price", "expected more than nothing and at most 1e6");
        for (guint i = 0; i < cluster->devices->len; i++)
            g_array_index(cluster->devices, ModelDevice, i).price_per_hour = 0;
        g_free(cluster->price_source);
        cluster->price_source = g_strdup("--price");
    } else if (currency != NULL) {
        options_fail(options, "currency", "needs --price: nothing is converted");
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
        __builtin_mul_overflow(needs, plan->cp, &needs) || needs > MODEL_CLUSTER_MAX_DEVICES) {
        g_set_error(error, CMD_ERROR, CMD_ERROR_LIMIT,
                    "dp x tp x pp x cp is more than %" G_GINT64_FORMAT " devices",
                    MODEL_CLUSTER_MAX_DEVICES);
        return false;
    }
    if (needs > has)
        resize_cluster(request, needs);
    return true;
}

Profile *
request_load_cluster(const char *name_or_path, GError **error)
{
    g_autoptr(GError) local = NULL;
    Profile *profile = profile_load(name_or_path, &local);

    if (profile == NULL) {
        cmd_blame_name(name_or_path, &local);
        g_propagate_error(error, g_steal_pointer(&local));
    }
    return profile;
}

Request *
request_new(ModelArch *arch, Profile *profile, Options *options, RequestKind kind, GError **error)
{
    g_autoptr(Request) request = g_new0(Request, 1);

    request->arch = arch;
    request->profile = profile;
    if (!change_model(request, options, error) || !change_cluster(request, options, error))
        return NULL;
    request_read_plan(request, options, kind);
    if (kind == REQUEST_FIXED)
        request->stage_layers = options_int64s(options, "stage-layers", 1, MODEL_MAX_LAYERS);
    if (kind == REQUEST_SEARCHED) {
        PlanRequest *plan = &request->plan;

        plan->objective = (PlanObjective)options_choice(options, "objective", plan_objective_names,
                                                        PLAN_OBJECTIVE_TIME);
        plan->top = options_int64(options, "top", 0, MAX_TOP, 0);
        plan->threads = options_int64(options, "threads", 1, MAX_THREADS, g_get_num_processors());
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
    g_autoptr(Profile) profile = NULL;

    if (arch == NULL)
        return NULL;
    profile = request_load_cluster(cluster, error);
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
