#!/bin/sh
# Gives two builds of degas the same requests and compares all that they answer, byte by byte: every file that they
# write, stdout, stderr and the exit status.  For changes of the code that must not change what the program says.
#
# usage: tests/same_bytes.sh OLD_PROGRAM NEW_PROGRAM [OUT_DIR]
#   OUT_DIR      keeps requests and answers: input/, old/REQUEST/, new/REQUEST/; must be empty or not exist.
#                Without it they are in a temporary folder that is gone afterwards.
#   ONLY         environment: only requests whose names match this pattern of the shell, such as 'simulate-*'
#   VALIDATION   environment: a folder of measured runs, which is validated as a whole; without it only small tables
#                are that the script writes itself
#
# A request is a name and a chain of commands, each with the files that those before it wrote.  Both programs run all
# requests at the same time, each in folders of its own with equal relative names, under the name degas.  One line is
# printed for each request that differs; the last line counts.  The exit status is 0 when nothing differs, 1 when
# something does, 2 for wrong usage or where requests cannot be made.  It takes about two minutes on two cores that
# have nothing else to do.
#
# What is measured is never the same twice and is left out: of `degas run` the losses, the largest error of the
# gradients, the state in checkpoints and the order of the ops are compared; of `degas profile` which rows were timed.
set -u

if [ $# -lt 2 ] || [ $# -gt 3 ]; then
    sed -n 's/^# usage: /usage: /p' "$0" >&2
    exit 2
fi

# absolute PATH: the same file, from anywhere
absolute() {
    printf '%s/%s\n' "$(cd "$(dirname "$1")" && pwd)" "$(basename "$1")"
}

for program in "$1" "$2"; do
    if [ ! -x "$program" ] || [ -d "$program" ]; then
        echo "same_bytes.sh: $program: not a program" >&2
        exit 2
    fi
done
old=$(absolute "$1")
new=$(absolute "$2")
project=$(cd "$(dirname "$0")/.." && pwd)
ONLY=${ONLY:-*}
if [ -n "${VALIDATION:-}" ]; then
    if [ ! -d "$VALIDATION" ]; then
        echo "same_bytes.sh: VALIDATION: $VALIDATION: not a folder" >&2
        exit 2
    fi
    VALIDATION=$(cd "$VALIDATION" && pwd)
fi
if [ $# = 3 ]; then
    if [ -d "$3" ] && [ -n "$(ls -A "$3")" ]; then
        echo "same_bytes.sh: $3: is not empty" >&2
        exit 2
    fi
    mkdir -p "$3" || exit 2
    O=$(cd "$3" && pwd)
    trap 'exit 1' INT TERM
else
    O=$(mktemp -d) || exit 2
    trap 'rm -rf "$O"' EXIT
    trap 'exit 1' INT TERM
fi

# What the program reads of its surroundings is the same everywhere.
LC_ALL=C.UTF-8
COLUMNS=100
TERM=dumb
export LC_ALL COLUMNS TERM
unset NO_COLOR DEGAS_PLUGIN_DIR DEGAS_CUDA_ATTENTION

# --- asking ---

# request NAME: what follows belongs to it; false if it was not asked for
request() {
    # shellcheck disable=SC2254
    case $1 in
    $ONLY) ;;
    *) return 1 ;;
    esac
    name=$1
    n=0
    from=/dev/null
    raw=$side.raw/$name
    mkdir -p "$side/$name" "$raw"
    cd "$side/$name" || exit 2
}

# tries ARGUMENT...: runs degas with stdin from $from; keeps NUMBER.out, NUMBER.err and a line in the file statuses
tries() {
    n=$((n + 1))
    number=$(printf '%03d' "$n")
    degas "$@" >"$number.out" 2>"$number.err" <"$from"
    status=$?
    printf '%s: status %s: degas %s\n' "$number" "$status" "$*" >>statuses
}

# expected STATUS: a request that does not do what it is there for is noted
expected() {
    [ "$status" = "$1" ] ||
        printf '%s: %s, status %s instead of %s\n' "$name" "$(tail -1 statuses)" "$status" "$1" >>"$side.notes"
}

# runs ARGUMENT...: a command that is done
runs() {
    tries "$@"
    expected 0
}

# fails STATUS ARGUMENT...: a command that ends with this status
fails() {
    want=$1
    shift
    tries "$@"
    expected "$want"
}

# learns NAME PLAN ARGUMENT...: degas run, of which what two runs have in common is kept in NAME.learnt
learns() {
    stem=$1
    plan=$2
    shift 2
    degas run "$plan" "$@" --json --trace "$raw/$stem.trace" >"$raw/$stem.out" 2>"$raw/$stem.err" </dev/null
    status=$?
    n=$((n + 1))
    printf '%03d: status %s: degas run %s %s\n' "$n" "$status" "$plan" "$*" >>statuses
    expected 0
    {
        sed -n '/"steps":/p; /"first_step":/p; /"losses":/p; /"verify":/p; /"backend":/p' "$raw/$stem.out"
        # The ops of each rank in their order, without their times; when a rank waits is different each time.
        sed -n 's/.*"ph": "X", "pid": \([0-9]*\), "tid": 0,.*"cat": "[FBIW]", .*"op": "\([^"]*\)".*/\1 \2/p' "$raw/$stem.trace"
    } >"$stem.learnt"
}

# --- the files that requests read; both sides read the same ones ---

