/* Tests of profiles/import/operators.h: what calls of PyTorch's operators compute and move. */
#include "profiles/import/operators.h"

#include "tests/profiles/fixture.h"

/* The call of @operator with @args, taking 1 s, on the fixture's device. */
static ImportOutcome
read_call(const char *operator, const char * args, double seconds, ImportSample *sample)
{
    g_autoptr(Profile) profile = fixture_profile();
    g_autoptr(GError) error = NULL;
    g_autoptr(JsonDoc) doc = json_doc_parse("args.json", args, strlen(args), &error);
    const ImportOperator *op = import_operator(operator);
    ImportOutcome outcome;

    g_assert_no_error(error);
    g_assert_nonnull(op);
    outcome = import_call_sample(doc, json_doc_root(doc, NULL, 0), op, NULL,
                                 model_cluster_device(profile->cluster, 0), seconds, sample);
    g_assert_true(json_doc_finish(doc, &error));
    return outcome;
}

#define DIMS(dims) "{\"Input Dims\":[" dims "],"
#define TYPES(types) "\"Input type\":[" types "]"
#define CONSTANTS(constants) ",\"Concrete Inputs\":[" constants "]"
#define B "\"c10::BFloat16\""
#define H "\"c10::Half\""
#define F "\"float\""
#define NONE7 "\"\",\"\",\"\",\"\",\"\",\"\",\"\""

/* Bytes: a k + k n + m n of 2 bytes each. */
static void
test_products(void)
{
    static const struct {
        const char *operator, * args;
        ImportKind kind;
        int64_t count, m, n, k, bytes;
    } cases[] = {
        {"aten::mm", DIMS("[8,16],[16,32]") TYPES(B "," B) "}", IMPORT_PRODUCT, 1, 8, 32, 16,
         2 * (8 * 16 + 16 * 32 + 8 * 32)},
        {"aten::addmm", DIMS("[32],[8,16],[16,32]") TYPES(H "," H "," H) "}", IMPORT_PRODUCT, 1, 8,
         32, 16, 2 * (8 * 16 + 16 * 32 + 8 * 32)},
        {"aten::bmm", DIMS("[4,8,16],[4,16,32]") TYPES(B "," B) "}", IMPORT_BATCH, 4, 8, 32, 16,
         4 * 2 * (8 * 16 + 16 * 32 + 8 * 32)},
        {"aten::baddbmm", DIMS("[4,8,32],[4,8,16],[4,16,32]") TYPES(H "," H "," H) "}",
         IMPORT_BATCH, 4, 8, 32, 16, 4 * 2 * (8 * 16 + 16 * 32 + 8 * 32)},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        ImportSample s;

        g_test_message("%s", cases[i].operator);
        g_assert_cmpint(read_call(cases[i].operator, cases[i].args, 1.0, &s), ==, IMPORT_TAKEN);
        g_assert_cmpint(s.kind, ==, cases[i].kind);
        g_assert_cmpint(s.count, ==, cases[i].count);
        g_assert_cmpint(s.m, ==, cases[i].m);
        g_assert_cmpint(s.n, ==, cases[i].n);
        g_assert_cmpint(s.k, ==, cases[i].k);
        g_assert_cmpint(s.bytes, ==, cases[i].bytes);
        g_assert_cmpfloat(s.seconds, ==, 1.0);
    }
}

/*
 * 2 sequences, 8 heads of 64, 2 of them of k and v; 512 tokens, all or after 1536 of context.  q
 * and the output have 2 8 512 64 elements, k and v 2 2 keys 64; backward moves as much again.
 * Needed: all, or of the last 512 rows of 2048 keys 1536 + (512 + 1) / 2.
 */
