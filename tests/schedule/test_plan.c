/* Tests of schedule/plan.h: even stages, what contradicts itself, and the file. */
#include "schedule/plan.h"

#include <math.h>
#include <string.h>

static void
append(GArray *array, int64_t value)
{
    g_array_append_val(array, value);
}

/* 24 layers on pp 4, dp 2, tp 2, cp 2, batch 2 * 8 * 3, slices 256 + 768. */
static Plan *
example(void)
{
    Plan *plan = plan_new();

    plan->global_batch = 48;
    plan->seq_len = 1024;
    plan->degrees = (PlanDegrees){.dp = 2, .tp = 2, .pp = 4, .vpp = 1, .cp = 2, .ep = 4};
    plan->micro_batch = 3;
    plan->n_micro_batches = 8;
    g_free(plan->schedule);
    plan->schedule = g_strdup("terapipe");
    append(plan->slices, 256);
    append(plan->slices, 768);
    plan->conventions = plan_conventions(PLAN_FRAMEWORK_TERAPIPE);
    plan_set_even_stages(plan, 26, true, SCHEDULE_PLACEMENT_LOOP, PLAN_RECOMPUTE_SELECTIVE);
    return plan;
}

/* As schedule/plan.h says of plan_new(). */
static void
test_a_new_plan_is_of_one(void)
{
    g_autoptr(Plan) plan = plan_new();
    const PlanDegrees *d = &plan->degrees;

    g_assert_cmpint(plan->global_batch, ==, 1);
    g_assert_cmpint(plan->seq_len, ==, 1);
    g_assert_cmpint(plan->micro_batch, ==, 1);
    g_assert_cmpint(plan->n_micro_batches, ==, 1);
    g_assert_cmpint(plan->dtype, ==, DTYPE_BF16);
    g_assert_true(d->dp == 1 && d->tp == 1 && d->pp == 1 && d->vpp == 1 && d->cp == 1 &&
                  d->ep == 1);
    g_assert_cmpstr(plan->schedule, ==, "1f1b");
    g_assert_cmpuint(plan->stages->len, ==, 0);
    g_assert_cmpuint(plan->slices->len, ==, 0);
    g_assert_cmpint(plan->conventions.framework, ==, PLAN_FRAMEWORK_DEGAS);
    g_assert_true(isnan(plan->lower_bound_s) && isnan(plan->physical_bound_s) &&
                  isnan(plan->optimality_gap_fraction));
    g_assert_null(plan->predicted);
    g_assert_null(plan->alternatives);
}

static char *
text_of(const Plan *plan)
{
    g_autoptr(JsonWriter) writer = json_writer_new();
    size_t n_bytes;

    json_write_object(writer, NULL);
    json_write_string(writer, "format", "degas-plan");
    json_write_int64(writer, "version", 1);
    json_write_object(writer, "model");
    json_write_object_end(writer);
    json_write_object(writer, "cluster");
    json_write_object_end(writer);
    plan_write_members(writer, plan);
    json_write_object_end(writer);
    return json_writer_steal(writer, &n_bytes);
}

static Plan *
plan_of(const char *text, GError **error)
{
    g_autoptr(JsonDoc) doc = json_doc_parse("p", text, strlen(text), error);
    if (doc == NULL)
        return NULL;
    g_autoptr(Plan) plan = plan_read(doc, json_doc_root(doc, "degas-plan", 1));
    g_assert_nonnull(plan);
    return json_doc_finish(doc, error) ? g_steal_pointer(&plan) : NULL;
}