write_models() {
    cat >tiny.json <<'END'
{"format":"degas-model","version":1,"name":"tiny","family":"gpt","n_layers":4,"hidden":32,
 "n_heads":2,"vocab":256,"max_seq_len":64}
END
    cat >mixture.json <<'END'
{"format":"degas-model","version":1,"name":"mixture","family":"llama","n_layers":4,"hidden":32,
 "n_heads":4,"n_kv_heads":2,"ffn_hidden":64,"vocab":256,"max_seq_len":32,
 "experts":{"n_experts":4,"top_k":2,"ffn_hidden":32,"n_shared":1,"first_dense_layers":1}}
END
    cat >latent.json <<'END'
{"format":"degas-model","version":1,"name":"latent","source":"nobody","family":"llama","n_layers":14,"hidden":2048,
 "n_heads":16,"ffn_hidden":8192,"vocab":50304,"max_seq_len":4096,"qk_norm":true,"tied_embeddings":true,
 "mla":{"q_lora_rank":512,"kv_lora_rank":256,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128}}
END
    awk 'BEGIN { for (i = 0; i < 4000; i++) printf "%s", (i * i * 7 + i) % 97 % 13 == 5 ? "\n" : "degas takes the bubbles out " }' \
        >text.txt
    mkdir -p huggingface
    cp "$project"/tests/models/huggingface/*.json huggingface
}

# cluster NAME DEVICES NODES LEVELS: a profile with default costs
cluster() {
    printf '{"format":"degas-profile","version":1,"name":"%s","cluster":{"name":"%s","devices":[%s],"nodes":[%s],' \
        "$1" "$1" "$2" "$3" >"$1.json"
    printf '"levels":[%s],"price_per_device_hour":2.5,"currency":"EUR","price_source":"nobody","sources":["none"]}}\n' "$4" \
        >>"$1.json"
}

write_clusters() {
    a100='{"name":"A100-SXM4-80GB","flops_per_s":{"fp32":19.5e12,"tf32":156e12,"fp16":312e12,"bf16":312e12},
 "vector_flops_per_s":19.5e12,"memory_bytes":85899345920,"memory_bytes_per_s":2039e9,"n_multiprocessors":108,
 "l2_bytes":41943040,"power_w":400}'
    h100='{"name":"H100-SXM5-80GB","flops_per_s":{"fp32":66.9e12,"tf32":494e12,"fp16":989e12,"bf16":989e12,"fp8":1978e12},
 "vector_flops_per_s":66.9e12,"memory_bytes":85899345920,"memory_bytes_per_s":3350e9,"n_multiprocessors":132,
 "l2_bytes":52428800,"power_w":700,"price_per_hour":4}'
    nvlink='{"name":"nvlink","group_devices":8,"bytes_per_s":300e9,"shared_bytes_per_s":0,"latency_s":2e-6}'
    cluster mixed "$a100,$h100" '{"device":"A100-SXM4-80GB","n_devices":8,"n_nodes":2,"links":[{"level":"network",
 "bytes_per_s":12.5e9,"shared_bytes_per_s":25e9,"latency_s":8e-6}]},{"device":"H100-SXM5-80GB","n_devices":8,"n_nodes":2}' \
        "$nvlink,"'{"name":"network","group_devices":0,"bytes_per_s":50e9,"shared_bytes_per_s":100e9,"latency_s":5e-6}'
    # Four nodes of two behind one slow adapter each; and a tree of three levels
    cluster slow "$a100" '{"device":"A100-SXM4-80GB","n_devices":2,"n_nodes":4}' \
        '{"name":"nvlink","group_devices":2,"bytes_per_s":300e9,"shared_bytes_per_s":0,"latency_s":2e-6},
 {"name":"ethernet","group_devices":0,"bytes_per_s":2e9,"shared_bytes_per_s":2e9,"latency_s":2e-5}'
    cluster tree "$a100" '{"device":"A100-SXM4-80GB","n_devices":4,"n_nodes":8}' \
        '{"name":"nvlink","group_devices":4,"bytes_per_s":300e9,"shared_bytes_per_s":0,"latency_s":2e-6},
 {"name":"leaf","group_devices":16,"bytes_per_s":25e9,"shared_bytes_per_s":50e9,"latency_s":5e-6},
 {"name":"spine","group_devices":0,"bytes_per_s":12e9,"shared_bytes_per_s":12e9,"latency_s":1e-5}'

    # Layers that somebody timed, and how their timings varied
    awk -v header="$(cat slow.json)" 'BEGIN {
        sub(/"name":"slow",/, "\"name\":\"timed\",", header)
        sub(/}[ \n]*$/, ",", header)
        printf "%s\"measured_model\":{\"format\":\"degas-model\",\"version\":1,\"name\":\"timed\",", header
        printf "\"family\":\"gpt\",\"n_layers\":12,\"hidden\":768,\"n_heads\":12,\"vocab\":50304,\"max_seq_len\":1024},"
        printf "\"measured_on\":\"a machine\",\"measured_dtype\":\"bf16\",\"measured_concurrency\":2,"
        printf "\"measured_variation\":{\"op_fraction\":0.2,\"correlation_s\":0.05,\"rank_fraction\":0.1},\"measured\":["
        n = split("forward 1 backward 2.1 backward_input 1.2 backward_weight 0.9", passes, " ")
        for (tp = 1; tp <= 2; tp++)
            for (b = 1; b <= 4; b *= 2)
                for (t = 256; t <= 1024; t *= 2)
                    for (c = 0; c + t <= 1024; c += 256)
                        for (i = 1; i < n; i += 2) {
                            s = (20 + b * t * (0.5 + (c + t / 2) / 4000)) / tp * passes[i + 1] * 1e-6
                            printf "%s{\"op\":\"layer\",\"pass\":\"%s\",\"batch\":%d,\"tokens\":%d,\"context\":%d,\"tp\":%d,", sep,
                                passes[i], b, t, c, tp
                            printf "\"median_s\":%.9f,\"p10_s\":%.9f,\"p90_s\":%.9f}", s, s * 0.95, s * 1.2
                            sep = ","
                        }
        for (i = 1; i <= 3; i += 2)
            for (b = 1; b <= 4; b *= 2) {
                printf ",{\"op\":\"embedding\",\"pass\":\"%s\",\"batch\":%d,\"tokens\":1024,\"context\":0,\"tp\":1,\"median_s\":%.9f}",
                    passes[i], b, 5e-5 * b
                printf ",{\"op\":\"head\",\"pass\":\"%s\",\"batch\":%d,\"tokens\":1024,\"context\":0,\"tp\":1,\"median_s\":%.9f}",
                    passes[i], b, 5e-4 * b * passes[i + 1]
            }
        for (elements = 1e6; elements <= 1e8; elements *= 10)
            printf ",{\"op\":\"optimizer\",\"n_elements\":%d,\"median_s\":%.9f}", elements, 1e-5 + elements * 2e-11
        printf ",{\"op\":\"overhead\",\"median_s\":3e-6}"
        for (bytes = 65536; bytes < 2e8; bytes *= 8) {
            printf ",{\"op\":\"all_reduce\",\"bytes\":%d,\"n_ranks\":4,\"median_s\":%.9f}", bytes, 2e-5 + bytes / 1.3e9
            printf ",{\"op\":\"p2p\",\"bytes\":%d,\"n_ranks\":2,\"median_s\":%.9f}", bytes, 1e-5 + bytes / 1.7e9
        }
        printf "]}\n"
    }' >timed.json
}

write_costs() {
    # Times of slices: two sequences of four cells of 8 tokens, and the same with messages
    for file in costs messages; do
        awk -v messages="$([ $file = messages ] && echo 1 || echo 0)" 'BEGIN {
            printf "{"
            for (b = 1; b <= 2; b++)
                for (s = 8; s <= 32; s += 8)
                    for (c = 0; c <= 32 - s; c += 8) {
                        work = b * s * (2 * c + s + 20)
                        printf "%s\"%d_%d_%d\":{\"forward_mean\":%.7f,\"backward_mean\":%.7f", sep, b, s, c,
                            0.0003 + work * 1e-6 + (s == 24) * 1e-3, 0.0001 + work * 2.5e-6
                        if (messages)
                            printf ",\"communication_mean\":%.7f", 0.0004 + b * s * 1e-6
                        printf "}"
                        sep = ","
                    }
            print "}"
        }' >$file.json
    done
    # More cells, of which few are measured
    awk 'BEGIN {
        printf "{"
        for (b = 1; b <= 8; b *= 2)
            for (s = 64; s <= 1024; s *= 2)
                for (c = 0; c <= 1024 - s; c += (c < 256 ? 128 : 256)) {
                    printf "%s\"%d_%d_%d\":{\"forward_mean\":%.7f,\"backward_mean\":%.7f}", sep, b, s, c,
                        0.0002 + b * s * (600 + c + s / 2) * 2e-9, 0.0003 + b * s * (700 + c + s / 2) * 5e-9
                    sep = ","
                }
        print "}"
    }' >sparse.json
    # NumPy: one sequence of two cells of 8 tokens; 2^-10 s, 1.25 and 1.75 times it, infinity elsewhere
    inf='\000\000\000\000\000\000\360\177'
    first='\000\000\000\000\000\000\120\077'
    second='\000\000\000\000\000\000\124\077'
    both='\000\000\000\000\000\000\134\077'
    {
        printf '\223NUMPY\001\000v\000'
        printf '%-117s\n' "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3, 3), }"
        # shellcheck disable=SC2059
        printf "$inf$inf$inf$inf$inf$inf$inf$inf$inf$inf$inf$inf$first$second$inf$both$inf$inf"
    } >costs.npy
}

write_measurements() {
    cat >nccl.txt <<'END'
# nccl-tests version 2.17.1 nccl-headers=22703 nccl-library=22703
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 1048576 maxBytes 2097152 step: 2(factor) warmup iters: 1 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid  15000 on      host device  0 [0000:07:00] NVIDIA A100-SXM4-80GB
#  Rank  1 Group  0 Pid  15000 on      host device  1 [0000:0f:00] NVIDIA A100-SXM4-80GB
#
host:15000:15000 [0] NCCL INFO Bootstrap : Using eth0
     1048576        262144     float     sum      -1    44.21   23.72   23.72       0    43.00   24.33   24.33       0
     2097152        524288     float     sum      -1    5.9e1   35.54   35.54     N/A    60.00   34.95   34.95     N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 29.6
END
    sed 's/ sum / none /; /Collective test/d' nccl.txt >unknown.txt
    awk 'BEGIN {
        print "# Collective test starting: all_gather_perf"
        for (r = 0; r < 8; r++)
            printf "#  Rank  %d Group  0 Pid  1 on host device  %d [0x07] NVIDIA A100\n", r, r
        for (bytes = 2^20; bytes <= 2^30; bytes *= 2) {
            t = (35e-6 + 7 * 2.2e-6 + 7 / 8 * bytes / (300e9 * 0.65)) * 1e6
            half = sprintf("%.4f %.2f %.2f 0", t, bytes / t / 1e3, bytes / t / 1e3 * 7 / 8)
            print bytes, bytes / 4, "float none -1", half, half
        }
    }' >gather.txt
    cat >nccl.json <<'END'
{"version":3,"start_time":"x","args":["all_reduce_perf","-J","f"],"env":[],"nccl_version":"22809",
 "config":{"nthreads":1,"ngpus":2,"minimum_bytes":1048576},
 "devices":[{"rank":0,"group":0,"pid":1,"hostname":"h","device":0},{"rank":1,"group":0,"pid":1,"hostname":"h","device":1}],
 "results":[{"size":1048576,"count":262144,"type":"float","redop":"sum","root":"-1",
   "out_of_place":{"time":44.21,"alg_bw":23.72,"bus_bw":23.72,"nwrong":"0"},
   "in_place":{"time":43.00,"alg_bw":24.33,"bus_bw":"nan","nwrong":"0"}}],
 "out_of_bounds":{"count":0,"okay":"true"}}
END
    # What torch.profiler writes: collectives, products, attention, kernels bound by memory, and what is not taken
    awk '
    function event(rest) {
        printf "%s\n{\"ph\":\"X\",%s}", sep, rest
        sep = ","
    }
    function call(name, dims, types, concrete, kernel, us) {
        id++
        event(sprintf("\"cat\":\"cpu_op\",\"name\":\"%s\",\"pid\":1,\"tid\":1,\"ts\":%d,\"dur\":5,\"args\":{\"External id\":%d," \
            "\"Input Dims\":[%s],\"Input type\":[%s]%s}", name, 100000 * id - 9, id, dims, types,
            concrete == "" ? "" : ",\"Concrete Inputs\":[" concrete "]"))
        event(sprintf("\"cat\":\"kernel\",\"name\":\"%s\",\"pid\":0,\"tid\":7,\"ts\":%d,\"dur\":%.3f," \
            "\"args\":{\"External id\":%d,\"correlation\":%d}", kernel, 100000 * id, us, id, id))
    }
    function collective(what, elements, ranks, us) {
        event(sprintf("\"cat\":\"kernel\",\"name\":\"ncclDevKernel_X\",\"pid\":0,\"tid\":8,\"ts\":%d,\"dur\":%s," \
            "\"args\":{\"Collective name\":\"%s\",\"In msg nelems\":%d,\"Out msg nelems\":%d,\"dtype\":\"BFloat16\"," \
            "\"Group size\":%d}", 9e8 + us, us, what, elements, elements, ranks))
    }
    BEGIN {
        b = "\"c10::BFloat16\""
        printf "{\"schemaVersion\":1,\"deviceProperties\":[],\"distributedInfo\":{\"backend\":\"nccl\",\"rank\":0," \
            "\"world_size\":4},\"displayTimeUnit\":\"ms\",\"traceEvents\":["
        collective("allreduce", 1048576, 4, "250.5")
        collective("allreduce", 1048576, 4, "90")
        collective("send", 524288, 2, "40")
        collective("_allgather_base", 4194304, 4, "123")
        collective("_reduce_scatter_base", 4194304, 4, "124.25")
        for (k = 2048; k <= 8192; k *= 2)
            call("aten::mm", sprintf("[8192,%d],[%d,8192]", k, k), b "," b, "", "gemm", 2 * 8192 * 8192 * k / 312e6 / 0.7)
        call("aten::addmm", "[16384],[8192,4096],[4096,16384]", b "," b "," b, "", "gemm", 5100)
        call("aten::bmm", "[16,4096,128],[16,128,4096]", b "," b, "", "gemm", 320)
        call("aten::add", "[8192,8192],[8192,8192],[]", b "," b ",\"Scalar\"", "", "add", 250)
        call("aten::gelu", "[8192,8192],[]", "\"float\",\"\"", "", "gelu", 330)
        for (s = 2048; s <= 8192; s *= 2) {
            q = sprintf("[2,32,%d,128]", s)
            call("aten::_scaled_dot_product_flash_attention", q "," q "," q ",[],[],[]",
                b "," b "," b ",\"Scalar\",\"Scalar\",\"Scalar\"", "\"\",\"\",\"\",\"0.\",\"True\",\"False\"", "flash_fwd",
                3 + 4 * 64 * s * s * 128 / 2 / 312e6 / 0.5)
        }
        call("aten::native_layer_norm", "[8192,16384],[],[16384],[16384],[]", b ",\"ScalarList\"," b "," b ",\"Scalar\"",
            "\"\",\"[16384]\",\"\",\"\",\"1e-05\"", "norm", 340)
        call("aten::_log_softmax", "[8192,16384],[],[]", "\"float\",\"Scalar\",\"Scalar\"", "\"\",\"1\",\"False\"", "softmax", 950)
        call("aten::topk", "[8,64,64],[]", b ",\"Scalar\"", "", "topk", 50)
        call("aten::mm", "[64,32],[16,64]", b "," b, "", "gemm", 70)
        call("aten::mm", "[64,64],[64,64]", "\"float\",\"float\"", "", "gemm", 70)
        call("aten::mm", "[8192,8192],[8192,8192]", b "," b, "", "gemm", 100)
        print "]}"
    }' >kineto.json
    cat >terapipe.json <<'END'
{"1_128_0":{"py_forward_mean":0.0011,"forward_mean":0.001,"forward_std":0.0001,"py_backward_mean":0.0021,"backward_mean":0.002,"update_mean":0.0003},
 "1_64_64":{"forward_mean":0.0008,"backward_mean":0.0015,"backward_std":0}}
END
    echo '{"model_name":"x","size_gap":32,"tensor_sizes":[32,64],"mean":[1e-5,2e-5],"std":[0,0]}' >terapipe-messages.json
    # gpt-mini has eight layers; embedding before them, norm and head behind
    awk 'BEGIN {
        printf "{\"2\":{\"1\":{\"0\":[1e-4,1e-6,5e-3]"
        for (i = 1; i <= 8; i++)
            printf ",\"%d\":[%.4f,%.4f,5e-3]", i, 1e-3 * i, 2e-3 * i
        print ",\"9\":[1e-5,2e-5,5e-3],\"10\":[4e-3,8e-3,5e-3]}}}"
    }' >sailor.json
    cat >simumax.json <<'END'
{"sys_name":"a100","num_per_node":8,"_notes":"x","accelerator":{"backend":"cuda","mem_gbs":80,"op":{
  "default":{"tflops":312,"efficient_factor":0.75},
  "matmul":{"tflops":312,"efficient_factor":0.75,"accurate_efficient_factor":{
   "b=1, m=8192, k=8192, n=8192, layout=TN, accumulate=False, out_dtype=bf16":0.70,
   "b=1, m=4096, k=8192, n=28672, layout=TN, accumulate=False, out_dtype=bf16":0.72}},
  "sdp_fwd":{"tflops":312,"efficient_factor":0.8},"sdp_bwd":{"tflops":312,"efficient_factor":0.8},
  "group_matmul":{"tflops":312,"efficient_factor":0.6}},
  "mode":"roofline","bandwidth":{"default":{"efficient_factor":0.91,"gbps":2039,"latency_us":40}}},
 "networks":{"intra_with_pcie":false,
  "low_intra_node":{"processor_usage":0.0,"bandwidth":{"efficient_factor":0.5,"gbps":30,"latency_us":10},
   "op":{"all_reduce":{"scale":2,"offset":-1},"p2p":{"scale":1,"offset":0}}},
  "high_intra_node":{"processor_usage":0.0,"bandwidth":{"efficient_factor":0.7,"gbps":300,"latency_us":10},
   "op":{"all_reduce":{"scale":2,"offset":-1},"p2p":{"scale":1,"offset":0}}},
  "inter_node":{"processor_usage":0.0,"bandwidth":{"efficient_factor":0.8,"gbps":25,"latency_us":10},
   "op":{"all_reduce":{"scale":2,"offset":-1},"p2p":{"scale":1,"offset":0}}}}}
END
    cat >calculon.json <<'END'
{"matrix":{"float16":{"tflops":312,"gflops_efficiency":[[128,0.95],[16,0.9],[0,0.1]]}},
 "vector":{"float16":{"tflops":78,"gflops_efficiency":[[16,0.95],[0,0.1]]}},
 "mem1":{"GiB":80,"GBps":2048,"MB_efficiency":[[100,0.9],[10,0.75],[0,0.3]]},
 "mem2":{"GiB":512,"GBps":32,"MB_efficiency":[[100,0.5],[0,0.3]]},
 "processing_mode":"no_overlap",
 "networks":[{"bandwidth":300,"efficiency":0.6,"size":8,"latency":1e-6,"ops":{},"must_be_filled":true,"processor_usage":0.15},
             {"bandwidth":25,"efficiency":0.9,"size":65536,"latency":2e-6,"ops":{},"must_be_filled":false,"processor_usage":0.02}]}
END
}

# Tables of measured runs: sources with conventions of their own, all three quantities, a folder of them.
write_tables() {
    mkdir -p runs
    head='source,id,gpu,gpus,model,layers,hidden,heads,vocab,seq,global_batch,micro_batch,dp,tp,pp,schedule,recompute,dtype,measured_iter_ms,measured_mem_GiB,status,notes'
    awk -v head="$head" 'BEGIN {
        print head
        split("1 1 8 2 1 4 1 2 4 2 2 2 4 1 2 1 4 2 8 1 1", split_of, " ")
        for (hidden = 1024; hidden <= 4096; hidden *= 2)
            for (i = 1; i <= 21; i += 3)
                for (micro = 1; micro <= 4; micro *= 4) {
                    tp = split_of[i]; pp = split_of[i + 1]; dp = split_of[i + 2]
                    printf "mine,h%d-t%dp%dm%d,A100-SXM4-80GB,8,gpt,8,%d,16,51200,1024,64,%d,%d,%d,%d,1f1b,none,fp16,1000,,ok,\n",
                        hidden, tp, pp, micro, hidden, micro, dp, tp, pp
                }
    }' >table.csv
    awk -v head="$head" 'BEGIN {
        print head ",zero,vpp"
        for (tp = 1; tp <= 4; tp *= 2)
            for (micro = 1; micro <= 4; micro *= 2)
                for (hidden = 1024; hidden <= 2048; hidden *= 2)
                    printf "vtrain_single,%d-%d-%d,A100-SXM4-80GB,8,GPT,12,%d,16,,1024,32,%d,%d,%d,1,grad-accum,none,fp16,%.1f,,ok,,,\n",
                        tp, micro, hidden, hidden, micro, 8 / tp, tp, 40 + hidden / 10 + 30 * tp + 3 * micro
        for (layers = 30; layers <= 50; layers++)
            printf "hagemann_a100,l%d,A100-SXM4-80GB,1,llama,%d,2048,16,51200,1024,16,8,1,1,1,1f1b,none,bf16,,%s,%s,kernel=flash_attention2,,\n",
                layers, layers, layers < 43 ? 30 + layers : "", layers < 43 ? "ok" : "oom"
    }' >runs/first.csv
    {
        echo "$head,zero,vpp"
        row='%s,%s,%s,8,gpt,22,2048,16,%s,1024,64,4,%s,%s,%s,%s,%s,%s,"%s",%s,\n'
        # shellcheck disable=SC2059
        {
            printf "$row" zero_bubble a A100-SXM4-80GB '' 1,1,8 ZB-1p '' ,500.5 '' ok '' ''
            printf "$row" zero_bubble b A100-SXM4-80GB '' 1,1,8 ZB-2p '' ,480.25 61 ok '' ''
            printf "$row" vtrain_multi c A100-SXM4-80GB '' 4,2,1 1f1b '' ,700 '' ok '' ''
            printf "$row" simumax_b200 d B200-SXM 128257 4,2,1 1f1b '' ,200 30 ok '' ''
            printf "$row" megatron_sc21_table1 e A100-SXM4-80GB '' 1,1,8 1f1b '' ,650 '' ok 'DDP-impl=torch (overlapped); more' 0
            printf "$row" megatron_sc21_table2 f A100-SXM4-80GB '' 1,1,8 1f1b '' ,660 '' ok '' 3
            printf "$row" hagemann_a100 g A100-SXM4-80GB '' 1,1,8 1f1b '' ,670 '' ok 'kernel=torch; x' 1
            printf "$row" terapipe_main h V100-SXM2-16GB '' 1,1,8 'token-level pipeline (TeraPipe)' '' ,900 '' ok \
                'slicing scheme [(1, [384, 320, 320])] * 8 (per replica)' 0
            printf "$row" mcore_ci_golden plain H100-SXM5-80GB '' 2,2,2 1f1b none bf16,300 1 ok 'env=dev' ''
            printf "$row" mcore_ci_golden cross_entropy_loss_fusion H100-SXM5-80GB '' 2,2,2 1f1b none bf16,310 1 ok \
                'deterministic-mode=True; num-experts=4; moe-router-topk=1' ''
            printf "$row" other i Abacus '' 2,2,2 1f1b none bf16,310 1 ok '' ''
        }
    } >runs/second.csv
    # A row that is wrong in itself
    { cat runs/second.csv; tail -1 table.csv | sed 's/,64,/,63,/; s/$/,,/'; } >bad.csv
}

# Requests of simulate --batch, drawn by a generator of pseudo-random numbers that is the same everywhere; those that
# contradict themselves are answered too.
write_batches() {
    for theme in dense sharded experts slices network conditions; do
        awk -v theme=$theme '
        function random() { # Park and Miller
            state = (state * 16807) % 2147483647
            return state / 2147483647
        }
        function pick(list,  parts, n) {
            n = split(list, parts, " ")
            return parts[1 + int(random() * n)]
        }
        function key(name, value) {
            if (value == "-")
                return ""
            return ",\"" name "\":" (value ~ /^([0-9.]+|true|false|[[].*)$/ ? value : "\"" value "\"")
        }
        BEGIN {
            for (i = 1; i <= length(theme); i++)
                state = (state * 31 + index("abcdefghijklmnopqrstuvwxyz", substr(theme, i, 1))) % 1000003
            for (i = 0; i < 10; i++)
                random()
            for (i = 1; i <= 400; i++) {
                model = pick("gpt2-1.5b gpt3-1b gpt3-13b llama2-7b llama3-8b megatron-3.6b megatron-22b")
                cluster = pick("dgx-a100-80g dgx-a100-40g dgx-h100 dgx-h200 dgx-b200 p3.16xlarge a100-pcie-80g a100-80g-4xhdr gb200-nvl72")
                layers = pick("12 16 17 24")
                seq = pick("512 1024 2048")
                dp = pick("1 2 4"); tp = model == "gpt2-1.5b" ? 1 : pick("1 2 4"); pp = pick("1 2 4 4"); vpp = pick("1 1 2")
                micro = pick("1 2"); count = pick("4 8 12")
                schedule = vpp == 1 ? pick("naive gpipe 1f1b 1f1b zb-h1 zb-h2 zb-auto") \
                    : pick("interleaved zb-v v-half v-min interleaved-zb zb-auto dualpipe dualpipev looped-bfs")
                more = ""
                if (theme == "sharded") {
                    dp = pick("2 4 8 16"); pp = pick("1 1 2 4"); tp = model == "gpt2-1.5b" ? 1 : pick("1 1 2")
                    zero = pick("1 2 3 3")
                    offload = pick("none none cpu nvme")
                    more = key("zero", zero) key("offload", offload)
                    if (zero == 3 && offload != "none")
                        more = more key("offload_parameters", pick("true false"))
                    if (zero == 3)
                        more = more key("prefetch_layers", pick("- 0 1 2"))
                } else if (theme == "experts") {
                    model = pick("mixtral-8x7b deepseek-v2 deepseek-v3")
                    dp = pick("2 4 8")
                    layers = pick("8 12")
                    more = key("ep", pick("1 2 4 8")) key("expert_tp", tp == 1 ? "-" : pick("- 2")) \
                        key("expert_imbalance", pick("- 1.3")) key("zero", pick("0 1 3"))
                } else if (theme == "slices") {
                    schedule = vpp == 1 ? pick("gpipe 1f1b terapipe seq1f1b") : "seq1f1b-interleaved"
                    more = key("slices", pick("2 4 8 [" seq / 2 "," seq / 4 "," seq / 4 "]")) key("cp", pick("1 1 2 4")) \
                        key("cp_comm_type", pick("- p2p a2a"))
                } else if (theme == "network") {
                    cluster = pick("p3.16xlarge dgx-a100-80g dgx-h100 ../../input/slow.json ../../input/mixed.json ../../input/tree.json")
                    dp = pick("2 4"); pp = pick("2 4 8"); tp = model == "gpt2-1.5b" ? 1 : pick("1 1 2")
                    more = key("rank_order", pick("tp-cp-dp-pp tp-cp-pp-dp dp-tp-cp-pp pp-dp-cp-tp")) key("zero", pick("0 1 2 3")) \
                        key("cp", pick("1 1 2"))
                } else if (theme == "conditions") {
                    more = key("jitter", pick("2% 5%,20 0.1,10,3")) key("rank_jitter", pick("- 4%")) key("memory_jitter", pick("- 5%")) \
                        key("straggler", pick("- 2% 10%,1.5")) key("rank_speed", pp == 1 ? "-" : pick("- 0=0.8 1=1.25,0=0.9"))
                }
                more = more key("recompute", pick("none selective full")) key("sequence_parallel", tp == 1 ? "-" : pick("true false")) \
                    key("overlap", pick("- none [\"pp\"] [\"dp\",\"pp\"] [\"dp\",\"pp\",\"tp\"]")) \
                    key("framework", pick("- - degas megatron-lm megatron-core megatron-deepspeed deepspeed fsdp terapipe")) \
                    key("attention", pick("- - unfused torch flash flash1 flash2 triton")) key("kernels", pick("- - fused norms eager")) \
                    key("loss", pick("- - plain compiled fused")) key("grad_dtype", pick("- - fp32 bf16")) \
                    key("dtype", pick("- - fp16 fp32 fp8 bf16")) key("optimizer_step", pick("- - false")) \
                    key("dropout", pick("- - true false")) key("pad_vocab", pick("- - true false")) \
                    key("deterministic_kernels", pick("- - true")) key("memory_limit", pick("- - 30GiB"))
                printf "{\"id\":%d,\"model\":\"%s\",\"cluster\":\"%s\",\"layers\":%d,\"seq_len\":%d,\"global_batch\":%d,", i,
                    model, cluster, layers, seq, dp * micro * count
                printf "\"dp\":%d,\"tp\":%d,\"pp\":%d,\"vpp\":%d,\"micro_batch\":%d,\"schedule\":\"%s\"%s}\n", dp, tp, pp, vpp, micro,
                    schedule, more
            }
        }' >$theme.jsonl
    done
    # Each model on each cluster
    awk 'BEGIN {
        n = split("deepseek-v2 deepseek-v3 gpt-mini gpt2-1.5b gpt2-124m gpt3-13b gpt3-175b gpt3-1b gpt3-44b llama2-13b llama2-70b " \
            "llama2-7b llama3-405b llama3-70b llama3-8b megatron-1.7b megatron-145.6b megatron-18.4b megatron-1t megatron-22b " \
            "megatron-3.6b megatron-310.1b megatron-39.1b megatron-530b megatron-7.5b megatron-76.1b mixtral-8x7b qwen3-32b", models, " ")
        m = split("a100-80g-4xhdr a100-pcie-80g dgx-a100-40g dgx-a100-80g dgx-b200 dgx-h100 dgx-h200 gb200-nvl72 local-cpu p3.16xlarge " \
            "../../input/slow.json ../../input/mixed.json ../../input/tree.json", clusters, " ")
        for (i = 1; i <= n; i++)
            for (j = 1; j <= m; j++)
                printf "{\"id\":\"%s on %s\",\"model\":\"%s\",\"cluster\":\"%s\",\"global_batch\":16,\"seq_len\":256,\"tp\":%d,\"pp\":2," \
                    "\"dp\":2,\"recompute\":\"%s\"}\n", models[i], clusters[j], models[i], clusters[j], models[i] == "gpt2-1.5b" ? 1 : 4,
                    (i + j) % 2 ? "none" : "full"
    }' >pairs.jsonl
    cat >odd.jsonl <<'END'
{"id":"a","model":"gpt3-13b","cluster":"dgx-a100-80g","global_batch":16,"tp":2,"pp":4}
{"id":2,"model":"gpt3-13b","cluster":"dgx-a100-80g","global_batch":16,"tp":3}

{"id":"typo","model":"gpt3-13b","cluster":"dgx-a100-80g","global_batch":16,"tq":4}
not JSON
{"id":"object","model":{"family":"gpt","n_layers":2,"hidden":256,"n_heads":4,"vocab":1000,"max_seq_len":128},"cluster":"dgx-h100","global_batch":2,"sequence_parallel":false,"slices":"off"}
{"id":"unknown","model":"nope","cluster":"dgx-h100","global_batch":2}
{"id":"stages","model":"gpt2-1.5b","cluster":"dgx-h100","global_batch":16,"pp":4,"stage_layers":[10,13,13,12]}
END
}

# Searches that leave open what the others fix: a line of arguments of plan each.
write_searches() {
    awk '
    function random() { # Park and Miller
        state = (state * 16807) % 2147483647
        return state / 2147483647
    }
    function pick(list,  parts, n) {
        n = split(list, parts, "|")
        return parts[1 + int(random() * n)]
    }
    BEGIN {
        state = 20111
        for (i = 0; i < 120; i++) {
            job = pick("gpt2-124m dgx-a100-80g --gpus 4|gpt2-1.5b p3.16xlarge --gpus 16|gpt3-1b dgx-a100-40g --gpus 16|gpt3-13b dgx-h100 --gpus 32|" \
                "llama2-7b a100-pcie-80g --gpus 8|llama3-8b dgx-h200 --gpus 16|llama3-70b dgx-b200 --gpus 16|mixtral-8x7b gb200-nvl72 --gpus 72|" \
                "megatron-22b a100-80g-4xhdr --gpus 16|gpt2-124m ../../input/slow.json|gpt3-1b ../../input/tree.json")
            flags = pick("|--tp 2|--tp 4 --pp 2|--pp 4|--pp 2 --vpp 2|--dp 2|--cp 2|--micro-batch 2 --cp 1|--dp 4 --cp 1") " " \
                pick("--slices off|--slices off|--slices auto --schedule seq1f1b --micro-batch 1 --cp 1|--slices 2|" \
                    "--slices auto --schedule terapipe --micro-batch 1 --cp 1") " " \
                pick("||--recompute none|--recompute full|--recompute selective") " " pick("||--zero 0|--zero 1|--zero 2|--zero 3") " " \
                pick("|||--framework megatron-core|--framework fsdp|--framework deepspeed|--framework terapipe") " " \
                pick("|||--memory-limit 12GiB|--memory-limit 30GiB|--memory-limit 6GiB") " " \
                pick("||--sequence-parallel on|--sequence-parallel off") " " pick("|||--overlap none|--overlap dp,pp,tp") " " \
                pick("|||--objective memory|--objective energy|--objective cost --price 2") " " pick("|||--offload auto|--offload cpu") " " \
                pick("|||--top 3|--optimizer-step off|--dtype fp16|--vocab 0|--layers 20|--loss fused --kernels fused")
            if (flags !~ /schedule/)
                flags = flags " " pick("|--schedule 1f1b|--schedule 1f1b,interleaved|--schedule zb-h1,zb-v|--schedule gpipe,looped-bfs|--schedule zb-auto --pp 2 --cp 1")
            print job " --global-batch " pick("16|32|48|64") " --seq-len " pick("512|1024") " " flags
        }
    }' | tr -s ' ' >searches
}

# --- the requests ---

I=../../input
commands="plan sweep simulate show run profile compare validate calibrate import plot export schedule slices list"
schedules="naive gpipe 1f1b interleaved terapipe seq1f1b seq1f1b-interleaved zb-h1 zb-h2 zb-v v-half v-min interleaved-zb
    zb-auto dualpipe dualpipev looped-bfs"

# chunks SCHEDULE: the flag that it needs
chunks() {
    case $1 in
    interleaved | seq1f1b-interleaved | zb-v | v-half | v-min | interleaved-zb | dualpipe | dualpipev | looped-bfs) echo --vpp 2 ;;
    esac
}

# exported PLAN: as every target reads it, or why it cannot
exported() {
    for target in megatron deepspeed torchtitan pytorch-csv; do
        tries export "$1" --to $target
    done
}

ask_help() {
    request help && {
        runs --help
        runs help
        runs --version
        for c in $commands; do
            runs "$c" --help
            runs help "$c"
            fails 2 "$c" --no-such-option
        done
        fails 2
        fails 2 pln
        fails 2 simualte
        fails 2 xyzzy
        fails 2 help xyzzy
    }
    request list && {
        for what in models clusters schedules; do
            runs list $what
            runs list $what --json
        done
        fails 2 list plans
        fails 2 list
    }
    request show-models && {
        for m in $(degas list models | awk 'NR > 1 { print $1 }'); do
            runs show "$m"
            runs show "$m" --json
            tries show "$m" --tp 8 --seq-len 512 --dtype fp16
        done
        fails 2 show llama3-8c
        fails 2 show xyzzy
        fails 2 show gpt3-175b --tp 7
    }
    request show-clusters && {
        for c in $(degas list clusters | awk 'NR > 1 { print $1 }') $I/mixed.json $I/tree.json $I/timed.json; do
            runs show "$c"
            runs show "$c" --json
        done
    }
    request huggingface && {
        for file in "$I"/huggingface/*.json; do
            runs show "$file" --json
            runs show "$file" --seq-len 1024 --tp 2
            stem=$(basename "$file")
            runs plan "$file" dgx-h100 --gpus 256 --global-batch 256 --seq-len 2048 --slices off -o "$stem"
            runs simulate "$stem" --json
        done
    }
}

# Each model on one of the clusters, planned freely, and all that is said of the plan.
ask_models() {
    while read -r model cluster gpus batch seq flags; do
        request "model-$model" && {
            # shellcheck disable=SC2086
            runs plan "$model" "$cluster" --gpus "$gpus" --global-batch "$batch" --seq-len "$seq" $flags -o plan.json
            runs show plan.json
            runs simulate plan.json
            runs simulate plan.json --json --explain
            runs plot plan.json --kind roofline -o roofline.tsv
            exported plan.json
        }
    done <<'END'
gpt-mini local-cpu 2 8 256 --dtype fp32
gpt2-124m p3.16xlarge 16 64 1024
gpt2-1.5b a100-pcie-80g 8 32 1024
gpt3-1b a100-80g-4xhdr 16 32 2048
gpt3-13b dgx-a100-40g 32 64 2048
gpt3-44b p3.16xlarge 192 8 2048 --slices 8 --tp 8
gpt3-175b gb200-nvl72 144 144 2048
llama2-7b dgx-a100-40g 8 16 4096
llama2-13b dgx-a100-80g 16 64 4096
llama2-70b dgx-h100 64 128 4096
llama3-8b dgx-h100 8 64 8192
llama3-70b dgx-h200 64 256 8192
llama3-405b dgx-b200 512 512 8192 --slices off
mixtral-8x7b dgx-h100 32 128 4096
qwen3-32b dgx-h100 32 128 8192
deepseek-v2 dgx-h200 128 256 4096
deepseek-v3 dgx-h100 256 512 4096 --slices off
megatron-1.7b dgx-a100-80g 32 512 2048 --framework megatron-lm
megatron-3.6b dgx-a100-80g 64 512 2048 --framework megatron-core
megatron-7.5b dgx-a100-80g 128 512 2048 --framework megatron-deepspeed
megatron-18.4b dgx-a100-80g 256 1024 2048 --framework megatron-lm --tp 8
megatron-22b dgx-a100-80g 8 4 2048 --framework megatron-core --tp 8
megatron-39.1b dgx-a100-80g 512 1536 2048 --framework deepspeed
megatron-76.1b dgx-a100-80g 1024 1792 2048 --framework megatron-lm --tp 8 --slices off
megatron-145.6b dgx-a100-80g 1536 2304 2048 --framework megatron-lm --tp 8 --pp 8 --slices off
megatron-310.1b dgx-h100 1920 2160 2048 --framework megatron-core --tp 8 --pp 16 --slices off
megatron-530b dgx-h100 2520 2520 2048 --framework megatron-core --tp 8 --pp 35 --slices off
megatron-1t dgx-b200 3072 3072 2048 --framework megatron-core --tp 8 --pp 64 --slices off
END
}

# Each family of schedules alone, in simulations, in a plan, in pictures.
ask_schedules() {
    for s in $schedules; do
        request "schedule-$s" && {
            runs schedule "$s" --pp 4 --microbatches 8
            runs schedule "$s" --pp 4 --microbatches 8 --json
            # shellcheck disable=SC2046
            runs schedule "$s" --pp 6 --microbatches 12 $(chunks "$s") -o s.json
            runs simulate --schedule-file s.json --json
            runs simulate --schedule-file s.json --op-times F=3ms,I=2ms,W=4ms,comm=1ms --trace t.json --csv ops.tsv
            tries simulate --schedule-file s.json --op-times F=1,I=1,W=0.5,FB=1.8 --rank-speed 2=0.8 --jitter 5%,20 \
                --json
            runs plot t.json -o t.svg
            runs plot t.json
            runs show t.json
            tries export s.json --to pytorch-csv -o s.csv
            [ "$status" != 0 ] || runs simulate --schedule-file s.csv --op-times F=3,I=2,W=4 --json
        }
        request "simulate-$s" && {
            # shellcheck disable=SC2046
            set -- gpt3-13b dgx-a100-80g --global-batch 16 --tp 2 --pp 4 $(chunks "$s") --schedule "$s"
            runs simulate "$@" --json --trace t.json --csv ops.tsv --html page.html
            runs simulate "$@" --recompute full --explain --plot again.txt
            runs simulate "$@" --dp 2 --zero 2 --overlap dp,pp --jitter 3%,40,7 --straggler 1% --rank-speed 2=0.9 \
                --json
            runs simulate "$@" --layers 23 --framework megatron-core --micro-batch 2 --attention unfused --json
            runs plan "$@" --gpus 16 --micro-batch 1 -o plan.json
            runs simulate plan.json --memory-limit 60GiB --json --trace p.json --plot p.svg
            runs plot t.json p.json --names one,two -o both.svg
            runs plot t.json --kind memory -o memory.svg
            runs plot t.json --kind memory --rank 2 --limit 80GiB -o memory.tsv
            runs compare t.json p.json
            runs compare plan.json t.json --json
            runs show p.json
            exported plan.json
        }
    done
    request schedule-options && {
        runs schedule terapipe --pp 3 --microbatches 1 --slices 4
        runs schedule seq1f1b --pp 4 --microbatches 4 --slices 3 --json
        runs schedule seq1f1b-interleaved --pp 4 --vpp 3 --microbatches 8 --slices 2 --group 8
        runs schedule interleaved --pp 4 --vpp 3 --microbatches 16 --group 8 --json
        runs schedule gpipe --pp 64 --microbatches 64
        runs schedule zb-auto --pp 2 --microbatches 8 --in-flight 1
        runs schedule zb-auto --pp 6 --microbatches 18 --in-flight 7 --op-times F=2/1/1/1/1/3,I=2,W=1,comm=0.1 --json
        runs schedule zb-auto --pp 4 --vpp 2 --microbatches 10 --op-times F=2,I=3,W=1,comm=0.2
        runs schedule interleaved-zb --pp 4 --vpp 1 --microbatches 8
        runs schedule gpipe --pp 2 --microbatches 2 -o gpipe.json
        runs simulate --schedule-file gpipe.json --op-times F@rank=1/3,slices=1,comm=5/7 --json
        fails 2 schedule 1f1 --pp 4 --microbatches 8
        fails 2 schedule 1f1b --microbatches 8
        fails 2 schedule 1f1b --pp 0 --microbatches 8
        fails 2 schedule zb-h1 --pp 4 --microbatches 8 --slices 2
        fails 2 schedule 1f1b --pp 4 --microbatches 8 --vpp 2
        fails 5 schedule 1f1b --pp 100000 --microbatches 100000000
    }
}

# What a request of plan can say, one thing after the other.
ask_choices() {
    request slices-of-plans && {
        set -- gpt3-13b dgx-a100-80g --gpus 16 --global-batch 8 --tp 2
        for slices in off auto 4 8 1024,512,512; do
            runs plan "$@" --slices "$slices" -o "$slices.json"
            runs simulate "$slices.json" --json
        done
        runs plan "$@" --slices auto --schedule terapipe --pp 4 -o terapipe.json
        runs plan "$@" --slices auto --schedule seq1f1b --pp 8 --cp 1 --recompute full -o seq1f1b.json
        runs plan "$@" --slices auto --schedule seq1f1b-interleaved --pp 4 --vpp 2 --json
        exported seq1f1b.json
        # Micro-batches of different sizes
        runs plan gpt3-13b p3.16xlarge --gpus 4 --global-batch 5 --seq-len 512 --dp 1 --tp 1 --pp 4 --vpp 1 --cp 1 \
            --schedule seq1f1b --recompute none --zero 0 --memory-limit 200GB -o few.json
        runs simulate few.json --json --trace few.trace
        runs plot few.trace -o few.svg
    }
    request terapipe-setting && {
        set -- gpt3-175b p3.16xlarge --gpus 384 --vocab 0 --seq-len 2048 --global-batch 2 --dtype fp16 \
            --framework terapipe --dp 1 --tp 8 --pp 48 --micro-batch 1 --schedule terapipe
        for slices in off auto; do
            runs plan "$@" --slices $slices -o $slices.json
            runs simulate $slices.json --trace $slices.trace -o $slices.report --html $slices.html
        done
        runs plot off.trace auto.trace --names 'one slice,best slices' -o timeline.svg
        runs plot auto.report --limit 16GiB -o memory.svg
        runs plot auto.report
    }
    request recompute && {
        for r in auto none selective full; do
            runs plan llama2-13b dgx-a100-40g --gpus 16 --global-batch 32 --recompute $r -o $r.json
            runs simulate $r.json --json --explain
            exported $r.json
        done
    }
    request zero && {
        for z in auto 0 1 2 3; do
            tries plan gpt3-13b dgx-a100-80g --gpus 32 --global-batch 64 --dp 16 --zero $z --slices off -o $z.json
            [ ! -e $z.json ] || exported $z.json
        done
        for z in 0 1 2 3; do
            runs simulate gpt3-1b dgx-a100-80g --gpus 16 --global-batch 32 --zero $z --json --trace $z.trace
            runs simulate gpt3-1b dgx-a100-80g --gpus 32 --global-batch 32 --pp 4 --zero $z --schedule interleaved \
                --vpp 3 --recompute full --explain
        done
        for ahead in 0 1 2 64; do
            runs simulate llama3-8b dgx-h100 --gpus 16 --global-batch 32 --zero 3 --prefetch-layers $ahead --json \
                --csv $ahead.tsv
        done
        runs simulate llama3-8b dgx-h100 --gpus 16 --global-batch 32 --zero 3 --framework fsdp --explain \
            --trace fsdp.json
        runs plot fsdp.json -o fsdp.svg
        runs simulate llama3-8b dgx-h100 --gpus 32 --global-batch 32 --zero 3 --framework deepspeed --pp 4 \
            --schedule zb-h1 --json
    }
    request offload && {
        for o in none auto cpu nvme; do
            tries plan gpt3-13b dgx-a100-40g --gpus 8 --global-batch 16 --offload $o --slices off -o $o.json
            [ ! -e $o.json ] || exported $o.json
        done
        for o in cpu nvme; do
            runs simulate gpt3-13b dgx-a100-40g --gpus 8 --global-batch 16 --zero 3 --offload $o \
                --offload-parameters on --recompute full --json
            runs simulate gpt3-13b dgx-a100-40g --gpus 8 --global-batch 16 --tp 2 --pp 2 --offload $o --explain
        done
        runs plan gpt3-1b dgx-a100-80g --gpus 8 --global-batch 8 --dp 8 --zero auto --offload auto \
            --offload-parameters on --micro-batch 1 --recompute none --slices off -o parameters.json
        exported parameters.json
    }
    request context-parallel && {
        for type in p2p a2a; do
            runs simulate llama3-8b dgx-h100 --global-batch 8 --dp 2 --cp 4 --cp-comm-type $type \
                --framework megatron-core --json
            runs simulate llama3-8b dgx-h100 --global-batch 8 --cp 2 --pp 2 --cp-comm-type $type --slices 2 \
                --recompute full --explain
            runs plan llama3-8b dgx-h100 --gpus 64 --global-batch 16 --seq-len 65536 --cp 8 \
                --cp-comm-type $type -o $type.json
            exported $type.json
        done
        fails 2 simulate llama3-8b dgx-h100 --global-batch 8 --cp 16 --cp-comm-type a2a
    }
    request experts && {
        for ep in 1 2 8; do
            runs simulate mixtral-8x7b dgx-h100 --gpus 16 --global-batch 16 --dp 8 --tp 2 --ep $ep --json --explain
            runs plan mixtral-8x7b dgx-h100 --gpus 64 --global-batch 64 --seq-len 4096 --ep $ep \
                --framework megatron-core -o $ep.json
            exported $ep.json
        done
        runs simulate mixtral-8x7b dgx-h100 --global-batch 8 --dp 8 --ep 8 --expert-imbalance 2 --json
        runs simulate mixtral-8x7b dgx-h100 --global-batch 8 --dp 4 --tp 2 --ep 2 --expert-tp 2 \
            --sequence-parallel on --json
        for overlap in pp none; do
            runs simulate deepseek-v3 dgx-h100 --global-batch 128 --pp 4 --vpp 2 --ep 8 --dp 8 --layers 8 \
                --schedule dualpipev --overlap $overlap --framework fsdp --json --csv $overlap.tsv
        done
        runs simulate "$I/mixture.json" local-cpu --gpus 8 --global-batch 4 --seq-len 32 --dtype fp32 --tp 2 --cp 2 \
            --pp 2 --dp 1 --ep 2
    }
    request sequence-parallel && {
        for on in on off; do
            runs plan gpt3-13b dgx-a100-80g --gpus 16 --global-batch 32 --tp 8 --sequence-parallel $on \
                --slices off -o $on.json
            runs simulate $on.json --explain --json
            exported $on.json
        done
    }
    request rank-orders && {
        for order in auto tp-cp-dp-pp tp-cp-pp-dp dp-tp-cp-pp pp-dp-cp-tp; do
            runs plan gpt2-124m p3.16xlarge --gpus 16 --global-batch 512 --seq-len 256 --dp 2 --tp 1 --pp 8 \
                --slices off --rank-order $order -o $order.json
            runs simulate $order.json --json --trace $order.trace
            exported $order.json
        done
        runs plan gpt3-1b dgx-a100-80g --gpus 16 --framework megatron-core --global-batch 32 --micro-batch 1 \
            --schedule 1f1b --recompute none --zero 1 --dp 2 --tp 2 --pp 4 --rank-order tp-cp-pp-dp -o megatron.json
        exported megatron.json
        fails 2 plan mixtral-8x7b dgx-h100 --global-batch 8 --gpus 16 --tp 2 --dp 2 --pp 4 --ep 4 \
            --rank-order dp-tp-cp-pp
    }
    request memory-limits && {
        for limit in 80GiB 40GiB 24GB 14GiB 5GiB; do
            tries plan gpt2-1.5b dgx-a100-80g --gpus 8 --global-batch 32 --slices off \
                --memory-limit $limit -o $limit.json
        done
        fails 1 plan gpt2-1.5b dgx-a100-80g --gpus 8 --global-batch 32 --memory-limit 1300MiB
        fails 1 plan gpt2-1.5b dgx-a100-80g --gpus 8 --global-batch 32 --memory-limit 512MiB
        fails 1 plan gpt3-175b p3.16xlarge --global-batch 8 --cp 1
        fails 1 plan gpt3-175b p3.16xlarge --gpus 8 --global-batch 8 --tp 8 --recompute full
        fails 1 plan gpt2-1.5b dgx-a100-80g --gpus 1009 --global-batch 7
        runs simulate gpt3-175b p3.16xlarge --global-batch 8 --tp 8 --json
    }
    for framework in degas megatron-lm megatron-core megatron-deepspeed deepspeed fsdp terapipe; do
        request "framework-$framework" && {
            runs plan llama3-8b dgx-h100 --gpus 16 --global-batch 64 --seq-len 4096 \
                --framework $framework -o plan.json
            runs simulate plan.json --explain --json
            exported plan.json
            set -- gpt3-13b dgx-a100-80g --gpus 16 --global-batch 32 --framework $framework
            runs simulate "$@" --tp 4 --pp 2 --dp 2 --json --trace t.json
            runs simulate "$@" --tp 2 --pp 4 --schedule interleaved --vpp 2 --zero 1 --recompute selective --explain
            for flags in "--attention unfused" "--attention torch" "--attention flash" "--attention flash1" \
                "--attention triton" "--kernels eager" "--kernels norms" "--kernels fused" "--loss compiled" "--loss fused" \
                "--deterministic-kernels on" "--pad-vocab on" "--pad-vocab off" "--dropout on" "--dropout off" \
                "--overlap none" "--overlap dp,pp,tp" "--grad-dtype fp32" "--grad-dtype bf16" "--optimizer-step off" \
                "--dtype fp16" "--dtype fp32" "--vocab 0" "--layers 21 --vocab 50257"; do
                # shellcheck disable=SC2086
                runs simulate "$@" --tp 4 --pp 2 $flags --json
            done
            runs plan "$@" --dp 16 --zero 3 --micro-batch 1 --recompute none --slices off -o zero3.json
            exported zero3.json
            runs plan "$@" --dp 4 --tp 1 --pp 4 --zero 1 --micro-batch 1 --schedule 1f1b --slices off \
                --recompute full -o pipeline.json
            exported pipeline.json
        }
    done
    for objective in time cost energy memory; do
        request "objective-$objective" && {
            runs plan llama3-8b dgx-h100 --gpus 16 --global-batch 64 --objective $objective --price 2.5 -o plan.json \
                --top 4
            runs plan gpt2-1.5b "$I/mixed.json" --global-batch 64 --objective $objective --slices off \
                --schedule 1f1b,interleaved,zb-h1 --cp 1 --json
            runs plan gpt2-1.5b p3.16xlarge --global-batch 16 --objective $objective --price 3 --currency EUR \
                --slices off
            runs plan gpt2-124m dgx-a100-80g --gpus 4 --global-batch 8 --slices off --schedule 1f1b --cp 1 --explain \
                --objective $objective
        }
    done
    request explain && {
        set -- gpt2-1.5b dgx-a100-80g --gpus 8 --global-batch 32 --slices off --memory-limit 12GiB --cp 1
        runs plan "$@" --explain --json
        runs plan "$@" --explain --top 2 -o explain.json
        runs simulate explain.json --explain
        runs show explain.json
        runs plan gpt2-124m "$I/slow.json" --global-batch 8 --seq-len 1024 --slices off --schedule 1f1b --tp 1 \
            --pp 2 --cp 1 --vpp 1 --recompute none --zero 0 --sequence-parallel off --explain
        runs plan gpt2-124m dgx-a100-80g --gpus 2 --global-batch 8 --dp 1 --tp 1 --pp 2 --vpp 1 --cp 1 --ep 1 \
            --micro-batch 1 --schedule 1f1b --slices off --recompute none --zero 0 --sequence-parallel off --explain \
            --json
        fails 1 plan gpt2-124m dgx-h100 --global-batch 8 --memory-limit 100MiB --explain
    }
    request explain-large && {
        runs plan llama3-70b dgx-h100 --gpus 32 --global-batch 64 --explain --slices off \
            --schedule 1f1b,interleaved,zb-h1 --cp 1
        runs plan mixtral-8x7b dgx-h100 --gpus 16 --global-batch 32 --seq-len 4096 --explain --slices off \
            --schedule 1f1b,interleaved --json
    }
    request pareto && {
        set -- gpt2-1.5b dgx-a100-80g --gpus 8 --global-batch 32 --slices off --cp 1 --schedule 1f1b,interleaved
        runs plan "$@" --pareto 6 -o front.json
        runs plan "$@" --top 12 -o top.json
        for file in front top; do
            runs plot $file.json --kind pareto -o $file.svg
            runs plot $file.json -o $file.tsv
            runs plot $file.json
            runs show $file.json
        done
        runs plan "$@" --pareto 3 --threads 1 --json
        runs plan "$@" --pareto 3 --threads 3 --json
        fails 2 plan "$@" --pareto 3 --top 2
        fails 2 plan "$@" --pareto 3 --objective memory
    }
    request pareto-large && {
        runs plan llama3-8b dgx-h100 --gpus 64 --global-batch 512 --slices off --pareto 8 -o front.json
        runs plot front.json -o front.svg
    }
    request threads && {
        for threads in 1 2 7; do
            runs plan gpt3-13b dgx-a100-80g --gpus 16 --global-batch 32 --micro-batch 1 --dp 2 --threads $threads \
                --json
            runs simulate gpt3-13b dgx-a100-80g --gpus 16 --global-batch 32 --tp 2 --pp 4 --jitter 4%,200,9 \
                --threads $threads --json
        done
    }
    request plan-options && {
        runs plan gpt2-124m dgx-a100-80g --gpus 7 --global-batch 8 --json
        runs plan gpt3-13b dgx-h100 --gpus 16 --global-batch 32 --vpp 2 --group 8 --pp 4 \
            --schedule interleaved -o group.json
        exported group.json
        runs plan gpt2-1.5b dgx-a100-80g --gpus 8 --global-batch 16 --framework megatron-core --dp 1 --tp 1 --pp 8 \
            --vpp 3 --micro-batch 1 --schedule interleaved --zero 0 --recompute none --slices off -o uneven.json
        exported uneven.json
        for dtype in fp8 fp16 bf16 fp32 tf32; do
            runs plan llama3-8b dgx-h100 --gpus 16 --global-batch 32 --dtype $dtype --slices off -o $dtype.json
            exported $dtype.json
        done
        runs plan gpt3-1b "$I/timed.json" --global-batch 16 --slices off -o other.json
        runs plan "$I/latent.json" "$I/tree.json" --global-batch 64 --slices off -o latent.json
        runs simulate latent.json --explain
        exported latent.json
        runs simulate gpt2-1.5b dgx-h100 --global-batch 16 --pp 4 --stage-layers 10,13,13,12 --json
        runs simulate gpt2-1.5b dgx-h100 --global-batch 16 --pp 2 --vpp 2 --stage-layers 10,13,13,12
        from=latent.json
        runs simulate - --json
        runs show - --json
    }
}

ask_searches() {
    for part in 1 2 3 4 5 6 7 8 9 10 11 12; do
        request "searches-$part" && {
            awk -v part=$part 'int((NR - 1) / 10) + 1 == part' $I/searches >mine
            while read -r arguments; do
                # shellcheck disable=SC2086
                tries plan $arguments -o "$n.json"
                [ "$status" != 0 ] || runs simulate "$((n - 1)).json" --json
            done <mine
        }
    done
}

ask_sweeps() {
    request sweep && {
        set -- gpt2-1.5b dgx-a100-80g --slices off --schedule 1f1b,gpipe --cp 1
        runs sweep "$@" --gpus 8..32:x2,12 --global-batch 64,96 --tokens 300B --price 1.5 \
            --currency EUR -o sweep.json --csv sweep.tsv
        runs sweep "$@" --gpus 8,16 --global-batch 64 --plot scaling.svg
        runs sweep "$@" --gpus 8 --global-batch 64 --mtbf none --json
        runs sweep "$@" --gpus 8 --global-batch 64 --mtbf 1000h --restart-time 5min --checkpoint-bandwidth 10GB/s \
            --json
        for kind in throughput pareto roofline; do
            runs plot sweep.json --kind $kind -o $kind.svg
            runs plot sweep.json --kind $kind -o $kind.tsv
            runs plot sweep.json --kind $kind
        done
        tries show sweep.json
        runs sweep gpt3-13b dgx-a100-80g --gpus 1,16 --global-batch 16 --schedule 1f1b --slices off --json
        fails 1 sweep gpt3-13b dgx-a100-80g --gpus 1,2 --global-batch 16 --schedule 1f1b --slices off \
            --zero 0 -o none.json
        fails 2 plot none.json
        runs sweep gpt2-1.5b dgx-a100-80g --gpus 5,8 --global-batch 16 --tp 5 --schedule 1f1b --slices off
        fails 2 sweep "$@" --gpus 8..64 --global-batch 8
        fails 2 sweep "$@" --gpus 8 --global-batch 8 --tokens 15G
    }
    request sweep-llama && {
        runs sweep llama3-8b dgx-h100 --gpus 8..1024:x2 --global-batch 128,512 --slices off --tokens 15T \
            --price 2.5 -o sweep.json
        runs plot sweep.json -o scaling.svg
        runs plot sweep.json --kind pareto -o pareto.svg
    }
    request sweep-lengths && {
        runs sweep llama3-8b dgx-h200 --gpus 32 --global-batch 32 --seq-len 4096..32768:x2 --tokens 1T \
            --objective cost --price 3 -o sweep.json
        runs sweep mixtral-8x7b gb200-nvl72 --gpus 36..72:+18 --global-batch 144 --seq-len 4096 --slices off --json
        runs sweep gpt2-124m "$I/mixed.json" --gpus 8..32:x2 --global-batch 64 --tokens 10B --slices off --cp 1
        runs plot sweep.json -o lengths.svg
    }
}

# Machines that are not as their profiles say, and links that many want at once.
ask_conditions() {
    request jitter && {
        set -- gpt3-13b dgx-a100-80g --gpus 16 --global-batch 32 --tp 2 --pp 4
        runs simulate "$@" --jitter 4%
        runs simulate "$@" --jitter 4%,200,10 --rank-jitter 1% --memory-jitter 5% --straggler 2%,1.5 --json
        runs simulate "$@" --jitter 0 --memory-jitter 0 --json
        runs simulate "$@" --rank-speed 3=0.5,0=1.2 --json --trace slow.json
        runs simulate "$@" --rank-speed 3=0.5 --schedule zb-auto --json
        runs simulate gpt3-13b dgx-a100-80g --global-batch 32 --tp 2 --pp 4 --dp 1 --jitter 4% --memory-limit 45GiB \
            --json
        runs simulate gpt3-13b dgx-a100-80g --global-batch 8 --tp 2 --pp 4 --jitter 5%,50 --html page.html
        runs simulate "$I/latent.json" "$I/tree.json" --global-batch 64 --pp 2 --jitter 10%,100 --json
        fails 2 simulate "$@" --jitter 3
        fails 2 simulate "$@" --jitter profile
    }
    request timed-layers && {
        set -- "$I/timed.json" --global-batch 16 --seq-len 1024
        runs show "$I/timed.json" --json
        # The model that was timed, out of the file
        sed 's/.*"measured_model":\({[^}]*}\).*/\1/; /^{"format":"degas-model"/!d' "$I/timed.json" >timed-model.json
        runs plan timed-model.json "$@" --recompute none -o free.json
        runs plan timed-model.json "$@" --tp 1 --cp 1 --recompute none --schedule 1f1b,seq1f1b,zb-auto -o plan.json
        runs simulate plan.json --explain
        runs simulate plan.json --jitter profile,100 --json
        runs simulate timed-model.json "$@" --pp 4 --schedule seq1f1b --slices 4 --jitter profile --json
        runs simulate timed-model.json "$@" --pp 2 --schedule zb-h1 --recompute full --explain --json
        runs simulate timed-model.json "$@" --tp 2 --pp 2 --schedule zb-auto --vpp 2 --explain --json
        runs simulate timed-model.json "$@" --slices 512,256,256 --pp 4 --micro-batch 3 --json --dp 1 \
            --global-batch 12
    }
    for c in slow mixed tree; do
        request "contention-$c" && {
            for flags in "--dp 2 --pp 4" "--dp 4 --pp 2 --schedule gpipe" "--dp 2 --pp 4 --schedule zb-h1 --zero 1" \
                "--dp 2 --pp 4 --schedule interleaved --vpp 2 --zero 2" "--dp 2 --tp 2 --pp 2 --zero 3" \
                "--dp 2 --pp 4 --slices 4 --schedule seq1f1b" "--cp 2 --pp 4" \
                "--dp 4 --cp 2 --zero 3 --prefetch-layers 2" "--dp 2 --pp 4 --vpp 2 --schedule dualpipe"; do
                for order in tp-cp-dp-pp tp-cp-pp-dp; do
                    for overlap in none dp,pp; do
                        # shellcheck disable=SC2086
                        runs simulate gpt3-1b "$I/$c.json" --global-batch 32 --seq-len 512 $flags \
                            --rank-order $order --overlap $overlap --csv "ops-$n.tsv" --json
                    done
                done
            done
            runs simulate gpt3-1b "$I/$c.json" --global-batch 32 --dp 2 --pp 4 --overlap dp,pp --trace t.json \
                --explain
            runs plot t.json -o t.svg
            runs plan gpt3-1b "$I/$c.json" --global-batch 64 --slices off --cp 1 -o plan.json
            runs simulate plan.json --jitter 3%,20 --json
            tries plan llama3-8b "$I/$c.json" --global-batch 64 --seq-len 2048 --slices off --top 3 \
                --schedule 1f1b,zb-h1 --cp 1 --json
        }
    done
    for theme in pairs dense sharded experts slices network conditions odd; do
        request "batch-$theme" && {
            runs simulate --batch "$I/$theme.jsonl"
            runs simulate --batch "$I/$theme.jsonl" --threads 1 -o again.jsonl
        }
    done
    request batch-stdin && {
        from=$I/odd.jsonl
        runs simulate --batch -
    }
}