static void
test_attention(void)
{
    enum {
        Q = 2 * 8 * 512 * 64,
        KV = 2 * 2 * 64
    };
    static const struct {
        const char *operator, * args;
        bool backward;
        int64_t n, bytes;
        double causal_fraction;
    } cases[] = {
        {"aten::_flash_attention_forward",
         DIMS("[2,512,8,64],[2,512,2,64],[2,512,2,64],[],[],[],[],[],[],[]")
             TYPES(B "," B "," B "," NONE7) CONSTANTS(NONE7 ",\"0.\",\"True\",\"False\"") "}",
         false, 512, 2 * (2 * Q + 2 * KV * 512), 513.0 / 1024.0},
        {"aten::_flash_attention_forward",
         DIMS("[2,512,8,64],[2,2048,2,64],[2,2048,2,64],[],[],[],[],[],[],[]")
             TYPES(B "," B "," B "," NONE7) CONSTANTS(NONE7 ",\"0.\",\"True\",\"False\"") "}",
         false, 2048, 2 * (2 * Q + 2 * KV * 2048), (1536.0 + 256.5) / 2048.0},
        {"aten::_flash_attention_forward",
         DIMS("[2,512,8,64],[2,512,2,64],[2,512,2,64],[],[],[],[],[],[],[]")
             TYPES(B "," B "," B "," NONE7) CONSTANTS(NONE7 ",\"0.\",\"False\",\"True\"") "}",
         false, 512, 2 * (2 * Q + 2 * KV * 512), 1.0},
        {"aten::_flash_attention_backward",
         DIMS("[2,512,8,64],[2,512,8,64],[2,512,2,64],[2,512,2,64]") TYPES(H "," H "," H "," H)
             CONSTANTS(NONE7 ",\"\",\"512\",\"512\",\"0.\",\"True\"") "}",
         true, 512, 4 * (2 * Q + 2 * KV * 512), 513.0 / 1024.0},
        {"aten::_scaled_dot_product_flash_attention",
         DIMS("[2,8,512,64],[2,2,512,64],[2,2,512,64],[],[],[]") TYPES(B "," B "," B)
             CONSTANTS("\"\",\"\",\"\",\"0.\",\"True\",\"False\"") "}",
         false, 512, 2 * (2 * Q + 2 * KV * 512), 513.0 / 1024.0},
        {"aten::_scaled_dot_product_flash_attention_backward",
         DIMS("[2,8,512,64],[2,8,512,64],[2,2,512,64],[2,2,512,64]") TYPES(B "," B "," B "," B)
             CONSTANTS(NONE7 ",\"\",\"512\",\"512\",\"0.\",\"False\"") "}",
         true, 512, 4 * (2 * Q + 2 * KV * 512), 1.0},
        {"aten::_scaled_dot_product_cudnn_attention",
         DIMS("[2,8,512,64],[2,2,512,64],[2,2,512,64]") TYPES(B "," B "," B)
             CONSTANTS("\"\",\"\",\"\",\"\",\"True\",\"0.\",\"False\",\"False\"") "}",
         false, 512, 2 * (2 * Q + 2 * KV * 512), 1.0},
        {"aten::_cudnn_attention_forward",
         DIMS("[2,8,512,64],[2,2,512,64],[2,2,512,64]") TYPES(B "," B "," B)
             CONSTANTS(NONE7 ",\"512\",\"False\",\"0.\",\"True\",\"False\"") "}",
         false, 512, 2 * (2 * Q + 2 * KV * 512), 513.0 / 1024.0},
        {"aten::_scaled_dot_product_cudnn_attention_backward",
         DIMS("[2,8,512,64],[2,8,512,64],[2,2,512,64],[2,2,512,64]") TYPES(B "," B "," B "," B)
             CONSTANTS(NONE7 ",\"\",\"\",\"\",\"\",\"512\",\"512\",\"0.\",\"True\"") "}",
         true, 512, 4 * (2 * Q + 2 * KV * 512), 513.0 / 1024.0},
        {"flash_attn::_flash_attn_forward",
         DIMS("[2,512,8,64],[2,512,2,64],[2,512,2,64]") TYPES(H "," H "," H)
             CONSTANTS("\"\",\"\",\"\",\"0.\",\"0.125\",\"True\",\"-1\"") "}",
         false, 512, 2 * (2 * Q + 2 * KV * 512), 513.0 / 1024.0},
        {"flash_attn::_flash_attn_backward",
         DIMS("[2,512,8,64],[2,512,8,64],[2,512,2,64],[2,512,2,64]") TYPES(H "," H "," H "," H)
             CONSTANTS(NONE7 ",\"\",\"\",\"0.\",\"0.125\",\"True\"") "}",
         true, 512, 4 * (2 * Q + 2 * KV * 512), 513.0 / 1024.0},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        ImportSample s;

        g_test_message("%zu: %s", i, cases[i].operator);
        g_assert_cmpint(read_call(cases[i].operator, cases[i].args, 1.0, &s), ==, IMPORT_TAKEN);
        g_assert_cmpint(s.kind, ==, IMPORT_ATTENTION);
        g_assert_cmpint(s.backward, ==, cases[i].backward);
        g_assert_cmpint(s.count, ==, 16);
        g_assert_cmpint(s.m, ==, 512);
        g_assert_cmpint(s.n, ==, cases[i].n);
        g_assert_cmpint(s.k, ==, 64);
        g_assert_cmpint(s.bytes, ==, cases[i].bytes);
        assert_near(s.causal_fraction, cases[i].causal_fraction, 1e-12);
    }
}