static void
test_even_stages(void)
{
    static const struct {
        int64_t n_layers, pp, vpp;
        SchedulePlacement placement;
        int64_t n[6], first[6];
        int32_t rank[6];
    } cases[] = {
        {8, 4, 1, SCHEDULE_PLACEMENT_LOOP, {2, 2, 2, 2}, {0, 2, 4, 6}, {0, 1, 2, 3}},
        {10, 4, 1, SCHEDULE_PLACEMENT_LOOP, {2, 2, 3, 3}, {0, 2, 4, 7}, {0, 1, 2, 3}},
        {6,
         3,
         2,
         SCHEDULE_PLACEMENT_LOOP,
         {1, 1, 1, 1, 1, 1},
         {0, 1, 2, 3, 4, 5},
         {0, 1, 2, 0, 1, 2}},
        {6, 3, 2, SCHEDULE_PLACEMENT_V, {1, 1, 1, 1, 1, 1}, {0, 1, 2, 3, 4, 5}, {0, 1, 2, 2, 1, 0}},
        {7,
         3,
         2,
         SCHEDULE_PLACEMENT_BIDIR,
         {2, 2, 3, 2, 2, 3},
         {0, 2, 4, 0, 2, 4},
         {0, 1, 2, 2, 1, 0}},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(Plan) plan = plan_new();
        const int64_t length = cases[i].placement == SCHEDULE_PLACEMENT_BIDIR
                                   ? cases[i].pp
                                   : cases[i].pp * cases[i].vpp;
        plan->degrees.pp = cases[i].pp;
        plan->degrees.vpp = cases[i].vpp;
        plan_set_even_stages(plan, cases[i].n_layers, true, cases[i].placement,
                             PLAN_RECOMPUTE_FULL);
        g_assert_cmpint(plan->stages->len, ==, cases[i].pp * cases[i].vpp);
        for (guint k = 0; k < plan->stages->len; k++) {
            const PlanStage *stage = &g_array_index(plan->stages, PlanStage, k);
            g_assert_cmpint(stage->n_layers, ==, cases[i].n[k]);
            g_assert_cmpint(stage->first_layer, ==, cases[i].first[k]);
            g_assert_cmpint(stage->rank, ==, cases[i].rank[k]);
            g_assert_cmpint(stage->chunk, ==, (int)k / (int)cases[i].pp);
            g_assert_cmpint(stage->embedding, ==, k % length == 0);
            g_assert_cmpint(stage->head, ==, k % length == length - 1);
            g_assert_cmpint(stage->recompute, ==, PLAN_RECOMPUTE_FULL);
        }
    }
}

/* schedule/placement.h: with two chains the second one runs from the last rank to the first, on
 * chunk 1, and has all layers again. */
static void
test_even_stages_of_two_chains(void)
{
    g_autoptr(Plan) plan = plan_new();

    plan->degrees.pp = 4;
    plan->degrees.vpp = 2;
    plan_set_even_stages(plan, 8, true, SCHEDULE_PLACEMENT_BIDIR, PLAN_RECOMPUTE_NONE);
    g_assert_cmpuint(plan->stages->len, ==, 8);
    for (int i = 0; i < 8; i++) {
        const PlanStage *stage = &g_array_index(plan->stages, PlanStage, i);

        g_assert_cmpint(stage->rank, ==, i < 4 ? i : 7 - i);
        g_assert_cmpint(stage->chunk, ==, i / 4);
        g_assert_cmpint(stage->first_layer, ==, 2 * (i % 4));
        g_assert_cmpint(stage->n_layers, ==, 2);
        g_assert_true(stage->embedding == (i % 4 == 0) && stage->head == (i % 4 == 3));
    }
    for (int chunk = 0; chunk < 2; chunk++) {
        g_assert_cmpint(schedule_placement_chain(SCHEDULE_PLACEMENT_LOOP, chunk), ==, 0);
        g_assert_cmpint(schedule_placement_chain(SCHEDULE_PLACEMENT_V, chunk), ==, 0);
        g_assert_cmpint(schedule_placement_chain(SCHEDULE_PLACEMENT_BIDIR, chunk), ==, chunk);
    }
}

static void
test_example_is_valid(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) plan = example();

    g_assert_true(plan_check(plan, 26, &error));
    g_assert_no_error(error);
    g_assert_cmpint(plan_n_devices(plan), ==, 32);
    g_assert_cmpint(plan_micro_batch_sequences(plan, 7), ==, 3);
    g_autoptr(Schedule) s = plan_build_schedule(plan, NULL, &error);
    g_assert_no_error(error);
    g_assert_cmpstr(s->name, ==, "terapipe");
    g_assert_cmpint(schedule_n_ops(s), ==, 4 * 8 * 2 * 2);
}

