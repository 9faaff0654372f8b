#include "tests/fuzz/targets.h"

/* The program itself, with all commands; its main() is not called. */
#define main degas_main
int degas_main(int argc, char **argv);
#include "cli/main.c"
#undef main

#include <glib/gstdio.h>
#include <stdlib.h>

#include "base/embedded.h"
#include "base/file.h"
#include "cli/recipe/layout_string.h"
#include "executor/run/checkpoint.h"
#include "executor/run/data.h"

#define MAX_ARGUMENTS 12

/* @ is the file's path.  Where a file's name says what it is, the first byte chooses among the names. */
typedef struct {
    const char *name;
    const char *files[4];
    const char *arguments; /* NULL: see below */
    /* What is done instead of a command; the file is not there yet. */
    void (*attempt)(const char *path, const uint8_t *bytes, size_t n);
    const char
        *seeds[10]; /* "folder/": all built-in files there; "= ...": a command whose -o is the file;
                            * "file FILE": a file of the repository; otherwise the text itself */
} Target;

static char *folder; /* the files of this process */

static void
write_file(const char *path, const uint8_t *bytes, size_t n)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (fd < 0 || write(fd, bytes, n) != (ssize_t)n)
        g_error("%s", path);
    close(fd);
}

/* What reads @path from now on reads @bytes.  In memory there need only be a file of that name. */
static void
give_file(const char *path, const uint8_t *bytes, size_t n)
{
    if (fuzz_keep == NULL || !g_file_test(path, G_FILE_TEST_EXISTS))
        write_file(path, bytes, n);
    if (fuzz_keep != NULL)
        fuzz_keep(path, bytes, n);
}

/* --- targets that are no commands --- */

static void
try_tokens(const char *path, const uint8_t *bytes, size_t n)
{
    write_file(path, bytes, n); /* it is mapped, not read */
    for (int64_t vocab = 256; vocab <= 65536; vocab *= 256) {
        g_autoptr(ExecData) data = exec_data_open(path, vocab, 8, 1, 1, NULL);
        int32_t tokens[9];

        for (int64_t i = 0; data != NULL && i < 3; i++) {
            if (!exec_data_sequence(data, i, i, tokens, NULL))
                continue;
            for (int t = 0; t < 9; t++)
                g_assert_true(tokens[t] >= 0 && tokens[t] < vocab);
        }
    }
}

/* The bytes are the manifest; the parameters' files are there only if it says that there are none. */
static void
try_checkpoint(const char *path, const uint8_t *bytes, size_t n)
{
    g_autofree char *dir = g_build_filename(folder, "state", NULL);
    g_autofree char *step = g_build_filename(dir, "step-00000020", NULL);
    g_autofree char *manifest = g_build_filename(step, "checkpoint.json", NULL);
    g_autoptr(GError) error = NULL;

    g_mkdir_with_parents(step, 0700);
    give_file(manifest, bytes, n);
    g_autoptr(ExecCheckpoint) checkpoint = exec_checkpoint_open(dir, 20, &error);
    g_assert_true((checkpoint == NULL) == (error != NULL));
}

/* Lines: a command and its arguments.  They are parsed; the command is not run. */
static void
try_options(const char *path, const uint8_t *bytes, size_t n)
{
    g_autofree char *text = g_strndup((const char *)bytes, n);
    g_auto(GStrv) lines = g_strsplit(text, "\n", 200);
    const Command *command = lines[0] == NULL ? NULL : cmd_find(cmd_all, lines[0], NULL);
    g_autoptr(GError) error = NULL;

    if (command == NULL)
        return;
    g_autoptr(Options) options =
        options_parse(command->options, (int)g_strv_length(lines), lines, &error);
    g_assert_true((options == NULL) == (error != NULL));
    for (size_t t = 0;
         options != NULL && t < G_N_ELEMENTS(command->options) && command->options[t] != NULL;
         t++) {
        for (const OptionInfo *info = command->options[t]; info->name != NULL; info++) {
            if (info->value == NULL)
                continue;
            G_GNUC_UNUSED g_autoptr(GArray) series =
                options_series(options, info->name, 1, 1 << 20);
            G_GNUC_UNUSED g_autoptr(GArray) numbers =
                options_int64s(options, info->name, 1, 1 << 20);
            G_GNUC_UNUSED g_auto(GStrv) words = options_words(options, info->name);
            options_quantity(options, info->name, UNITS_KIND_S, 0.0);
            options_bytes(options, info->name, 0);
            if (info->words != NULL || info->list != NULL)
                options_choice(options, info->name, 0);
        }
    }
    if (options != NULL)
        g_free(options_command_line(options, command->name, (const char *const[]){NULL}));
}