/* Of 2^27 elements. */
static void
test_memory_bound(void)
{
    static const struct {
        const char *operator, * dims, *types, *constants;
        int bytes_per_element;
        ModelMemoryKind kind;
    } cases[] = {
        {"aten::add", "X,X,[]", B "," B "," F, "", 6, MODEL_MEMORY_STREAM},
        {"aten::mul_", "X,X", F "," F, "", 12, MODEL_MEMORY_STREAM},
        {"aten::gelu", "X,[]", H ",\"\"", "", 4, MODEL_MEMORY_STREAM},
        {"aten::silu_backward", "X,X", B "," B, "", 6, MODEL_MEMORY_STREAM},
        {"aten::_softmax", "X,[],[]", B, "\"\",\"-1\",\"False\"", 4, MODEL_MEMORY_STREAM},
        {"aten::_softmax", "X,[],[]", B, "\"\",\"-1\",\"True\"", 6, MODEL_MEMORY_STREAM},
        {"aten::_softmax", "X,[],[]", F, "\"\",\"-1\",\"False\"", 8, MODEL_MEMORY_STREAM},
        {"aten::_softmax_backward_data", "X,X,[],[]", B "," B, "", 6, MODEL_MEMORY_STREAM},
        {"aten::_log_softmax", "X,[],[]", F, "\"\",\"-1\",\"False\"", 8, MODEL_MEMORY_LOSS},
        {"aten::_log_softmax_backward_data", "X,X,[],[]", F "," F, "", 12, MODEL_MEMORY_LOSS},
        {"aten::native_layer_norm", "X,[],[4096],[4096],[]", B ",\"\"," B "," B, "", 4,
         MODEL_MEMORY_STREAM},
        {"aten::native_layer_norm_backward", "X,X", B "," B, "", 10, MODEL_MEMORY_STREAM},
        {"aten::_fused_rms_norm", "X,[],[4096],[]", B ",\"\"," B, "", 4, MODEL_MEMORY_STREAM},
        {"aten::_fused_rms_norm_backward", "X,X", B "," B, "", 10, MODEL_MEMORY_STREAM},
        {"aten::copy_", "X,X,[]", F "," B, "", 6, MODEL_MEMORY_STREAM},
        {"aten::copy_", "X,X,[]", H "," H, "", 4, MODEL_MEMORY_STREAM},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GString) args = g_string_new(NULL);
        ImportSample s;

        g_string_append_printf(args, DIMS("%s") TYPES("%s") CONSTANTS("%s") "}", cases[i].dims,
                               cases[i].types, cases[i].constants);
        g_string_replace(args, "X", "[32768,4096]", 0);
        g_test_message("%zu: %s", i, cases[i].operator);
        g_assert_cmpint(read_call(cases[i].operator, args->str, 1.0, &s), ==, IMPORT_TAKEN);
        g_assert_cmpint(s.kind, ==, IMPORT_STREAM);
        g_assert_cmpint(s.memory_kind, ==, cases[i].kind);
        g_assert_cmpint(s.bytes, ==, (int64_t)cases[i].bytes_per_element << 27);
    }
}

