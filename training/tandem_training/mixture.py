"""The command training/mixture: a mixture of experts with a layer that guesses the token after the next (MTP), from a dense target; see
../README.md.

The file has architecture qwen35moe, every layer of which attends (full_attention_interval 1). A layer keeps the target's attention; part
of its feed-forward neurons become the shared expert, the others are divided into groups of neurons that fire for like inputs, several
times, by other directions each time: each group is an expert, and the router begins with the mean of its neurons' gates. The MTP layer
begins as the last one; its input is made by the linear map that comes nearest to what the target's last block gets. All but the
embeddings is then trained towards the target's distribution."""
import argparse
import os
import re
import sys

import numpy as np
import torch
import torch.nn.functional as F

from . import Refused, corpus, gguf, llama, loop, mtp, train
from .llama import attention, causal
from .states import write_json

ARCH = "qwen35moe"
HEADS = re.compile(r"attn_[qk]_norm")  # as long as a head


def groups(gates, depth, g):
    """Divides rows of gates into 2^depth groups of equal size: by halves, along the difference of two of them."""
    parts = [torch.arange(len(gates))]
    for _ in range(depth):
        halves = []
        for p in parts:
            a, b = p[torch.randperm(len(p), generator=g)[:2]]
            halves += p[(F.normalize(gates[p], dim=1) @ (F.normalize(gates[a], dim=0) - F.normalize(gates[b], dim=0))).argsort()].chunk(2)
        parts = halves
    return parts


