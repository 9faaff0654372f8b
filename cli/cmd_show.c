/* degas show: show what is in a model, a cluster, or any file that degas writes. */
#include <math.h>
#include <string.h>

#include "base/text.h"
#include "base/units.h"
#include "cli/draw/describe.h"
#include "cli/draw/plot.h"
#include "cli/draw/timeline.h"
#include "cli/request/command.h"
#include "cli/request/op_times.h"
#include "cli/request/output.h"
#include "cli/request/subject.h"

static const OptionInfo options_table[] = {
    {"seq-len", "N",
     "make sequences of N tokens in a model's table of ops; default: 8192, or fewer where the "
     "model allows no more"},
    {"tp", "N", "divide matrices over N devices in a model's table of ops; default: 1"},
    {"dtype", "T", "compute in this number format in a model's table of ops; default: bf16",
     .words = dtype_names},
    {"json", NULL, "print the complete file on stdout"},
    {NULL, NULL, NULL},
};

/* --- models --- */

static void G_GNUC_PRINTF(2, 3) print_fact(const char *name, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *value = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    g_autofree char *safe = text_escape(value, 300);
    output_printf("%-18s %s\n", name, safe);
}

/* Appends "2 of 8 @noun of width 14336 for each token" and what is shared by all. */
static void
append_experts(GString *text, const char *noun, const ModelExperts *experts)
{
    g_string_append_printf(text, INT " of " INT "%s of width " INT " for each token",
                           experts->top_k, experts->n_experts, noun, experts->ffn_hidden);
    if (experts->n_shared > 0)
        g_string_append_printf(text, ", " INT " more for all", experts->n_shared);
}

static void
append_heads(GString *text, const ModelArch *arch)
{
    g_string_append_printf(text, INT " of width " INT, arch->n_heads, arch->head_dim);
    if (arch->n_kv_heads != arch->n_heads)
        g_string_append_printf(text, ", " INT " of keys and values", arch->n_kv_heads);
}

/* What the layers of a model have, all of which are of one kind but for dense ones before experts. */
static void
print_layer(const ModelArch *arch)
{
    g_autoptr(GString) heads = g_string_new(NULL);
    g_autoptr(GString) experts = g_string_new(NULL);

    append_heads(heads, arch);
    print_fact("attention heads", "%s", heads->str);
    if (arch->mla.kv_lora_rank > 0)
        print_fact("latent attention", "rank " INT " of keys and values, " INT " of queries",
                   arch->mla.kv_lora_rank, arch->mla.q_lora_rank);
    if (arch->indexer.n_heads > 0)
        print_fact("sparse attention",
                   INT " keys of each query, which " INT " heads of width " INT " choose",
                   arch->indexer.top_k, arch->indexer.n_heads, arch->indexer.head_dim);
    if (arch->window > 0)
        print_fact("window", INT " tokens before each", arch->window);
    if (arch->experts.n_experts == 0 || arch->experts.first_dense_layers > 0)
        print_fact("feed-forward", INT "%s", arch->ffn_hidden,
                   arch->experts.n_experts > 0 ? " in dense layers" : "");
    if (arch->experts.n_experts == 0)
        return;
    append_experts(experts, "", &arch->experts);
    if (arch->experts.first_dense_layers > 0)
        g_string_append_printf(experts, "; the first " INT " layers are dense",
                               arch->experts.first_dense_layers);
    print_fact("experts", "%s", experts->str);
}

