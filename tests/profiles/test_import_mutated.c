/* Files of other programs that are cut, flipped, blown up and nested: each import ends with one line of
 * error, or with a profile that can be read back. */
#include "profiles/import/import.h"

#include "base/file.h"

#include <dlfcn.h>
#include <glib/gstdio.h>
#include <string.h>

#define N_MUTATIONS 60

static const char nccl_text[] =
    "# Collective test starting: all_reduce_perf_mpi\n# Using devices\n"
    "#  Rank  0 Group  0 Pid 1 on  a device  0 [0x07] NVIDIA A100\n"
    "#  Rank  1 Group  0 Pid 1 on  a device  1 [0x08] NVIDIA A100\n"
    "#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong\n"
    "[1,0]<stdout>: 1048576  262144  float  sum  -1  44.21  23.72  23.72  0  43.00  24.33  24.33  "
    "0\n"
    " 2097152  524288  float  sum  -1host NCCL INFO x\n 59.0  35.5  35.5  0  60.0  34.9  34.9  "
    "N/A\n";
static const char nccl_json[] = "{\"version\":3,\"args\":[\"all_gather_perf\"],\"config\":{"
                                "\"ngpus\":2},\"devices\":[{\"rank\":0,"
                                "\"hostname\":\"h\"},{\"rank\":1,\"hostname\":\"g\"}],\"results\":["
                                "{\"size\":1048576,\"out_of_place\":"
                                "{\"time\":44.21},\"in_place\":{\"time\":43.0}}]}";
static const char simumax[] =
    "{\"sys_name\":\"a\",\"num_per_node\":8,\"accelerator\":{\"backend\":\"cuda\",\"mem_gbs\":80,"
    "\"op\":{"
    "\"default\":{\"tflops\":312,\"efficient_factor\":0.75},\"sdp_fwd\":{\"tflops\":312,"
    "\"efficient_factor\":0.75,\"accurate_efficient_factor\":{\"batch=1, seq_len=4096, "
    "head_num=32, "
    "kv_head_num=8, qk_head_dim=128, "
    "v_head_dim=128\":0.9}}},\"bandwidth\":{\"efficient_factor\":0.7,"
    "\"gbps\":2039}},\"networks\":{\"intra_with_pcie\":true,\"intra_node_pcie_4x\":{\"bandwidth\":{"
    "\"efficient_factor\":0.5,\"gbps\":30,\"latency_us\":10}},\"intra_node_pcie_8x\":{"
    "\"bandwidth\":{"
    "\"efficient_factor\":0.4,\"gbps\":30,\"latency_us\":10}},\"inter_node\":{\"bandwidth\":{"
    "\"efficient_factor\":0.6,\"gbps\":25,\"latency_us\":40}}}}";
static const char calculon[] =
    "{\"matrix\":{\"float16\":{\"tflops\":312,\"gflops_efficiency\":[[128,0.95],[0,0.1]]}},"
    "\"vector\":{"
    "\"float16\":{\"tflops\":78,\"gflops_efficiency\":[[0,0.1]]}},\"mem1\":{\"GiB\":80,\"GBps\":"
    "2048,"
    "\"MB_efficiency\":[[0,0.3]]},\"networks\":[{\"bandwidth\":300,\"efficiency\":0.6,\"size\":8,"
    "\"latency\":1e-6},{\"bandwidth\":25,\"efficiency\":0.9,\"size\":65536,\"latency\":2e-6}]}";
static const char terapipe[] =
    "{\"1_128_0\":{\"forward_mean\":0.001,\"forward_std\":0.0001,\"backward_mean\":0.002}}";

/* --- mutations --- */

static const char *const inserted[] = {
    "99999999999999999999", "1e308", "-1", "\"", "null", "{", "]", "\n", "0", "\xff", "[[[[[[[[",
};

/* @bytes with one thing changed: cut, bits flipped, something put in, a part left out or twice. */
static GString *
mutate(GRand *random, const char *bytes, size_t n)
{
    GString *text = g_string_new_len(bytes, (gssize)n);
    const gsize at = (gsize)g_rand_int_range(random, 0, (gint32)n);
    const gsize wanted = (gsize)g_rand_int_range(random, 1, 40), length = MIN(n - at, wanted);
    const char *word = inserted[g_rand_int_range(random, 0, G_N_ELEMENTS(inserted))];

    switch (g_rand_int_range(random, 0, 6)) {
    case 0:
        g_string_truncate(text, at);
        break;
    case 1:
        for (int i = 0; i < 4; i++)
            text->str[g_rand_int_range(random, 0, (gint32)n)] ^=
                (char)(1 << g_rand_int_range(random, 0, 8));
        break;
    case 2:
        g_string_insert(text, (gssize)at, word);
        break;
    case 3:
        g_string_erase(text, (gssize)at, (gssize)length);
        g_string_insert(text, (gssize)at, word);
        break;
    case 4:
        g_string_insert_len(text, (gssize)at, bytes + at, (gssize)length);
        break;
    case 5:
        for (int i = 0; i < 3000; i++)
            g_string_insert_c(text, (gssize)at, '[');
        break;
    }
    return text;
}

/* --- what an import may end with --- */

