#!/bin/sh
# Peaks of memory: what every rank of degas run held at most, beside what the simulator predicts for it.
# With LONG=corners (make test-long): more of each; with LONG=families every family, what it recomputes and each stage of ZeRO; with LONG=models number
# formats, models and experts; with LONG=attentions attention that is not plain; with LONG=1 all.
# Test runner: first.
# shellcheck source=tests/cli/tap.sh
. tests/cli/tap.sh

# Large enough that a few pages of tables and messages do not count.
cat >"$W/model.json" <<'END'
{"format":"degas-model","version":1,"name":"middling","family":"gpt","n_layers":6,"hidden":192,
 "n_heads":6,"vocab":1024,"max_seq_len":192}
END
# The matrix goes to smaller shares of it.
case $LONG in families | models | 1) sed -i 's/"hidden":192/"hidden":384/' "$W/model.json" ;; esac
DEVICE=cpu
DTYPE=fp32

# profile: of $W/model.json
profile() {
    "$DEGAS" profile "$W/model.json" --device $DEVICE --quick --budget 1 --batches 1 --slices 192 \
        --concurrency 2 --dtype $DTYPE -o "$W/profile.json" >/dev/null 2>"$W/err"
}
profile || {
    DEVICE=reference
    profile || report 1 "profile" "$(cat "$W/err")"
}

# Of degas run.
RUN=""

# Layers of the first of two stages, in place of the number that the profile's times lead to.
FIRST=""

# Bytes of messages that may come before their time, where a rank is ahead because it has a core to itself.
EARLY=0