/* "attention, 40 heads of width 128, 8 of keys and values, window 1024; feed-forward 21504" */
static char *
kind_text(const ModelArch *kind)
{
    GString *text =
        g_string_new(kind->mixer == MODEL_MIXER_NONE ? "no mixer" : model_mixer_names[kind->mixer]);

    if (model_has_mla(kind))
        g_string_append_printf(text, " (latent: " INT ", " INT ")", kind->mla.kv_lora_rank,
                               kind->mla.q_lora_rank);
    if (model_has_attention(kind)) {
        g_string_append(text, ", heads: ");
        append_heads(text, kind);
    }
    if (kind->window > 0 && model_has_attention(kind))
        g_string_append_printf(text, ", window " INT, kind->window);
    if (kind->chunk > 0 && model_has_attention(kind))
        g_string_append_printf(text, ", chunks of " INT, kind->chunk);
    if (kind->indexer.n_heads > 0 && model_has_attention(kind))
        g_string_append_printf(text, ", " INT " keys of each query", kind->indexer.top_k);
    if (model_has_state(kind))
        g_string_append_printf(text, ", " INT " states of " INT " x " INT, kind->state.n_heads,
                               kind->state.key_dim, kind->state.value_dim);
    if (kind->ffn == MODEL_FFN_NONE)
        g_string_append(text, "; no feed-forward");
    else if (kind->experts.n_experts == 0)
        g_string_append_printf(text, "; feed-forward " INT, kind->ffn_hidden);
    else
        append_experts(g_string_append(text, "; "), " experts", &kind->experts);
    return g_string_free(text, FALSE);
}

static void
print_kinds(const ModelArch *arch)
{
    int64_t counts[MODEL_MAX_KINDS];
    int width = 0;

    model_count_kinds(arch, counts);
    for (int32_t i = 0; i < arch->n_kinds; i++) {
        g_autofree char *name = g_strdup_printf("  " INT " x %s", counts[i], arch->kinds[i].name);
        width = MAX(width, (int)strlen(name) + 1);
    }
    for (int32_t i = 0; i < arch->n_kinds; i++) {
        const ModelArch kind = model_kind_arch(arch, i);
        g_autofree char *label = g_strdup_printf("  " INT " x %s", counts[i], arch->kinds[i].name);
        g_autofree char *name = g_strdup_printf("%-*s", width, label);
        g_autofree char *text = kind_text(&kind);
        print_fact(name, "%s", text);
    }
}

static void
print_widths(const ModelArch *arch)
{
    print_fact("family", "%s", model_family_names[arch->family]);
    print_fact("layers", INT, arch->n_layers);
    print_fact("hidden", INT, arch->hidden);
    if (arch->n_kinds > 0)
        print_kinds(arch);
    else
        print_layer(arch);
    if (arch->mtp.n > 0 || arch->mtp.published > 0)
        print_fact("MTP modules", INT " (published with " INT "; --mtp N adds them)", arch->mtp.n,
                   arch->mtp.published);
    print_fact("vocabulary", INT "%s", arch->vocab,
               arch->tied_embeddings ? ", one table for embedding and head" : "");
    print_fact("longest sequence", INT, arch->max_seq_len);
}

static void
add_op(OutputTable *table, const ModelOp *op)
{
    output_table_add(table, op->name);
    if (op->kind == MODEL_OP_COLLECTIVE || op->kind == MODEL_OP_MEMORY)
        output_table_add(table, op->kind == MODEL_OP_MEMORY ? "memory" : "collective");
    else
        output_table_printf(table, INT " x " INT " x " INT " x " INT, op->count, op->m, op->n,
                            op->k);
    output_table_row(table, units_format_count(op->forward_flops).text,
                     units_format_count(op->backward_flops).text,
                     units_format_bytes((double)op->weight_bytes).text,
                     units_format_bytes((double)op->forward_bytes).text,
                     units_format_bytes((double)op->saved_bytes).text,
                     units_format_bytes((double)op->comm_bytes).text, NULL);
}

static void
print_ops(const ModelArch *arch, ModelPart part, int64_t layer, const ModelShape *shape,
          const char *title)
{
    g_autoptr(OutputTable) table =
        output_table_new("<op|<count x m x n x k|FLOPs forward|backward|weights|traffic|"
                         "kept|sent");
    ModelOp ops[MODEL_MAX_OPS];
    const size_t n = model_ops(arch, part, layer, shape, ops);
    int64_t saved = 0;

    if (n == 0)
        return;
    for (size_t i = 0; i < n; i++) {
        add_op(table, &ops[i]);
        saved += ops[i].saved_bytes;
    }
    output_printf("\n%s: %s of activations kept\n", title, units_format_bytes((double)saved).text);
    output_table_print(table, 2);
}

