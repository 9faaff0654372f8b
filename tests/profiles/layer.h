/*
 * tests/profiles/layer.h - a small model's layer on the cluster of fixture.h.
 */
#pragma once

#include "profiles/cost/cost.h"
#include "tests/profiles/fixture.h"

static inline const ModelDevice *
device_of(const Profile *profile)
{
    return model_cluster_device(profile->cluster, 0);
}

static const ModelArch arch = {
    .name = (char *)"test",
    .family = MODEL_FAMILY_GPT,
    .n_layers = 4,
    .hidden = 2048,
    .n_heads = 16,
    .n_kv_heads = 16,
    .head_dim = 128,
    .ffn_hidden = 8192,
    .vocab = 51200,
    .max_seq_len = 4096,
    .tied_embeddings = true,
    .qkv_bias = true,
};

static inline ProfileQuery
query_of(int64_t batch, int64_t tokens, int64_t context, int64_t tp)
{
    return (ProfileQuery){
        .arch = &arch,
        .part = MODEL_PART_LAYER,
        .shape = {.batch = batch,
                  .tokens = tokens,
                  .context = context,
                  .tp = tp,
                  .cp = 1,
                  .ep = 1,
                  .dtype = DTYPE_FP16,
                  .expert_imbalance = 1.0},
        .groups = {{0, 1, tp}, {0, tp, 1}, {0, 1, 1}},
    };
}

static inline double
op_s(const Profile *profile, const ModelOp *op, ProfilePass pass)
{
    ProfileCost cost = profile_cost_op(profile, device_of(profile), op, pass, DTYPE_FP16, NULL);

    return profile_cost_s(&cost);
}

static inline double
part_s(const Profile *profile, const ProfileQuery *query, ProfilePass pass)
{
    ProfileCost cost = profile_cost_part(profile, query, pass);

    return profile_cost_s(&cost);
}