ask_exports() {
    request export-megatron && {
        set -- --framework megatron-core --slices off -o
        runs plan gpt3-13b dgx-a100-80g --gpus 16 --global-batch 32 --dp 2 --tp 4 --pp 2 --micro-batch 1 \
            --schedule 1f1b --recompute full --zero 1 --sequence-parallel on "$@" dense.json
        runs plan llama3-8b dgx-h100 --gpus 16 --global-batch 32 --dp 1 --tp 2 --pp 8 --vpp 2 --micro-batch 1 \
            --schedule interleaved --recompute selective --zero 0 "$@" llama.json
        runs plan deepseek-v3 dgx-h100 --gpus 256 --global-batch 256 --seq-len 4096 --dp 16 --tp 1 --pp 16 --ep 16 \
            --micro-batch 1 --schedule 1f1b --zero 1 --recompute full "$@" moe.json
        runs plan llama3-8b dgx-h100 --gpus 8 --global-batch 16 --dp 8 --zero 3 --micro-batch 1 --recompute none \
            "$@" fsdp.json
        for p in dense llama moe fsdp; do
            runs export $p.json --to megatron
            exported $p.json
            runs export $p.json --to megatron -o $p.txt
        done
    }
    request export-deepspeed && {
        set -- gpt3-13b dgx-a100-80g --gpus 16 --global-batch 64 --framework deepspeed --slices off
        runs plan "$@" --dp 16 --zero 2 --micro-batch 2 --recompute none -o zero2.json
        runs plan "$@" --dp 16 --zero 3 --micro-batch 2 --recompute none --offload nvme --offload-parameters on \
            --prefetch-layers 2 -o nvme.json
        runs plan "$@" --dp 4 --tp 1 --pp 4 --vpp 1 --cp 1 --zero 1 --micro-batch 1 --schedule 1f1b --recompute full \
            --offload cpu -o pipe.json
        for p in zero2 nvme pipe; do
            runs export $p.json --to deepspeed
            exported $p.json
        done
    }
    request export-torchtitan && {
        set -- llama3-8b dgx-h100 --global-batch 32 --micro-batch 1
        runs plan "$@" --gpus 16 --dp 2 --tp 2 --pp 4 --vpp 2 --cp 1 --schedule interleaved --slices off \
            --recompute full --zero 3 --sequence-parallel on -o chunks.json
        runs plan "$@" --gpus 8 --dp 2 --tp 1 --pp 4 --cp 1 --schedule zb-h1 --slices off --recompute none \
            --zero 2 -o file.json
        runs plan "$@" --gpus 8 --dp 8 --zero 3 --slices off --recompute full -o fsdp.json
        for p in chunks file fsdp; do
            runs export $p.json --to torchtitan
            exported $p.json
        done
    }
    request export-refused && {
        set -- llama3-8b dgx-h100 --gpus 8 --global-batch 32 --micro-batch 1 --tp 1
        runs plan "$@" --dp 2 --pp 4 --cp 1 --recompute none --schedule zb-h1 --slices off --zero 1 -o zb.json
        fails 1 export zb.json --to megatron -o none
        runs plan "$@" --dp 2 --pp 4 --cp 1 --recompute none --schedule seq1f1b --slices 4 --zero 0 -o sliced.json
        fails 1 export sliced.json --to pytorch-csv
        runs plan "$@" --pp 1 --cp 4 --zero 3 --slices off -o cp.json
        fails 1 export cp.json --to deepspeed
        runs plan "$@" --dp 8 --zero 3 --recompute selective --slices off -o selective.json
        fails 1 export selective.json --to torchtitan
        fails 2 export zb.json
        fails 2 export zb.json --to pytorch_csv
        fails 4 export no-such.json --to megatron
        runs export zb.json --to pytorch-csv --memory-limit 40GiB
        runs schedule 1f1b --pp 2 --microbatches 2 -o s.json
        sed 's/"B0.0"/"I0.0"/' s.json >lone.json
        fails 1 export lone.json --to pytorch-csv
    }
}