/* Parameters, FLOPs per token, and the ops of each kind of layer. */
static void
describe_model(const ModelArch *arch, const ModelShape *shape)
{
    const double flops = model_flops_per_iteration(arch, 1, shape->tokens) / (double)shape->tokens;

    output_printf("%s\n", arch->name);
    if (arch->source != NULL)
        print_fact("source", "%s", arch->source);
    print_widths(arch);
    print_fact("parameters", "%s", units_format_count((double)model_parameters(arch)).text);
    if (arch->experts.n_experts > 0)
        print_fact("used by a token", "%s",
                   units_format_count((double)model_active_parameters(arch)).text);
    print_fact("FLOPs per token",
               "%s forward and backward in sequences of " INT
               " tokens; %s that a causal model needs",
               units_format_count(flops).text, shape->tokens,
               units_format_count(flops * model_causal_fraction(arch, shape->tokens)).text);
    output_printf(
        "\nops of a sequence of " INT " tokens (--seq-len) on a device of " INT
        " (--tp), %s (--dtype), flash attention\n"
        "weights; traffic: what the forward reads and writes; kept until the backward; sent "
        "to the others\n",
        shape->tokens, shape->tp, dtype_names[shape->dtype]);
    for (int32_t i = 0; i < model_n_kinds(arch); i++) {
        const int64_t layer = model_first_of_kind(arch, i);
        g_autofree char *title =
            arch->mtp.n > 0 && layer >= arch->n_layers ? g_strdup("an MTP module")
            : arch->n_kinds > 0 ? g_strdup_printf("a layer, %s", model_kind_name(arch, i))
            : model_layer_is_moe(arch, MAX(0, layer)) ? g_strdup("a layer with experts")
                                                      : g_strdup("a layer");
        if (layer >= 0)
            print_ops(arch, MODEL_PART_LAYER, layer, shape, title);
    }
    print_ops(arch, MODEL_PART_HEAD, 0, shape, "head and loss");
}

/* --- clusters --- */

static UnitsText
rate_text(double bytes_per_s)
{
    const bool is_tera = bytes_per_s >= 1e12;
    UnitsText text = {"-"};

    if (bytes_per_s > 0)
        g_snprintf(text.text, sizeof text.text, "%s %cB/s",
                   output_number(bytes_per_s / (is_tera ? 1e12 : 1e9)).text, is_tera ? 'T' : 'G');
    return text;
}

static void
print_devices(const ModelCluster *cluster)
{
    static const Dtype dtypes[] = {DTYPE_FP32, DTYPE_FP16, DTYPE_BF16, DTYPE_FP8};
    g_autoptr(OutputTable) table =
        output_table_new("<device|number|memory|bandwidth|fp32|fp16|bf16|fp8");

    for (guint i = 0; i < cluster->nodes->len; i++) {
        const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, i);
        const ModelDevice *device =
            &g_array_index(cluster->devices, ModelDevice, (guint)nodes->device);

        output_table_add(table, device->name);
        output_table_printf(table, INT " x " INT, nodes->n_nodes, nodes->n_devices);
        output_table_row(table, units_format_bytes((double)device->memory_bytes).text,
                         rate_text(device->memory_bytes_per_s).text, NULL);
        for (size_t k = 0; k < G_N_ELEMENTS(dtypes); k++) {
            const double flops = device->flops_per_s[dtypes[k]];

            output_table_add(table, flops > 0 ? units_format_flops(flops).text : "-");
        }
    }
    output_table_print(table, 0);
}

/* The rates of a link and its latency. */
static void
add_link(OutputTable *table, double bytes_per_s, double shared_bytes_per_s, double latency_s)
{
    output_table_row(table, rate_text(bytes_per_s).text, rate_text(shared_bytes_per_s).text,
                     output_seconds(latency_s).text, NULL);
}

