/* Tests of executor/run/run.h: a rank that fails or hangs, hostile data, and what is refused by
 * name. */
#include "executor/run/run.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "executor/model/layout.h"
#include "executor/watch/launch.h"
#include "schedule/check.h"
#include "tests/executor/job.h"

typedef struct {
    int32_t rank;
    bool hangs;
    atomic_bool release, has_left;
} Fault;

/* The third op of step 1 on one rank fails, or stays until released. */
static bool
inject(int32_t process_rank, int64_t step, ScheduleOp op, void *user_data, GError **error)
{
    Fault *fault = user_data;

    if (process_rank != fault->rank || step != 1 || op.kind != SCHEDULE_OP_BACKWARD ||
        op.micro_batch != 1)
        return true;
    if (!fault->hangs) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_FAILED, "injected");
        return false;
    }
    while (!atomic_load(&fault->release))
        g_usleep(10000);
    atomic_store(&fault->has_left, true);
    g_set_error(error, EXEC_ERROR, EXEC_ERROR_FAILED, "released");
    return false;
}

static void
check_fault(Fault *fault, int code, const char *says)
{
    const ModelArch arch = model(true);
    g_autoptr(Plan) plan = plan_of(&split_job, arch.n_layers);
    g_autoptr(GError) error = NULL;
    g_auto(ExecRunResult) result = {0};
    ExecRunOptions options = options_of(&arch, plan, fast_device());

    options.n_steps = 5;
    options.timeout_s = 2;
    options.before_op = inject;
    options.before_op_data = fault;
    g_assert_false(exec_run(&options, &result, &error));
    g_assert_error(error, EXEC_ERROR, code);
    g_assert_true(g_str_has_prefix(error->message, says));
}

/* Interrupts the run in its second step, one op of which takes longer than EXEC_STOP_S; where the run
 * does not wait for it, the op takes until the run has been left. */
static bool
interrupt(int32_t process_rank, int64_t step, ScheduleOp op, void *user_data, GError **error)
{
    int *stop = user_data;

    if (process_rank != 0 || step != 1 || op.kind != SCHEDULE_OP_FORWARD || op.micro_batch != 0 ||
        op.slice != 0)
        return true;
    g_atomic_int_set(stop, stop[1]);
    if (stop[1] == EXEC_STOP_PATIENTLY)
        g_usleep((gulong)((EXEC_STOP_S + 0.5) * G_USEC_PER_SEC));
    else
        while (!g_atomic_int_get(&stop[2]))
            g_usleep(10000);
    return true;
}

static void
test_an_announced_end_leaves_the_step_its_time(void)
{
    static const struct {
        int stop;
        int64_t n_steps;
    } cases[] = {{1, 1}, {EXEC_STOP_PATIENTLY, 2}};

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        static int stops[G_N_ELEMENTS(cases)][3]; /* a thread that is left behind reads them */
        const ModelArch arch = model(true);
        g_autoptr(Plan) plan = plan_of(&split_job, arch.n_layers);
        g_autoptr(GError) error = NULL;
        g_auto(ExecRunResult) result = {0};
        ExecRunOptions options = options_of(&arch, plan, fast_device());

        stops[i][1] = cases[i].stop;
        options.n_steps = 5;
        options.stop = &stops[i][0];
        options.before_op = interrupt;
        options.before_op_data = stops[i];
        exec_run(&options, &result, &error);
        g_atomic_int_set(&stops[i][2], 1);
        g_assert_no_error(error);
        g_assert_true(result.interrupted);
        g_assert_cmpint(result.n_steps, ==, cases[i].n_steps);
    }
}

static void
test_a_failing_rank_stops_all(void)
{
    Fault fault = {.rank = 5};

    check_fault(&fault, EXEC_ERROR_RANK_DIED, "rank 5 failed in B1.0s2 of step 1: injected");
}

/* The one that hangs is named, not those that wait for it; the call returns although its thread
 * does not. */
static void
test_a_hanging_rank_is_named(void)
{
    static Fault fault = {.rank = 4, .hangs = true};

    check_fault(&fault, EXEC_ERROR_RANK_HUNG, "rank 4 hangs in B1.0s2 of step 1 for 2.");
    g_assert_false(atomic_load(&fault.has_left));
    atomic_store(&fault.release, true);
    while (!atomic_load(&fault.has_left))
        g_usleep(1000);
    g_usleep(50000); /* its thread frees what it shared */
}

static void
test_hostile_data_is_an_error(void)
{
    const ModelArch arch = model(true);
    g_autoptr(Plan) plan = plan_of(&one_device, arch.n_layers);
    g_autoptr(GError) error = NULL;
    g_auto(ExecRunResult) result = {0};
    ExecRunOptions options = options_of(&arch, plan, fast_device());

    options.data_path = "/dev/null";
    g_assert_false(exec_run(&options, &result, &error));
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_DATA);
}