ask_plots() {
    request plots && {
        runs schedule 1f1b --pp 4 --microbatches 8 -o s.json
        runs simulate --schedule-file s.json --op-times F=1,B=2 --trace one.json --html one.html
        runs schedule naive --pp 4 --microbatches 8 -o naive.json
        runs simulate --schedule-file naive.json --op-times F=1,B=2 --trace two.json
        runs simulate gpt3-13b dgx-a100-80g --global-batch 16 --tp 2 --pp 4 --trace memory.json -o report.json \
            --plot timeline.png
        for suffix in svg png txt tsv; do
            runs plot one.json two.json --title 'What overlap is worth' --names 'one at a time,1F1B' -o two.$suffix
            runs plot memory.json --kind memory --limit 80GiB -o memory.$suffix
            runs plot report.json -o report.$suffix
        done
        runs plot one.json --color always
        runs plot memory.json --kind memory --rank 3
        # shellcheck disable=SC2016
        runs plot one.json --title '`x` $(y) "z" <b>&\t{/:Bold x}^2' -o hostile.svg
        sed 's|"schedule": "1f1b"|"schedule": "<script>alert(1)</script>@@data@@"|' s.json >evil.json
        runs simulate --schedule-file evil.json --op-times F=1,B=2 --html evil.html
        runs plan gpt3-13b dgx-a100-80g --gpus 8 --global-batch 16 --tp 8 --micro-batch 1 --sequence-parallel off \
            --slices off --recompute none --schedule 1f1b -o plan.json
        runs plot plan.json --kind roofline -o roofline.svg
        runs plot plan.json --kind roofline
        printf '{"format":"degas-trace","version":1,"measured":false,"schedule":"x","stages":9,"virtual":1,"microbatches":1,"slices":1,' >empty.json
        printf '"makespan_ns":0,"traceEvents":[]}' >>empty.json
        runs plot empty.json one.json -o empty.svg
        fails 2 plot one.json -o x.jpeg
        fails 2 plot one.json --kind gantt
        fails 2 plot one.json --kind memory
        fails 2 plot one.json --kind roofline -o x.svg
        fails 2 plot one.json --names a,b
        fails 2 plot report.json --kind timeline
        fails 2 plot plan.json
        fails 3 plot s.json
        fails 4 plot no-such.json
    }
    request plot-large && {
        runs schedule interleaved --pp 32 --vpp 4 --microbatches 64 -o s.json
        runs simulate --schedule-file s.json --op-times F=1,B=2,comm=0.05 --trace large.json --html large.html
        runs plot large.json -o large.svg
        runs plot large.json
    }
}