/* The first byte is how many ranks there are, the second how many layers; the rest is Megatron's text. */
static void
try_layout(const char *path, const uint8_t *bytes, size_t n)
{
    if (n < 2)
        return;
    g_autofree char *text = g_strndup((const char *)bytes + 2, n - 2);
    g_autofree char *message = NULL;
    g_autoptr(GArray) stages = layout_string_read(text, &message);

    g_assert_true((stages == NULL) == (message != NULL));
    if (stages != NULL)
        g_free(layout_string_refusal(stages, 1 + bytes[0] % 16, 1 + bytes[1], 0));
}

/* --- the table --- */

#define TINY                                                                                       \
    "{\"format\":\"degas-model\",\"version\":1,\"name\":\"tiny\",\"family\":\"gpt\",\"n_layers\":" \
    "4,"                                                                                           \
    "\"hidden\":32,\"n_heads\":2,\"vocab\":256,\"max_seq_len\":64}\n"
/* Short, so that an execution is cheap: what degas writes itself is some 10 KB. */
#define PLAN                                                                                       \
    "{\"format\":\"degas-plan\",\"version\":1,\"model\":{\"format\":\"degas-model\""               \
    ",\"version\":1,\"name\":\"t\",\"family\":\"gpt\",\"n_layers\":4,\"hidden\":32,"               \
    "\"n_heads\":2,\"vocab\":256,\"max_seq_len\":64},\"cluster\":{\"format\":\"dega"               \
    "s-profile\",\"version\":1,\"name\":\"c\",\"cluster\":{\"name\":\"c\",\"devices"               \
    "\":[{\"name\":\"A\",\"flops_per_s\":{\"fp32\":19500000000000,\"bf16\":31200000"               \
    "0000000},\"vector_flops_per_s\":19500000000000,\"memory_bytes\":85899345920,\""               \
    "memory_bytes_per_s\":2039000000000}],\"nodes\":[{\"device\":\"A\",\"n_devices\""              \
    ":4,\"n_nodes\":1}],\"levels\":[{\"name\":\"n\",\"group_devices\":0,\"bytes_pe"                \
    "r_s\":300000000000,\"latency_s\":2e-06}]}},\"global_batch\":4,\"seq_len\":64,\""              \
    "dtype\":\"bf16\",\"degrees\":{\"tp\":2,\"pp\":2},\"micro_batch\":1,\"n_microb"                \
    "atches\":4,\"schedule\":\"1f1b\",\"stages\":[{\"rank\":0,\"chunk\":0,\"first_l"               \
    "ayer\":0,\"n_layers\":2,\"embedding\":true},{\"rank\":1,\"chunk\":0,\"first_la"               \
    "yer\":2,\"n_layers\":2,\"head\":true}]}"