static void
test_a_loss_without_bounds_stops_the_run(void)
{
    const ModelArch arch = model(true);
    g_autoptr(Plan) plan = plan_of(&split_job, arch.n_layers);
    g_autoptr(GError) error = NULL;
    g_auto(ExecRunResult) result = {0};
    ExecRunOptions options = options_of(&arch, plan, fast_device());

    options.n_steps = 30;
    options.learning_rate = 1e30f;
    g_assert_false(exec_run(&options, &result, &error));
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_RANK_DIED);
    g_assert_nonnull(strstr(error->message, "loss is not finite"));
}

/* --- refusals --- */

typedef void (*Spoil)(ModelArch *arch, Plan *plan);

#define SPOIL(name, statement)                                                                     \
    static void name(ModelArch *arch, Plan *plan)                                                  \
    {                                                                                              \
        statement;                                                                                 \
    }
SPOIL(spoil_cp, plan->degrees.cp = 3)
SPOIL(spoil_sp, plan->sequence_parallel = (plan->degrees.tp = 4) > 1)

SPOIL(spoil_dtype, plan->dtype = DTYPE_FP16)
SPOIL(spoil_grad_dtype, plan->conventions.grad_dtype = DTYPE_FP16)
SPOIL(spoil_dropout, plan->conventions.dropout = true)
SPOIL(spoil_vocab, arch->vocab = 0)
SPOIL(spoil_positions, arch->max_seq_len = 20)
SPOIL(spoil_indexer,
      (plan->degrees.cp = 2, plan->degrees.dp = 1, arch->indexer = (ModelIndexer){1, 4, 8}))
SPOIL(spoil_state, (plan->degrees.tp = 2, plan->degrees.dp = 1, arch->mixer = MODEL_MIXER_MAMBA2,
                    arch->state = (ModelState){
                        .n_heads = 2, .n_key_heads = 1, .key_dim = 4, .value_dim = 4, .chunk = 8}))
SPOIL(spoil_mtp, (arch->mtp.n = 1, arch->positions = MODEL_POSITIONS_LEARNED))
SPOIL(spoil_mtp_width, (arch->mtp.n = 1, arch->hidden = 15, arch->n_heads = 4, plan->degrees.tp = 2,
                        plan->degrees.dp = 1))
SPOIL(spoil_mtp_norm,
      (arch->mtp.n = 1, arch->positions = MODEL_POSITIONS_ROTARY, arch->embedding_norm = true))
SPOIL(spoil_table, (arch->positions = MODEL_POSITIONS_LEARNED, arch->position_rows = 20))
SPOIL(spoil_indexer_heads,
      (arch->positions = MODEL_POSITIONS_ROTARY, arch->indexer = (ModelIndexer){1, 2, 8}))
SPOIL(spoil_instances, (plan->conventions.optimizer_instances = 2, plan->zero_stage = 1))
SPOIL(spoil_deferred, plan->conventions.deferred_gradients = 2)
/* On GPUs. */
SPOIL(gpu_state, (arch->mixer = MODEL_MIXER_MAMBA2,
                  arch->state = (ModelState){
                      .n_heads = 2, .n_key_heads = 1, .key_dim = 4, .value_dim = 4, .chunk = 8}))
SPOIL(gpu_indexer, (arch->indexer = (ModelIndexer){1, 4, 8}))
SPOIL(gpu_residual, arch->residual_scale = 0.5)
SPOIL(gpu_activation, arch->activation = MODEL_ACTIVATION_RELU2)
SPOIL(gpu_norm, arch->norm = MODEL_NORM_PLAIN)
SPOIL(gpu_logits_scale, arch->logits_scale = 0.5)
SPOIL(gpu_logits_cap, arch->logits_cap = 30)
SPOIL(gpu_mtp, (arch->mtp.n = 1, arch->positions = MODEL_POSITIONS_ROTARY))
SPOIL(gpu_muon, plan->conventions.optimizer = PLAN_OPTIMIZER_MUON)
#define EXPERTS(...)                                                                               \
    arch->experts = (ModelExperts)                                                                 \
    {                                                                                              \
        .n_experts = 4, .top_k = 2, .ffn_hidden = 12, .router_scale = 1, __VA_ARGS__               \
    }
SPOIL(gpu_softmax_all, EXPERTS(.router_scores = MODEL_ROUTER_SOFTMAX_ALL))
SPOIL(gpu_sigmoid, EXPERTS(.router_scores = MODEL_ROUTER_SIGMOID))
SPOIL(gpu_router_scale, (EXPERTS(.n_shared = 0), arch->experts.router_scale = 2))
SPOIL(gpu_latent, EXPERTS(.latent = 8))
SPOIL(gpu_shared_gate, EXPERTS(.n_shared = 1, .shared_gate = true))
SPOIL(gpu_router_bias, EXPERTS(.router_bias = true))
SPOIL(gpu_merged,
      (EXPERTS(.n_shared = 0), arch->family = MODEL_FAMILY_LLAMA, arch->qkv_bias = false,
       plan->degrees.ep = 2, plan->conventions.overlap_ep = true))