static void
print_levels(const ModelCluster *cluster)
{
    g_autoptr(OutputTable) table =
        output_table_new("<network|joins devices|rate of a device|of a node|latency");

    for (guint i = 0; i < cluster->levels->len; i++) {
        const ModelLevel *level = &g_array_index(cluster->levels, ModelLevel, i);

        output_table_row(table, level->name,
                         level->group_devices > 0 ? output_int64(level->group_devices).text : "all",
                         NULL);
        add_link(table, level->bytes_per_s, level->shared_bytes_per_s, level->latency_s);
    }
    output_text("\n");
    output_table_print(table, 0);
}

/* Nodes whose links differ from their level's, if there are any. */
static void
print_links(const ModelCluster *cluster)
{
    g_autoptr(OutputTable) table =
        output_table_new("<nodes|<network|rate of a device|of a node|latency");
    bool any = false;

    for (guint i = 0; i < cluster->nodes->len; i++) {
        const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, i);
        for (guint level = 0; level < cluster->levels->len; level++) {
            const ModelLink *link = &nodes->links[level];
            if (!nodes->has_link[level])
                continue;
            any = true;
            output_table_printf(
                table, "%s " INT " x " INT,
                g_array_index(cluster->devices, ModelDevice, (guint)nodes->device).name,
                nodes->n_nodes, nodes->n_devices);
            output_table_add(table, g_array_index(cluster->levels, ModelLevel, level).name);
            add_link(table, link->bytes_per_s, link->shared_bytes_per_s, link->latency_s);
        }
    }
    if (any) {
        output_text("\n");
        output_table_print(table, 0);
    }
}

/* Devices, nodes, network, and what is measured. */
static void
describe_cluster(const Profile *profile)
{
    const ModelCluster *cluster = profile->cluster;

    output_printf("%s: " INT " devices\n\n", profile->name, model_cluster_n_devices(cluster));
    print_devices(cluster);
    print_levels(cluster);
    print_links(cluster);
    if (cluster->price_per_device_hour > 0)
        output_printf("\nprice of a device: %s %s per hour\n",
                      output_number(cluster->price_per_device_hour).text,
                      cluster->currency == NULL ? "" : cluster->currency);
    output_text("\n");
    if (profile->measurements->len > 0)
        print_fact("measured", "%u times of %s on %s", profile->measurements->len,
                   profile->measured_arch == NULL ? "a layer" : profile->measured_arch->name,
                   profile->measured_on == NULL ? "this machine" : profile->measured_on);
    else
        print_fact("measured", "nothing; every cost is modelled");
    for (guint i = 0; cluster->sources != NULL && i < cluster->sources->len; i++)
        print_fact(i == 0 ? "sources" : "", "%s",
                   (const char *)g_ptr_array_index(cluster->sources, i));
}

/* --- the command --- */

/* Files that are shown as what they are, a list of facts. */
static const char *const plain_formats[] = {"degas-job",        "degas-run",    "degas-compare",
                                            "degas-validation", "degas-slices", "degas-calibration",
                                            "degas-list"};

/* Of models that allow more, the tokens of the sequence whose ops are shown. */
#define USUAL_TOKENS 8192

static int
show_model(const char *name, Options *options, GError **error)
{
    g_autoptr(ModelArch) arch = request_load_model(name, error);

    if (arch == NULL)
        return -1;
    const ModelShape shape = {
        .batch = 1,
        .tokens = options_int64(options, "seq-len", 1, MODEL_MAX_SEQ_LEN,
                                MIN(arch->max_seq_len, USUAL_TOKENS)),
        .tp = options_int64(options, "tp", 1, SCHEDULE_MAX_RANKS, 1),
        .cp = 1,
        .ep = 1,
        .flash_attention = true,
        .dtype = (Dtype)options_choice(options, "dtype", DTYPE_BF16),
        .expert_imbalance = 1,
    };
    if (!options_finish(options, error) || !model_shape_check(arch, &shape, error))
        return -1;
    if (options_has(options, "json")) {
        JsonWriter *writer = json_writer_new();

        model_arch_write(writer, NULL, arch);
        return output_json(writer, NULL, error) ? 0 : -1;
    }
    describe_model(arch, &shape);
    return 0;
}

