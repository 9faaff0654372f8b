"""Loss and gradients of a model by PyTorch's autograd in float64, compared with a dump of ours.

usage: torch_reference.py FOLDER...      (written by test_torch.c: model.json, tokens, tensors)
Prints a line for each: the worst relative L2 error of any tensor, the loss's error, that tensor's
name.  Exit status 77: there is no torch.
"""
import json
import math
import os
import sys

try:
    import torch
except ImportError:
    sys.exit(77)

torch.set_num_threads(1)


def load(folder, name, dtype=torch.float32):
    data = open(os.path.join(folder, name), "rb").read()
    return torch.frombuffer(bytearray(data), dtype=dtype)


def get(layer, name):
    return weights.get(f"layer.{layer}.{name}" if layer is not None else name)


def linear(x, w, b):
    return x @ w + b.reshape(-1) if b is not None else x @ w


def norm(x, gain, shift):
    if shift is None:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + model["epsilon"]) * gain.reshape(-1)
    return torch.nn.functional.layer_norm(x, (H,), gain.reshape(-1), shift.reshape(-1), model["epsilon"])


def rotate(x):  # [tokens, heads, D]; the convention of Hugging Face's Llama
    t = torch.arange(x.shape[0], dtype=torch.float64)
    inverse = 1.0 / (model["rope_base"] ** (torch.arange(0, D, 2, dtype=torch.float64) / D))
    angle = torch.outer(t, inverse)
    cos = torch.cat((angle, angle), -1).cos()[:, None]
    sin = torch.cat((angle, angle), -1).sin()[:, None]
    half = torch.cat((-x[..., D // 2:], x[..., : D // 2]), -1)
    return x * cos + half * sin


def attention(x, l):
    n = x.shape[0]
    q = linear(x, get(l, "q.weight"), get(l, "q.bias")).reshape(n, A, D)
    kv = linear(x, get(l, "kv.weight"), get(l, "kv.bias"))
    k, v = kv[:, : K * D].reshape(n, K, D), kv[:, K * D:].reshape(n, K, D)
    if llama:
        q, k = rotate(q), rotate(k)
    k, v = k.repeat_interleave(A // K, 1), v.repeat_interleave(A // K, 1)
    score = torch.einsum("thd,shd->hts", q, k) / math.sqrt(D)
    mask = torch.full((n, n), -math.inf, dtype=torch.float64).triu(1)
    out = torch.einsum("hts,shd->thd", torch.softmax(score + mask, -1), v)
    return linear(out.reshape(n, A * D), get(l, "proj.weight"), get(l, "proj.bias"))


def swiglu(x, up, down):
    gate, value = (x @ up).chunk(2, -1)
    return (torch.nn.functional.silu(gate) * value) @ down


def gelu_tanh(u):  # "gelu_new" of GPT-2
    return 0.5 * u * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u ** 3)))


def experts(x, l):
    n_experts, top_k, f = model["n_experts"], model["top_k"], model["expert_hidden"]
    score = x @ get(l, "router.weight")
    best, chosen = torch.topk(score, top_k, -1)
    p = torch.softmax(best, -1)
    up = get(l, "experts_up.weight").reshape(n_experts, H, 2 * f)
    down = get(l, "experts_down.weight").reshape(n_experts, f, H)
    rows = []
    for t in range(x.shape[0]):
        row = sum(p[t, k] * swiglu(x[t], up[chosen[t, k]], down[chosen[t, k]])
                  for k in range(top_k))
        rows.append(row)
    y = torch.stack(rows)
    if get(l, "shared_up.weight") is not None:
        y = y + swiglu(x, get(l, "shared_up.weight"), get(l, "shared_down.weight"))
    return y


def mlp(x, l):
    if get(l, "router.weight") is not None:
        return experts(x, l)
    up, down = get(l, "mlp_up.weight"), get(l, "mlp_down.weight")
    if llama:
        return swiglu(x, up, down)
    return linear(gelu_tanh(linear(x, up, get(l, "mlp_up.bias"))), down, get(l, "mlp_down.bias"))


def loss_of(tokens):
    table = get(None, "embedding.token")
    head = get(None, "head.weight")
    x = table[tokens[:-1]]
    position = get(None, "embedding.position")
    if position is not None:
        x = x + position[: x.shape[0]]
    for l in range(model["n_layers"]):
        x = x + attention(norm(x, get(l, "norm1.gain"), get(l, "norm1.shift")), l)
        x = x + mlp(norm(x, get(l, "norm2.gain"), get(l, "norm2.shift")), l)
    x = norm(x, get(None, "norm.gain"), get(None, "norm.shift"))
    logits = x @ (head if head is not None else table).T
    return torch.nn.functional.cross_entropy(logits, tokens[1:], reduction="sum")


for folder in sys.argv[1:]:
    model = json.load(open(os.path.join(folder, "model.json")))
    H, A, K, D = model["hidden"], model["n_heads"], model["n_kv_heads"], model["head_dim"]
    llama = model["family"] == "llama"
    weights = {}
    for name, shape in model["tensors"].items():
        w = load(folder, name + ".weight_values").double().reshape(shape)
        weights[name] = w.clone().requires_grad_(True)

    tokens = load(folder, "tokens", torch.int32).long().reshape(model["batch"], -1)
    loss = sum(loss_of(row) for row in tokens) / (tokens.shape[0] * (tokens.shape[1] - 1))
    loss.backward()

    squares = sum(float((w.grad ** 2).sum()) for w in weights.values())
    rms = math.sqrt(squares / sum(w.numel() for w in weights.values()))
    worst, at = 0.0, "-"
    for name, w in weights.items():
        ours = load(folder, name + ".gradient_values").double().reshape(w.shape)
        scale = max(float(w.grad.norm()), 1e-3 * rms * math.sqrt(w.numel()))
        error = float((ours - w.grad).norm()) / scale
        if error > worst:
            worst, at = error, name
    print(f"{worst:.3e} {abs(float(loss.detach()) - model['loss']):.3e} {at}")
