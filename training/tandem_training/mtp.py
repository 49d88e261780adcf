"""The layer inside a served file that guesses further tokens (multi-token prediction), as the architectures qwen35 and qwen35moe have it:
attention with norms of heads and a gate, then a feed-forward block or experts. training/train mtp trains it further."""
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from . import Refused, llama, sides
from .llama import Norm, Rotary, attention, causal
from .sides import linear

ARCHS = {"qwen35": False, "qwen35moe": True}  # whether it has experts


class Experts(NamedTuple):
    """The numbers of a layer's experts: how many, how many of them a row uses, and the neurons of one and of the shared one."""
    experts: int
    used: int
    width: int
    shared: int


class Stack(nn.Module):
    """The same matrix of all experts."""

    def __init__(self, experts, outputs, inputs):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(experts, outputs, inputs))


class Block(nn.Module):
    """One layer: attention with head norms and a gate, then what feed() is."""

    def __init__(self, s):
        super().__init__()
        self.shape = s
        self.attn_norm, self.post_attention_norm = Norm(s.dim, s.eps), Norm(s.dim, s.eps)
        self.attn_q = linear(s.dim, 2 * s.heads * s.head_dim)  # of each head its query, then its gate
        self.attn_k, self.attn_v = linear(s.dim, s.kv_heads * s.head_dim), linear(s.dim, s.kv_heads * s.head_dim)
        self.attn_q_norm, self.attn_k_norm = Norm(s.head_dim, s.eps), Norm(s.head_dim, s.eps)
        self.attn_output = linear(s.heads * s.head_dim, s.dim)

    def forward(self, x, rotary, angles, attend):
        s, n = self.shape, self.attn_norm(x)
        heads = lambda y, count: y.view(*y.shape[:2], count, -1).transpose(1, 2)
        q, gate = heads(self.attn_q(n), s.heads).chunk(2, -1)
        q, k = self.attn_q_norm(q), self.attn_k_norm(heads(self.attn_k(n), s.kv_heads))
        o = attend(rotary.turn(q, angles), rotary.turn(k, angles), heads(self.attn_v(n), s.kv_heads))
        x = x + self.attn_output((o * gate.sigmoid()).transpose(1, 2).flatten(2))
        return x + self.feed(self.post_attention_norm(x))


class Dense(Block):
    def __init__(self, s):
        super().__init__(s)
        self.ffn_gate, self.ffn_up, self.ffn_down = linear(s.dim, s.ffn), linear(s.dim, s.ffn), linear(s.ffn, s.dim)

    def feed(self, n):
        return self.ffn_down(F.silu(self.ffn_gate(n)) * self.ffn_up(n))


class Mixed(Block):
    """A layer with experts, and one that every row uses; a has the numbers of Experts."""

    def __init__(self, s, a):
        super().__init__(s)
        self.used, self.balance = a.used, 0.0
        self.ffn_gate_inp = linear(s.dim, a.experts)
        self.ffn_gate_exps, self.ffn_up_exps = Stack(a.experts, a.width, s.dim), Stack(a.experts, a.width, s.dim)
        self.ffn_down_exps = Stack(a.experts, s.dim, a.width)
        self.ffn_gate_shexp, self.ffn_up_shexp = linear(s.dim, a.shared), linear(s.dim, a.shared)
        self.ffn_down_shexp = linear(a.shared, s.dim)
        self.ffn_gate_inp_shexp = nn.ParameterDict({"weight": nn.Parameter(torch.zeros(s.dim))})

    def feed(self, n):
        shared = self.ffn_down_shexp(F.silu(self.ffn_gate_shexp(n)) * self.ffn_up_shexp(n))
        share = (n @ self.ffn_gate_inp_shexp["weight"]).sigmoid()[..., None]
        return shared * share + self.mix(n.flatten(0, 1)).view(n.shape)

    def mix(self, n):
        """What the chosen experts make of rows n. Leaves in balance what is least, 1, if all are chosen alike (Fedus et al., 2021)."""
        logits = self.ffn_gate_inp(n)
        best, chosen = logits.topk(self.used, -1)
        weights, count = best.softmax(-1), logits.shape[1]
        order = chosen.flatten().argsort()
        rows, times = order // self.used, chosen.flatten().bincount(minlength=count)
        parts = []
        for e, x in enumerate(n[rows].split(times.tolist())):
            g, u = x @ self.ffn_gate_exps.weight[e].t(), x @ self.ffn_up_exps.weight[e].t()
            parts.append((F.silu(g) * u) @ self.ffn_down_exps.weight[e].t())
        self.times = times
        self.balance = count * (times / order.numel() * logits.softmax(-1).mean(0)).sum()
        return torch.zeros_like(n).index_add(0, rows, (torch.cat(parts) * weights.flatten()[order, None]).to(n.dtype))


