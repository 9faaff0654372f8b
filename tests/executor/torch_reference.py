"""Loss and gradients of a model by PyTorch's autograd in float64, compared with a dump of ours, and with
PyTorch's own in float32.

usage: torch_reference.py FOLDER...      (written by test_torch.c: model.json, tokens, tensors)
Prints a line for each: the worst relative L2 error of any tensor, that of PyTorch in float32, the
loss's error, the first one's tensor.  Exit status 77: there is no torch.
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
    t = torch.arange(x.shape[0], dtype=real)
    inverse = 1.0 / (model["rope_base"] ** (torch.arange(0, D, 2, dtype=real) / D))
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
    if get(l, "q_norm.gain") is not None:
        q, k = norm(q, get(l, "q_norm.gain"), None), norm(k, get(l, "k_norm.gain"), None)
    if llama:
        q, k = rotate(q), rotate(k)
    k, v = k.repeat_interleave(A // K, 1), v.repeat_interleave(A // K, 1)
    score = torch.einsum("thd,shd->hts", q, k) / math.sqrt(D)
    hidden = torch.ones((n, n), dtype=torch.bool).triu(1)
    if model["window"] > 0:
        hidden |= torch.ones((n, n), dtype=torch.bool).tril(-model["window"])
    score = score.masked_fill(hidden, -math.inf)
    sinks = get(l, "sinks")
    if sinks is not None:  # one more column, whose weight is dropped
        score = torch.cat((score, sinks.reshape(A, 1, 1).expand(A, n, 1)), -1)
    out = torch.einsum("hts,shd->thd", torch.softmax(score, -1)[..., :n], v)
    return linear(out.reshape(n, A * D), get(l, "proj.weight"), get(l, "proj.bias"))


def convolution(x, l):  # [tokens, channels], causal, of every channel by itself
    taps = get(l, "state_conv.weight")
    y = torch.nn.functional.conv1d(torch.nn.functional.pad(x.T, (taps.shape[0] - 1, 0))[None],
                                   taps.T[:, None], groups=x.shape[1])[0].T
    bias = get(l, "state_conv.bias")
    return torch.nn.functional.silu(y if bias is None else y + bias.reshape(-1))


def state_parts(x, l, *more):
    """Queries, keys and values after the convolution, by heads, and the gate and @more behind them."""
    H_, G, P, V = (model[name] for name in ("state_heads", "state_key_heads", "key_dim", "value_dim"))
    conv = 2 * G * P + H_ * V
    inside, gate, *rest = torch.split(x @ get(l, "state_in.weight"), (conv, H_ * V) + more, -1)
    q, k, v = torch.split(convolution(inside, l), (G * P, G * P, H_ * V), -1)
    q, k = (part.reshape(-1, G, P).repeat_interleave(H_ // G, 1) for part in (q, k))
    return [q, k, v.reshape(-1, H_, V), gate] + rest


def decays(x, l):
    step = torch.nn.functional.softplus(x + get(l, "state_step_bias").reshape(-1))
    return step, torch.exp(-torch.exp(get(l, "state_a_log").reshape(-1)) * step)


def delta_net(x, l):
    """Gated delta net [2412.06464 equation 10], with Qwen3-Next's norms and gate."""
    H_ = model["state_heads"]
    q, k, v, gate, forget, write = state_parts(x, l, H_, H_)
    q, k = (part * torch.rsqrt((part * part).sum(-1, keepdim=True) + 1e-6) for part in (q, k))
    _, alpha = decays(forget, l)
    beta = torch.sigmoid(write)
    state = torch.zeros((H_, q.shape[-1], v.shape[-1]), dtype=real)
    rows = []
    for t in range(x.shape[0]):
        state = state * alpha[t, :, None, None]
        old = torch.einsum("hkv,hk->hv", state, k[t])
        state = state + torch.einsum("hk,hv->hkv", k[t], beta[t, :, None] * (v[t] - old))
        rows.append(torch.einsum("hkv,hk->hv", state, q[t]) / math.sqrt(q.shape[-1]))
    y = norm(torch.stack(rows), get(l, "state_norm.gain"), None)
    return (y.reshape(x.shape[0], -1) * torch.nn.functional.silu(gate)) @ get(l, "state_out.weight")


