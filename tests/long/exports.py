"""What frameworks' own code says of exported plans: whether it takes them, and what it derives from them.

usage: exports.py megatron|deepspeed|torchtitan|pytorch-csv FOLDER...
A FOLDER has N.json and N.export of each plan N; $MEGATRON is a checkout of Megatron-LM.  Writes the framework's version to
FOLDER/said, and a line for each plan: "N accepted equal", or why it was refused, or what is unlike the plan.  Exit status
77: the framework is not installed.  Nothing is computed: ranks are PyTorch's fake process group, and parameters are on the
meta device.  $DEGAS (./degas) says how many parameters the plan has: what its weights take where nothing is sharded.
"""
import contextlib
import copy
import functools
import glob
import importlib
import io
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import types
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
KIND, FOLDERS, MEGATRON = sys.argv[1], sys.argv[2:], os.environ.get("MEGATRON")
try:
    import torch
    from torch.testing._internal.distributed.fake_pg import FakeStore
except ImportError:
    sys.exit(77)


class Plan:
    def __init__(self, path):
        self.n = os.path.basename(path)[: -len(".json")]
        self.export = path[: -len("json")] + "export"
        self.plan = json.load(open(path))
        self.model = self.plan["model"]
        degrees = self.plan["degrees"]
        self.dp, self.tp, self.pp, self.vpp, self.cp, self.ep = (degrees[k] for k in "dp tp pp vpp cp ep".split())
        self.world = self.dp * self.tp * self.pp * self.cp
        self.micro_batches = self.plan["n_microbatches"]

    def parameters_of_ranks(self):  # of each pipeline rank
        whole = dict(self.plan, zero_stage=0, offload="none", offload_parameters=False)
        return weights(whole, 4 if self.plan["dtype"] in ("fp32", "tf32") else 2)

    def parameters(self):
        return sum(weights(self.model, 2, "dgx-h100", "--gpus", "1", "--global-batch", "1", "--dtype", "bf16",
                           "--framework", "deepspeed", "--zero", "0"))

    def layers(self):  # of each pipeline rank, chunk by chunk
        stages = sorted(self.plan["stages"], key=lambda s: (s["rank"], s["chunk"]))
        return [[s["n_layers"] for s in stages if s["rank"] == r] for r in range(self.pp)]