SPOIL(spoil_redundant, EXPERTS(.n_redundant = 2))
SPOIL(spoil_expert_tp, (EXPERTS(.n_shared = 0), plan->degrees.tp = 2, plan->degrees.dp = 1,
                        plan->conventions.expert_tp = 2))
#undef EXPERTS
#undef SPOIL

/* What is refused before a device is opened. */
static void
test_gpus_refuse_by_name(void)
{
    static const struct {
        Spoil spoil;
        const char *says;
    } cases[] = {
        {gpu_state, "mixers with a state on GPUs"},
        {gpu_indexer, "an indexer of sparse attention"},
        {gpu_residual, "scaled residuals"},
        {gpu_activation, "activations but SwiGLU and GELU"},
        {gpu_norm, "norms without shift or scale"},
        {gpu_logits_scale, "scaled logits"},
        {gpu_logits_cap, "capped logits"},
        {gpu_mtp, "MTP modules"},
        {gpu_muon, "Muon"},
        {gpu_softmax_all, "router_scores softmax-all (only softmax)"},
        {gpu_sigmoid, "router_scores sigmoid (only softmax)"},
        {gpu_router_scale, "models whose router_scale is not 1"},
        {gpu_latent, "latent experts"},
        {gpu_shared_gate, "a gate of shared experts"},
        {gpu_router_bias, "experts with biases"},
        {gpu_merged, "--overlap ep on GPUs"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        ModelArch arch = model(true);
        g_autoptr(Plan) plan = plan_of(&split_job, arch.n_layers);
        g_autoptr(GError) error = NULL;
        cases[i].spoil(&arch, plan);
        g_assert_false(exec_plan_supported(&arch, plan, "cuda", &error));
        g_assert_error(error, EXEC_ERROR, EXEC_ERROR_UNSUPPORTED);
        if (strstr(error->message, cases[i].says) == NULL)
            g_error("%s: %s", cases[i].says, error->message);
    }
}

/* No family has an I without its W; a schedule that is given may. */
static void
test_refuses_inputs_without_weights(void)
{
    ModelArch arch = model(true);
    g_autoptr(Plan) plan = plan_of(&one_device, arch.n_layers);
    g_autoptr(Schedule) schedule = plan_build_schedule(plan, NULL, NULL);
    g_autoptr(GError) error = NULL;
    g_auto(ExecRunResult) result = {0};
    ExecRunOptions options = options_of(&arch, plan, "reference");

    options.schedule = schedule;
    g_assert_true(exec_run_check(&options, &error));
    for (int64_t i = 0; i < schedule_n_ops(schedule); i++)
        if (schedule->ops[i].kind == SCHEDULE_OP_BACKWARD)
            schedule->ops[i].kind = SCHEDULE_OP_BACKWARD_INPUT;
    g_assert_true(schedule_check(schedule, NULL));
    g_assert_false(exec_run(&options, &result, &error));
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_UNSUPPORTED);
    g_assert_nonnull(strstr(error->message, "a schedule with I but without W"));
}