static void
test_what_is_not_taken(void)
{
    static const struct {
        const char *operator, * args;
        double seconds;
        ImportOutcome outcome;
    } cases[] = {
        {"aten::mm", "{}", 1.0, IMPORT_SKIP_SHAPE},
        {"aten::mm", DIMS("[8,16],[17,32]") TYPES(B "," B) "}", 1.0, IMPORT_SKIP_SHAPE},
        {"aten::mm", DIMS("[8,0],[0,32]") TYPES(B "," B) "}", 1.0, IMPORT_SKIP_SHAPE},
        {"aten::mm", DIMS("[8,16],[16,32]") TYPES(F "," F) "}", 1.0, IMPORT_SKIP_FORMAT},
        {"aten::mm", DIMS("[8,16],[16,32]") TYPES(B "," H) "}", 1.0, IMPORT_SKIP_FORMAT},
        {"aten::mm", DIMS("[8,16],[16,32]") TYPES(B "," B) "}", 0.0, IMPORT_SKIP_ZERO},
        /* 2 2^30 operations at 100e12/s. */
        {"aten::mm", DIMS("[1024,1024],[1024,1024]") TYPES(B "," B) "}", 2.1e-5, IMPORT_SKIP_PEAK},
        {"aten::mm", DIMS("[1024,1024],[1024,1024]") TYPES(B "," B) "}", 2.2e-5, IMPORT_TAKEN},
        {"aten::bmm", DIMS("[4,8,16],[2,16,32]") TYPES(B "," B) "}", 1.0, IMPORT_SKIP_SHAPE},
        {"aten::bmm", DIMS("[8,16],[16,32]") TYPES(B "," B) "}", 1.0, IMPORT_SKIP_SHAPE},
        /* Sequences behind one another; heads that do not divide; values of another size. */
        {"aten::_scaled_dot_product_flash_attention",
         DIMS("[512,8,64],[512,8,64],[512,8,64]") TYPES(B "," B "," B)
             CONSTANTS("\"\",\"\",\"\",\"0.\",\"True\"") "}",
         1.0, IMPORT_SKIP_SHAPE},
        {"aten::_scaled_dot_product_flash_attention",
         DIMS("[2,8,512,64],[2,3,512,64],[2,3,512,64]") TYPES(B "," B "," B)
             CONSTANTS("\"\",\"\",\"\",\"0.\",\"True\"") "}",
         1.0, IMPORT_SKIP_SHAPE},
        {"aten::_scaled_dot_product_flash_attention",
         DIMS("[2,8,512,192],[2,8,512,192],[2,8,512,128]") TYPES(B "," B "," B)
             CONSTANTS("\"\",\"\",\"\",\"0.\",\"True\"") "}",
         1.0, IMPORT_SKIP_SHAPE},
        {"aten::_scaled_dot_product_flash_attention",
         DIMS("[2,8,512,64],[2,8,512,64],[2,8,512,64]") TYPES(B "," B "," B) "}", 1.0,
         IMPORT_SKIP_UNSAID},
        {"aten::_scaled_dot_product_flash_attention",
         DIMS("[2,8,512,64],[2,8,512,64],[2,8,512,64]") TYPES(F "," F "," F)
             CONSTANTS("\"\",\"\",\"\",\"0.\",\"True\"") "}",
         1.0, IMPORT_SKIP_FORMAT},
        /* 2 products of 2 16 16384^2 64 operations, half of them needed: 5.5 ms; backward 5. */
        {"aten::_scaled_dot_product_flash_attention",
         DIMS("[2,8,16384,64],[2,8,16384,64],[2,8,16384,64]") TYPES(B "," B "," B)
             CONSTANTS("\"\",\"\",\"\",\"0.\",\"True\"") "}",
         5.4e-3, IMPORT_SKIP_PEAK},
        {"aten::_scaled_dot_product_flash_attention",
         DIMS("[2,8,16384,64],[2,8,16384,64],[2,8,16384,64]") TYPES(B "," B "," B)
             CONSTANTS("\"\",\"\",\"\",\"0.\",\"True\"") "}",
         5.6e-3, IMPORT_TAKEN},
        {"aten::_flash_attention_backward",
         DIMS("[2,16384,8,64],[2,16384,8,64],[2,16384,8,64],[2,16384,8,64]")
             TYPES(B "," B "," B "," B) CONSTANTS(NONE7 ",\"\",\"\",\"\",\"0.\",\"True\"") "}",
         13.6e-3, IMPORT_SKIP_PEAK},
        {"aten::_flash_attention_backward",
         DIMS("[2,16384,8,64],[2,16384,8,64],[2,16384,8,64],[2,16384,8,64]")
             TYPES(B "," B "," B "," B) CONSTANTS(NONE7 ",\"\",\"\",\"\",\"0.\",\"True\"") "}",
         13.9e-3, IMPORT_TAKEN},
        {"aten::relu", DIMS("[4096,4096]") TYPES(B) "}", 1.0, IMPORT_SKIP_SMALL},
        {"aten::add", DIMS("[32768,4096],[4096]") TYPES(B "," B) "}", 1.0, IMPORT_SKIP_SHAPE},
        {"aten::_softmax", DIMS("[32768,4096],[],[]") TYPES(B) "}", 1.0, IMPORT_SKIP_UNSAID},
        {"aten::copy_", DIMS("[32768,4096],[32768,4096]") TYPES(B ",\"long int\"") "}", 1.0,
         IMPORT_SKIP_FORMAT},
        {"aten::relu", DIMS("[32768,4096]") TYPES(B) ",\"Input Strides\":[[1,32768]]}", 1.0,
         IMPORT_SKIP_STRIDES},
        {"aten::relu", DIMS("[32768,4096]") TYPES(B) ",\"Input Strides\":[[8192,1]]}", 1.0,
         IMPORT_SKIP_STRIDES},
        {"aten::relu", DIMS("[1,32768,4096]") TYPES(B) ",\"Input Strides\":[[7,4096,1]]}", 1.0,
         IMPORT_TAKEN},
        /* 4 bytes of each of 2^27 elements at 1e12/s. */
        {"aten::relu", DIMS("[32768,4096]") TYPES(B) "}", 5.3e-4, IMPORT_SKIP_PEAK},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        ImportSample s;

        g_test_message("%zu: %s", i, cases[i].operator);
        g_assert_cmpint(read_call(cases[i].operator, cases[i].args, cases[i].seconds, &s), ==,
                        cases[i].outcome);
    }
    g_assert_null(import_operator("aten::linear"));
    g_assert_null(import_operator("aten::m"));
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/profiles/import-operators/products", test_products);
    g_test_add_func("/profiles/import-operators/attention", test_attention);
    g_test_add_func("/profiles/import-operators/memory-bound", test_memory_bound);
    g_test_add_func("/profiles/import-operators/what-is-not-taken", test_what_is_not_taken);
    return g_test_run();
}
