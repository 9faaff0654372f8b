#include "cli/request/experts.h"

#include <math.h>
#include <string.h>

#include "base/csv.h"
#include "cli/request/command.h"
#include "models/expert_load.h"

#define OPTION "expert-load"
#define DEFAULT_STEPS 1000
#define DEFAULT_SEED 1
#define MAX_STEPS 100000
/* Exponents beyond leave one expert with everything. */
#define MAX_ZIPF 10.0
/* Draws of all layers and experts: some seconds. */
#define MAX_DRAWS 2e9

/* --- reading --- */

/* A count of the table's record; false: no whole number from 0 to @most. */
static bool
read_count(const Csv *csv, size_t record, int column, int64_t most, int64_t *value)
{
    gint64 number;

    if (!g_ascii_string_to_signed(csv_field(csv, record, (size_t)column), 10, 0, most, &number,
                                  NULL))
        return false;
    *value = number;
    return true;
}

/* A file with the columns layer, expert and rows: layers and experts count from 0, what is not there got no
 * rows. */
static void
read_table(ExpertsAsked *asked, Options *options, const char *path)
{
    static const char *const names[] = {"layer", "expert", "rows"};
    g_autoptr(GError) error = NULL;
    g_autoptr(Csv) csv = csv_load(path, NULL, &error);
    int columns[3];

    if (csv == NULL) {
        options_fail(options, OPTION, "%s", error->message);
        return;
    }
    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        columns[i] = csv_column(csv, names[i]);
        if (columns[i] < 0) {
            options_fail(options, OPTION, "%s: no column \"%s\"", path, names[i]);
            return;
        }
    }
    const size_t n = csv_n_records(csv);
    g_autofree int64_t *values = g_new(int64_t, 3 * n + 1);
    const int64_t most[] = {MODEL_MAX_LAYERS - 1, MODEL_MAX_EXPERTS - 1, JSON_MAX_INT};
    for (size_t r = 0; r < n; r++) {
        for (size_t i = 0; i < 3; i++)
            if (!read_count(csv, r, columns[i], most[i], &values[3 * r + i])) {
                options_fail(options, OPTION, "%s:%zu: %s: expected a whole number", path,
                             csv_line(csv, r), names[i]);
                return;
            }
        asked->n_layers = MAX(asked->n_layers, values[3 * r] + 1);
        asked->n_experts = MAX(asked->n_experts, values[3 * r + 1] + 1);
    }
    if (asked->n_layers * asked->n_experts > CSV_MAX_RECORDS) {
        options_fail(options, OPTION, "%s: more than %d layers times experts", path,
                     CSV_MAX_RECORDS);
        return;
    }
    asked->counts = g_array_new(FALSE, TRUE, sizeof(double));
    g_array_set_size(asked->counts, (guint)(asked->n_layers * asked->n_experts));
    for (size_t r = 0; r < n; r++)
        g_array_index(asked->counts, double,
                      values[3 * r] * asked->n_experts + values[3 * r + 1]) +=
            (double)values[3 * r + 2];
    for (int64_t layer = 0; layer < asked->n_layers; layer++) {
        double sum = 0.0;
        for (int64_t e = 0; e < asked->n_experts; e++)
            sum += g_array_index(asked->counts, double, layer * asked->n_experts + e);
        if (sum <= 0.0) {
            options_fail(options, OPTION, "%s: layer " INT " has no rows", path, layer);
            return;
        }
    }
    if (n == 0)
        options_fail(options, OPTION, "%s: no rows", path);
}

void
experts_read(ExpertsAsked *asked, Options *options)
{
    g_auto(GStrv) words = options_words(options, OPTION);
    const guint n = words == NULL ? 0 : g_strv_length(words);
    int64_t seed = DEFAULT_SEED;

    *asked = (ExpertsAsked){0};
    if (n == 0)
        return;
    if (n > 3) {
        options_fail(options, OPTION, "expected LOAD[,STEPS[,SEED]], got %u values", n);
        return;
    }
    asked->n_steps = DEFAULT_STEPS;
    if (n > 1)
        options_part_int64(options, OPTION, words[1], OPTION, 1, MAX_STEPS, &asked->n_steps);
    if (n > 2)
        options_part_int64(options, OPTION, words[2], OPTION, 0, JSON_MAX_INT, &seed);
    asked->seed = (uint64_t)seed;
    if (strcmp(words[0], "even") == 0)
        return;
    if (!g_str_has_prefix(words[0], "zipf:")) {
        read_table(asked, options, words[0]);
        return;
    }
    asked->zipf = options_part(options, OPTION, words[0] + strlen("zipf:"), UNITS_KIND_NUMBER, 0.0);
    if (!(asked->zipf >= 0.0 && asked->zipf <= MAX_ZIPF))
        options_fail(options, OPTION, "expected an exponent from 0 to %g, got \"%s\"", MAX_ZIPF,
                     words[0] + strlen("zipf:"));
}

void
experts_clear(ExpertsAsked *asked)
{
    g_clear_pointer(&asked->counts, g_array_unref);
}