static void
test_refuses_by_name(void)
{
    static const struct {
        Spoil spoil;
        const char *says;
    } cases[] = {
        {spoil_cp, "slices[1]: cp 3 does not divide 10 tokens"},
        {spoil_sp, "slices[1]: cp * tp 4 does not divide 10 tokens"},

        {spoil_dtype, "--dtype fp16"},
        {spoil_grad_dtype, "--grad-dtype fp16"},
        {spoil_dropout, "dropout"},
        {spoil_vocab, "without a vocabulary"},
        {spoil_positions, "seq_len 30"},
        {spoil_indexer, "an indexer of sparse attention on cp ranks"},
        {spoil_state, "states whose key heads tp does not divide"},
        {spoil_mtp, "MTP modules beside learned positions"},
        {spoil_mtp_width, "MTP modules whose width tp does not divide"},
        {spoil_mtp_norm, "MTP modules beside a norm of the embedding"},
        {spoil_table, "sequences that are longer than the table of positions"},
        {spoil_indexer_heads, "an indexer whose heads are shorter than what of them is rotated"},
        {spoil_instances, "optimizer state that several groups of replicas hold"},
        {spoil_deferred, "weight gradients of the head after the last backward"},
        {spoil_redundant, "copies of hot experts"},
        {spoil_expert_tp, "experts that tp ranks share (conventions.expert_tp)"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        ModelArch arch = model(true);
        g_autoptr(Plan) plan = plan_of(&split_job, arch.n_layers);
        g_autoptr(GError) error = NULL;
        g_auto(ExecRunResult) result = {0};
        ExecRunOptions options = options_of(&arch, plan, "reference");
        cases[i].spoil(&arch, plan);
        g_assert_false(exec_run(&options, &result, &error));
        g_test_message("%s", error->message);
        g_assert_error(error, EXEC_ERROR, EXEC_ERROR_UNSUPPORTED);
        g_assert_nonnull(strstr(error->message, cases[i].says));
        g_assert_null(result.losses);
    }
}

static void
test_refuses_other_transports_and_devices(void)
{
    const ModelArch arch = model(true);
    g_autoptr(Plan) plan = plan_of(&one_device, arch.n_layers);
    static const struct {
        const char *transport, *device;
        int code;
    } cases[] = {
        {"mpi", "reference", EXEC_ERROR_MISSING},
        {"nccl", "reference", EXEC_ERROR_UNSUPPORTED}, /* NCCL is for GPUs */
        {"nccl", "cuda", EXEC_ERROR_MISSING},
        {"lokal", "reference", EXEC_ERROR_UNSUPPORTED},
        {"local", "cuda", EXEC_ERROR_MISSING},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_auto(ExecRunResult) result = {0};
        ExecRunOptions options = options_of(&arch, plan, cases[i].device);
        options.transport = cases[i].transport;
        g_assert_false(exec_run(&options, &result, &error));
        g_assert_error(error, EXEC_ERROR, cases[i].code);
    }
}

/* Weights beyond the machine's memory are refused, not attempted. */
static void
test_refuses_what_the_machine_cannot_hold(void)
{
    ModelArch arch = model(true);
    g_autoptr(Plan) plan = plan_of(&one_device, arch.n_layers);
    g_autoptr(GError) error = NULL;
    g_auto(ExecRunResult) result = {0};

    arch.hidden = INT64_C(1) << 40;
    ExecRunOptions options = options_of(&arch, plan, "reference");
    g_assert_false(exec_run(&options, &result, &error));
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_MEMORY);
    /* Both numbers are told in GiB: the model's state, and all pages of the machine. */
    const double gib = 1024.0 * 1024.0 * 1024.0;
    const double needed = exec_layout_bytes(
        &(ExecModelOptions){.arch = &arch, .plan = plan, .pipeline_rank = 0, .optimizer = true});
    const double machine = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    g_autofree char *told =
        g_strdup_printf("need %.1f GiB, this machine has %.1f GiB", needed / gib, machine / gib);
    g_assert_nonnull(strstr(error->message, told));
}

/* State of 13 TB: too much for one machine, and not for several. */
static void
test_several_machines_hold_what_one_cannot(void)
{
    ModelArch arch = model(true);
    g_autoptr(Plan) plan = plan_of(&one_device, arch.n_layers);
    g_autoptr(GError) error = NULL;

    arch.hidden = INT64_C(1) << 17;
    arch.head_dim = arch.hidden / arch.n_heads;
    ExecRunOptions options = options_of(&arch, plan, "reference");
    options.transport = "tcp";
    g_assert_false(exec_run_check(&options, &error));
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_MEMORY);
    g_clear_error(&error);
    options.other_machines = true;
    exec_run_check(&options, &error);
    g_assert_no_error(error);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/faults/an-announced-end-leaves-the-step-its-time",
                    test_an_announced_end_leaves_the_step_its_time);
    g_test_add_func("/executor/faults/a-failing-rank-stops-all", test_a_failing_rank_stops_all);
    g_test_add_func("/executor/faults/a-hanging-rank-is-named", test_a_hanging_rank_is_named);
    g_test_add_func("/executor/faults/hostile-data-is-an-error", test_hostile_data_is_an_error);
    g_test_add_func("/executor/faults/a-loss-without-bounds-stops-the-run",
                    test_a_loss_without_bounds_stops_the_run);
    g_test_add_func("/executor/faults/refuses-by-name", test_refuses_by_name);
    g_test_add_func("/executor/faults/refuses-inputs-without-weights",
                    test_refuses_inputs_without_weights);
    g_test_add_func("/executor/faults/gpus-refuse-by-name", test_gpus_refuse_by_name);
    g_test_add_func("/executor/faults/refuses-other-transports-and-devices",
                    test_refuses_other_transports_and_devices);
    g_test_add_func("/executor/faults/refuses-what-the-machine-cannot-hold",
                    test_refuses_what_the_machine_cannot_hold);
    g_test_add_func("/executor/faults/several-machines-hold-what-one-cannot",
                    test_several_machines_hold_what_one_cannot);
    return g_test_run();
}
