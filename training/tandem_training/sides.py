"""What is trained for a target: heads, prompt tokens, drafts. Formulas and names as docs/sidefiles.md has them."""
import torch
import torch.nn.functional as F
from torch import nn

from .llama import Block, Norm, Rotary, attention, causal


def linear(a, b, bias=False):
    return nn.Linear(a, b, bias=bias)


def known(side):
    """The keys of a file that knows some tokens only."""
    if side.d2t is None:
        return {}
    return {f"{side.arch}.draft_vocab_size": len(side.d2t), f"{side.arch}.d2t": [int(i) for i in side.d2t]}


class Medusa(nn.Module):
    """K heads of residual blocks on the target's last state. The blocks' matrices start at zero: a head starts as the target's. d2t: the
    tokens that they know; None: all."""
    arch, reads, d2t = "medusa", (-1,), None

    def __init__(self, target, heads=5, blocks=1, own=False, bias=True):
        super().__init__()
        d, self.blocks = target.shape.dim, blocks
        self.medusa = nn.ModuleList()
        for _ in range(heads):
            parts = {str(i): linear(d, d, bias) for i in range(blocks)}
            for p in parts.values():
                nn.init.zeros_(p.weight)
                if bias:
                    nn.init.zeros_(p.bias)
            if own:
                parts["output"] = linear(d, target.shape.vocab)
                parts["output"].weight.data.copy_(target.head())
            self.medusa.append(nn.ModuleDict(parts))

    def keys(self):
        return {"medusa.head_count": len(self.medusa), "medusa.block_count": self.blocks, **known(self)}

    def hidden(self, h, k):
        """What head k makes of states h; an output matrix makes logits of it."""
        for i in range(self.blocks):
            h = h + F.silu(self.medusa[k][str(i)](h))
        return h

    def forward(self, h, k, target):
        """Logits of head k for states h."""
        z, parts = self.hidden(h, k), self.medusa[k]
        return parts["output"](z) if "output" in parts else target.logits(z)


class Prompts(nn.Module):
    """m prompt tokens with n embeddings each: row j·m + i of the matrix is token i of member j. d2t: as of Medusa."""
    arch, reads, d2t = "ppd", None, None

    def __init__(self, target, tokens=3, members=1, generator=None):
        super().__init__()
        self.m, self.n = tokens, members
        self.ppd = nn.ModuleDict({"embd": nn.Embedding(tokens * members, target.shape.dim)})
        rows = torch.randint(target.shape.vocab, (tokens * members,), generator=generator)
        self.ppd["embd"].weight.data.copy_(target.token_embd.weight[rows.to(target.token_embd.weight.device)])

    def keys(self):
        return {"ppd.token_count": self.m, "ppd.ensemble_count": self.n, **known(self)}

    def forward(self, target, cells, points, head=None):
        """Logits (batch, points, m) by head, or else of all tokens, of the prompt tokens after the nodes at points (batch, points) of sequences of which cells holds keys
        and values: per layer a pair (batch, kv heads, cells, d), turned. Every group sees the sequence up to its node, and of its own
        group the member's earlier tokens; so all groups of a window go through the target in one pass."""
        m, n, (b, g) = self.m, self.n, points.shape
        device, group = points.device, self.m * self.n
        x = self.ppd["embd"].weight.repeat(g, 1)[None].expand(b, -1, -1)
        level = torch.arange(m, device=device).repeat(n)
        positions = (points[:, :, None] + 1 + level).flatten(1)
        t = cells[0][0].shape[2]
        base = torch.zeros(b, g, t, device=device)
        base.masked_fill_(torch.arange(t, device=device) > points[:, :, None], float("-inf"))
        base = base.repeat_interleave(group, 1)[:, None]  # (batch, 1, rows, cells)
        member = torch.arange(n, device=device).repeat_interleave(m)
        own = torch.where((member[:, None] == member) & (level[:, None] >= level), 0.0, float("-inf"))

        def attend(layer, q, k, v):
            keys, values = cells[layer]
            kv, d = k.shape[1], q.shape[3]
            per = q.shape[1] // kv  # heads of a group
            q = q.reshape(b, kv, per, g * group, d)
            far = (q.flatten(2, 3) @ keys.transpose(-1, -2)).view(b, kv, per, g * group, t) * d ** -0.5 + base[:, None]
            split = lambda y: y.reshape(b, kv, g, group, d)
            near = torch.einsum("bhpgqd,bhgkd->bhpgqk", q.view(b, kv, per, g, group, d), split(k)) * d ** -0.5 + own
            w = torch.cat([far, near.reshape(b, kv, per, g * group, group)], -1).softmax(-1)
            o = (w[..., :t].flatten(2, 3) @ values).view(b, kv, per, g * group, d)
            near = w[..., t:].view(b, kv, per, g, group, group)
            o = o + torch.einsum("bhpgqk,bhgkd->bhpgqd", near, split(v)).reshape(o.shape)
            return o.view(b, kv * per, g * group, d)

        h = target(x, positions, attend)[0]
        return (head or target.logits)(h).view(b, g, n, m, -1).mean(2)