ask_imports() {
    request import-nccl && {
        runs import "$I/nccl.txt" --cluster dgx-a100-80g -o text.json
        runs import "$I/gather.txt" --cluster dgx-a100-80g -o gather.json
        runs import "$I/nccl.json" --cluster dgx-a100-80g -o json.json
        runs import "$I/nccl.txt" "$I/gather.txt" --cluster dgx-a100-80g --name both -o -
        runs import "$I/unknown.txt" --cluster dgx-a100-80g --op sendrecv -o sendrecv.json
        fails 3 import "$I/unknown.txt" --cluster dgx-a100-80g -o no.json
        fails 2 import "$I/nccl.txt" -o no.json
        runs show text.json
        runs simulate gpt3-1b gather.json --global-batch 8 --tp 8 --explain
        runs simulate gpt3-1b text.json --global-batch 8 --tp 2 --dp 4 --json
    }
    request import-profiler && {
        runs import "$I/kineto.json" --cluster dgx-a100-80g -o ours.json
        runs show ours.json
        runs plan gpt3-1b ours.json --global-batch 32 --slices off --json
    }
    request import-layers && {
        runs import "$I/terapipe.json" --cluster p3.16xlarge --model gpt3-1b --tp 8 -o terapipe.json
        runs import "$I/terapipe-messages.json" --cluster p3.16xlarge --model gpt3-1b -o messages.json
        runs import "$I/sailor.json" --cluster dgx-h100 --model gpt-mini --seq-len 64 -o sailor.json
        runs simulate gpt3-1b terapipe.json --global-batch 8 --tp 8 --micro-batch 1 --dtype fp16 \
            --framework terapipe --seq-len 128 --slices 64,64 --json
        runs plan gpt-mini sailor.json --gpus 8 --global-batch 16 --seq-len 64 --dtype fp16 --explain
        fails 3 import "$I/terapipe.json" --cluster p3.16xlarge -o x.json
        fails 3 import "$I/sailor.json" --cluster dgx-h100 --model gpt-mini -o x.json
        fails 3 import "$I/sailor.json" --cluster dgx-h100 --model gpt3-1b --seq-len 64 -o x.json
    }
    request import-systems && {
        runs import "$I/simumax.json" -o simumax.json
        runs import "$I/calculon.json" -o calculon.json --name mine
        for p in simumax calculon; do
            runs show $p.json
            runs simulate gpt3-1b $p.json --global-batch 8 --tp 8 --json
            runs plan llama2-7b $p.json --gpus 16 --global-batch 32 --slices off --json
        done
    }
    request import-refused && {
        while IFS= read -r text; do
            printf '%s' "$text" >bad
            fails 3 import bad --cluster dgx-a100-80g --model gpt3-1b --seq-len 64 -o no.json
        done <<'END'
hello

99999999999999999999 1 float sum -1 1 1 1 0 1 1 1 0
1048576 1 float sum -1 1 1 1 0 1 1 1 0
1048576 1 float sum -1 nan 1 1 0 1 1 1 0
{"version":3,
{"hello":1}
[1]
[{"name":"aten::to","ph":"X","ts":201,"dur":63,"tid":1,"pid":"CPU functions","args":{}}]
{"traceEvents":[]}
{"traceEvents":[{"cat":"kernel","name":"ncclKernel_X","dur":1,"args":{"Collective name":"allreduce","In msg nelems":1,"dtype":"Float"}}]}
{"model_name":"x","size_gap":32,"tensor_sizes":[32,64],"mean":[1e-5],"std":[0,0]}
{"accelerator":{"op":{},"bandwidth":{}},"networks":{}}
{"1_8_0":{"backward_mean":1}}
{"1_0_0":{"forward_mean":1,"backward_mean":1}}
{"1":{},"2":[]}
{"matrix":{"float16":{"tflops":1,"gflops_efficiency":[]}},"vector":{"float16":{"tflops":1,"gflops_efficiency":[]}},"networks":[]}
END
    }
}

ask_validation() {
    request validate && {
        runs validate dgx-a100-80g "$I/table.csv" --json --requests r.jsonl
        runs validate dgx-a100-80g "$I/table.csv" --threads 1
        runs simulate --batch r.jsonl
        runs validate dgx-h100 "$I/table.csv" --json
        runs validate "$I/runs" --json --requests all.jsonl
        runs validate "$I/runs"
        runs simulate --batch all.jsonl
        runs validate "$I/runs/first.csv" --folds 3 -o folds.json
        fails 3 validate "$I/bad.csv"
        runs validate "$I/bad.csv" --skip-bad-rows --json
        fails 2 validate dgx-a100-80gb "$I/table.csv"
        fails 4 validate dgx-a100-80g no-such.csv
    }
    request validation-page && {
        mkdir -p page/pictures
        runs validate "$I/runs" --page page/validation.md
    }
    request calibrate && {
        # Times of a machine with other parameters, written into the table
        runs show dgx-a100-80g --json
        sed 's/"gemm_fraction": [0-9.]*/"gemm_fraction": 0.7/; s/"link_fraction": [0-9.]*/"link_fraction": 0.6/' 001.out >ours.json
        runs validate ours.json "$I/table.csv" --requests r.jsonl
        runs simulate --batch r.jsonl -o reports.jsonl
        sed 's/.*"iteration_s": *\([0-9.e-]*\).*/\1/' reports.jsonl |
            awk -F, 'NR == FNR { s[NR] = $1; next } FNR > 1 { $19 = sprintf("%.6f", s[FNR - 1] * 1000) } { OFS = ","; $1 = $1; print }' \
                - "$I/table.csv" >measured.csv
        runs calibrate dgx-a100-80g measured.csv -o fitted.json --json --name fitted
        runs calibrate dgx-a100-80g measured.csv -o all.json --holdout 0 --threads 1
        runs calibrate dgx-a100-80g "$I/table.csv" -o odd.json --json
        runs show fitted.json
        runs validate fitted.json measured.csv --json
        # A run of our own
        runs plan gpt3-1b dgx-a100-80g --gpus 1 --layers 8 --global-batch 8 --micro-batch 4 --recompute none \
            --zero 0 -o plan.json
        echo '{"format":"degas-run","version":1,"steps":3,"step_s":{"median":0.5,"p10":0.5,"p90":0.5}}' >run.json
        runs calibrate dgx-a100-80g plan.json=run.json -o runs.json --holdout 0 --json
        fails 2 calibrate dgx-a100-80g measured.csv
        fails 1 calibrate dgx-h100 measured.csv -o no.json
        fails 3 calibrate dgx-a100-80g plan.json=plan.json -o no.json
    }
    [ -n "${VALIDATION:-}" ] || return 0
    # Each side reads the folder under the same relative name.
    request validation-all && {
        ln -s "$VALIDATION" measured
        runs validate measured --skip-bad-rows --json --requests r.jsonl
        runs validate measured --skip-bad-rows
        runs simulate --batch r.jsonl
        mkdir -p page/pictures
        runs validate measured --skip-bad-rows --page page/validation.md
        for file in measured/sailor/*.json; do
            [ ! -e "$file" ] || tries import "$file" --cluster dgx-h100 --model llama3-8b --seq-len 2048 -o "$(basename "$file")"
        done
        rm measured
    }
    request validation-folds && {
        ln -s "$VALIDATION" measured
        for set in terapipe zero_bubble seq1f1b; do
            [ ! -e measured/$set.csv ] || tries validate measured/$set.csv --skip-bad-rows --folds 2 -o $set.json
        done
        [ ! -e measured/zero_bubble.csv ] || tries calibrate dgx-a100-80g measured/zero_bubble.csv -o fitted.json --json
        rm measured
    }
}

ask_slices() {
    request slices && {
        set -- --stages 3 --batch 2 --seq-len 32 --json
        runs slices --costs "$I/costs.json" "$@"
        runs slices --costs "$I/costs.json" "$@" --directions apart -o apart.json
        runs slices --costs "$I/messages.json" "$@" --directions apart --messages overlapped
        runs slices --costs "$I/messages.json" "$@" --directions apart --message-latency 1ms \
            --message-token-bytes 1kB --bandwidth 1MB/s
        runs slices --costs "$I/costs.json" "$@" --directions apart --stage-factors 1,0.5,2
        runs slices --costs "$I/costs.json,$I/costs.json,$I/messages.json" "$@"
        runs slices --costs "$I/costs.json" --backward-costs "$I/messages.json" "$@"
        runs slices --costs "$I/costs.json" "$@" --memory-limit 3200 --token-bytes 100
        fails 1 slices --costs "$I/costs.json" "$@" --memory-limit 3199 --token-bytes 100
        runs slices --costs "$I/costs.json" "$@" --max-group 1
        for s in seq1f1b gpipe 1f1b terapipe; do
            runs slices --costs "$I/costs.json" "$@" --schedule $s
        done
        runs slices --costs "$I/costs.json" --stages 2 --vpp 2 --batch 2 --seq-len 32 --schedule seq1f1b-interleaved \
            --memory-limit 57600 --token-bytes 900
        runs slices --costs "$I/costs.json" --stages 3 --batch 2 --seq-len 32 --directions apart
        runs slices --costs "$I/costs.npy" --stages 4 --batch 1 --seq-len 16
        fails 2 slices --costs "$I/costs.json" "$@" --stage-factors 1,2
        fails 2 slices --costs "$I/costs.json" "$@" --schedule zb-h1
        fails 2 slices --costs "$I/costs.json" "$@" --messages never
    }
    request slices-large && {
        set -- --costs "$I/sparse.json" --batch 8 --seq-len 1024 --granularity 64
        runs slices "$@" --stages 24 --json
        runs slices "$@" --stages 24 --directions apart
        runs slices "$@" --stages 4 --stage-factors 1,1.2,0.9,1 --json
        runs slices "$@" --stages 8 --schedule seq1f1b --json
        runs slices "$@" --stages 4 --schedule seq1f1b-interleaved --vpp 2 --json
        runs slices "$@" --stages 8 --memory-limit 4000 --token-bytes 1 --workspace-token-bytes 1 --json
    }
}

# What is real: only what two runs have in common.  Each rank is a thread.
ask_runs() {
    request run-pipelines && {
        set -- "$I/tiny.json" local-cpu --seq-len 64 --dtype fp32 --framework degas --recompute none --zero 0 --tp 1 \
            --global-batch 8
        runs plan "$@" --gpus 2 --dp 1 --pp 2 --micro-batch 1 --schedule 1f1b --slices 40,24 -o pp2.json
        learns pp2 pp2.json --device reference --steps 4 --seed 3 --verify --checkpoint pp2.state --checkpoint-every 2
        learns text pp2.json --device reference --steps 3 --data "$I/text.txt" --lr 0.01 --lr-decay 3 --clip 0.5
        learns threads pp2.json --device reference --steps 3 --seed 3 --threads 2
        learns cpu pp2.json --steps 3 --seed 3
        runs plan "$@" --gpus 4 --dp 2 --pp 2 --micro-batch 1 --schedule terapipe --slices 2 -o dp2.json
        learns dp2 dp2.json --device reference --steps 3 --verify
        cp -r pp2.state other.state
        learns resumed dp2.json --device reference --steps 6 --seed 3 --checkpoint other.state --resume
        for s in zb-h1 zb-auto dualpipe; do
            runs plan "$@" --gpus 2 --dp 1 --pp 2 --micro-batch 1 --schedule $s -o $s.json
            learns $s $s.json --device reference --steps 2 --verify
        done
        for s in interleaved zb-v v-half looped-bfs; do
            runs plan "$@" --gpus 2 --dp 1 --pp 2 --vpp 2 --micro-batch 1 --schedule $s -o $s.json
            learns $s $s.json --device reference --steps 2 --verify
        done
        # Whose lock it was
        rm -f ./*.state/lock
    }
    request run-shards && {
        set -- "$I/tiny.json" local-cpu --seq-len 64 --dtype fp32 --framework degas --gpus 4 --global-batch 8 \
            --micro-batch 1
        runs plan "$@" --zero 1 --recompute none --dp 2 --tp 1 --pp 2 --schedule 1f1b -o zero1.json
        runs plan "$@" --zero 2 --recompute selective --dp 4 --tp 1 --pp 1 --schedule 1f1b -o zero2.json
        runs plan "$@" --zero 3 --recompute full --dp 2 --tp 2 --pp 1 --schedule 1f1b -o zero3.json
        runs plan "$@" --zero 1 --recompute none --dp 4 --tp 1 --pp 1 --schedule 1f1b --offload nvme -o nvme.json
        runs plan "$@" --zero 3 --recompute none --dp 2 --tp 1 --pp 2 --schedule 1f1b --offload cpu \
            --offload-parameters on -o parameters.json
        for p in zero1 zero2 zero3 nvme parameters; do
            learns $p $p.json --device reference --steps 2 --verify --checkpoint $p.state
        done
        rm -f ./*.state/lock
    }
    request run-experts && {
        runs plan "$I/mixture.json" local-cpu --gpus 8 --global-batch 4 --seq-len 32 --dtype fp32 --tp 2 --cp 2 \
            --pp 2 --dp 1 --ep 2 --micro-batch 1 --sequence-parallel on --schedule 1f1b --slices off \
            --recompute none --zero 0 -o plan.json
        learns experts plan.json --device reference --steps 2 --verify --checkpoint state
        learns balanced plan.json --device reference --steps 2 --balance-experts
        runs plan "$I/tiny.json" local-cpu --gpus 2 --global-batch 4 --seq-len 64 --dtype fp32 --pp 2 --dp 1 --tp 1 \
            --framework degas --slices off --recompute full --zero 0 -o dense.json
        sed 's/"dtype": "fp32"/"dtype": "bf16"/' dense.json >bf16.json
        learns bf16 bf16.json --device reference --steps 2 --verify
        rm -f state/lock
    }
    request profile && {
        degas profile "$I/tiny.json" --device reference --quick --budget 60 --batches 1 --slices 64,32 \
            --concurrency 1 -o "$raw/p.json" >"$raw/profile.out" 2>"$raw/profile.err" </dev/null
        status=$?
        printf 'status %s: degas profile\n' "$status" >>statuses
        expected 0
        # Which rows there are, without their times
        sed -n '/"measured_dtype"/p; /"measured_concurrency"/p; s/^ *\({"op": .*\)"median_s".*/\1/p' "$raw/p.json" >rows
        fails 2 profile gpt-minni --quick
        fails 2 profile "$I/tiny.json" --slices 0
        fails 2 profile "$I/tiny.json" --batches 1,two
        fails 2 profile "$I/tiny.json" --concurrency 0
        fails 2 profile "$I/tiny.json" --device cpuu
        fails 2 profile "$I/tiny.json" --tp 1,3
        fails 2 profile "$I/tiny.json" --budget 0
        fails 1 profile qwen3-32b --seq-len 64
        fails 1 profile "$I/tiny.json" --seq-len 65
    }
    request run-refused && {
        runs plan "$I/tiny.json" local-cpu --gpus 2 --global-batch 8 --seq-len 64 --dtype fp32 --framework degas \
            --recompute none --zero 0 --tp 1 --dp 1 --pp 2 --micro-batch 1 --schedule 1f1b -o plan.json
        sed 's/"dtype": "fp32"/"dtype": "fp16"/' plan.json >fp16.json
        sed 's/"global_batch": 8/"global_batch": 9/' plan.json >batch.json
        fails 1 run fp16.json --device reference
        fails 3 run batch.json
        fails 2 run
        fails 4 run none.json
        fails 3 run "$I/tiny.json"
        fails 2 run plan.json --steps 0
        fails 2 run plan.json --seed -1
        fails 2 run plan.json --balance-experts
        fails 2 run plan.json --threads 2
        fails 2 run plan.json --hosts a,b
        fails 2 run plan.json --no-such-option
    }
}

ask_compare() {
    request compare && {
        for file in predicted measured; do
            {
                printf '{"format":"degas-trace","version":1,"measured":%s,"schedule":"1f1b","stages":2,"virtual":1,"microbatches":4,"slices":1,' \
                    "$([ $file = measured ] && echo true || echo false)"
                printf '"makespan_ns":%s,"traceEvents":[' "$([ $file = measured ] && echo 73000 || echo 50000)"
                printf '{"ph":"X","pid":0,"tid":0,"cat":"F","ts":0,"dur":10,"args":{"op":"F0.0"}},'
                printf '{"ph":"X","pid":0,"tid":0,"cat":"B","ts":13,"dur":20,"args":{"op":"B0.0"}},'
                printf '{"ph":"X","pid":0,"tid":3,"cat":"dp-reduce","ts":28,"dur":12,"args":{"op":"F0.0"}},'
                printf '{"ph":"X","pid":0,"tid":0,"cat":"optimizer","ts":%s,"dur":7,"args":{"op":"F0.0"}},' "$([ $file = measured ] && echo 60 || echo 41)"
                printf '{"ph":"X","pid":1,"tid":2,"cat":"receive","ts":10,"dur":2,"args":{"op":"F0.0"}},'
                printf '{"ph":"X","pid":1,"tid":0,"cat":"F","ts":12,"dur":20,"args":{"op":"F0.0"}},'
                printf '{"ph":"X","pid":1,"tid":1,"cat":"send","ts":30,"dur":6,"args":{"op":"F0.0"}}]}\n'
            } >$file.json
        done
        runs compare predicted.json measured.json
        runs compare predicted.json measured.json --json
        fails 1 compare predicted.json measured.json --tolerance 31%
        runs compare predicted.json measured.json --tolerance 0.32 -o difference.json
        runs compare measured.json measured.json --tolerance 0% --json
        cat >run.json <<'END'
{"format":"degas-run","version":1,"steps":2,"step_s":{"median":2.0,"p10":1.9,"p90":2.2},"steps_s":[2,2],"stolen_fraction":0.125,
 "predicted_step_s":1.5,"prediction_error_fraction":-0.25,"tokens_per_s":10,"losses":[2,1],
 "bubble_fraction":0.25,"ranks":[{"rank":0,"busy_s":1.75,"peak_memory_bytes":1},{"rank":1,"busy_s":1.25,"peak_memory_bytes":1}],
 "predicted_varied_step_s":{"p10":1.5,"p50":1.75,"p90":2.0,"op_sigma_fraction":0.1,"correlation_s":0.05,"rank_sigma_fraction":0.1},"verify":null}
END
        runs compare predicted.json run.json
        runs compare predicted.json run.json --json
        tries show run.json
        fails 2 compare predicted.json
        fails 2 compare predicted.json measured.json --tolerance 101%
        fails 3 compare predicted.json "$I/tiny.json"
        fails 4 compare predicted.json none
        runs plot measured.json predicted.json -o both.svg
    }
}

ask_wrongly() {
    request errors-of-plan && {
        while read -r arguments; do
            # shellcheck disable=SC2086
            fails 2 plan $arguments
        done <<'END'
gpt3-175c dgx-a100-80g --global-batch 8
gpt3-175b dgx-a100-80gb --global-batch 8
gpt3-13b
a b c
gpt3-13b dgx-a100-80g
gpt3-13b dgx-a100-80g --globl-batch 4
gpt3-13b dgx-a100-80g --tp
gpt3-13b dgx-a100-80g --tp --json
gpt3-13b dgx-a100-80g --global-batch 8 --json=yes
gpt3-13b dgx-a100-80g --global-batch 0
gpt3-13b dgx-a100-80g --global-batch -4
gpt3-13b dgx-a100-80g --global-batch 1e3
gpt3-13b dgx-a100-80g --global-batch 0x10
gpt3-13b dgx-a100-80g --global-batch 99999999999999999999
gpt3-13b dgx-a100-80g --global-batch 8 --gpus 100000000000
gpt3-13b dgx-a100-80g --global-batch 8 --tp 3
gpt3-13b dgx-a100-80g --global-batch 8 --gpus 16 --tp 16
gpt3-13b dgx-a100-80g --global-batch 8 --dtype fp64
gpt3-13b dgx-a100-80g --global-batch 8 --dtype bf61
gpt3-13b dgx-a100-80g --global-batch 8 --memory-limit 80G
gpt3-13b dgx-a100-80g --global-batch 8 --memory-limit nan
gpt3-13b dgx-a100-80g --global-batch 8 --slices 1024,512
gpt3-13b dgx-a100-80g --global-batch 8 --slices some
gpt3-13b dgx-a100-80g --global-batch 8 --recompute some
gpt3-13b dgx-a100-80g --global-batch 8 --rank-order tp-dp-pp
gpt3-13b dgx-a100-80g --global-batch 8 --zero 4
gpt3-13b dgx-a100-80g --global-batch 8 --overlap dp,cp
gpt3-13b dgx-a100-80g --global-batch 8 --framework megatron-ml
gpt3-13b dgx-a100-80g --global-batch 8 --schedule 1f1b,nope
gpt3-13b dgx-a100-80g --global-batch 8 --optimizer-step yes
gpt3-13b dgx-a100-80g --global-batch 8 --layers 0
gpt3-13b dgx-a100-80g --global-batch 8 --threads 0
gpt3-13b dgx-a100-80g --global-batch 8 --objective speed
gpt2-124m dgx-a100-80g --global-batch 8 --gpus 8 --tp 3
gpt2-124m dgx-a100-80g --global-batch 8 --gpus 8 --dp 2 --tp 2 --pp 4 --cp 1
gpt2-124m dgx-a100-80g --global-batch 6 --gpus 8 --dp 4
gpt2-124m dgx-a100-80g --global-batch 8 --gpus 8 --dp 1 --micro-batch 3
gpt2-124m dgx-a100-80g --global-batch 8 --gpus 64 --pp 64
gpt2-124m dgx-a100-80g --global-batch 8 --gpus 8 --zero 1 --offload cpu --offload-parameters on
gpt2-124m dgx-a100-80g --global-batch 8 --gpus 8 --zero 3 --offload-parameters on
gpt2-124m dgx-a100-80g --global-batch 8 --gpus 8 --zero 3 --prefetch-layers 65
gpt2-1.5b dgx-a100-80g --gpus 16 --global-batch 1 --dp 16
gpt2-1.5b dgx-a100-80g --gpus 16 --global-batch 100 --dp 16 --micro-batch 3
gpt2-1.5b dgx-a100-80g --gpus 8 --global-batch 8 --tp 1 --cp 8 --slices 100,924
END
        fails 1 plan gpt3-13b dgx-a100-80g --gpus 8 --global-batch 8 --dp 8 --zero 0
        fails 4 plan gpt3-13b dgx-a100-80g --gpus 8 --global-batch 16 --tp 4 --pp 2 \
            --slices off -o no-folder/plan.json
    }
    request errors-of-files && {
        runs show gpt2-124m --json
        cp 001.out model.json
        runs show dgx-h100 --json
        cp 002.out cluster.json
        runs simulate gpt2-124m dgx-h100 --global-batch 8 --tp 2 --pp 2 -o report.json
        runs plan gpt3-13b dgx-a100-80g --gpus 8 --global-batch 16 --tp 4 --pp 2 --micro-batch 1 --schedule 1f1b \
            --slices off -o plan.json
        while read -r file change; do
            sed "$change" "$file.json" >bad.json
            case $file in
            model) fails 3 plan bad.json dgx-h100 --global-batch 8 ;;
            cluster) fails 3 plan gpt2-124m bad.json --global-batch 8 ;;
            plan) fails 3 simulate bad.json ;;
            report) fails 3 show bad.json ;;
            esac
        done <<'END'