@torch.no_grad()
def take(block, old, a, g, sizes):
    """Makes a block of the target's: sizes are the root mean squares of its queries and keys."""
    s = block.shape
    order = torch.cat([torch.arange(0, s.head_dim, 2), torch.arange(1, s.head_dim, 2)])  # RoPE on halves, not on neighbours
    turned = lambda w, heads: w.view(heads, s.head_dim, -1)[:, order].flatten(0, 1)
    q = turned(old.attn_q.weight, s.heads).view(s.heads, 1, s.head_dim, -1)
    block.attn_q.weight.copy_(torch.cat([q, torch.zeros_like(q)], 1).flatten(0, 2))  # gates are one half
    block.attn_k.weight.copy_(turned(old.attn_k.weight, s.kv_heads))
    block.attn_v.weight.copy_(old.attn_v.weight), block.attn_output.weight.copy_(2 * old.attn_output.weight)
    block.attn_q_norm.weight.fill_(sizes[0]), block.attn_k_norm.weight.fill_(sizes[1])
    block.attn_norm.weight.copy_(old.attn_norm.weight), block.post_attention_norm.weight.copy_(old.ffn_norm.weight)
    gate, up, down = old.ffn_gate.weight, old.ffn_up.weight, old.ffn_down.weight
    size = gate.norm(dim=1) * up.norm(dim=1) * down.norm(dim=0)
    always, rest = size.argsort(descending=True).split([a.shared, len(size) - a.shared])
    block.ffn_gate_shexp.weight.copy_(gate[always]), block.ffn_up_shexp.weight.copy_(up[always])
    block.ffn_down_shexp.weight.copy_(2 * down[:, always])
    depth = (len(rest) // a.width).bit_length() - 1
    part = [rest[p] for _ in range(a.experts >> depth) for p in groups(gate[rest], depth, g)]
    for e, p in enumerate(part):
        block.ffn_gate_exps.weight[e], block.ffn_up_exps.weight[e] = gate[p], up[p]
        block.ffn_down_exps.weight[e] = down[:, p] * a.used * (1 << depth) / (a.used + (1 << depth)) * 2
        block.ffn_gate_inp.weight[e] = F.normalize(gate[p], dim=1).mean(0) * 4


@torch.no_grad()
def begin(target, w, a):
    """A mixture that computes about what the target does."""
    s = llama.replace(target.shape, halves=True, head_norms=True)
    m, g = mtp.Model(s, a), torch.Generator().manual_seed(a.seed)
    tokens, sizes = w.batch(range(min(16, len(w.texts))), ()).ids, []
    mask = causal(tokens.shape[1], tokens.shape[1])

    def attend(layer, q, k, v):
        sizes.append([q.pow(2).mean().sqrt(), k.pow(2).mean().sqrt()])
        return attention(q, k, v, mask)
    last, h = target(tokens, torch.arange(tokens.shape[1]), attend, taps=(s.layers - 1, -1))
    for block, old, size in zip(m.blk, target.blk, sizes):
        take(block, old, a, g, size)
    m.token_embd.load_state_dict(target.token_embd.state_dict()), m.output_norm.load_state_dict(target.output_norm.state_dict())
    nextn = m.mtp.nextn
    m.mtp.blk[0].load_state_dict(m.blk[-1].state_dict(), strict=False)
    nextn["shared_head_norm"].load_state_dict(target.output_norm.state_dict())
    given = torch.cat([nextn["enorm"](m.token_embd(tokens[:, 1:])), nextn["hnorm"](h[:, :-1])], -1).flatten(0, 1)
    square = given.t() @ given
    square += 1e-2 * square.diagonal().mean() * torch.eye(len(square))
    nextn["eh_proj"].weight.copy_(torch.linalg.solve(square, given.t() @ last[:, 1:].flatten(0, 1)).t())
    m.token_embd.weight.requires_grad_(False)
    return m


class Trainer:
    taps = ()

    def __init__(self, m, a):
        self.side, self.a = m, a

    def loss(self, batch, share=1.0):
        m, tokens, inside = self.side, batch.ids, batch.inside()
        h = m(tokens)
        own = loop.kl_top(m.logits(h)[inside], batch.top_ids[inside], batch.top_logprobs[inside])
        later = inside[:, 1:]
        next_ = loop.kl_top(m.logits(m.guesses(tokens, h)[0])[later], batch.top_ids[:, 1:][later], batch.top_logprobs[:, 1:][later])
        blocks = [*m.blk, *m.mtp.blk]
        return own + self.a.mtp * next_ + self.a.balance * (sum(b.balance for b in blocks) / len(blocks) - 1)

    @torch.no_grad()
    def judge(self, w, tokens):
        """On held-out texts: KL to the target, how often the best token is the target's, how often 1, 2, … guesses in a row are the
        mixture's best tokens, and the largest share of the choices that one expert has."""
        far = right = rows = ends = 0.0
        chain, most, m = torch.zeros(4), 0.0, self.side
        for indices in w.epoch(0, tokens):
            b = w.batch(indices, ())
            inside, h = b.inside(), m(b.ids)
            mine = m.logits(h)
            far += loop.kl_top(mine[inside], b.top_ids[inside], b.top_logprobs[inside]).item() * int(inside.sum())
            best = mine.argmax(-1)
            right += (best == b.top_ids[..., 0])[inside].sum().item()
            rows += int(inside.sum())
            most = max(most, *(x.times.max().item() / x.times.sum().item() for x in m.blk))
            # row i of step s is at position 1 + s + i; its token is the text's, also where the guess before was another
            n = b.ids.shape[1] - 4
            hits = [(m.logits(o).argmax(-1) == best[:, 1 + s:])[:, :n] for s, o in enumerate(m.guesses(b.ids, h, 4))]
            whole = inside[:, 4:]
            chain += torch.stack(hits, -1).float().cumprod(-1)[whole].sum(0)
            ends += int(whole.sum())
        return {"score": -far / rows, "loss": far / rows, "kl": far / rows, "best": right / rows, "chain": (chain / max(1, ends)).tolist(),
                "most": most}


def check(a, s):
    rest = s.ffn - a.shared
    if s.head_norms or s.bias or s.halves:
        raise Refused(f"--target {a.target}: want one of the llama architecture")
    if a.used > a.experts or rest < a.width or rest % a.width or (n := rest // a.width) & (n - 1) or a.experts % n:
        raise Refused(f"--experts {a.experts}, --used {a.used}, --width {a.width}, --shared {a.shared}: want the {s.ffn} neurons of a "
                      "layer to be the shared ones and a power of two of experts, of which there are a multiple")


def run(a):
    torch.set_num_threads(a.threads)
    file = gguf.File(a.target)
    target = llama.load(file)
    check(a, target.shape)
    if not a.states:
        raise Refused("want --states, a folder of the target's states")
    w, held = corpus.Corpus(a.states, False, a.length, a.fraction), corpus.Corpus(a.states, True, a.length, check=False).first(a.held)
    m = begin(target, w, a)
    apart = ("out", "fresh", "bar", "threads", "name", "enlarge", "export")
    done = loop.fit(Trainer(m, a), w, held, a, {k: v for k, v in sorted(vars(a).items()) if k not in apart}, a.export)
    first, last = done["curve"][0], max(done["curve"], key=loop.order)
    keys = {**m.keys(), "general.name": a.name or os.path.splitext(os.path.basename(a.out))[0], **{k: v for k, v in file.keys.items() if k.startswith("tokenizer.")},
            "training.data": f"{len(w.texts)} texts, {w.tokens} tokens", "training.seed": a.seed, "training.steps": done["steps"],
            "training.loss": done["loss"]}
    size = gguf.write(a.out, keys, m.tensors(), gguf.TYPE_NAMES[a.type])
    write_json(a.out + ".json", {**done, "before": first, "held": last})
    if os.path.exists(a.out + ".ckpt") and not a.export:
        os.remove(a.out + ".ckpt")
    print(f"before: {told(first)}\nafter: {told(last)}\n{a.out}: {size} bytes after {done['steps']} steps in {done['minutes']} minutes, "
          f"loss {done['loss_first']:.4f} -> {done['loss']:.4f}")
    return m, first, last


class Enlarged:
    """The tensors of a file with more numbers in a row and wider experts, which compute the same: the additional numbers are 0, and the
    weights of norms, which take a mean over all numbers, are smaller in proportion. One tensor at a time is made."""

    def __init__(self, file, dim, width):
        self.file, self.dim, self.width = file, dim, width
        self.old_dim, self.old_width = (file.key(f"{ARCH}.{k}") for k in ("embedding_length", "expert_feed_forward_length"))
        if dim < self.old_dim or width < self.old_width:
            raise Refused(f"--enlarge {dim} {width}: {file.path} has {self.old_dim} {self.old_width}, want at least that")

    def keys(self):
        eps = f"{ARCH}.attention.layer_norm_rms_epsilon"
        return {**self.file.keys, f"{ARCH}.embedding_length": self.dim, f"{ARCH}.expert_feed_forward_length": self.width,
                eps: self.file.key(eps) * self.old_dim / self.dim}

    def __len__(self):
        return len(self.file.tensors)

    def items(self):
        for name in self.file.tensors:
            t = self.file.tensor(name)
            if "norm" in name and t.shape == (self.old_dim,):
                t = t * (self.old_dim / self.dim) ** 0.5
            if name.endswith("nextn.eh_proj.weight"):
                halves = np.split(t, 2, 1)
                yield name, np.concatenate([self.pad(self.pad(h, 0, self.dim), 1, self.dim) for h in halves], 1)
                continue
            down = "ffn_down" in name or "attn_output" in name
            if "exps" in name:
                t = self.pad(t, 2 if down else 1, self.width)
            yield name, t if HEADS.search(name) else self.pad(t, t.ndim - 2 if down else t.ndim - 1, self.dim)

    @staticmethod
    def pad(t, axis, size):
        return np.pad(t, [(0, size - n if i == axis else 0) for i, n in enumerate(t.shape)])


def told(j):
    chain = " ".join(f"{x:.3f}" for x in j["chain"])
    return (f"held-out KL {j['kl']:.4f}, best token the target's {j['best']:.3f}, guesses right in a row {chain}, "
            f"most used expert {j['most']:.3f}")


def enlarge(a):
    file = gguf.File(a.target)
    if file.key("general.architecture") != ARCH:
        raise Refused(f"--target {a.target}: want a mixture that this command made")
    large = Enlarged(file, *a.enlarge)
    print(f"{a.out}: {gguf.write(a.out, large.keys(), large, gguf.TYPE_NAMES[a.type])} bytes")


def parser():
    p = argparse.ArgumentParser(prog="training/mixture", formatter_class=argparse.ArgumentDefaultsHelpFormatter,
                                description="Makes a dense target a mixture of experts with a layer that guesses (MTP).")
    train.common(p, {"lr": 6e-4, "epochs": 12, "warm": 50, "fade": 1}, states=False)
    p.add_argument("--experts", type=int, default=32)
    p.add_argument("--used", type=int, default=4, help="experts of a row")
    p.add_argument("--width", type=int, default=128, help="neurons of an expert")
    p.add_argument("--shared", type=int, default=256, help="neurons of the shared expert")
    p.add_argument("--mtp", type=float, default=0.3, help="weight of the guesses' loss")
    p.add_argument("--balance", type=float, default=0.01, help="weight of the loss by which experts are used alike")
    p.add_argument("--export", action="store_true", help="write the file as it was judged best up to the last checkpoint, and train no further")
    p.add_argument("--enlarge", type=int, nargs=2, metavar=("D", "WIDTH"),
                   help="no training: TARGET, a file of this command, with rows of D numbers and experts of WIDTH neurons that compute the "
                        "same")
    return p


def main():
    a = parser().parse_args()
    try:
        enlarge(a) if a.enlarge else run(a)
    except Refused as e:
        sys.exit(f"training: {e}")
    except KeyboardInterrupt:
        sys.exit("training: stopped; the same command continues from the last checkpoint")


if __name__ == "__main__":
    main()