#define TRACE                                                                                      \
    "{\"format\":\"degas-trace\",\"version\":1,\"measured\":false,\"schedule\":\"1f"               \
    "1b\",\"stages\":1,\"virtual\":1,\"slices\":1,\"microbatches\":1,\"makespan_ns\""              \
    ":30000,\"traceEvents\":[{\"ph\":\"M\",\"pid\":0,\"tid\":0,\"name\":\"thread_n"                \
    "ame\",\"args\":{\"name\":\"compute\"}},{\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\""              \
    ":0.0,\"dur\":10.0,\"name\":\"F0.0\",\"cat\":\"F\",\"args\":{\"op\":\"F0.0\"}}"                \
    ",{\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":10.0,\"dur\":20.0,\"name\":\"B0.0\","               \
    "\"cat\":\"B\",\"args\":{\"op\":\"B0.0\"}}]}"
#define NCCL                                                                                       \
    "# nccl-tests version 2.13.6\n# Collective test starting: all_reduce_perf\n#  Rank  0 Group  " \
    "0 "                                                                                           \
    "Pid 1 on  a device  0 [0x07] NVIDIA A100\n#  Rank  1 Group  0 Pid 1 on  a device  1 [0x08] "  \
    "NVIDIA A100\n 1048576  262144  float  sum  -1  44.21  23.72  23.72  0  43.00  24.33  24.33  " \
    "0\n 2097152  524288  float  sum  -1  59.0  35.5  35.5  0  60.0  34.9  34.9  0\n"
#define NCCL_JSON                                                                                  \
    "{\"version\":3,\"args\":[\"all_gather_perf\"],\"config\":{\"ngpus\":2},\"devices\":[{"        \
    "\"rank\":0,"                                                                                  \
    "\"hostname\":\"h\"},{\"rank\":1,\"hostname\":\"g\"}],\"results\":[{\"size\":1048576,"         \
    "\"out_of_place\":{\"time\":44.21},\"in_place\":{\"time\":43.0}}]}"
#define SIMUMAX                                                                                    \
    "{\"sys_name\":\"a\",\"num_per_node\":8,\"accelerator\":{\"backend\":\"cuda\",\"mem_gbs\":80," \
    "\"op\":{\"default\":{\"tflops\":312,\"efficient_factor\":0.75},\"sdp_fwd\":{\"tflops\":312,"  \
    "\"efficient_factor\":0.75,\"accurate_efficient_factor\":{\"batch=1, seq_len=4096, "           \
    "head_num=32, "                                                                                \
    "kv_head_num=8, qk_head_dim=128, "                                                             \
    "v_head_dim=128\":0.9}}},\"bandwidth\":{\"efficient_factor\":0.7,"                             \
    "\"gbps\":2039}},\"networks\":{\"intra_with_pcie\":true,\"intra_node_pcie_4x\":{"              \
    "\"bandwidth\":{"                                                                              \
    "\"efficient_factor\":0.5,\"gbps\":30,\"latency_us\":10}},\"intra_node_pcie_8x\":{"            \
    "\"bandwidth\":{"                                                                              \
    "\"efficient_factor\":0.4,\"gbps\":30,\"latency_us\":10}},\"inter_node\":{\"bandwidth\":{"     \
    "\"efficient_factor\":0.6,\"gbps\":25,\"latency_us\":40}}}}"
#define CALCULON                                                                                   \
    "{\"matrix\":{\"float16\":{\"tflops\":312,\"gflops_efficiency\":[[128,0.95],[0,0.1]]}},"       \
    "\"vector\":{\"float16\":{\"tflops\":78,\"gflops_efficiency\":[[0,0.1]]}},\"mem1\":{\"GiB\":"  \
    "80,"                                                                                          \
    "\"GBps\":2048,\"MB_efficiency\":[[0,0.3]]},\"networks\":[{\"bandwidth\":300,\"efficiency\":"  \
    "0.6,"                                                                                         \
    "\"size\":8,\"latency\":1e-6},{\"bandwidth\":25,\"efficiency\":0.9,\"size\":65536,"            \
    "\"latency\":2e-6}]}"
#define LAYERS                                                                                     \
    "{\"1_8_0\":{\"forward_mean\":0.001,\"backward_mean\":0.002},\"1_16_0\":{\"forward_mean\":0."  \
    "0015,"                                                                                        \
    "\"backward_mean\":0.003},\"1_8_8\":{\"forward_mean\":0.0011,\"backward_mean\":0.0022}}"