static int
show_cluster(const char *name, Options *options, GError **error)
{
    g_autoptr(Profile) profile = profile_load(name, error);

    if (profile == NULL)
        return -1;
    if (options_has(options, "json")) {
        JsonWriter *writer = json_writer_new();

        profile_write(writer, NULL, profile);
        return output_json(writer, NULL, error) ? 0 : -1;
    }
    describe_cluster(profile);
    return 0;
}

static int
show_plan(JsonDoc *doc, Options *options, GError **error)
{
    g_autoptr(Job) job = job_read(doc, error);
    g_auto(JobSimulation) simulation = {0};

    if (job == NULL)
        return -1;
    if (options_has(options, "json"))
        return output_json(job_write(job), NULL, error) ? 0 : -1;
    SimGlimpse glimpse;
    G_GNUC_UNUSED g_autofree bool *is_shown =
        describe_glimpse((int32_t)job->plan->degrees.pp, &glimpse);
    const JobOptions how = {.want_trace = true, .glimpse = &glimpse};
    if (!job_simulate(job, &how, &simulation, error)) {
        cmd_blame_file(json_doc_name(doc), error);
        return -1;
    }
    const Plan *plan = job->plan;
    describe_job(job);
    output_text("\n");
    describe_plans(&plan, 1);
    output_text("\n");
    describe_stages(plan);
    describe_report(simulation.result.report, job->plan, job->profile->cluster->currency, NAN, 16);
    output_text("\n");
    describe_timeline(simulation.result.trace, false);
    return 0;
}

static int
show_trace(const char *path, GError **error)
{
    g_autoptr(Trace) trace = trace_load(path, error);

    if (trace == NULL)
        return -1;
    g_autofree char *title = timeline_title(trace);
    output_printf("%s\n", title);
    describe_timeline(trace, false);
    return 0;
}

static int
show_report(JsonDoc *doc, GError **error)
{
    g_autoptr(Report) report = report_read(doc, json_doc_root(doc, "degas-report", 1));

    if (!json_doc_finish(doc, error))
        return -1;
    describe_report(report, NULL, NULL, NAN, 16);
    return 0;
}

/* A schedule has no times: every forward takes 1, every backward 2. */
static int
show_schedule(const char *path, GError **error)
{
    const SimOptions how = {.want_trace = true};
    g_auto(SimResult) result = {0};
    g_autoptr(Schedule) schedule = schedule_load(path, error);

    if (schedule == NULL)
        return -1;
    g_autoptr(OpTimes) times = op_times_usual();
    g_autoptr(Workload) workload = op_times_workload(times, schedule, error);
    if (workload == NULL || !sim_run(schedule, workload, &how, &result, error)) {
        cmd_blame_file(path, error);
        return -1;
    }
    describe_schedule(schedule, result.report, true);
    describe_timeline(result.trace, true);
    return 0;
}

static int
show_sweep(JsonDoc *doc, GError **error)
{
    const PlotOptions how = {.columns = output_columns(), .utf8 = output_is_utf8()};
    g_autoptr(Sweep) sweep = sweep_read(doc, json_doc_root(doc, "degas-sweep", 1));

    if (!json_doc_finish(doc, error))
        return -1;
    output_printf("%s on %s, %s\n\n", sweep->model, sweep->cluster, sweep->dtype);
    return plot_sweep_throughput(sweep, &how, "-", error) ? 0 : -1;
}

/* Prints the members of @object that are single values, and those of objects in it; of lists how
 * long they are. */