/* --- answering --- */

/* Of all kinds of layers with experts, the first. */
static bool
find_experts(const ModelArch *arch, ModelExperts *experts, int64_t *n_layers)
{
    *n_layers = 0;
    for (int64_t i = 0; i < model_n_stacked(arch); i++) {
        const ModelArch layer = model_layer_arch(arch, i);
        if (layer.experts.n_experts == 0 || layer.ffn == MODEL_FFN_NONE)
            continue;
        if (*n_layers == 0)
            *experts = layer.experts;
        (*n_layers)++;
    }
    return *n_layers > 0;
}

static bool
repeats_layers(const Plan *plan)
{
    for (guint i = 0; i < plan->stages->len; i++)
        if (g_array_index(plan->stages, PlanStage, i).recompute == PLAN_RECOMPUTE_FULL)
            return true;
    return false;
}

bool
experts_vary(const ExpertsAsked *asked, const ModelArch *arch, const Plan *plan,
             int64_t usable_bytes, ExpertsSimulate simulate, void *user_data, Report *report,
             GError **error)
{
    static const double fractions[REPORT_LOAD_N] = {0.5, 0.95};
    const PlanDegrees *d = &plan->degrees;
    ModelExperts experts = {0};
    int64_t n_layers;

    if (!find_experts(arch, &experts, &n_layers))
        return cmd_fail(error, CMD_ERROR_USAGE, "--expert-load: model %s has no experts",
                        arch->name);
    if (asked->counts != NULL && asked->n_experts != experts.n_experts)
        return cmd_fail(error, CMD_ERROR_USAGE,
                        "--expert-load: counts of " INT " experts, but the model has " INT,
                        asked->n_experts, experts.n_experts);
    /* tp ranks that do not share experts send a part of the tokens each. */
    const double sent = (double)plan->micro_batch * (double)plan->seq_len / (double)d->cp /
                        (double)d->tp * (double)plan_expert_tp(d, &plan->conventions) *
                        (double)experts.top_k;
    const ExpertLoad load = {
        .shares = {asked->zipf,
                   asked->counts == NULL ? NULL : &g_array_index(asked->counts, double, 0),
                   asked->n_layers},
        .n_experts = experts.n_experts,
        .n_redundant = d->ep > 1 ? experts.n_redundant : 0,
        .ep = d->ep,
        .n_layers = MAX(1, (n_layers + d->pp - 1) / d->pp),
        .n_rows = (int64_t)fmin(1e15, sent * (double)d->ep),
        .n_steps = asked->n_steps,
        .seed = asked->seed,
    };
    if ((double)load.n_steps * (double)load.n_layers * (double)load.n_experts > MAX_DRAWS)
        return cmd_fail(error, CMD_ERROR_LIMIT,
                        "--expert-load: steps times layers times experts are more than %g",
                        MAX_DRAWS);
    const size_t n = (size_t)load.n_steps;
    g_autofree ExpertImbalance *steps = g_new(ExpertImbalance, n);
    g_autofree double *mean = g_new(double, n);
    g_autofree double *held = g_new(double, n);
    const bool repeats = repeats_layers(plan);
    expert_load_draw(&load, steps);
    for (size_t i = 0; i < n; i++) {
        mean[i] = steps[i].mean;
        held[i] = repeats ? steps[i].most : steps[i].mean;
    }
    ReportLoad *out = &report->load;
    double at[REPORT_LOAD_N] = {0.0};
    for (int q = 0; q < REPORT_LOAD_N; q++) {
        PlanConventions conventions = plan->conventions;
        int64_t unused;

        out->imbalance[q] = conventions.expert_imbalance =
            fmax(1.0, expert_load_quantile(mean, n, fractions[q]));
        if (!simulate(&conventions, &out->iteration_ns[q], &unused, user_data, error))
            return false;
        at[q] = conventions.expert_imbalance =
            fmax(1.0, expert_load_quantile(held, n, fractions[q]));
        if (!simulate(&conventions, &unused, &out->peak_memory_bytes[q], user_data, error))
            return false;
    }
    /* Bytes grow linearly with the imbalance. */
    PlanConventions even = plan->conventions;
    int64_t unused, even_bytes;
    even.expert_imbalance = 1.0;
    if (!simulate(&even, &unused, &even_bytes, user_data, error))
        return false;
    const double slope = at[REPORT_LOAD_P95] > 1.0
                             ? (double)(out->peak_memory_bytes[REPORT_LOAD_P95] - even_bytes) /
                                   (at[REPORT_LOAD_P95] - 1.0)
                             : 0.0;
    size_t n_fit = 0;
    for (size_t i = 0; i < n; i++)
        n_fit += usable_bytes == 0 ||
                 (double)even_bytes + slope * (held[i] - 1.0) <= (double)usable_bytes;
    out->fit_fraction = (double)n_fit / (double)n;
    out->n_steps = asked->n_steps;
    out->seed = asked->seed;
    return true;
}