#define ROWS                                                                                       \
    "source,id,gpu,gpus,model,layers,hidden,heads,vocab,seq,global_batch,micro_batch,dp,tp,pp,"    \
    "schedule,recompute,dtype,measured_iter_ms,status\n"                                           \
    "mine,a,A100-SXM4-80GB,8,gpt,8,1024,16,51200,1024,64,1,8,1,1,1f1b,none,fp16,200,ok\n"          \
    "mine,b,A100-SXM4-80GB,8,gpt,8,2048,16,51200,1024,64,1,4,1,2,1f1b,none,fp16,,oom\n"
#define MANIFEST                                                                                   \
    "{\"format\":\"degas-checkpoint\",\"version\":1,\"step\":20,\"seed\":5,\"global_batch\":8,"    \
    "\"seq_len\":64,\"tokens_seen\":10240,\"parts\":3,\"model\":{\"family\":\"gpt\",\"n_layers\":" \
    "2,"                                                                                           \
    "\"hidden\":8,\"n_heads\":2,\"vocab\":16,\"max_seq_len\":64},\"parameters\":[{\"name\":\"a."   \
    "weight\","                                                                                    \
    "\"rows\":2,\"cols\":3,\"hash\":\"0123456789abcdef\"}]}\n"
#define MEGATRON                                                                                   \
    "x#!/bin/bash\nGPUS_PER_NODE=8\nexport A=${B:-4}\nARGS=\"\n  --num-layers 12 --hidden-size "   \
    "768\n"                                                                                        \
    "--num-attention-heads 12 \\\n --seq-length 1024 --max-position-embeddings 1024\"\n"           \
    "torchrun --nproc_per_node $GPUS_PER_NODE pretrain_gpt.py $ARGS --micro-batch-size $((A / "    \
    "4)) "                                                                                         \
    "--global-batch-size 8 --vocab-size 50257 --bf16 --tensor-model-parallel-size 2\n"
#define TORCHTITAN                                                                                 \
    "t[model]\nname = \"llama3\"\nflavor = \"8B\"\n[training]\nlocal_batch_size = 1\nseq_len = "   \
    "8192\n"                                                                                       \
    "[parallelism]\ndata_parallel_shard_degree = -1\ntensor_parallel_degree = 1\n"
#define DEEPSPEED                                                                                  \
    " {\"train_batch_size\": 16, \"train_micro_batch_size_per_gpu\": 1, \"bf16\": {\"enabled\": "  \
    "true},"                                                                                       \
    "\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\"}}}"
#define MEGATRON_YAML                                                                              \
    "ynum-layers: 32\nhidden-size: 4096\nnum-attention-heads: 32\nseq-length: 4096\n"              \
    "max-position-embeddings: 4096\nmicro-batch-size: 1\nglobal-batch-size: 8\n"                   \
    "tensor-model-parallel-size: 1\nbf16: true\n"