static void
check_profile(const Profile *profile)
{
    g_autoptr(JsonWriter) writer = json_writer_new();
    g_autoptr(GError) error = NULL;
    size_t n;

    profile_write(writer, NULL, profile);
    g_autofree char *text = json_writer_steal(writer, &n);
    g_autoptr(JsonDoc) doc = json_doc_parse("written", text, n, &error);
    g_assert_no_error(error);
    g_autoptr(Profile) again = profile_read(doc, json_doc_root(doc, "degas-profile", 1));
    g_assert_nonnull(again);
    json_doc_finish(doc, &error);
    g_assert_no_error(error);
}

static bool
import_once(const char *path, const Profile *cluster, const ModelArch *arch)
{
    const ProfileImportOptions options = {.arch = arch, .tp = 1, .dtype = DTYPE_FP16};
    g_autofree char *summary = NULL;
    g_autoptr(GError) error = NULL;
    g_autoptr(Profile) profile = profile_import(cluster, path, &options, &summary, &error);

    if (profile == NULL) {
        g_assert_nonnull(error);
        g_assert_true(error->domain == JSON_ERROR || error->domain == PROFILE_IMPORT_ERROR);
        g_assert_null(strchr(error->message, '\n'));
        g_assert_nonnull(strstr(error->message, "sample"));
        return false;
    }
    g_assert_no_error(error);
    g_assert_nonnull(summary);
    check_profile(profile);
    return true;
}

/* Without waiting for the disk. */
static void
write_sample(const char *path, const char *bytes, size_t n)
{
    g_assert_true(
        g_file_set_contents_full(path, bytes, (gssize)n, G_FILE_SET_CONTENTS_NONE, 0600, NULL));
}

static void
check_sample(const char *bytes, size_t n)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Profile) cluster = profile_load("dgx-a100-80g", &error);
    g_autoptr(ModelArch) arch = model_arch_load("gpt-mini", NULL, &error);
    g_autoptr(GRand) random = g_rand_new_with_seed(20261123);
    g_autofree char *folder = g_dir_make_tmp("degas-XXXXXX", &error);
    g_autofree char *path = g_build_filename(folder, "sample", NULL);
    int n_read = 0;

    g_assert_no_error(error);
    write_sample(path, bytes, n);
    g_assert_true(import_once(path, cluster, arch));
    for (int i = 0; i < N_MUTATIONS; i++) {
        GString *text = mutate(random, bytes, n);

        write_sample(path, text->str, text->len);
        n_read += import_once(path, cluster, arch);
        g_string_free(text, TRUE);
    }
    g_test_message("%d of %d were read", n_read, N_MUTATIONS);
    g_assert_cmpint(n_read, <, N_MUTATIONS);
    g_unlink(path);
    g_rmdir(folder);
}

static void
test_text(gconstpointer sample)
{
    check_sample(sample, strlen(sample));
}

static void
test_kineto(void)
{
    g_autofree char *text = NULL;
    size_t n;

    g_assert_true(file_read("tests/cli/import/kineto-2022.json", &text, &n, NULL));
    check_sample(text, n);
}

/* A database with one copy and one kernel. */
static void
test_nsys(void)
{
    typedef struct sqlite3 sqlite3;
    int (*open)(const char *, sqlite3 **);
    int (*exec)(sqlite3 *, const char *, void *, void *, char **);
    unsigned char *(*serialize)(sqlite3 *, const char *, int64_t *, unsigned);
    int (*close)(sqlite3 *);
    void (*release)(void *);
    void *library = dlopen("libsqlite3.so.0", RTLD_NOW | RTLD_LOCAL);
    sqlite3 *db;
    int64_t n;

    if (library == NULL) {
        g_test_skip("SQLite is not installed");
        return;
    }
    *(void **)&open = dlsym(library, "sqlite3_open");
    *(void **)&exec = dlsym(library, "sqlite3_exec");
    *(void **)&serialize = dlsym(library, "sqlite3_serialize");
    *(void **)&close = dlsym(library, "sqlite3_close");
    *(void **)&release = dlsym(library, "sqlite3_free");
    g_assert_cmpint(open(":memory:", &db), ==, 0);
    g_assert_cmpint(
        exec(
            db,
            "PRAGMA page_size = 512;"
            "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);"
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, correlationId INT, "
            "globalPid INT, demangledName INT);"
            "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, end INT, bytes INT, copyKind INT, "
            "srcKind INT, dstKind INT);"
            "INSERT INTO StringIds VALUES (1, 'gemm');"
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2, 3, 4, 1);"
            "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (0, 1000, 1000000, 1, 1, 2);",
            NULL, NULL, NULL),
        ==, 0);
    unsigned char *bytes = serialize(db, "main", &n, 0);
    check_sample((const char *)bytes, (size_t)n);
    release(bytes);
    close(db);
    dlclose(library);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_data_func("/profiles/import-mutated/nccl-text", nccl_text, test_text);
    g_test_add_data_func("/profiles/import-mutated/nccl-json", nccl_json, test_text);
    g_test_add_data_func("/profiles/import-mutated/simumax", simumax, test_text);
    g_test_add_data_func("/profiles/import-mutated/calculon", calculon, test_text);
    g_test_add_data_func("/profiles/import-mutated/terapipe", terapipe, test_text);
    g_test_add_func("/profiles/import-mutated/kineto", test_kineto);
    g_test_add_func("/profiles/import-mutated/nsys", test_nsys);
    return g_test_run();
}