def block(s, a):
    """A layer with the experts of a, or with a feed-forward block if that is None."""
    return Mixed(s, a) if a else Dense(s)


class MTP(sides.Draft):
    """The layer that guesses: see sides.Draft for rows and steps. d2t: the tokens that it knows; None: all."""
    arch = "mtp"

    def __init__(self, s, a=None, d2t=None):
        super().__init__()
        self.shape, self.rotary = s, Rotary(s)
        self.read(s.dim, (-1,), d2t)
        layer = block(s, a)
        layer.nextn = nn.ModuleDict({"eh_proj": linear(2 * s.dim, s.dim), "enorm": Norm(s.dim, s.eps), "hnorm": Norm(s.dim, s.eps),
                                     "shared_head_norm": Norm(s.dim, s.eps)})
        self.blk = nn.ModuleList([layer])

    @property
    def nextn(self):
        return self.blk[0].nextn

    def keys(self):
        return sides.known(self)

    def enter(self, e, h):
        return self.nextn["eh_proj"](torch.cat([self.nextn["enorm"](e), self.nextn["hnorm"](h)], -1))

    def leave(self, x):
        return self.nextn["shared_head_norm"](x)

    def logits(self, out, target):
        every = target.logits(out)
        return every if self.d2t is None else every[..., self.d2t]


class Model(nn.Module):
    """A whole model of such layers, which all attend, with an MTP layer; a as for block()."""

    def __init__(self, s, a=None):
        super().__init__()
        self.shape, self.experts, self.rotary = s, a, Rotary(s)
        self.token_embd = nn.Embedding(s.vocab, s.dim)
        self.blk = nn.ModuleList(block(s, a) for _ in range(s.layers))
        self.output_norm, self.mtp = Norm(s.dim, s.eps), MTP(s, a)

    def forward(self, tokens):
        x, mask = self.token_embd(tokens), causal(tokens.shape[1], tokens.shape[1])
        angles = self.rotary.angles(torch.arange(tokens.shape[1]))
        for layer in self.blk:
            x = layer(x, self.rotary, angles, lambda q, k, v: attention(q, k, v, mask))
        return self.output_norm(x)

    def guesses(self, tokens, h, steps=1):
        """Outputs of the MTP layer from row 1 on, which stand for the states of those rows: see sides.Draft.steps."""
        return self.mtp.steps(self.token_embd(tokens[:, 1:]), h[:, :-1], torch.arange(1, tokens.shape[1]), steps)

    def logits(self, h):
        return h @ self.token_embd.weight.t()

    def tensors(self):
        """The tensors of a file: the MTP layer is one more block."""
        inside, at = "mtp.blk.0.", f"blk.{self.shape.layers}."
        return {at + n[len(inside):] if n.startswith(inside) else n: t.numpy() for n, t in self.state_dict().items()}

    def keys(self):
        s, a = self.shape, self.experts
        arch = "qwen35moe" if a else "qwen35"
        own = {"block_count": s.layers + 1, "nextn_predict_layers": 1, "full_attention_interval": 1, "attention.key_length": s.head_dim,
               "attention.value_length": s.head_dim}
        if a:
            own.update({"expert_count": a.experts, "expert_used_count": a.used, "expert_feed_forward_length": a.width,
                        "expert_shared_feed_forward_length": a.shared})
        keys = {k: v for k, v in s.keys(arch).items() if not (a and k.endswith(".feed_forward_length"))}
        return {"general.architecture": arch, **keys, **{f"{arch}.{k}": v for k, v in own.items()}}