model s/"hidden"/"hiden"/
model s/"hidden": [0-9]*/"hidden": -4096/
model s/"n_layers": [0-9]*/"n_layers": 0/
model s/"hidden": [0-9]*/"hidden": 4294967296/
model s/"hidden": [0-9]*/"hidden": 1e309/
model s/"n_layers": [0-9]*/"n_layers": 1.5/
model s/"n_layers": [0-9]*/"n_layers": "12"/
model s/"n_layers": [0-9]*/"n_layers": NaN/
model s/"hidden"/"n_layers": 3, "hidden"/
model s/"n_kv_heads": [0-9]*/"n_kv_heads": 7/
model s/"version": 1/"version": 2/
model s/"gpt"/"gtp"/
cluster s/"memory_bytes": [0-9]*/"memory_bytes": 0/
cluster s/"memory_bytes_per_s": [0-9.e+]*/"memory_bytes_per_s": -1/
cluster s/"latency_s"/"latency"/
plan s/"pp": 2/"pp": 0/
plan s/"pp": 2/"pp": 4/
plan s/"schedule": "1f1b"/"schedule": "1f1x"/
plan s/"slices": \[2048\]/"slices": [1024]/
plan s/"tp": 4/"tp": 3/
plan s/"first_layer": 20/"first_layer": 21/
report s/"breakdown_s".*/}/
report s/"iteration_s"/"iteration"/
END
        for text in '{"format":"degas-plan"' '' '{"a": 1}' '[]' 'null' '{"format":"degas-plan","version":1}' \
            '{"format":"degas-paln","version":1}'; do
            printf '%s' "$text" >bad.json
            fails 3 simulate bad.json
        done
        printf '\377\376{}' >bad.json
        fails 3 simulate bad.json
        printf '{"a\033[31m": 1}' >bad.json
        fails 3 simulate bad.json
        awk 'BEGIN { for (i = 0; i < 100000; i++) printf "["; print "" }' >bad.json
        fails 3 simulate bad.json
        fails 3 simulate model.json
        fails 4 simulate nowhere.json
        fails 4 simulate .
        fails 4 simulate plan.json --trace no-folder/t.json
        fails 2 simulate plan.json --plot timeline.gif
        runs simulate plan.json
    }
    # stdout that is full or closed, stdin that is closed
    request streams && {
        for c in "--help" "list models" "schedule 1f1b --pp 4 --microbatches 8" \
            "simulate gpt2-124m dgx-h100 --global-batch 8 --json"; do
            n=$((n + 1))
            if [ -w /dev/full ]; then
                # shellcheck disable=SC2086
                degas $c >/dev/full 2>"full-$n.err" </dev/null
                echo "full: status $?: degas $c" >>statuses
            fi
            # shellcheck disable=SC2086
            degas $c >&- 2>"closed-$n.err" </dev/null
            echo "closed: status $?: degas $c" >>statuses
        done
        degas simulate - <&- >closed.out 2>closed.err
        echo "closed: status $?: degas simulate -" >>statuses
    }
    request errors-of-simulate && {
        fails 2 simulate gpt3-13b dgx-a100-80g --global-batch 7 --dp 2
        fails 2 simulate gpt3-13b dgx-a100-80g --global-batch 8 --gpus 12 --tp 8
        fails 2 simulate mixtral-8x7b dgx-h100 --global-batch 8 --dp 8 --ep 8 --expert-imbalance 0.5
        fails 2 simulate mixtral-8x7b dgx-h100 --global-batch 8 --dp 4 --tp 2 --expert-tp 3
        fails 2 simulate gpt3-13b dgx-a100-80g --global-batch 16 --op-times F=1
        runs schedule 1f1b --pp 4 --microbatches 4 -o s.json
        while read -r arguments; do
            # shellcheck disable=SC2086
            fails 2 simulate --schedule-file s.json $arguments
        done <<'END'
--op-times F=1/2/3
--op-times B@rank=1/2
--op-times slices=1/2
--op-times F=nan
--op-times F=-1
--op-times F=
--op-times F=1,F@rank=1/2/3/4
--op-times X=1
--rank-speed 4=0.5
--rank-speed 1=0
--jitter 3
--straggler 1%
--jitter 1%,1,1,1
--explain
END
        fails 5 simulate --schedule-file s.json --op-times F=1e9
        sed 's/"F0.0", *"F1.0"/"F1.0", "F0.0"/' s.json >other.json
        tries simulate --schedule-file other.json
        cat >own.json <<'END'
{"format":"degas-schedule","version":1,"schedule":"mine","stages":2,"virtual":1,"microbatches":1,
 "slices":1,"ranks":[["F0.0","B0.0"],["F0.0","B0.0"]]}
END
        runs simulate --schedule-file own.json --json
        sed 's/"F0.0","B0.0"\]\]/"B0.0","F0.0"]]/' own.json >deadlock.json
        fails 3 simulate --schedule-file deadlock.json
        sed 's/,"B0.0"\]\]/]]/' own.json >incomplete.json
        fails 3 simulate --schedule-file incomplete.json
        printf '0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n' >own.csv
        runs simulate --schedule-file own.csv --json
        printf '0F0,0F1,0B0\n1F0,1X0\n' >bad.csv
        fails 3 simulate --schedule-file bad.csv
    }
}

