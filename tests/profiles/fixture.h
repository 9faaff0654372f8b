/*
 * tests/profiles/fixture.h - a cluster of round numbers, so that expected values can be worked out
 * by hand: 2 nodes of 8 devices; fp16 100 TFLOPS on 100 multiprocessors, 1 TB/s; 100 GB/s inside,
 * adapters of 10 GB/s per device and 20 GB/s per node outside; every fraction 1, every constant 0.
 */
#pragma once

#include <string.h>

#include "profiles/profile.h"

#define FIXTURE_FLOPS 100e12
#define FIXTURE_MEMORY 1e12
#define FIXTURE_DEVICE                                                                             \
    "{\"name\":\"D\",\"flops_per_s\":{\"fp16\":100e12,\"fp32\":10e12},"                            \
    "\"vector_flops_per_s\":10e12,\"memory_bytes\":80000000000,\"memory_bytes_per_s\":1e12,"       \
    "\"n_multiprocessors\":100,\"power_w\":100}"
#define FIXTURE_LEVELS                                                                             \
    "[{\"name\":\"in\",\"group_devices\":8,\"bytes_per_s\":100e9,\"latency_s\":1e-6},"             \
    "{\"name\":\"out\",\"group_devices\":0,\"bytes_per_s\":10e9,\"shared_bytes_per_s\":20e9,"      \
    "\"latency_s\":1e-5}]"
#define FIXTURE_CLUSTER                                                                            \
    "{\"name\":\"c\",\"devices\":[" FIXTURE_DEVICE "],"                                            \
    "\"nodes\":[{\"device\":\"D\",\"n_devices\":8,\"n_nodes\":2}],\"levels\":" FIXTURE_LEVELS "}"
#define FIXTURE_COST                                                                               \
    "{\"gemm_fraction\":1,\"gemm_k_half\":0,\"grouped_fraction\":1,"                               \
    "\"attention_forward_fraction\":1,\"attention_backward_fraction\":1,"                          \
    "\"gemm_memory_fraction\":1,\"memory_fraction\":1,\"kernel_s\":0,\"host_kernel_s\":0,"         \
    "\"memory_kernel_s\":0,\"network_inner_step_s\":0,"                                            \
    "\"host_collective_s\":0,\"link_fraction\":1,\"network_fraction\":1,\"p2p_fraction\":1,"       \
    "\"network_p2p_fraction\":1,\"collective_s\":0,\"network_step_s\":0,\"p2p_s\":0,\"message_"    \
    "buffer_bytes\":0,"                                                                            \
    "\"loss_fraction\":1,\"permute_fraction\":1,"                                                  \
    "\"context_bytes\":0,\"communicator_bytes\":0,\"workspace_bytes\":0,"                          \
    "\"blas_workspace_bytes\":0,\"driver_bytes\":0,"                                               \
    "\"allocator_fraction\":0}"
#define FIXTURE_HEAD "{\"format\":\"degas-profile\",\"version\":1,\"name\":\"fixture\",\"cluster\":"
#define FIXTURE_TEXT FIXTURE_HEAD FIXTURE_CLUSTER ",\"cost\":" FIXTURE_COST "}"

/* NULL with @error where @text is no profile. */
static inline Profile *
fixture_parse(const char *text, GError **error)
{
    g_autoptr(JsonDoc) doc = json_doc_parse("test.json", text, strlen(text), error);
    g_autoptr(Profile) profile = NULL;

    if (doc == NULL)
        return NULL;
    profile = profile_read(doc, json_doc_root(doc, "degas-profile", 1));
    return json_doc_finish(doc, error) ? g_steal_pointer(&profile) : NULL;
}

static inline Profile *
fixture_profile(void)
{
    g_autoptr(GError) error = NULL;
    Profile *profile = fixture_parse(FIXTURE_TEXT, &error);

    g_assert_no_error(error);
    return profile;
}

/* |a - b| <= relative * b. */
static inline void
assert_near(double a, double b, double relative)
{
    g_assert_cmpfloat_with_epsilon(a, b, relative * (b < 0 ? -b : b));
}