static const Target targets[] = {
    {"model", {"x.json"}, "show @ --json", .seeds = {"models/", TINY}},
    {"huggingface",
     {"config.json"},
     "show @ --json",
     .seeds = {"file tests/models/huggingface/deepseek-v3.json",
               "file tests/models/huggingface/gpt2.json",
               "file tests/models/huggingface/llama3.2-1b.json",
               "file tests/models/huggingface/mixtral-8x7b.json",
               "file tests/models/huggingface/qwen3-30b-a3b.json"}},
    {"cluster", {"x.json"}, "show @ --json", .seeds = {"profiles/"}},
    {"yaml",
     {"x.yaml"},
     "show @ --json",
     .seeds = {"file cli/help/init/model.yaml", "file cli/help/init/cluster.yaml"}},
    {"job",
     {"x.yaml", "x.json"},
     "simulate @ --json",
     .seeds = {"xformat: degas-job\nversion: 1\nmodel: gpt2-124m\ncluster: dgx-a100-80g\n"
               "gpus: 4\nglobal_batch: 8\nseq_len: 128\ntp: 2\npp: 2\nschedule: 1f1b\n"
               "set: {memory: 141 GB, network: 800 Gbps}\nprice: 2.5\n",
               "y{\"format\":\"degas-job\",\"version\":1,\"model\":\"gpt2-124m\",\"cluster\":"
               "\"dgx-a100-80g\",\"gpus\":2,\"global_batch\":4,\"slices\":2,\"pp\":2}"}},
    {"cluster-plan",
     {"x.json"},
     "simulate gpt2-124m @ --global-batch 4 --pp 2 --json",
     .seeds = {"profiles/"}},
    {"plan",
     {"x.json"},
     "simulate @ --json",
     .seeds =
         {"= plan gpt2-124m dgx-a100-80g --gpus 4 --global-batch 4 --pp 2 --tp 2 --slices 2 "
          "--schedule 1f1b",
          "= plan gpt2-124m dgx-a100-80g --gpus 4 --global-batch 8 --pp 4 --slices off --schedule "
          "zb-h1",
          "= plan gpt2-124m dgx-a100-80g --gpus 4 --global-batch 8 --dp 4 --slices off --zero 3",
          PLAN}},
    {"schedule",
     {"x.json"},
     "simulate --schedule-file @ --op-times F=1ms,B=2ms,W=1ms --json",
     .seeds = {"= schedule zb-h1 --pp 3 --microbatches 4",
               "= schedule 1f1b --pp 2 --microbatches 2 --slices 2",
               "= schedule interleaved --pp 2 --vpp 2 --microbatches 2"}},
    {"schedule-csv",
     {"x.csv"},
     "simulate --schedule-file @ --json",
     .seeds = {"0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n",
               "0F0,,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1W0,1F1,1I1,1W1\n"}},
    {"trace",
     {"x.json"},
     "compare @ @ --json",
     .seeds = {"= simulate gpt2-124m dgx-a100-80g --global-batch 4 --pp 2 --trace",
               "= simulate gpt2-124m dgx-a100-80g --global-batch 2 --tp 2 --slices 2 --trace",
               TRACE}},
    {"results",
     {"x.json"},
     "show @",
     .seeds = {"= simulate gpt2-124m dgx-a100-80g --global-batch 4 --pp 2 -o",
               "= sweep gpt2-124m dgx-a100-80g --gpus 1,2 --global-batch 4 --slices off --schedule "
               "1f1b -o",
               "= plan gpt2-124m dgx-a100-80g --gpus 2 --global-batch 4 --slices off --schedule "
               "1f1b -o",
               PLAN}},
    {"plot",
     {"x.json"},
     "plot @ --color always",
     .seeds = {TRACE, "= simulate gpt2-124m dgx-a100-80g --global-batch 4 --pp 2 --trace",
               "= sweep gpt2-124m dgx-a100-80g --gpus 1,2 --global-batch 4 --slices off --schedule "
               "1f1b -o"}},
    {"batch",
     {"x.jsonl"},
     "simulate --batch @ --threads 1",
     .seeds = {"{\"id\":1,\"model\":\"gpt2-124m\",\"cluster\":\"dgx-a100-80g\",\"global_batch\":4,"
               "\"pp\":2}\n"}},
    {"measured", {"x.csv"}, "validate dgx-a100-80g @ --threads 1 --json", .seeds = {ROWS}},
    {"import",
     {"x.txt"},
     "import @ --cluster dgx-a100-80g --model gpt2-124m -o -",
     .seeds = {NCCL, NCCL_JSON, SIMUMAX, CALCULON, LAYERS,
               "file tests/cli/import/kineto-2022.json"}},
    {"slices",
     {"x.json"},
     "slices --costs @ --stages 2 --batch 2 --seq-len 16 --json",
     .seeds = {LAYERS}},
    {"recipe",
     {"x.sh", "x.yaml", "x.json", "x.toml"},
     "simulate @ dgx-h100 --gpus 8 --json",
     .seeds = {MEGATRON, TORCHTITAN, DEEPSPEED, MEGATRON_YAML}},
    {"tokens",
     {"x.bin", "x.txt"},
     .attempt = try_tokens,
     .seeds = {"xabcdefghijklmnopqrstuvwxyz0123456789"}},
    {"layout",
     {"x"},
     .attempt = try_layout,
     .seeds = {"ABEt*3|(tt|)*29,m|L", "DCEtt|t*2|(t|)*4|tL", "@aE,t|t,L"}},
    {"checkpoint", {"x.json"}, .attempt = try_checkpoint, .seeds = {MANIFEST}},
    {"options",
     {"x"},
     .attempt = try_options,
     .seeds = {"plan\n--gpus\n8..64:x2,96\n--slices=off\n-o\nfile\n--memory-limit\n80GiB\n--"
               "overlap=dp,tp",
               "sweep\nm\nc\n--gpus=1..8:+1\n--tokens\n15T\n--mtbf\n5h",
               "run\n--timeout\n5s\n--verify"}},
};