@functools.cache
def weights_of(text, size, options):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(text)
        file.flush()
        degas = os.environ.get("DEGAS", "./degas")
        done = subprocess.run([degas, "simulate", file.name, *options, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [rank["memory_bytes"]["weights"] // size for rank in json.loads(done.stdout)["ranks"]]


def weights(plan_or_model, size, *options):
    return weights_of(json.dumps(plan_or_model), size, options)


def fake_ranks(rank, world):
    torch.distributed.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())


def no_ranks():
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


# --- Megatron-LM ---

def megatron_open():
    """Its arguments, as a machine with the plan's GPUs and Transformer Engine would read them."""
    if not MEGATRON:
        from megatron.core import __version__
        from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
        return f"megatron-core {__version__} (layouts alone)", lambda plan: megatron_layout(PipelineParallelLayerLayout, plan)
    import typing
    import typing_extensions
    typing.override = typing_extensions.override  # Python 3.12 has it
    sys.path.insert(0, MEGATRON)
    torch.cuda.get_device_capability = lambda *a: CAPABILITY
    torch.cuda.get_device_properties = lambda *a: types.SimpleNamespace(major=CAPABILITY[0], minor=CAPABILITY[1])
    torch.cuda.current_device = lambda: "meta"
    torch.cuda.Stream = type("Stream", (), {"__init__": lambda self, *a, **k: None})
    torch.Tensor.cuda = lambda self, *a, **k: self
    importlib.import_module("megatron.training.arguments")
    # Help texts, which are parsed from its source for every plan anew, take half of the time.
    factory = importlib.import_module("megatron.training.argument_utils").ArgumentGroupFactory
    factory._get_field_docstrings = lambda *a: {}
    # Tables of positions, which are no parameters, are cut for a context-parallel rank on its GPU.
    positions = importlib.import_module("megatron.core.models.common.embeddings.yarn_rotary_pos_embedding")
    positions.get_pos_emb_on_this_cp_rank = lambda table, *a: table
    attention = importlib.import_module("megatron.core.transformer.dot_product_attention").DotProductAttention
    attention.__init__ = lambda self, *a, **k: torch.nn.Module.__init__(self)  # it has no parameters
    version = importlib.import_module("megatron.core").__version__
    head = os.popen(f"git -C '{MEGATRON}' rev-parse --short=8 HEAD 2>/dev/null").read().strip()
    return f"Megatron-LM {head or version}", megatron


CAPABILITY = (9, 0)


def megatron_layout(layout_class, plan):
    flags = open(plan.export).read()
    found = re.search(r"--pipeline-model-parallel-layout (\S+)", flags)
    if not found:
        return {}
    layout = layout_class(found[1], plan.pp)
    layout.validate_layer_layout(plan.model["n_layers"], plan.model.get("mtp", {}).get("n", 0))
    return {"layers of stages": ([[sum(x.name in ("decoder", "mtp") for x in layout.layout[r][v]) for v in range(plan.vpp)]
                                  for r in range(plan.pp)], plan.layers())}


def megatron(plan):
    global CAPABILITY
    from megatron.core import parallel_state
    from megatron.training.arguments import parse_args, validate_args
    from megatron.training.vocab_utils import calculate_padded_vocab_size

    flags = open(plan.export).read().split()
    capability = re.search(r'"name": *"[^"]*(a100|h100|b200)', json.dumps(plan.plan["cluster"]))
    CAPABILITY = {"a100": (8, 0), "h100": (9, 0), "b200": (10, 0)}[capability[1]]
    os.environ.update(WORLD_SIZE=str(plan.world), RANK="0", LOCAL_RANK="0", CUDA_DEVICE_MAX_CONNECTIONS="1")
    for backend in "FLASH", "FUSED", "UNFUSED":  # what the plan before has set
        os.environ.pop(f"NVTE_{backend}_ATTN", None)
    if "--use-megatron-fsdp" in flags:
        del os.environ["CUDA_DEVICE_MAX_CONNECTIONS"]
    sys.argv[1:] = flags + "--tokenizer-type NullTokenizer --train-iters 10 --lr 1e-4 --mock-data".split()
    args = parse_args()
    validate_args(args)
    args.padded_vocab_size = calculate_padded_vocab_size(
        args.vocab_size, args.make_vocab_size_divisible_by, args.tensor_model_parallel_size)
    order = "tp-cp-ep-pp-dp" if args.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp"
    layers, parameters = [], []
    for rank in range(0, plan.world, plan.tp * plan.cp if args.use_tp_pp_dp_mapping else plan.world // plan.pp):
        if len(layers) == plan.pp:
            break
        fake_ranks(rank, plan.world)
        try:
            parallel_state.initialize_model_parallel(
                plan.tp, plan.pp, args.virtual_pipeline_model_parallel_size, context_parallel_size=plan.cp,
                expert_model_parallel_size=plan.ep, expert_tensor_parallel_size=args.expert_tensor_parallel_size,
                create_gloo_process_groups=False, order=order)
            assert parallel_state.get_pipeline_model_parallel_rank() == len(layers)
            chunks = [megatron_chunk(args, v if plan.vpp > 1 else None) for v in range(plan.vpp)]
        finally:
            parallel_state.destroy_model_parallel()
            no_ranks()
        layers.append([len(chunk.decoder.layers) for chunk in chunks])
        parameters.append(sum(p.numel() for chunk in chunks for p in chunk.parameters()))
    # With fewer K/V heads than tp it holds the tp-th part of their weights and gathers what these give; we hold a
    # whole head.  PyTorch's modules split MLA's down-projections, which Transformer Engine's duplicate, as we do.
    mla = plan.model.get("mla")
    if mla:
        spare = (1 - 1 / plan.tp) * (mla["q_lora_rank"] + mla["kv_lora_rank"] + mla["qk_rope_head_dim"])
    else:
        spare = max(0, 1 - plan.model["n_kv_heads"] / plan.tp) * 2 * plan.model["head_dim"]
    spare = round(spare * plan.model["hidden"])
    return {
        "world": (args.world_size, plan.world),
        "dp": (args.data_parallel_size, plan.dp),
        "micro-batches": (args.global_batch_size / args.micro_batch_size / args.data_parallel_size, plan.micro_batches),
        "layers of stages": (layers, plan.layers()),
        "parameters": (parameters, [n - spare * sum(of) for n, of in zip(plan.parameters_of_ranks(), layers)]),
    }


def megatron_chunk(args, chunk):
    """The model of one chunk on the meta device, of PyTorch's modules in place of Transformer Engine's."""
    from gpt_builders import gpt_builder
    from megatron.core import parallel_state
    from megatron.training.arguments import core_transformer_config_from_args

    args = types.SimpleNamespace(**vars(args))
    args.fp8 = None
    args.apply_rope_fusion = False
    args.context_parallel_size = 1
    args.transformer_impl = "local"
    with torch.device("meta"):
        config = core_transformer_config_from_args(args)
        config.persist_layer_norm = config.sequence_parallel = config.tp_comm_overlap = False
        config.gradient_accumulation_fusion = config.moe_grouped_gemm = config.perform_initialization = False
        config.use_cpu_initialization = True
        where = {"ignore_virtual": False, "vp_stage": chunk}
        return gpt_builder(args, parallel_state.is_pipeline_first_stage(**where),
                           parallel_state.is_pipeline_last_stage(**where), chunk, config=config)


# --- DeepSpeed ---

def deepspeed_open():
    import deepspeed
    import transformers
    return f"DeepSpeed {deepspeed.__version__}, transformers {transformers.__version__}", deepspeed_plan


def deepspeed_plan(plan):
    import deepspeed
    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.runtime.pipe.module import LayerSpec, PipelineModule
    from deepspeed.runtime.pipe.topology import PipelineParallelGrid, PipeModelDataParallelTopology

    os.environ.update(WORLD_SIZE=str(plan.world), RANK="0", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    fake_ranks(0, plan.world)
    try:
        deepspeed.init_distributed(dist_backend="fake", auto_mpi_discovery=False, verbose=False)
        topology = PipeModelDataParallelTopology(num_pp=plan.pp, num_mp=plan.tp, num_dp=plan.dp)
        grid = PipelineParallelGrid(topology=topology)
        text = json.load(open(plan.export))
        config = DeepSpeedConfig(text, mpu=grid)
        n_parameters, layer = transformers_model(json.dumps(plan.model))
        result = {
            "world": (topology.world_size(), plan.world),
            "dp": (config.world_size, plan.dp),
            "micro-batches": (config.gradient_accumulation_steps, plan.micro_batches),
            "ZeRO": (config.zero_optimization_stage, plan.plan["zero_stage"]),
            "parameters": (n_parameters, plan.parameters()),
        }
        if plan.pp > 1:
            pipeline = PipelineModule.__new__(PipelineModule)
            torch.nn.Module.__init__(pipeline)
            specs = [LayerSpec(torch.nn.Embedding)] + [LayerSpec(layer)] * plan.model["n_layers"]
            specs += [LayerSpec(torch.nn.LayerNorm), LayerSpec(torch.nn.Linear)]
            pipeline.__dict__.update(num_stages=plan.pp, global_rank=1, _topo=topology, _layer_specs=specs)
            pipeline._partition_layers(config.pipeline["partition"])
            of = [sum(spec.typename is layer for spec in specs[a:b])
                  for a, b in zip(pipeline.parts, pipeline.parts[1:])]
            result["stages"] = (config.pipeline["stages"], plan.pp)
            result["layers of stages"] = ([[n] for n in of], plan.layers())
        return result
    finally:
        deepspeed.comm.comm.cdb = None
        no_ranks()


@functools.cache
def transformers_model(text):
    """The parameters, and a layer's class, of the Hugging Face model of these widths."""
    import transformers as hf

    model = json.loads(text)
    common = {"vocab_size": model["vocab"], "tie_word_embeddings": model["tied_embeddings"]}
    if model["family"] == "gpt":
        config = hf.GPT2Config(n_layer=model["n_layers"], n_embd=model["hidden"], n_head=model["n_heads"],
                               n_inner=model["ffn_hidden"], n_positions=model["max_seq_len"], **common)
    else:
        common.update(num_hidden_layers=model["n_layers"], hidden_size=model["hidden"],
                      intermediate_size=model["ffn_hidden"], num_attention_heads=model["n_heads"],
                      num_key_value_heads=model["n_kv_heads"], max_position_embeddings=model["max_seq_len"],
                      attention_bias=model["qkv_bias"])
        experts, mla = model.get("experts"), model.get("mla")
        if mla:
            config = hf.DeepseekV3Config(
                **common, **{k: v or None for k, v in mla.items()}, n_routed_experts=experts["n_experts"],
                num_experts_per_tok=experts["top_k"], moe_intermediate_size=experts["ffn_hidden"],
                n_shared_experts=experts["n_shared"], first_k_dense_replace=experts["first_dense_layers"])
        elif experts:
            config = hf.MixtralConfig(**common, num_local_experts=experts["n_experts"],
                                      num_experts_per_tok=experts["top_k"])
        elif model["qk_norm"]:
            config = hf.Qwen3Config(**common, head_dim=model["head_dim"])
        else:
            config = hf.LlamaConfig(**common, head_dim=model["head_dim"])
    with torch.device("meta"):
        built = hf.AutoModelForCausalLM.from_config(config)
    layers = next(m for m in built.modules() if isinstance(m, torch.nn.ModuleList))
    return sum(p.numel() for p in built.parameters()), type(layers[0])


# --- torchtitan ---

def torchtitan_open():
    import importlib.metadata
    importlib.import_module("torchtitan.config")
    sys.path[:0] = FOLDERS
    logging.disable(logging.WARNING)
    return "torchtitan " + importlib.metadata.version("torchtitan"), torchtitan


@functools.cache
def torchtitan_model(name, flavour):
    registry = importlib.import_module(f"torchtitan.models.{name}").model_registry
    with torch.device("meta"):
        return registry(flavour).model.build()


def shallow(module):
    """A copy with the same parameters, whose layers can be taken out."""
    result = copy.copy(module)
    result._modules = {name: shallow(m) if isinstance(m, (torch.nn.ModuleDict, torch.nn.ModuleList)) else m
                       for name, m in module._modules.items()}
    return result


def torchtitan(plan):
    from torchtitan.config import ConfigManager
    from torchtitan.distributed import ParallelDims, pipeline_parallel
    from torchtitan.distributed.pipeline_parallel import (
        _get_pipeline_metadata, _get_pp_rank_to_stage_indices_mapping, _split_module)

    folder = os.path.dirname(plan.export)
    name = f"plan_{re.sub('[^a-z]', '_', os.path.basename(folder))}_{plan.n}"
    with open(os.path.join(folder, name + ".py"), "w") as module:
        module.write(open(plan.export).read())
    config = ConfigManager().parse_args(["--module", name, "--config", "plan"])
    dims = ParallelDims.from_config(config.parallelism, plan.world)
    training, parallelism = config.training, config.parallelism
    steps = training.global_batch_size / training.local_batch_size / (dims.dp_replicate * dims.dp_shard)
    model = torchtitan_model(config.model_spec.name, config.model_spec.flavor)
    pipeline_parallel.copy = types.SimpleNamespace(deepcopy=shallow)  # of a whole model for each stage
    result = {
        "world": (dims.dp_replicate * dims.dp_shard * dims.cp * dims.tp * dims.pp, plan.world),
        "dp": (dims.dp_replicate * dims.dp_shard, plan.dp),
        "tp, cp, ep": ((dims.tp, dims.cp, dims.ep), (plan.tp, plan.cp, plan.ep)),
        "parameters": (sum(p.numel() for p in model.parameters()), plan.parameters()),
    }
    if plan.pp == 1:
        result["micro-batches"] = (steps, plan.micro_batches)
        return result
    _get_pipeline_metadata(dims, parallelism, config.model_spec.model)
    stages = [_split_module(model, names) for names in parallelism.module_fqns_per_model_part]
    of = [_get_pp_rank_to_stage_indices_mapping(r, plan.pp, parallelism.pipeline_parallel_schedule, len(stages))
          for r in range(plan.pp)]
    result["micro-batches"] = (steps * training.local_batch_size / parallelism.pipeline_parallel_microbatch_size,
                               plan.micro_batches)
    result["layers of stages"] = ([[len(stages[s].layers) for s in rank] for rank in of], plan.layers())
    result["parameters of stages"] = (sum(p.numel() for s in stages for p in s.parameters()), plan.parameters())
    return result


# --- torch.distributed.pipelining ---

def pytorch_open():
    return f"PyTorch {torch.__version__}", pytorch


def pytorch(plan):
    from torch.distributed.pipelining.schedules import (
        _add_send_recv, _PipelineScheduleRuntime, _simulate_comms_compute)

    stages = [types.SimpleNamespace(stage_index=v * plan.pp, num_stages=plan.pp * plan.vpp, group_size=plan.pp,
                                    group_rank=0, is_first=v == 0, is_last=False, has_backward=True, submod=None,
                                    group=None, is_prev_stage_same_rank=False)
              for v in range(plan.vpp)]
    runtime = _PipelineScheduleRuntime(stages, n_microbatches=plan.micro_batches, loss_fn=lambda *a: None)
    runtime._load_csv(plan.export)
    where = runtime.stage_index_to_group_rank.get
    ops = {rank: [a for a in row if a is not None] for rank, row in runtime.pipeline_order.items()}
    alone = {rank: [one for a in row for one in a.sub_actions or (a,)] for rank, row in ops.items()}
    _simulate_comms_compute(_add_send_recv(alone, where, plan.pp * plan.vpp), where, plan.pp * plan.vpp)
    of = plan.plan["stages"]
    return {
        "ranks": (len(runtime.pipeline_order), plan.pp),
        "ranks of stages": ([where(s) for s in range(len(of))], [s["rank"] for s in of]),
        "ops": ([str(a) for row in ops.values() for a in row],
                [cell for row in open(plan.export) for cell in row.strip().split(",") if cell]),
    }


try:
    version, derive = {"megatron": megatron_open, "deepspeed": deepspeed_open, "torchtitan": torchtitan_open,
                       "pytorch-csv": pytorch_open}[KIND]()
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(77)
for folder in FOLDERS:
    with open(os.path.join(folder, "said"), "w") as said:
        print(version, file=said)
        for path in sorted(glob.glob(os.path.join(folder, "*[0-9].json")), key=lambda p: int(os.path.basename(p)[:-5])):
            plan = Plan(path)
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    values = derive(plan)
            except (Exception, SystemExit) as error:
                no_ranks()
                print(plan.n, "refused", type(error).__name__, " ".join(str(error).split())[:300], file=said)
                continue
            unlike = [f"{name}: {theirs}, not {ours}" for name, (theirs, ours) in values.items() if theirs != ours]
            print(plan.n, "accepted", "; ".join(unlike)[:600] or "equal", file=said, flush=True)