static void
test_batch_slices(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) plan = example();

    plan->micro_batch_sequences = g_array_new(false, true, sizeof(int64_t));
    plan->n_micro_batches = 3;
    plan->micro_batch = 12;
    append(plan->micro_batch_sequences, 10);
    append(plan->micro_batch_sequences, 12);
    append(plan->micro_batch_sequences, 2);
    g_assert_true(plan_check(plan, 26, &error)); /* 2 * (10 + 12 + 2) = 48 */
    g_assert_no_error(error);
    g_assert_cmpint(plan_micro_batch_sequences(plan, 2), ==, 2);
    plan->micro_batch = 11;
    g_assert_false(plan_check(plan, 26, &error));
    g_assert_cmpstr(error->message, ==, "micro_batch: 11 is not the largest of batch_slices, 12");
    g_clear_error(&error);
    plan->micro_batch = 12;
    g_array_index(plan->micro_batch_sequences, int64_t, 2) = 3;
    g_assert_false(plan_check(plan, 26, &error));
    g_assert_error(error, PLAN_ERROR, PLAN_ERROR_INVALID);
    g_clear_error(&error);
    g_array_index(plan->micro_batch_sequences, int64_t, 2) = INT64_MAX;
    g_assert_false(plan_check(plan, 26, &error));
    g_assert_nonnull(strstr(error->message, "batch_slices[2]: "));
}

static PlanStage *
stage_of(Plan *plan, guint i)
{
    return &g_array_index(plan->stages, PlanStage, i);
}

static void
test_check_names_the_key(void)
{
    static const char *const says[] = {
        "degrees.dp: must be at least 1, got 0",
        "degrees.tp: 2097152 is more than the limit",
        "degrees: dp * tp * pp * cp is more than the limit",
        "degrees.ep: 3 does not divide dp * tp * cp = 8",
        "global_batch: 47 is not dp 2 times",
        "micro_batch 0",
        "global_batch: 48 is not dp 2 times",
        "slices: sum to 1023 tokens, seq_len is 1024",
        "slices[1]: 769 tokens after 256 of a sequence of 1024",
        "slices[0]: -5 tokens",
        "slices: from 1 to 65536 slices, got 0",
        "degrees.cp: 3 does not divide seq_len 1024",
        "zero_stage: must be from 0 to 3, got 4",
        "schedule: unknown schedule \"terrapipe\": did you mean \"terapipe\"?",
        "schedule: schedule naive does not cut sequences",
        "stages: 4 stages, but pp * vpp is 2",
        "stages[1]: lies on rank 2, chunk 0; schedule terapipe (placement loop) has it on rank 1",
        "stages[1].first_layer: expected 6, got 7",
        "stages[2].embedding: ",
        "stages[1].head: ",
        "stages[1].n_layers: must be at least 0, got -1",
        "stages: cover 26 layers, the model has 27",
        "schedule: schedule terapipe: more than",
        "stages[0].n_layers: 9223372036854775807 of a model",
        "stages[3].head: ",
        "offload_parameters: needs zero_stage 3, got 2",
        "offload_parameters: needs offload cpu or nvme, got none",
    };

    for (int i = 0; i < (int)G_N_ELEMENTS(says); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Plan) plan = example();
        int64_t n_layers = 26;
        switch (i) {
        case 0:
            plan->degrees.dp = 0;
            break;
        case 1:
            plan->degrees.tp = 1 << 21;
            break;
        case 2:
            plan->degrees.tp = plan->degrees.dp = 1 << 20;
            break;
        case 3:
            plan->degrees.ep = 3;
            break;
        case 4:
            plan->global_batch = 47;
            break;
        case 5:
            plan->micro_batch = 0;
            break;
        case 6:
            plan->micro_batch = INT64_MAX;
            break;
        case 7:
            g_array_index(plan->slices, int64_t, 1) = 767;
            break;
        case 8:
            g_array_index(plan->slices, int64_t, 1) = 769;
            break;
        case 9:
            g_array_index(plan->slices, int64_t, 0) = -5;
            break;
        case 10:
            g_array_set_size(plan->slices, 0);
            break;
        case 11:
            plan->degrees.cp = 3;
            plan->degrees.ep = 1;
            break;
        case 12:
            plan->zero_stage = 4;
            break;
        case 13:
            g_free(plan->schedule);
            plan->schedule = g_strdup("terrapipe");
            break;
        case 14:
            g_free(plan->schedule);
            plan->schedule = g_strdup("naive");
            break;
        case 15:
            plan->degrees.pp = 2;
            break;
        case 16:
            stage_of(plan, 1)->rank = 2;
            break;
        case 17:
            stage_of(plan, 1)->first_layer = 7;
            break;
        case 18:
            stage_of(plan, 2)->embedding = true;
            break;
        case 19:
            stage_of(plan, 1)->head = true;
            break;
        case 20:
            stage_of(plan, 1)->n_layers = -1;
            break;
        case 21:
            n_layers = 27;
            break;
        case 22:
            plan->n_micro_batches = INT32_MAX;
            plan->global_batch = INT64_C(6) * INT32_MAX;
            break;
        case 23:
            stage_of(plan, 0)->n_layers = INT64_MAX;
            break;
        case 24:
            stage_of(plan, 3)->head = false;
            break;
        case 25:
            plan->offload_parameters = true;
            plan->zero_stage = 2;
            break;
        case 26:
            plan->offload_parameters = true;
            plan->zero_stage = 3;
            break;
        }
        g_assert_false(plan_check(plan, n_layers, &error));
        g_assert_error(error, PLAN_ERROR, PLAN_ERROR_INVALID);
        if (strstr(error->message, says[i]) == NULL)
            g_error("\"%s\" does not say \"%s\"", error->message, says[i]);
    }
}