/* --- running --- */

int
fuzz_n_targets(void)
{
    return (int)G_N_ELEMENTS(targets);
}

const char *
fuzz_target_name(int target)
{
    return targets[target].name;
}

static void
remove_files(void)
{
    g_autofree char *quoted = g_shell_quote(folder);
    g_autofree char *command = g_strdup_printf("rm -rf %s", quoted);

    if (system(command) != 0)
        g_printerr("fuzz: %s is left\n", folder);
}

const char *
fuzz_folder(void)
{
    return folder;
}

void
fuzz_init(void)
{
    const int nothing = open("/dev/null", O_WRONLY | O_CLOEXEC);

    folder = g_dir_make_tmp("degas-fuzz-XXXXXX", NULL);
    if (folder == NULL || nothing < 0 || dup2(nothing, STDOUT_FILENO) < 0)
        g_error("no temporary folder");
    atexit(remove_files);
    setlocale(LC_ALL, "C.UTF-8");
    setlocale(LC_NUMERIC, "C");
    g_log_set_always_fatal(G_LOG_FATAL_MASK | G_LOG_LEVEL_CRITICAL);
    signal(SIGPIPE, SIG_IGN);
}

int
fuzz_command(int argc, char **argv, GError **error)
{
    const int status = run(argc, argv, error);

    fflush(stdout);
    if (status >= 0) {
        g_assert_true(error == NULL || *error == NULL);
        return status;
    }
    g_assert_nonnull(*error);
    g_assert_cmpint((*error)->message[0], !=, 0);
    const int code = cmd_exit_status(*error);
    if (code == CMD_ERROR_INTERNAL)
        g_error("an internal error: %s", (*error)->message);
    return code;
}

/* Splits at spaces; @ becomes @path. */
static int
run_line(const char *line, const char *path, GError **error)
{
    g_auto(GStrv) words = g_strsplit(line, " ", MAX_ARGUMENTS * 4);
    g_autoptr(GPtrArray) argv = g_ptr_array_new();

    g_ptr_array_add(argv, (void *)"degas");
    for (char **word = words; *word != NULL; word++)
        g_ptr_array_add(argv, strcmp(*word, "@") == 0 ? (void *)path : *word);
    g_ptr_array_add(argv, NULL);
    return fuzz_command((int)argv->len - 1, (char **)argv->pdata, error);
}

void
fuzz_try(int target, const uint8_t *bytes, size_t n)
{
    const Target *t = &targets[target];
    size_t n_files = 0;

    while (n_files < G_N_ELEMENTS(t->files) && t->files[n_files] != NULL)
        n_files++;
    const size_t which = n_files < 2 || n == 0 ? 0 : bytes[0] % n_files;
    const size_t skipped = n_files < 2 || n == 0 ? 0 : 1;
    g_autofree char *path = g_build_filename(folder, t->files[which], NULL);
    g_autoptr(GError) error = NULL;
    if (t->attempt != NULL) {
        t->attempt(path, bytes + skipped, n - skipped);
    } else {
        give_file(path, bytes + skipped, n - skipped);
        run_line(t->arguments, path, &error);
    }
}