requests() {
    ask_help
    ask_models
    ask_schedules
    ask_choices
    ask_searches
    ask_sweeps
    ask_conditions
    ask_exports
    ask_plots
    ask_imports
    ask_validation
    ask_slices
    ask_runs
    ask_compare
    ask_wrongly
}

# --- both sides at once ---

mkdir -p "$O/input" "$O/old" "$O/new" "$O/old.bin" "$O/new.bin"
ln -s "$old" "$O/old.bin/degas"
ln -s "$new" "$O/new.bin/degas"
(cd "$O/input" && write_models && write_clusters && write_costs && write_measurements && write_tables && write_batches && write_searches)

# answers SIDE: the answers of one program
answers() {
    side=$O/$1
    PATH=$side.bin:$PATH
    : >"$side.notes"
    requests
    : >"$side.done"
}
answers old &
old_pid=$!
answers new &
new_pid=$!
trap 'kill $old_pid $new_pid 2>/dev/null; exit 1' INT TERM
wait $old_pid
wait $new_pid
if [ ! -e "$O/old.done" ] || [ ! -e "$O/new.done" ]; then
    echo "same_bytes.sh: not all requests could be made" >&2
    exit 2
fi

# --- comparing ---

# around FILE BYTE LINE: that line, or of a longer one what stands there
around() {
    text=$(sed -n "$3{p;q;}" "$1" | head -c 200 | tr -d '\n' | tr -c '[:print:]' '?')
    [ -n "$text" ] && [ ${#text} -le 120 ] ||
        text=$(tail -c +$(($2 > 16 ? $2 - 16 : 1)) "$1" | head -c 64 | tr -c '[:print:]' '?')
    printf '%s\n' "$text"
}

# difference FILE: where the two files of this name first differ, in words
difference() {
    if [ ! -e "$O/new/$1" ]; then
        echo "only the old program wrote it"
    elif [ ! -e "$O/old/$1" ]; then
        echo "only the new program wrote it"
    else
        where=$(LC_ALL=C cmp "$O/old/$1" "$O/new/$1" 2>&1)
        case $where in
        *EOF*) echo "one is shorter: $(wc -c <"$O/old/$1" | tr -d ' ') and $(wc -c <"$O/new/$1" | tr -d ' ') bytes" ;;
        *)
            byte=$(printf '%s\n' "$where" | sed 's/.*differ: [a-z]* \([0-9]*\),.*/\1/')
            line=$(printf '%s\n' "$where" | sed 's/.*line \([0-9]*\).*/\1/')
            printf 'byte %s, line %s: "%s" and "%s"\n' "$byte" "$line" "$(around "$O/old/$1" "$byte" "$line")" \
                "$(around "$O/new/$1" "$byte" "$line")"
            ;;
        esac
    fi
}

n_requests=0
n_files=0
n_differ=0
cd "$O" || exit 2
{ ls old; ls new; } | sort -u >names
while read -r name; do
    n_requests=$((n_requests + 1))
    find "old/$name" "new/$name" -type f 2>/dev/null | sed 's|^[a-z]*/||' | sort -u >files
    n_files=$((n_files + $(wc -l <files)))
    diff -r "old/$name" "new/$name" >/dev/null 2>&1 && continue
    n_differ=$((n_differ + 1))
    : >different
    while read -r file; do
        cmp -s "old/$file" "new/$file" || echo "$file" >>different
    done <files
    # The commands' statuses say the most.
    first=$(grep '/statuses$' different || head -1 different)
    more=$(($(wc -l <different) - 1))
    echo "$name: ${first#*/}: $(difference "$first")$([ $more = 0 ] || echo "; and $more more files")"
done <names
if [ -s old.notes ]; then
    echo "same_bytes.sh: these commands of the old program did not end as the request expects, and compare little:" >&2
    cat old.notes >&2
fi
echo "$n_requests requests, $n_files files compared, $n_differ differ"
[ "$n_requests" != 0 ] && [ "$n_differ" = 0 ]
