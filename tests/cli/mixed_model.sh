# shellcheck shell=sh
# Sourced: a model of many kinds of layers, which is trained, killed and resumed by tests/long/mixed.sh and timed by
# tests/bench/step_time.sh.

# mixed_model WIDTH: the model with keys of WIDTH, in sequences of up to 4 WIDTH tokens
mixed_model() {
    cat <<END
{"format":"degas-model","version":1,"name":"mixed","family":"llama","n_layers":8,"hidden":$((4 * $1)),
 "n_heads":4,"n_kv_heads":2,"ffn_hidden":$((8 * $1)),"vocab":512,"max_seq_len":$((4 * $1)),"tied_embeddings":false,
 "kinds":{"full":{},"sliding":{"window":$((3 * $1 / 4))},
  "delta":{"mixer":"delta_net","state":{"n_heads":4,"key_dim":$1,"value_dim":$1,"conv":4}},
  "ssm":{"mixer":"mamba2","state":{"n_heads":8,"n_key_heads":2,"key_dim":$(($1 / 2)),"value_dim":$1,
   "conv":4},"experts":{"n_experts":4,"top_k":2,"ffn_hidden":$((4 * $1)),"n_shared":1}}},
 "layers":"2*(sliding, ssm, delta, full)","mtp":{"n":1,"kind":"full","loss_factor":0.3}}
END
}