static void
test_round_trip(void)
{
    for (int i = 0; i < 3; i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Plan) plan = example();
        if (i >= 1) { /* what a planner adds */
            plan->predicted = report_new(4);
            plan->predicted->iteration_ns = 5;
            plan->lower_bound_s = 0.1;
            plan->optimality_gap_fraction = 1.0 / 3;
            plan->search.considered = 9;
            plan->search.pruned = 3;
            plan->search.simulated = 4;
            plan->search.infeasible = 2;
            plan->group = 6;
            plan->zero_stage = 3;
            plan->offload = PLAN_OFFLOAD_NVME;
            plan->offload_parameters = true;
            plan->prefetch_layers = 2 * (i - 1);
            plan->sequence_parallel = true;
            plan->conventions.recompute_modules =
                UINT32_C(1) << PLAN_MODULE_MLP | UINT32_C(1) << PLAN_MODULE_CORE_ATTENTION;
            plan->dtype = DTYPE_FP16;
            plan->micro_batch_sequences = g_array_new(false, true, sizeof(int64_t));
            append(plan->micro_batch_sequences, 3);
        }
        if (i == 2) {
            plan->alternatives = g_ptr_array_new_with_free_func((GDestroyNotify)plan_free);
            g_ptr_array_add(plan->alternatives, example());
            g_ptr_array_add(plan->alternatives, example());
        }
        g_autofree char *text = text_of(plan);
        g_autoptr(Plan) back = plan_of(text, &error);
        g_assert_no_error(error);
        g_autofree char *again = text_of(back);
        g_assert_cmpstr(again, ==, text);
        g_autoptr(Plan) copy = plan_copy(plan);
        g_autofree char *copied = text_of(copy);
        g_assert_cmpstr(copied, ==, text);
        g_assert_cmpint(back->degrees.ep, ==, 4);
        g_assert_cmpint(g_array_index(back->slices, int64_t, 1), ==, 768);
        g_assert_cmpint(stage_of(back, 3)->first_layer, ==, 19);
        g_assert_cmpint(stage_of(back, 3)->recompute, ==, PLAN_RECOMPUTE_SELECTIVE);
        g_assert_cmpint(back->conventions.framework, ==, PLAN_FRAMEWORK_TERAPIPE);
        g_assert_true(back->conventions.broadcast_p2p);
        g_assert_cmpint(isnan(back->lower_bound_s) != 0, ==, i == 0);
        g_assert_cmpint(back->zero_stage, ==, plan->zero_stage);
        g_assert_cmpint(back->offload, ==, plan->offload);
        g_assert_cmpint(back->offload_parameters, ==, plan->offload_parameters);
        g_assert_cmpint(back->prefetch_layers, ==, plan->prefetch_layers);
        g_assert_cmpint(back->group, ==, plan->group);
        g_assert_cmpint(back->dtype, ==, plan->dtype);
        g_assert_cmpuint(back->conventions.recompute_modules, ==,
                         plan->conventions.recompute_modules);
        g_assert_cmpint(back->sequence_parallel, ==, plan->sequence_parallel);
        g_assert_cmpint(memcmp(&back->degrees, &plan->degrees, sizeof back->degrees), ==, 0);
        g_assert_cmpint(memcmp(&back->search, &plan->search, sizeof back->search), ==, 0);
        g_assert_cmpint(back->alternatives == NULL, ==, i < 2);
    }
}