# peaks NAME FLAG...: measured within 3 % of predicted, on every rank, but for messages that come early
peaks() {
    name=$1
    shift
    "$DEGAS" plan "$W/model.json" "$W/profile.json" --seq-len 192 --dtype $DTYPE \
        --framework degas --global-batch 8 --micro-batch 1 "$@" -o "$W/plan.json" >/dev/null 2>"$W/err" ||
        report 1 "plan $name" "$(cat "$W/err")"
    [ -z "$FIRST" ] || python3 -c "
import json
p = json.load(open('$W/plan.json'))
a, b = p['stages']
n = a['n_layers'] + b['n_layers']
a['n_layers'], b['first_layer'], b['n_layers'] = $FIRST, $FIRST, n - $FIRST
json.dump(p, open('$W/plan.json', 'w'))"
    "$DEGAS" simulate "$W/plan.json" --json >"$W/simulated" 2>"$W/err" ||
        report 1 "simulate $name" "$(cat "$W/err")"
    runs 0 "$name: run" run "$W/plan.json" --device $DEVICE --steps 2 $RUN --json
    json "$name: peaks within 3 % of the prediction" "
s = [r['peak_memory_bytes'] for r in json.load(open('$W/simulated'))['ranks']]
m = [r['peak_memory_bytes'] for r in d['ranks']]
p = [s[i * len(s) // len(m)] for i in range(len(m))]
assert all(0.97 * b <= a <= 1.03 * b + $EARLY for a, b in zip(m, p)), (m, s)"
}

# rare NAME FLAG...: the same in the long test alone
rare() {
    [ -z "$LONG" ] || peaks "$@"
}

# experts WIDTH [DENSE FFN]: from now on the model is one of experts, behind DENSE layers of FFN
experts() {
    cat >"$W/model.json" <<END
{"format":"degas-model","version":1,"name":"middling-experts","family":"llama","n_layers":4,
 "hidden":$1,"n_heads":8,"n_kv_heads":4,"ffn_hidden":${3:-$1},"vocab":1024,"max_seq_len":192,
 "tied_embeddings":false,"experts":{"n_experts":4,"top_k":2,"ffn_hidden":$1,
 "first_dense_layers":${2:-0}}}
END
    profile || report 1 "profile with experts" "$(cat "$W/err")"
    # An untrained router sends some ranks more rows than others; the prediction is of equal shares.
    RUN="--balance-experts"
}

# modules N TIED: from now on the model has N MTP modules
modules() {
    cat >"$W/model.json" <<END
{"format":"degas-model","version":1,"name":"middling-mtp","family":"llama","n_layers":5,
 "hidden":192,"n_heads":6,"ffn_hidden":512,"vocab":1024,"max_seq_len":192,"tied_embeddings":$2,
 "mtp":{"n":$1}}
END
    profile || report 1 "profile with MTP modules" "$(cat "$W/err")"
}

P="--gpus 2 --dp 1 --tp 1 --pp 2 --slices off"
T="--gpus 2 --dp 1 --tp 2 --pp 1 --schedule 1f1b --slices off"
D="--gpus 2 --dp 2 --tp 1 --pp 1 --schedule 1f1b --slices off"
S="--gpus 2 --dp 1 --tp 1 --pp 2"
# shellcheck disable=SC2086
if [ -z "$LONG" ] || [ "$LONG" = corners ]; then
    peaks "1f1b, recompute selective" $P --schedule 1f1b --zero 0 --recompute selective
    for schedule in 1f1b zb-h1 "zb-v --vpp 2" "v-min --vpp 2" dualpipe; do
        for recompute in none full; do
            case "$recompute $schedule" in "none zb-h1" | "full zb-v"*) one=peaks ;; *) one=rare ;; esac
            $one "$schedule, recompute $recompute" $P --schedule $schedule --zero 0 \
                --recompute $recompute
        done
    done
    # What the input's backward has computed again stays until the weights' backward.
    peaks "zb-v, norms and MLP repeated" $P --schedule zb-v --vpp 2 --zero 0 --recompute selective \
        --recompute-modules layernorm,mlp
    rare "slices" $S --schedule terapipe --slices 2 --zero 0 --recompute full
    peaks "many slices" $S --schedule seq1f1b --slices 16 --zero 0 --recompute none
    rare "tp 2, recompute none" $T --zero 0 --recompute none
    peaks "tp 2, recompute full" $T --zero 0 --recompute full
    for zero in 0 1 2 3; do
        case $zero in 1 | 3) one=peaks ;; *) one=rare ;; esac
        $one "dp 2, zero $zero" $D --zero $zero --recompute none
    done
    rare "dp 2, zero 3, recompute full" $D --zero 3 --recompute full
    for ahead in 0 2; do
        rare "dp 2, zero 3, $ahead ahead" $D --zero 3 --recompute none --prefetch-layers $ahead
    done
    # One layer a stage, whose next gathering is the next op's: a layer, a table, or none.  All forwards come first, so
    # that messages of later micro-batches, of 192 tokens each, may wait.
    EARLY=$((4 * 192 * 192 * 4))
    for ahead in 1 2; do
        [ $ahead = 2 ] || [ -n "$LONG" ] || continue
        peaks "dp 2, zero 3, one layer a stage, $ahead ahead" --gpus 4 --dp 2 --tp 1 --pp 2 \
            --slices off --schedule looped-bfs --vpp 3 --zero 3 --recompute full \
            --prefetch-layers $ahead
    done
    EARLY=0
    for offload in cpu nvme; do
        [ $offload = nvme ] || [ -n "$LONG" ] || continue
        peaks "dp 2, parameters offloaded to $offload" $D --zero 3 --recompute none \
            --offload $offload --offload-parameters on
    done
    for offload in cpu nvme; do
        [ $offload = cpu ] || [ -n "$LONG" ] || continue
        peaks "offload of the optimizer: $offload" $P --schedule 1f1b --zero 0 --recompute none \
            --offload $offload
    done
    rare "dp 2, zero 1, recompute full, offload nvme" $D --zero 1 --recompute full --offload nvme
    # What a host's backend needs for it is the profile's.
    DTYPE=bf16
    profile || report 1 "profile in bf16" "$(cat "$W/err")"
    peaks "zb-h1, bf16" $P --schedule zb-h1 --zero 0 --recompute none
    DTYPE=fp32
    # Tables of more bytes than a layer.
    sed -i 's/"vocab":1024/"vocab":8192/; s/"n_layers":6/"n_layers":4/' "$W/model.json"
    profile || report 1 "profile of large tables" "$(cat "$W/err")"
    rare "large tables, zero 3, recompute none" $D --zero 3 --recompute none
    peaks "large tables, zero 3, recompute full" $D --zero 3 --recompute full
    rare "large tables, pp 2, zero 3" --gpus 4 --dp 2 --tp 1 --pp 2 --slices off --schedule zb-h1 \
        --zero 3 --recompute none
    # 129 tokens in 256 columns, over tp 2 in 128 each: 5 % of all bytes.
    sed -i 's/"vocab":8192/"vocab":129/; s/"n_layers":4/"n_layers":1/' "$W/model.json"
    profile || report 1 "profile of an odd vocabulary" "$(cat "$W/err")"
    rare "a padded vocabulary, dp 2" $D --zero 0 --recompute none --pad-vocab on
    peaks "a padded vocabulary, tp 2" $T --zero 0 --recompute none --pad-vocab on
    modules 1 true
    peaks "an MTP module, recompute full" $P --schedule 1f1b --zero 0 --recompute full
    # The gradient of the whole table comes when the module's activations have gone.
    peaks "an MTP module, zero 2" --gpus 4 --dp 2 --tp 1 --pp 2 --slices off --schedule zb-h1 \
        --zero 2 --recompute none
    experts 192
    rare "experts, recompute none" $P --schedule 1f1b --zero 0 --recompute none
    peaks "experts, ep 2, recompute full" --gpus 4 --dp 2 --ep 2 --tp 1 --pp 2 --slices off \
        --schedule zb-h1 --zero 0 --recompute full
    peaks "experts, merged passes" --gpus 2 --dp 2 --ep 2 --tp 1 --pp 1 --slices off --schedule 1f1b --zero 1 \
        --recompute none --overlap ep,pp
    experts 192 1 768
    rare "experts behind a dense layer, recompute full" $P --schedule 1f1b --zero 0 \
        --recompute full
    # The gradient of the embedding is made when what a layer recomputed has gone.
    FIRST=1
    peaks "a dense layer alone, zero 2, recompute full" --gpus 4 --dp 2 --ep 2 --tp 1 --pp 2 \
        --slices off --schedule zb-h1 --zero 2 --recompute full
