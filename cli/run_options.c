#include "cli/run_options.h"
#include "executor/transport/transport.h"

#include <math.h>

const OptionInfo run_options_table[] = {
    {.name = "steps", .value = "N", .help = "optimizer steps (10)"},
    {.name = "device", .value = "NAME", .help = "cpu (default), reference or cuda"},
    {.name = "threads", .value = "N", .help = "threads of a rank on device reference (1)"},
    {.name = "transport",
     .value = "NAME",
     .help =
         "local (default: ranks are threads), mpi (processes; starts mpirun), nccl (one GPU each)"},
    {.name = "hosts", .value = "LIST", .help = "where mpirun starts the ranks: node1,node2"},
    {.name = "data",
     .value = "FILE",
     .help = "train on a text (its bytes are the tokens) or a .bin of tokens; else synthetic"},
    {.name = "seed", .value = "N", .help = "of initial weights and data (0)"},
    {.name = "lr",
     .value = "X",
     .help = "learning rate of AdamW (0.001), after 10 steps of warm-up"},
    {.name = "lr-decay",
     .value = "N",
     .help = "... falls along a cosine to a tenth by step N (constant)"},
    {.name = "clip", .value = "X", .help = "largest global norm of the gradient (1; 0: any)"},
    {.name = "offload-dir",
     .value = "DIR",
     .help = "where a plan with offload nvme keeps its files (TMPDIR, /tmp)"},
    {.name = "trace", .value = "FILE", .help = "write the measured trace of the median step"},
    {.name = "verify", .help = "compare loss and all gradients with one device; exit status 1"},
    {.name = "timeout", .value = "TIME", .help = "a rank that waits longer hangs: exit status 8"},
    {.name = "deterministic",
     .help = "mpi: sums in the order of local, equal bits run after run (local: always so); "
             "nccl: one algorithm for all sizes"},
    {.name = "graphs", .help = "cuda: every op as one CUDA graph, where it has no collectives"},
    {.name = "balance-experts",
     .help = "rows go to experts in turn, not by their router: times and memory as of a balanced "
             "one"},
    {.name = "checkpoint", .value = "DIR", .help = "save the training state in DIR at the end"},
    {.name = "checkpoint-every", .value = "N", .help = "... and every N steps"},
    {.name = "resume", .help = "go on from the last state in DIR until --steps are done"},
    {.name = "resume-step", .value = "N", .help = "... from the state after step N"},
    {.name = "json", .help = "print a degas-run object"},
    {.name = "output", .value = "FILE", .help = "write the JSON to FILE", .letter = 'o'},
    {.name = NULL},
};

static bool
read_checkpoints(Options *options, ExecRunOptions *exec, GError **error)
{
    exec->checkpoint_dir = options_string(options, "checkpoint", NULL);
    exec->checkpoint_every = options_int64(options, "checkpoint-every", 1, INT64_MAX, 0);
    exec->resume = options_switch(options, "resume") || options_has(options, "resume-step");
    exec->resume_step = options_int64(options, "resume-step", 0, INT64_MAX, -1);
    if (exec->checkpoint_dir == NULL && (exec->resume || exec->checkpoint_every > 0))
        options_fail(options, exec->resume ? "resume" : "checkpoint-every", "needs --checkpoint");
    if (exec->resume && exec->verify)
        options_fail(options, "verify", "compares the first step, which --resume leaves out");
    return options_finish(options, error);
}

bool
run_options_read(Options *options, ExecRunOptions *exec, GError **error)
{
    const char *const *devices = exec_device_names();
    const char *const *transports = exec_transport_names();

    *exec = (ExecRunOptions){
        .n_steps = options_int64(options, "steps", 1, 1000000, 10),
        .device = devices[options_choice(options, "device", devices, 0)],
        .n_threads = (int)options_int64(options, "threads", 1, 1024, 1),
        .transport = transports[options_choice(options, "transport", transports, 0)],
        .data_path = options_string(options, "data", NULL),
        .seed = (uint64_t)options_int64(options, "seed", 0, INT64_MAX, 0),
        .learning_rate = (float)options_quantity(options, "lr", UNITS_KIND_NUMBER, 1e-3),
        .decay_steps = options_int64(options, "lr-decay", 1, INT64_MAX, 0),
        .clip_norm = (float)options_quantity(options, "clip", UNITS_KIND_NUMBER, 1.0),
        .offload_dir = options_string(options, "offload-dir", NULL),
        .verify = options_switch(options, "verify"),
        .timeout_s = options_quantity(options, "timeout", UNITS_KIND_S, 0.0),
        .deterministic = options_switch(options, "deterministic"),
        .graphs = options_switch(options, "graphs"),
        .balance_experts = options_switch(options, "balance-experts"),
        .want_trace = true,
    };
    const ExecDeviceKind *kind = exec_device_kind(exec->device);
    const ExecTransportKind *transport = exec_transport_kind(exec->transport);
    if (exec->n_threads > 1 && !kind->has_threads)
        options_fail(options, "threads", "needs --device reference; on others ranks compute apart");
    if (options_has(options, "hosts") && !transport->in_processes)
        options_fail(options, "hosts", "needs --transport mpi or nccl");
    if (exec->graphs && !kind->has_graphs)
        options_fail(options, "graphs", "needs --device cuda");
    if (exec->balance_experts && exec->verify)
        options_fail(options, "verify", "is of the router's choices, not of --balance-experts");
    if (exec->balance_experts && options_has(options, "checkpoint"))
        options_fail(options, "checkpoint", "what --balance-experts trains is worth nothing");
    if (transport->is_nccl && !kind->has_nccl)
        options_fail(options, "transport", "nccl needs --device cuda");
    if (options_has(options, "timeout") && exec->timeout_s <= 0.0)
        options_fail(options, "timeout", "expected more than no time");
    if (g_strcmp0(options_string(options, "trace", NULL), "-") == 0 &&
        (g_strcmp0(options_string(options, "output", NULL), "-") == 0 ||
         (options_switch(options, "json") && !options_has(options, "output"))))
        options_fail(options, "trace", "standard output is taken by --json");
    if (!isfinite(exec->learning_rate))
        options_fail(options, "lr", "is beyond a float");
    if (!isfinite(exec->clip_norm) || exec->clip_norm < 0)
        options_fail(options, "clip", "expected a float that is not negative");
    return read_checkpoints(options, exec, error);
}