def sizes(f):
    """The shape of the MTP layer in gguf.File f, and its Experts or None. Refuses what this module does not compute, by name."""
    arch = f.key("general.architecture")
    get = lambda name, default=0: f.key(f"{arch}.{name}", default)
    if not get("nextn_predict_layers") or start(f) + "nextn.eh_proj.weight" not in f.tensors:
        raise Refused(f"{f.path} has no layer that guesses further tokens (key {arch}.nextn_predict_layers, tensor "
                      f"{start(f)}nextn.eh_proj.weight): want a file with one, or another kind of draft")
    if arch not in ARCHS:
        raise Refused(f"{f.path} has architecture {arch!r}: training knows the MTP layers of {', '.join(ARCHS)}")
    s = replace(llama.read_shape(f, strict=False), halves=True, head_norms=True, bias=False)
    kind, factor = get("rope.scaling.type", "none"), get("rope.scaling.factor", get("rope.scale_linear", 1.0))
    if kind not in ("none", "linear") or kind == "linear" and factor != 1:
        raise Refused(f"{f.path}: RoPE is scaled ({kind}, factor {factor}): training knows unscaled positions only")
    if not ARCHS[arch]:
        return s, None
    width = get("expert_feed_forward_length")
    a = Experts(get("expert_count"), get("expert_used_count"), width,
                get("expert_shared_feed_forward_length") or get("expert_shared_count") * width)
    gate, scale, normed = get("expert_gating_func", 3), get("expert_weights_scale", 0.0), get("expert_weights_norm", True)
    if gate not in (1, 3) or gate == 1 and not normed or scale not in (0, 1) or min(a) < 1:
        raise Refused(f"{f.path}: {a}, expert_gating_func {gate}, expert_weights_norm {normed}, expert_weights_scale {scale}: training "
                      "knows a softmax over the chosen experts without a scale, and a shared expert")
    return s, a


def start(f):
    """What the names of the MTP layer's tensors in gguf.File f begin with. Of several layers it is the first."""
    arch = f.key("general.architecture")
    return f"blk.{f.key(f'{arch}.block_count') - f.key(f'{arch}.nextn_predict_layers', 0)}."


@torch.no_grad()
def inside(f, d2t=None):
    """The MTP layer in gguf.File f."""
    side = MTP(*sizes(f), d2t)
    begin, want = start(f), side.state_dict()
    have = {"blk.0." + n[len(begin):]: n for n in f.tensors if n.startswith(begin)}
    for own in ("embed_tokens", "shared_head_head"):  # they are read where the target's are: served.Served
        have.pop(f"blk.0.nextn.{own}.weight", None)
    if "blk.0.nextn.shared_head_norm.weight" not in have:
        have["blk.0.nextn.shared_head_norm.weight"] = "output_norm.weight"
    for name in sorted(set(want) | set(have)):
        at = have.get(name, begin + name[len("blk.0."):])
        if name not in want:
            raise Refused(f"{f.path}: tensor {at!r} is none that training knows: want an MTP layer as {', '.join(ARCHS)} have it")
        t = torch.from_numpy(f.tensor(at))
        if t.shape != want[name].shape:
            raise Refused(f"{f.path}: tensor {at!r} has shape {tuple(t.shape)}: want {tuple(want[name].shape)} (outputs, inputs)")
        want[name].copy_(t)
    return side