/* The least a person has to write. */
static void
test_defaults(void)
{
    static const char text[] =
        "{\"format\":\"degas-plan\",\"version\":1,\"model\":{},\"cluster\":{},\"global_batch\":4,"
        "\"seq_len\":128,\"dtype\":\"bf16\",\"degrees\":{\"pp\":1},\"micro_batch\":1,"
        "\"n_microbatches\":4,\"schedule\":\"1f1b\",\"stages\":[{\"rank\":0,\"first_layer\":0,"
        "\"n_layers\":2}],\"conventions\":{\"framework\":\"megatron-lm\",\"dropout\":false}}";
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) plan = plan_of(text, &error);

    g_assert_no_error(error);
    g_assert_true(plan_check(plan, 2, &error));
    g_assert_no_error(error);
    g_assert_cmpint(plan->slices->len, ==, 1);
    g_assert_cmpint(g_array_index(plan->slices, int64_t, 0), ==, 128);
    g_assert_true(plan->conventions.scatter_gather_p2p); /* the framework's */
    g_assert_false(plan->conventions.dropout);           /* the file's */
    g_assert_null(plan->predicted);
}

/* What few plans say is written only there, and read again. */
static void
test_rare_conventions(void)
{
    static const char text[] =
        "{\"format\":\"degas-plan\",\"version\":1,\"model\":{},\"cluster\":{},\"global_batch\":4,"
        "\"seq_len\":128,\"dtype\":\"bf16\",\"degrees\":{\"dp\":2,\"tp\":2,\"ep\":%d},"
        "\"micro_batch\":1,\"n_microbatches\":2,\"schedule\":\"1f1b\",\"stages\":[{\"rank\":0,"
        "\"first_layer\":0,\"n_layers\":2}],\"conventions\":{\"framework\":\"megatron-core\","
        "\"cp_comm\":\"a2a\",\"loss\":\"fused\",\"expert_tp\":2,\"expert_imbalance\":1.5,"
        "\"expert_capacity\":1.25,"
        "\"overlap_ep\":true,\"cuda_graphs\":\"layer\",\"quantise\":\"row\",\"dispatcher\":"
        "\"hybridep\","
        "\"deterministic\":true,\"pad_vocab\":false}}";

    for (int ep = 2; ep <= 4; ep += 2) {
        g_autofree char *filled = g_strdup_printf(text, ep);
        g_autoptr(GError) error = NULL;
        g_autoptr(Plan) plan = plan_of(filled, &error);

        g_assert_no_error(error);
        g_assert_cmpint(plan->conventions.cp_comm, ==, PLAN_CP_A2A);
        g_assert_cmpint(plan->conventions.loss, ==, PLAN_LOSS_FUSED);
        g_assert_cmpint(plan_expert_tp(&plan->degrees, &plan->conventions), ==, 2);
        g_assert_cmpfloat(plan->conventions.expert_imbalance, ==, 1.5);
        g_assert_cmpfloat(plan->conventions.expert_capacity, ==, 1.25);
        g_assert_true(plan->conventions.deterministic);
        g_assert_true(plan->conventions.overlap_ep);
        g_assert_cmpint(plan->conventions.cuda_graphs, ==, PLAN_GRAPHS_LAYER);
        g_assert_cmpint(plan->conventions.quantise, ==, PLAN_QUANTISE_ROW);
        g_assert_cmpint(plan->conventions.dispatcher, ==, PLAN_DISPATCHER_HYBRIDEP);
        g_assert_false(plan->conventions.pads_vocab);
        /* Of 4 devices two share an expert: 2 places for experts. */
        g_assert_true(plan_check(plan, 2, &error) == (ep == 2));
        if (ep == 4)
            g_assert_nonnull(strstr(error->message, "dp * tp * cp / expert_tp = 2"));
    }
}