else
    # The families, in one of the long tests.
    families() {
        for schedule in naive gpipe 1f1b zb-h1 zb-h2 dualpipe zb-auto "interleaved --vpp 2" \
            "looped-bfs --vpp 2" "zb-v --vpp 2" "v-half --vpp 2" "v-min --vpp 2" "dualpipev --vpp 2" \
            "interleaved-zb --vpp 2" "hanayo --vpp 3"; do
            for recompute in none selective full; do
                peaks "$schedule, recompute $recompute" $P --schedule $schedule --zero 0 \
                    --recompute $recompute
                for zero in 1 2 3; do
                    peaks "dp 2, $schedule, recompute $recompute, zero $zero" --gpus 4 --dp 2 --tp 1 \
                        --pp 2 --slices off --schedule $schedule --zero $zero --recompute $recompute
                done
            done
        done
        # Backwards in one and in two, with what divides a layer, in bf16, of the other family.
        for schedule in 1f1b zb-h1 "zb-v --vpp 2" "dualpipev --vpp 2"; do
            for recompute in none full; do
                flags="--slices off --schedule $schedule --zero 0 --recompute $recompute"
                peaks "cp 2, $schedule, recompute $recompute" --gpus 4 --dp 1 --tp 1 --cp 2 --pp 2 \
                    $flags
                peaks "tp 2, sequence parallel, $schedule, recompute $recompute" --gpus 4 --dp 1 \
                    --tp 2 --pp 2 --sequence-parallel on $flags
            done
        done
        for schedule in terapipe seq1f1b "seq1f1b-interleaved --vpp 2"; do
            for recompute in none full; do
                peaks "$schedule, recompute $recompute" $S --slices 8 --schedule $schedule --zero 0 \
                    --recompute $recompute
            done
        done
    }
    # Attention that is not plain, by the profile of plain attention: its bytes are not measured.
    attentions() {
        # attention NAME REST: of a model
        attention() {
            cat >"$W/model.json" <<END
{"format":"degas-model","version":1,"name":"middling-$1","family":"llama","n_layers":6,
 "hidden":384,"n_heads":6,"ffn_hidden":1024,"vocab":1024,"max_seq_len":192,
 "tied_embeddings":false,$2}
END
            for recompute in none full; do
                for schedule in 1f1b zb-h1; do
                    peaks "$1, $schedule, recompute $recompute" $P --schedule $schedule --zero 0 \
                        --recompute $recompute
                done
                peaks "$1, slices, recompute $recompute" $S --schedule seq1f1b --slices 8 --zero 0 \
                    --recompute $recompute
            done
            # An indexer's keys are not exchanged.
            [ "$1" = sparse ] || peaks "$1, cp 2" --gpus 2 --dp 1 --tp 1 --cp 2 --pp 1 --schedule 1f1b --slices off \
                --zero 0 --recompute selective
            peaks "$1, tp 2" $T --zero 0 --recompute none --sequence-parallel on
            peaks "$1, zb-v, modules repeated" $P --schedule zb-v --vpp 2 --zero 0 \
                --recompute selective --recompute-modules core_attn,layernorm,mlp,mla_up_proj
        }
        attention sliding '"n_kv_heads":2,"head_dim":64,
 "kinds":{"sliding":{"window":32},"full":{}},"layers":"2*(2*sliding,full)"'
        attention latent '"head_dim":48,"mla":{"q_lora_rank":192,"kv_lora_rank":128,
 "qk_nope_head_dim":32,"qk_rope_head_dim":16,"v_head_dim":32}'
        attention latent-normed '"head_dim":48,"qk_norm":true,"sinks":true,"mla":{"q_lora_rank":192,
 "kv_lora_rank":128,"qk_nope_head_dim":32,"qk_rope_head_dim":16,"v_head_dim":32}'
        attention sparse '"n_kv_heads":2,"indexer":{"n_heads":4,"head_dim":64,"top_k":64}'
        attention parallel '"n_kv_heads":2,"blocks":"parallel","norm_place":"post"'
        attention gated '"n_kv_heads":2,"head_dim":64,"qk_norm":true,"output_gate":"element",
 "v_dim":48'
    }
    # Other number formats, models and kinds of layers, in the other.
    models() {
        # backwards NAME
        backwards() {
            profile || report 1 "profile $1" "$(cat "$W/err")"
            for schedule in 1f1b zb-h1 "zb-v --vpp 2" "dualpipev --vpp 2"; do
                for recompute in none full; do
                    peaks "$1, $schedule, recompute $recompute" $P --schedule $schedule --zero 0 \
                        --recompute $recompute
                done
            done
        }
        DTYPE=bf16
        backwards bf16
        DTYPE=fp32
        cat >"$W/model.json" <<'END'
{"format":"degas-model","version":1,"name":"middling-llama","family":"llama","n_layers":6,
 "hidden":384,"n_heads":6,"n_kv_heads":3,"ffn_hidden":1024,"vocab":1024,"max_seq_len":192,
 "tied_embeddings":false}
END
        backwards llama
        # state MIXER KEYS: a model all of whose layers have that mixer
        state() {
            cat >"$W/model.json" <<END
{"format":"degas-model","version":1,"name":"middling-$1","family":"llama","n_layers":4,
 "hidden":192,"n_heads":6,"n_kv_heads":3,"ffn_hidden":512,"vocab":1024,"max_seq_len":192,
 "tied_embeddings":false,"mixer":"$1","state":{$2}}
END
            profile || report 1 "profile of $1" "$(cat "$W/err")"
            peaks "$1, zb-h1" $P --schedule zb-h1 --zero 0 --recompute none
            peaks "$1, slices" $S --slices 4 --schedule seq1f1b --zero 0 --recompute none
            peaks "$1, recompute full" $P --schedule 1f1b --zero 0 --recompute full
            peaks "$1, recompute selective" $P --schedule 1f1b --zero 0 --recompute selective
            peaks "$1, cp 2" --gpus 2 --dp 1 --tp 1 --cp 2 --pp 1 --schedule 1f1b --slices off --zero 0 --recompute none
        }
        state delta_net '"n_heads":6,"key_dim":32,"value_dim":32,"conv":4'
        state kda '"n_heads":6,"key_dim":32,"value_dim":32,"conv":4,"rank":32'
        state mamba2 '"n_heads":12,"n_key_heads":2,"key_dim":32,"value_dim":32,"conv":4'
        state mamba '"n_heads":384,"key_dim":16,"value_dim":1,"conv":4,"rank":12'
        state lightning '"n_heads":6,"key_dim":32,"value_dim":32'
        state conv '"n_heads":192,"key_dim":1,"value_dim":1,"conv":3'
        state attention_mamba2 '"n_heads":12,"n_key_heads":3,"key_dim":32,"value_dim":32,"conv":4'
        state mamba '"n_heads":384,"key_dim":16,"value_dim":1,"rank":12,"inner_norms":true'
        for n in 1 2; do
            modules $n "$([ $n = 1 ] && echo true || echo false)"
            for recompute in none selective full; do
                for schedule in 1f1b zb-h1 "zb-v --vpp 2" dualpipe; do
                    peaks "MTP $n, $schedule, recompute $recompute" $P --schedule $schedule --zero 0 \
                        --recompute $recompute
                done
                peaks "MTP $n, slices, recompute $recompute" $S --slices 4 --schedule seq1f1b --zero 0 \
                    --recompute $recompute
                peaks "MTP $n, tp 2, recompute $recompute" $T --zero 0 --recompute $recompute
                peaks "MTP $n, tp 2, sequence parallel, recompute $recompute" $T --zero 0 \
                    --recompute $recompute --sequence-parallel on
                for zero in 1 2 3; do
                    peaks "MTP $n, dp 2, zero $zero, recompute $recompute" $D --zero $zero \
                        --recompute $recompute
                done
            done
            peaks "MTP $n, dp 2, pp 2, zero 3" --gpus 4 --dp 2 --tp 1 --pp 2 --slices off \
                --schedule 1f1b --zero 3 --recompute none
        done
        experts 384
        for schedule in 1f1b zb-h1 "zb-v --vpp 2" "dualpipev --vpp 2"; do
            for recompute in none selective full; do
                peaks "experts, $schedule, recompute $recompute" $P --schedule $schedule --zero 0 \
                    --recompute $recompute
            done
        done
        for recompute in none full; do
            peaks "experts, tp 2, recompute $recompute" $T --zero 0 --recompute $recompute
            peaks "experts, tp 2, sequence parallel, recompute $recompute" $T --zero 0 \
                --sequence-parallel on --recompute $recompute
            peaks "experts, cp 2, recompute $recompute" --gpus 2 --dp 1 --tp 1 --cp 2 --pp 1 \
                --schedule 1f1b --slices off --zero 0 --recompute $recompute
            peaks "experts, slices, recompute $recompute" $S --schedule seq1f1b --slices 8 --zero 0 \
                --recompute $recompute
            for zero in 1 2 3; do
                peaks "experts, dp 2, zero $zero, recompute $recompute" $D --zero $zero \
                    --recompute $recompute
                peaks "experts, ep 2, pp 2, zero $zero, recompute $recompute" --gpus 4 --dp 2 --ep 2 \
                    --tp 1 --pp 2 --slices off --schedule 1f1b --zero $zero --recompute $recompute
            done
            peaks "experts, ep 2, recompute $recompute" $D --ep 2 --zero 0 --recompute $recompute
            peaks "experts, ep 2, tp 2, recompute $recompute" $T --ep 2 --zero 0 --recompute $recompute
            peaks "experts, ep 2, cp 2, recompute $recompute" --gpus 2 --dp 1 --tp 1 --cp 2 --ep 2 \
                --pp 1 --schedule 1f1b --slices off --zero 0 --recompute $recompute
            peaks "experts, ep 4, recompute $recompute" --gpus 4 --dp 4 --ep 4 --tp 1 --pp 1 \
                --schedule 1f1b --slices off --zero 0 --recompute $recompute
            for schedule in zb-h1 "zb-v --vpp 2"; do
                peaks "experts, ep 2, $schedule, recompute $recompute" --gpus 4 --dp 2 --ep 2 --tp 1 \
                    --pp 2 --slices off --schedule $schedule --zero 0 --recompute $recompute
            done
        done
        # Two ops of a rank at a time.
        for schedule in 1f1b "interleaved --vpp 2" dualpipe "dualpipev --vpp 2"; do
            peaks "experts, ep 2, $schedule, merged passes" --gpus 4 --dp 2 --ep 2 --tp 1 --pp 2 --slices off \
                --schedule $schedule --zero 0 --recompute none --overlap ep,pp
        done
        peaks "experts, ep 2, 1f1b, merged passes, recompute full" --gpus 4 --dp 2 --ep 2 --tp 1 --pp 2 \
            --slices off --schedule 1f1b --zero 0 --recompute full --overlap ep,pp
        # Modules that split backwards repeat, with shared experts besides.
        sed -i 's/"top_k":2/"top_k":2,"n_shared":1/' "$W/model.json"
        profile || report 1 "profile with shared experts" "$(cat "$W/err")"
        for schedule in zb-h1 "zb-v --vpp 2" dualpipe; do
            for modules in layernorm moe moe_act shared_experts layernorm,moe_act; do
                peaks "$schedule, $modules repeated" $P --schedule $schedule --zero 0 \
                    --recompute selective --recompute-modules $modules
            done
        done
        # Stages of both kinds of layers; of dense layers alone in such a model.
        for dense in 1 2 3; do
            experts 256 $dense 1024
            for schedule in 1f1b zb-h1 "zb-v --vpp 2"; do
                for recompute in none full; do
                    peaks "experts behind $dense dense layers, $schedule, recompute $recompute" $P \
                        --schedule $schedule --zero 0 --recompute $recompute
                done
            done
            for zero in 1 2 3; do
                for FIRST in 1 2 3; do
                    peaks "experts behind $dense dense layers, first $FIRST, dp 2, ep 2, zero $zero" \
                        --gpus 4 --dp 2 --ep 2 --tp 1 --pp 2 --slices off --schedule zb-h1 \
                        --zero $zero --recompute full
                done
            done
            FIRST=""
        done
    }
    case "$LONG" in
    families | models | attentions) $LONG ;;
    *)
        families
        models
        attentions
        ;;
    esac
fi

finish