class Gate(nn.Module):
    def __init__(self, d, bias):
        super().__init__()
        self.hidden, self.embd = linear(d, d), linear(d, d)
        if bias:
            self.bias = nn.Parameter(torch.zeros(d))


class Draft(nn.Module):
    """Drafts that read a state and a token. rows() runs rows with what they attend to; states() whole windows, as in training.

    A row is that of the token at position p: embedding e, state h of p − 1. Its output stands for the target's state at p. h is the sum
    of the target's taps that it reads, all but one of them after a matrix; beyond the target's states it is the draft's own output."""
    reads, d2t = (-1,), None

    def read(self, d, taps, d2t):
        """Makes the matrices of several taps, which start as zeros, and notes the tokens that the draft knows."""
        self.reads, self.d2t = tuple(taps), d2t
        if len(taps) > 1:
            plain = taps.index(-1) if -1 in taps else 0
            self.taps = nn.ModuleDict({str(i): linear(d, d) for i in range(len(taps)) if i != plain})
            for m in self.taps.values():
                nn.init.zeros_(m.weight)

    def enter(self, e, h):
        raise NotImplementedError

    def leave(self, x):
        """The draft's output, made of the last block's output."""
        return self.output_norm(x) if hasattr(self, "output_norm") else x

    def start(self, taps):
        """h where the target's states are known: its tap, or what the draft makes of several taps."""
        if not hasattr(self, "taps"):
            return taps
        parts = taps.chunk(len(self.reads), -1)
        return sum(self.taps[str(i)](t) if str(i) in self.taps else t for i, t in enumerate(parts))

    def logits(self, out, target):
        return target.logits(out)

    def run(self, e, h, angles, attend):
        x = self.enter(e, h)
        for i, block in enumerate(self.blk):
            x = block(x, self.rotary, angles, lambda q, k, v: attend(i, q, k, v))
        return self.leave(x)

    def steps(self, e, taps, positions, steps):
        """Outputs of `steps` drafting steps at every position: e (batch, rows, d) embeddings, taps (batch, rows, width) the target's
        states one position before, positions (rows). In step s (from 0), a row at p gets the draft's own output of step s − 1 at p − 1, and
        sees what it would see after s steps from p − s: rows of step 0 up to p − s, those of step r at p − s + r. Row p is missing where
        p − s is before the first. Returns a list of (batch, rows − s, d)."""
        past = [[] for _ in self.blk]  # keys and values of each step, per block
        h, outputs, t = self.start(taps), [], e.shape[1]
        mask = causal(t, t, e.device)
        for s in range(steps):
            def attend(i, q, k, v):
                past[i].append((k, v))
                return attention(q, k, v, mask) if s == 0 else diagonal(q, past[i], mask)
            out = self.run(e[:, s:], h, self.rotary.angles(positions[s:]), attend)
            outputs.append(out)
            h = out[:, :-1]
        return outputs


def diagonal(q, past, mask):
    """Attention in step s = len(past) − 1: row i, at position s + i, sees cells 0 to i of step 0 and one of each later step: in step r
    the one at position i + r, which is the i-th."""
    b, h, t, d = q.shape
    keys, values = past[0][0], past[0][1]
    kv, cells = keys.shape[1], keys.shape[2]
    q = q.reshape(b, kv, -1, t, d)
    far = (q.flatten(2, 3) @ keys.transpose(-1, -2)).view(b, kv, -1, t, cells) * d ** -0.5 + mask[:t]
    near = [(q * k[:, :, None, :t]).sum(-1, keepdim=True) * d ** -0.5 for k, _ in past[1:]]
    w = torch.cat([far, *near], -1).softmax(-1)
    o = (w[..., :cells].flatten(2, 3) @ values).view(q.shape)
    for r, (_, v) in enumerate(past[1:]):
        o = o + w[..., cells + r:cells + r + 1] * v[:, :, None, :t]
    return o.view(b, h, t, d)