/* Groups of replicas that hold the optimizer's state are of one size, and only ZeRO stages of
 * which the framework has several groups have them. */
static void
test_optimizer_instances_divide_replicas(void)
{
    for (int64_t dp = 1; dp <= 6; dp++)
        for (int64_t n = 2; n <= 3; n++)
            for (int zero = 0; zero <= 3; zero++) {
                g_autoptr(Plan) plan = plan_new();
                /* Megatron-Core has them of ZeRO 1, FSDP of 2 and 3. */
                plan->conventions.framework =
                    zero < 2 ? PLAN_FRAMEWORK_MEGATRON_CORE : PLAN_FRAMEWORK_FSDP;
                plan->degrees.dp = dp;
                plan->global_batch = dp;
                plan->seq_len = 8;
                g_array_append_val(plan->slices, plan->seq_len);
                plan->zero_stage = zero;
                plan_set_even_stages(plan, 2, true, SCHEDULE_PLACEMENT_LOOP, PLAN_RECOMPUTE_NONE);
                g_assert_true(plan_check(plan, 2, NULL));
                plan->conventions.optimizer_instances = (int32_t)n;
                g_assert_true(plan_check(plan, 2, NULL) == (zero >= 1 && dp % n == 0));
            }
}

static void
test_refuses(void)
{
    static const struct {
        const char *old, *new, *says;
    } cases[] = {
        {"\"global_batch\": 48", "\"global_batch\": 0", "$.global_batch"},
        {"\"dp\": 2", "\"dp\": -2", "$.degrees.dp"},
        {"\"dp\": 2", "\"pd\": 2", "$.degrees.pd"},
        {"\"rank\": 3", "\"rank\": \"3\"", "$.stages[3].rank"},
        {"\"offload\": \"none\"", "\"offload\": \"cup\"", "did you mean \"cpu\""},
        {"256", "256.5", "$.slices[0]"},
        {"\"attention\": \"torch\"", "\"attention\": 1", "$.conventions.attention"},
        {"\"zero_stage\": 0", "\"zero_stage\": 4", "$.zero_stage"},
        {"\"zero_stage\": 0", "\"zero_stage\": 0, \"prefetch_layers\": 65", "$.prefetch_layers"},
        {"\"zero_stage\": 0", "\"zero_stage\": 0, \"offload_parameters\": 1",
         "$.offload_parameters"},
        {"\"zero_stage\"", "\"zero_stag\"", "$.zero_stag"},
        {"\"n_microbatches\": 8", "\"n_microbatches\": 1e10", "$.n_microbatches"},
    };
    g_autoptr(Plan) plan = example();
    g_autofree char *text = text_of(plan);

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        const char *at = strstr(text, cases[i].old);
        g_assert_nonnull(at);
        g_autofree char *bad = g_strdup_printf("%.*s%s%s", (int)(at - text), text, cases[i].new,
                                               at + strlen(cases[i].old));
        g_autoptr(Plan) back = plan_of(bad, &error);
        g_assert_null(back);
        if (strstr(error->message, cases[i].says) == NULL)
            g_error("\"%s\" does not say \"%s\"", error->message, cases[i].says);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/schedule/plan/a-new-plan-is-of-one", test_a_new_plan_is_of_one);
    g_test_add_func("/schedule/plan/even-stages", test_even_stages);
    g_test_add_func("/schedule/plan/even-stages-of-two-chains", test_even_stages_of_two_chains);
    g_test_add_func("/schedule/plan/example-is-valid", test_example_is_valid);
    g_test_add_func("/schedule/plan/batch-slices", test_batch_slices);
    g_test_add_func("/schedule/plan/check-names-the-key", test_check_names_the_key);
    g_test_add_func("/schedule/plan/round-trip", test_round_trip);
    g_test_add_func("/schedule/plan/defaults", test_defaults);
    g_test_add_func("/schedule/plan/rare-conventions", test_rare_conventions);
    g_test_add_func("/schedule/plan/optimizer-instances-divide-replicas",
                    test_optimizer_instances_divide_replicas);
    g_test_add_func("/schedule/plan/refuses", test_refuses);
    return g_test_run();
}