static void
print_members(JsonDoc *doc, const JsonValue *object, const char *prefix)
{
    JSON_EACH (v, object, doc) {
        g_autofree char *key = text_escape(json_key(v), 60);
        g_autofree char *name = g_strconcat(prefix, key, NULL);
        g_autofree char *inner = g_strconcat(name, ".", NULL);
        if (json_is_object(v) && *prefix == 0)
            print_members(doc, v, inner);
        else if (json_is_object(v) || json_is_array(v))
            output_printf("%-44s %zu %s\n", name, json_length(v),
                          json_is_array(v) ? "elements" : "members");
        else if (json_is_string(v)) {
            g_autofree char *text = text_escape(json_value_string(doc, v), 300);
            output_printf("%-44s %s\n", name, text);
        } else if (json_is_number(v))
            output_printf("%-44s %s\n", name,
                          output_number(json_value_double(doc, v, -INFINITY, INFINITY)).text);
        else
            output_printf("%-44s %s\n", name,
                          json_is_null(v)                       ? "null"
                          : json_bool(doc, object, json_key(v)) ? "true"
                                                                : "false");
    }
}

/* Any other file of ours: its facts, one on each line. */
static int
show_facts(JsonDoc *doc, GError **error)
{
    print_members(doc, json_doc_root(doc, NULL, 1), "");
    return json_doc_finish(doc, error) ? 0 : -1;
}

static int
show_file(const char *path, Options *options, GError **error)
{
    g_autoptr(JsonDoc) doc = json_doc_load(path, error);

    if (doc == NULL)
        return -1;
    const char *format = json_doc_format(doc);
    if (g_strcmp0(format, "degas-plan") == 0)
        return show_plan(doc, options, error);
    if (g_strcmp0(format, "degas-profile") == 0 || g_strcmp0(format, "degas-cluster") == 0)
        return show_cluster(path, options, error);
    if (g_strcmp0(format, "degas-trace") == 0)
        return show_trace(path, error);
    if (g_strcmp0(format, "degas-report") == 0)
        return show_report(doc, error);
    if (g_strcmp0(format, "degas-schedule") == 0)
        return show_schedule(path, error);
    if (g_strcmp0(format, "degas-sweep") == 0)
        return show_sweep(doc, error);
    for (size_t i = 0; i < G_N_ELEMENTS(plain_formats); i++)
        if (g_strcmp0(format, plain_formats[i]) == 0)
            return show_facts(doc, error);
    return show_model(path, options, error); /* or says what it is not */
}

/* An unknown name may mean either; the nearest of both is suggested. */
static int
fail_unknown(const char *name, const GPtrArray *models, const GPtrArray *clusters, GError **error)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new();

    g_ptr_array_extend(names, (GPtrArray *)models, NULL, NULL);
    g_ptr_array_extend(names, (GPtrArray *)clusters, NULL, NULL);
    g_ptr_array_add(names, NULL);
    g_autofree char *suggestion = text_suggestion(name, (const char *const *)names->pdata);
    g_set_error(error, G_FILE_ERROR, G_FILE_ERROR_NOENT,
                "%s: no file, built-in model or built-in cluster of that name%s%s", name,
                *suggestion == 0 ? "" : ";", *suggestion == 0 ? "" : suggestion + 1);
    cmd_blame_name(name, error);
    return -1;
}

static int
run(Options *options, GError **error)
{
    const char *name = options_argument(options, 0);
    g_autoptr(GPtrArray) models = model_arch_builtin_names();
    g_autoptr(GPtrArray) clusters = profile_builtin_names();

    if (g_ptr_array_find_with_equal_func(models, name, g_str_equal, NULL))
        return show_model(name, options, error);
    if (g_ptr_array_find_with_equal_func(clusters, name, g_str_equal, NULL))
        return show_cluster(name, options, error);
    if (strcmp(name, "-") != 0 && !g_file_test(name, G_FILE_TEST_EXISTS))
        return fail_unknown(name, models, clusters, error);
    if (g_file_test(name, G_FILE_TEST_IS_DIR))
        return show_model(name, options, error);
    return show_file(name, options, error);
}

const Command cmd_show = {
    .name = "show",
    .usage = "MODEL|CLUSTER|FILE.json [options]",
    .summary = "show what is in a model, a cluster, or any file that degas writes",
    .details = "  degas show llama3-8b --tp 8\n"
               "  degas show plan.json\n",
    .options = {options_table},
    .min_arguments = 1,
    .max_arguments = 1,
    .common = true,
    .run = run,
};