class Dovetail(Draft):
    """Gated fusion of state and token (DGF), then blocks."""
    arch = "dovetail"

    def __init__(self, target, blocks=2, bias=False, norm=True, input_norm=True, shape=None, taps=(-1,), d2t=None):
        super().__init__()
        d, self.shape = target.shape.dim, shape or target.shape.of_draft(blocks)
        self.read(d, taps, d2t)
        self.rotary = Rotary(self.shape)
        self.fuse = nn.ModuleDict({"hidden": linear(d, d, bias), "embd": linear(d, d, bias), "gate": Gate(d, bias)})
        self.blk = nn.ModuleList(Block(self.shape, input_norm or i > 0) for i in range(blocks))
        if norm:
            self.output_norm = Norm(d, self.shape.eps)
            self.output_norm.weight.data.copy_(target.output_norm.weight)

    def keys(self):
        return {**self.shape.keys(self.arch), **known(self)}

    def enter(self, e, h):
        h1, h2, gate = self.fuse["hidden"](h), self.fuse["embd"](e), self.fuse["gate"]
        g = gate.hidden(h1) + gate.embd(h2)
        g = torch.sigmoid(g + gate.bias if hasattr(gate, "bias") else g)
        return g * h1 + (1 - g) * h2


class Eagle(Draft):
    """Concatenation of token and state, one linear layer, then blocks (EAGLE-1 and 2)."""
    arch = "eagle"

    def __init__(self, target, blocks=1, bias=True, norm=True, input_norm=False, shape=None, taps=(-1,), d2t=None):
        super().__init__()
        d, self.shape = target.shape.dim, shape or target.shape.of_draft(blocks)
        self.read(d, taps, d2t)
        self.rotary = Rotary(self.shape)
        self.fc = nn.ModuleDict({"embd": linear(d, d), "hidden": linear(d, d, bias)})
        self.blk = nn.ModuleList(Block(self.shape, input_norm or i > 0) for i in range(blocks))
        if norm:
            self.output_norm = Norm(d, self.shape.eps)
            self.output_norm.weight.data.copy_(target.output_norm.weight)

    def keys(self):
        return {**self.shape.keys(self.arch), **known(self)}

    def enter(self, e, h):
        return self.fc["embd"](e) + self.fc["hidden"](h)

    def state_dict(self, *args, **kwargs):
        return renamed(super().state_dict(*args, **kwargs), "fc.hidden.bias", "fc.bias")

    def load_state_dict(self, state, *args, **kwargs):
        return super().load_state_dict(renamed(state, "fc.bias", "fc.hidden.bias"), *args, **kwargs)


def renamed(state, old, new):
    return type(state)((new if k == old else k, v) for k, v in state.items())


class WideBlock(Block):
    """EAGLE-3's block: q, k and v are made of [norm(e); norm(h)], the residual stream begins with h."""

    def __init__(self, s):
        super().__init__(s)
        self.hidden_norm = Norm(s.dim, s.eps)
        for name, n in (("attn_q", s.heads), ("attn_k", s.kv_heads), ("attn_v", s.kv_heads)):
            setattr(self, name, Halves(s.dim, n * s.head_dim))

    def inputs(self, x):
        return self.attn_norm(self.e), self.hidden_norm(x)


class Halves(nn.Module):
    """A linear layer on two inputs side by side."""

    def __init__(self, a, b):
        super().__init__()
        self.embd, self.hidden = linear(a, b), linear(a, b)

    def forward(self, pair):
        return self.embd(pair[0]) + self.hidden(pair[1])


class Eagle3(Draft):
    """Three states of the target, one wide block, a draft vocabulary. d2t holds the target's ids of the draft's tokens."""
    arch = "eagle3"

    def __init__(self, target, taps, d2t, shape=None):
        super().__init__()
        s = self.shape = shape or target.shape.of_draft(1)
        self.rotary, self.reads, self.d2t = Rotary(s), tuple(taps), d2t
        self.fc = nn.ModuleList(linear(s.dim, s.dim) for _ in taps)
        self.blk = nn.ModuleList([WideBlock(s)])
        self.output_norm = Norm(s.dim, s.eps)
        self.output = linear(s.dim, len(d2t))
        self.output.weight.data.copy_(target.head(d2t))

    def keys(self):
        return {**self.shape.keys(self.arch), "eagle3.draft_length": self.shape.dim, **known(self)}

    def start(self, taps):
        return sum(fc(t) for fc, t in zip(self.fc, taps.chunk(len(self.fc), -1)))

    def enter(self, e, h):
        self.blk[0].e = e
        return h

    def leave(self, x):
        return x

    def own_logits(self, out):
        """Logits of the draft's vocabulary."""
        return self.output(self.output_norm(out))

    def logits(self, out, target):
        return self.own_logits(out)