def mamba2(x, l):
    """Mamba-2 as its quadratic form: y = (L * C B^T) (step v) [2405.21060 section 3]."""
    H_, n = model["state_heads"], x.shape[0]
    c, b, v, gate, steps = state_parts(x, l, H_)
    step, alpha = decays(steps, l)
    total = torch.cumsum(torch.log(alpha), 0)
    gap = (total[:, None] - total[None]).masked_fill(
        torch.ones((n, n), dtype=torch.bool).triu(1)[..., None], -math.inf)
    weights = torch.exp(gap) * torch.einsum("thk,shk->tsh", c, b)
    y = torch.einsum("tsh,shv->thv", weights, step[..., None] * v)
    y = (y + get(l, "state_skip").reshape(-1, 1) * v).reshape(n, -1) * torch.nn.functional.silu(gate)
    groups = y.reshape(n, model["state_key_heads"], -1)
    y = groups * torch.rsqrt((groups * groups).mean(-1, keepdim=True) + model["epsilon"])
    return (y.reshape(n, -1) * get(l, "state_norm.gain").reshape(-1)) @ get(l, "state_out.weight")


def mixer(x, l):
    y = attention(x, l) if get(l, "q.weight") is not None else 0
    if get(l, "state_in.weight") is None:
        return y
    return y + (mamba2(x, l) if get(l, "state_skip") is not None else delta_net(x, l))


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


def post(y, l, name):  # of sandwich norms
    gain = get(l, name + ".gain")
    return y if gain is None else norm(y, gain, get(l, name + ".shift"))


def loss_of(tokens):
    table = get(None, "embedding.token")
    head = get(None, "head.weight")
    x = table[tokens[:-1]]
    position = get(None, "embedding.position")
    if position is not None:
        x = x + position[: x.shape[0]]
    for l in range(model["n_layers"]):
        y = mixer(norm(x, get(l, "norm1.gain"), get(l, "norm1.shift")), l)
        x = x + post(y, l, "post_norm1")
        y = mlp(norm(x, get(l, "norm2.gain"), get(l, "norm2.shift")), l)
        x = x + post(y, l, "post_norm2")
    x = norm(x, get(None, "norm.gain"), get(None, "norm.shift"))
    logits = x @ (head if head is not None else table).T
    return torch.nn.functional.cross_entropy(logits, tokens[1:], reduction="sum")


def backward(dtype):
    """Sets the weights and their gradients.  Returns the loss."""
    global real
    real = dtype
    for name, shape in model["tensors"].items():
        w = load(folder, name + ".weight_values").to(dtype).reshape(shape)
        weights[name] = w.clone().requires_grad_(True)
    tokens = load(folder, "tokens", torch.int32).long().reshape(model["batch"], -1)
    loss = sum(loss_of(row) for row in tokens) / (tokens.shape[0] * (tokens.shape[1] - 1))
    loss.backward()
    return float(loss.detach())


def worst_of(gradients):
    """The largest error of any of the gradients, and its name."""
    errors = [(float((gradients[name] - g).norm()) /
               max(float(g.norm()), 1e-3 * rms * math.sqrt(g.numel())), name)
              for name, g in right.items()]
    return max(errors)


for folder in sys.argv[1:]:
    model = json.load(open(os.path.join(folder, "model.json")))
    H, A, K, D = model["hidden"], model["n_heads"], model["n_kv_heads"], model["head_dim"]
    llama = model["family"] == "llama"
    weights = {}
    backward(torch.float32)
    narrow = {name: w.grad.double() for name, w in weights.items()}
    loss = backward(torch.float64)
    right = {name: w.grad for name, w in weights.items()}
    squares = sum(float((g ** 2).sum()) for g in right.values())
    rms = math.sqrt(squares / sum(g.numel() for g in right.values()))
    ours = {name: load(folder, name + ".gradient_values").double().reshape(g.shape)
            for name, g in right.items()}
    worst, at = worst_of(ours)
    print(f"{worst:.3e} {worst_of(narrow)[0]:.3e} {abs(loss - model['loss']):.3e} {at}")
