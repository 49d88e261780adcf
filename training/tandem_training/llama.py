"""Models of the llama family in PyTorch. Modules carry the names of GGUF tensors, so that a state dict is what a file holds."""
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn

from . import Refused

FAMILY = {"llama": (False, False), "qwen2": (True, False), "qwen3": (True, True)}  # RoPE on halves; norms of heads


@dataclass
class Shape:
    """The hyper-parameters of a model, or of a draft's blocks."""
    dim: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int
    eps: float
    base: float
    rope_dim: int
    halves: bool = False
    head_norms: bool = False
    bias: bool = False  # of q, k and v

    def of_draft(self, blocks):
        """The shape of a draft for this target: the target's blocks, as the architectures of drafts have them."""
        heads = self.heads if self.heads * self.head_dim == self.dim else max(1, self.dim // self.head_dim)
        kv = self.kv_heads if heads % self.kv_heads == 0 else heads
        return replace(self, layers=blocks, heads=heads, kv_heads=kv, head_dim=self.dim // heads, rope_dim=self.dim // heads,
                       halves=False, head_norms=False, bias=False)

    def keys(self, arch):
        """The keys of these numbers, for a file of that architecture."""
        k = {"block_count": self.layers, "context_length": self.context, "embedding_length": self.dim,
             "feed_forward_length": self.ffn, "attention.head_count": self.heads, "attention.head_count_kv": self.kv_heads,
             "attention.layer_norm_rms_epsilon": float(self.eps), "rope.freq_base": float(self.base),
             "rope.dimension_count": self.rope_dim, "vocab_size": self.vocab}
        return {f"{arch}.{name}": v for name, v in k.items()}


def read_shape(f, strict=True):
    """Reads the shape of the model in gguf.File f. Strict refuses what this module does not compute."""
    arch = f.key("general.architecture")
    if strict and arch not in FAMILY:
        raise Refused(f"{f.path} has architecture {arch!r}: training knows {', '.join(FAMILY)}")
    get = lambda name, default=None: f.key(f"{arch}.{name}", default)
    halves, norms = FAMILY.get(arch, (False, False))
    dim, layers = get("embedding_length"), get("block_count") - get("nextn_predict_layers", 0)
    ffn = get("feed_forward_length", 0) or get("expert_feed_forward_length")
    counts = [get("attention.head_count"), get("attention.head_count_kv", get("attention.head_count")), ffn]
    for i, name in enumerate(["attention.head_count", "attention.head_count_kv", "feed_forward_length"]):
        if isinstance(counts[i], list):
            if strict and len(set(counts[i])) != 1:
                raise Refused(f"{f.path}: {arch}.{name} differs from layer to layer: training wants the same in all")
            counts[i] = counts[i][-1]
    heads, kv, ffn = counts
    head_dim = get("attention.key_length", dim // max(1, heads))
    kind, factor = get("rope.scaling.type", "none"), get("rope.scaling.factor", get("rope.scale_linear", 1.0))
    if strict and (kind not in ("none", "linear") or (kind == "linear" and factor != 1)):
        raise Refused(f"{f.path}: RoPE is scaled ({kind}, factor {factor}): training knows unscaled positions only")
    if strict and (get("expert_count", 0) or get("attention.sliding_window", 0)):
        raise Refused(f"{f.path} has experts or a sliding window: training knows dense models with full attention only")
    vocab = get("vocab_size", 0) or f.tensors.get("token_embd.weight", (0, 0, (0, 0)))[2][1]
    s = Shape(dim, layers, heads, kv, head_dim, ffn, vocab, get("context_length"), get("attention.layer_norm_rms_epsilon"),
              get("rope.freq_base", 10000.0), get("rope.dimension_count", head_dim), halves, norms, "blk.0.attn_q.bias" in f.tensors)
    if min(dim, layers, heads, kv, ffn, head_dim, vocab) < 1 or heads % kv:
        raise Refused(f"{f.path}: shape {s}: want numbers above 0, and heads that are a multiple of kv_heads")
    return s


class Rotary:
    """Angles of RoPE for positions; factors, if not None, divide the frequencies one by one."""

    def __init__(self, shape, factors=None):
        freq = shape.base ** (-torch.arange(0, shape.rope_dim, 2, dtype=torch.float64) / shape.rope_dim)
        self.freq = freq if factors is None else freq / factors.double()
        self.halves, self.dim = shape.halves, shape.rope_dim

    def angles(self, positions):
        """Returns cos and sin, shape (..., rows, rope_dim / 2), for integer positions of shape (..., rows)."""
        a = positions.double()[..., None] * self.freq.to(positions.device)
        return a.cos().float(), a.sin().float()

    def turn(self, x, angles):
        """Turns the leading elements of heads x (batch, heads, rows, head_dim) by angles for (batch, rows) or for (rows)."""
        cos, sin = (a if a.dim() == 2 else a[:, None] for a in angles)
        head, rest = x[..., :self.dim], x[..., self.dim:]
        if self.halves:
            a, b = head.chunk(2, -1)
            head = torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
        else:
            a, b = head[..., 0::2], head[..., 1::2]
            head = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
        return head if rest.shape[-1] == 0 else torch.cat([head, rest], -1)


class Norm(nn.Module):
    """RMS norm."""

    def __init__(self, dim, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def attention(q, k, v, mask=None):
    """Attention of heads q (batch, heads, rows, d) to k and v (batch, kv heads, cells, d); mask is added to the scores."""
    b, h, t, d = q.shape
    q = q.reshape(b, k.shape[1], -1, d)  # heads of a group beside each other, and their rows
    scores = (q @ k.transpose(-1, -2)).mul_(d ** -0.5)
    if mask is not None:
        scores = (scores.view(b, -1, t, k.shape[2]) + mask).view(scores.shape)
    return (scores.softmax(-1) @ v).view(b, h, t, d)


def causal(rows, cells, device=None):
    """Mask of the last rows of a sequence of that many cells: 0 where a row sees, -inf where not."""
    return torch.full((rows, cells), float("-inf"), device=device).triu(cells - rows + 1)


class Block(nn.Module):
    """One transformer block. attend(q, k, v) gets heads that are turned already, and decides what a row sees."""

    def __init__(self, s, input_norm=True):
        super().__init__()
        linear = lambda a, b, bias=False: nn.Linear(a, b, bias=bias)
        self.shape = s
        if input_norm:
            self.attn_norm = Norm(s.dim, s.eps)
        self.attn_q = linear(s.dim, s.heads * s.head_dim, s.bias)
        self.attn_k = linear(s.dim, s.kv_heads * s.head_dim, s.bias)
        self.attn_v = linear(s.dim, s.kv_heads * s.head_dim, s.bias)
        self.attn_output = linear(s.heads * s.head_dim, s.dim)
        if s.head_norms:
            self.attn_q_norm, self.attn_k_norm = Norm(s.head_dim, s.eps), Norm(s.head_dim, s.eps)
        self.ffn_norm = Norm(s.dim, s.eps)
        self.ffn_gate, self.ffn_up, self.ffn_down = linear(s.dim, s.ffn), linear(s.dim, s.ffn), linear(s.ffn, s.dim)

    def inputs(self, x):
        """What q, k and v are made of."""
        return self.attn_norm(x) if hasattr(self, "attn_norm") else x

    def forward(self, x, rotary, angles, attend):
        a, s = self.inputs(x), self.shape
        split = lambda y, n: y.view(*y.shape[:2], n, s.head_dim).transpose(1, 2)
        q, k, v = split(self.attn_q(a), s.heads), split(self.attn_k(a), s.kv_heads), split(self.attn_v(a), s.kv_heads)
        if s.head_norms:
            q, k = self.attn_q_norm(q), self.attn_k_norm(k)
        o = attend(rotary.turn(q, angles), rotary.turn(k, angles), v)
        x = x + self.attn_output(o.transpose(1, 2).flatten(2))
        n = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(n)) * self.ffn_up(n))


class Llama(nn.Module):
    """A whole model; frozen when it is a target."""

    def __init__(self, shape, tied, factors=None):
        super().__init__()
        self.shape, self.rotary = shape, Rotary(shape, factors)
        self.token_embd = nn.Embedding(shape.vocab, shape.dim)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = Norm(shape.dim, shape.eps)
        if not tied:
            self.output = nn.Linear(shape.dim, shape.vocab, bias=False)

    def head(self, ids=None):
        """The output matrix, (vocab, dim), or its rows for some tokens."""
        m = self.output.weight if hasattr(self, "output") else self.token_embd.weight
        return m if ids is None else m[ids]

    def logits(self, h):
        return h @ self.head().t()

    def bend(self, logits):
        """What a model does to the products of its output matrix: here nothing (served.Served.bend)."""
        return logits

    def forward(self, x, positions, attend=None, taps=(-1,)):
        """Runs rows x: tokens (batch, rows), or embeddings (batch, rows, dim). attend(layer, q, k, v), by default causal attention.
        Returns the states of taps, in order: the residual stream after that many layers (0: the embeddings), or -1, the state after the
        final norm."""
        if not x.is_floating_point():
            x = self.token_embd(x)
        if attend is None:
            mask = causal(x.shape[1], x.shape[1], x.device)
            attend = lambda layer, q, k, v: attention(q, k, v, mask)
        angles, seen = self.rotary.angles(positions), {0: x}
        for i, block in enumerate(self.blk):
            x = block(x, self.rotary, angles, lambda q, k, v: attend(i, q, k, v))
            seen[i + 1] = x
        seen[-1] = self.output_norm(x)
        return [seen[t] for t in taps]


def load(f, device="cpu"):
    """Loads the model in gguf.File f as float32."""
    shape = read_shape(f)
    factors = torch.from_numpy(f.tensor("rope_freqs.weight")) if "rope_freqs.weight" in f.tensors else None
    m = Llama(shape, "output.weight" not in f.tensors, factors)
    fill(m, f)
    for p in m.parameters():
        p.requires_grad_(False)
    return m.to(device)


def fill(module, f, prefix=""):
    """Copies the file's tensors into a module; each must be there with the right shape, and none be left over."""
    unused = {n for n in f.tensors if not n.startswith("rope_")}
    with torch.no_grad():
        for name, p in module.state_dict().items():
            t = torch.from_numpy(f.tensor(prefix + name))
            if t.shape != p.shape:
                raise Refused(f"{f.path}: tensor {name!r} has shape {tuple(t.shape)}: want {tuple(p.shape)} (outputs, inputs)")
            p.copy_(t)
            unused.discard(prefix + name)
    if unused:
        raise Refused(f"{f.path} has tensors that training does not know, such as {sorted(unused)[0]!r}")