/* --- seeds --- */

static void
add_seed(GPtrArray *seeds, const char *seed)
{
    g_autofree char *path = g_build_filename(folder, "seed", NULL);
    char *text = NULL;
    size_t n = 0;

    if (g_str_has_prefix(seed, "= ")) {
        const bool says_option =
            g_str_has_suffix(seed, " -o") || g_str_has_suffix(seed, " --trace");
        g_autofree char *line = g_strdup_printf("%s%s @", seed + 2, says_option ? "" : " -o");
        g_autoptr(GError) error = NULL;

        if (run_line(line, path, &error) != 0)
            g_error("%s: %s", line, error == NULL ? "?" : error->message);
        seed = path;
    } else if (g_str_has_prefix(seed, "file ")) {
        seed += strlen("file ");
    } else {
        g_ptr_array_add(seeds, g_bytes_new(seed, strlen(seed)));
        return;
    }
    if (!g_file_get_contents(seed, &text, &n, NULL))
        g_error("%s", seed);
    g_ptr_array_add(seeds, g_bytes_new_take(text, n));
}

GPtrArray *
fuzz_seeds(int target)
{
    const Target *t = &targets[target];
    GPtrArray *seeds = g_ptr_array_new_with_free_func((GDestroyNotify)g_bytes_unref);
    size_t n_files;
    const EmbeddedFile *files = embedded_files(&n_files);

    for (size_t i = 0; i < G_N_ELEMENTS(t->seeds) && t->seeds[i] != NULL; i++) {
        if (!g_str_has_suffix(t->seeds[i], "/")) {
            add_seed(seeds, t->seeds[i]);
            continue;
        }
        for (size_t f = 0; f < n_files; f++)
            if (g_str_has_prefix(files[f].path, t->seeds[i]))
                g_ptr_array_add(seeds,
                                g_bytes_new(files[f].text, (size_t)(files[f].end - files[f].text)));
    }
    return seeds;
}

/* Adds the strings of a JSON text. */
static void
add_strings(GHashTable *words, const char *text)
{
    g_auto(GStrv) parts = g_strsplit(text, "\"", -1);

    for (size_t i = 0; parts[i] != NULL && parts[i + 1] != NULL; i++)
        if (strlen(parts[i]) > 1 && strlen(parts[i]) < 40 && strpbrk(parts[i], "\\\n ") == NULL)
            g_hash_table_add(words, g_strdup(parts[i]));
}

static int
compare_words(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

GPtrArray *
fuzz_words(void)
{
    g_autoptr(GHashTable) words = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    GPtrArray *sorted = g_ptr_array_new_with_free_func(g_free);
    GHashTableIter iterator;
    void *word;
    size_t n_files;
    const EmbeddedFile *files = embedded_files(&n_files);

    for (size_t f = 0; f < n_files; f++)
        if (g_str_has_prefix(files[f].path, "cli/help/schema/"))
            add_strings(words, files[f].text);
    for (const Command *const *command = cmd_all; *command != NULL; command++)
        for (size_t t = 0; t < G_N_ELEMENTS((*command)->options) && (*command)->options[t] != NULL;
             t++)
            for (const OptionInfo *info = (*command)->options[t]; info->name != NULL; info++)
                g_hash_table_add(words, g_strconcat("--", info->name, NULL));
    for (g_hash_table_iter_init(&iterator, words); g_hash_table_iter_next(&iterator, &word, NULL);)
        g_ptr_array_add(sorted, g_strdup(word));
    g_ptr_array_sort(sorted, compare_words);
    return sorted;
}
