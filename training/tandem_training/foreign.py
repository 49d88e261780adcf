"""The command training/foreign: a draft with a vocabulary of its own, for a target of another one; see ../README.md.

The vocabulary is byte-level pairs, learned from the text. The draft starts from a draft of the target's vocabulary: its blocks are taken
over, and the embedding of a new token is the mean of those that the old tokenizer would make of its text. It learns the text by cross
entropy, since a distribution over other tokens cannot be compared."""
import argparse
import collections
import heapq
import json
import os
import re
import sys

import torch
import torch.nn.functional as F

from . import Refused, data, export, gguf, llama, loop, train
from .export import ROOT

WORD = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")  # about GPT-2's
END = "<|endoftext|>"


def alphabet():
    """The character in which byte-level pieces write each byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    return {**{b: chr(b) for b in shown}, **{b: chr(256 + i) for i, b in enumerate(hidden)}}


def learn(text, size):
    """Returns the pieces (bytes) of a vocabulary of about that size, and the merges that make them: Sennrich et al., 2016."""
    counts = collections.Counter()
    for b in text:
        counts.update(w.encode() for w in WORD.findall(b.decode()))
    words = [([bytes([c]) for c in w], n) for w, n in counts.items()]
    pairs, where = collections.Counter(), collections.defaultdict(set)
    for i, (w, n) in enumerate(words):
        for p in zip(w, w[1:]):
            pairs[p] += n
            where[p].add(i)
    heap = [(-n, p) for p, n in pairs.items()]
    heapq.heapify(heap)
    pieces, merges = [bytes([b]) for b in range(256)], []
    known = set(pieces)
    while heap and len(pieces) < size - 1:
        n, p = heapq.heappop(heap)
        if pairs[p] != -n or n == 0:
            continue
        merges.append(p)
        if p[0] + p[1] not in known:
            known.add(p[0] + p[1])
            pieces.append(p[0] + p[1])
        changed = set()
        for i in where.pop(p):
            w, times = words[i]
            for q in zip(w, w[1:]):
                pairs[q] -= times
                changed.add(q)
            new, at = [], 0
            while at < len(w):
                both = at + 1 < len(w) and (w[at], w[at + 1]) == p
                new.append(w[at] + w[at + 1] if both else w[at])
                at += 2 if both else 1
            words[i] = new, times
            for q in zip(new, new[1:]):
                pairs[q] += times
                where[q].add(i)
                changed.add(q)
        for q in changed:
            if pairs[q] > 0:
                heapq.heappush(heap, (-pairs[q], q))
    return pieces, merges


def keys_of(pieces, merges):
    """The tokenizer's keys: token 0 begins and ends texts."""
    show = alphabet()
    spell = lambda b: "".join(show[c] for c in b)
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": [END, *map(spell, pieces)],
            "tokenizer.ggml.token_type": [3] + [1] * len(pieces), "tokenizer.ggml.merges": [f"{spell(a)} {spell(b)}" for a, b in merges],
            "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.add_bos_token": True}


def old_tokens(piece, ids, longest):
    """About the tokens that a SentencePiece vocabulary makes of a piece: the longest first."""
    text, out, at = piece.replace(b" ", "\u2581".encode()), [], 0
    while at < len(text):
        for n in range(min(longest, len(text) - at), 0, -1):
            if (t := ids.get(text[at:at + n])) is not None:
                out.append(t)
                at += n
                break
        else:
            out.append(ids[b"<0x%02X>" % text[at]])
            at += 1
    return out


def begin(start, pieces):
    """The draft in gguf.File start, with other tokens."""
    old = llama.load(start)
    if old.shape.dim * old.shape.vocab == 0 or hasattr(old, "output"):
        raise Refused(f"--from {start.path} has an output matrix of its own: want a draft with tied embeddings")
    ids = {p.encode("utf-8", "surrogateescape"): i for i, p in enumerate(start.key("tokenizer.ggml.tokens"))}
    longest, was = max(map(len, ids)), old.token_embd.weight.data
    rows = [was[start.key("tokenizer.ggml.bos_token_id")]] + [was[old_tokens(p, ids, longest)].mean(0) for p in pieces]
    old.shape.vocab = len(rows)
    draft = llama.Llama(old.shape, tied=True)
    draft.load_state_dict({**old.state_dict(), "token_embd.weight": torch.stack(rows)})
    return draft.requires_grad_(True)


def rows_of(files, count, length, a):
    """Rows of the text's new tokens, evenly spread over it, each behind the token that begins a text."""
    blob = b"".join(b + b"\n" for _, b in files)
    step = max(1, len(blob) // count)  # a row is cut from more bytes than its tokens can have printed
    parts = [blob[i:i + 6 * length].decode("utf-8", "ignore").encode() for i in range(0, step * count, step)]
    joined = b"\0".join(parts)  # no text has this byte
    got = json.loads(export.tandem(["tokenize", "--json", "--model", a.out], a.tandem, joined))["tokens"]
    zero = 1  # the byte's token: bytes follow token 0 in order
    rows, row = [], []
    for t in [*got[1:], zero]:
        if t == zero:
            rows.append([0, *row][:length])
            row = []
        else:
            row.append(t)
    return torch.tensor([r + [-1] * (length - len(r)) for r in rows])


class Rows:
    """Rows of tokens, in batches as corpus.Corpus has them."""

    def __init__(self, rows):
        self.rows, self.texts, self.tokens = rows, rows, rows.numel()

    def epoch(self, seed, tokens):
        order = torch.randperm(len(self.rows), generator=torch.Generator().manual_seed(seed))
        return [b.tolist() for b in order.split(max(1, tokens // self.rows.shape[1]))]

    def batch(self, indices, taps):
        return Batch(self.rows[indices])


class Batch:
    def __init__(self, rows):
        self.rows, self.tokens = rows, int((rows >= 0).sum())


class Trainer:
    """Cross entropy with the text."""
    taps = ()

    def __init__(self, draft):
        self.side = draft

    def loss(self, batch, share=1.0):
        given = batch.rows[:, :-1].clamp(min=0)
        h = self.side(given, torch.arange(given.shape[1]))[0]
        return F.cross_entropy(self.side.logits(h).flatten(0, 1), batch.rows[:, 1:].flatten(), ignore_index=-1)

    @torch.no_grad()
    def judge(self, held, tokens):
        loss = self.loss(Batch(held.rows)).item()
        return {"score": -loss, "loss": loss}


def run(a):
    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    text, report = data.collect(a.data, a.leave_out)
    files = {split: [f for d in text.values() for f in d[split]] for split in ("train", "held")}
    pieces, merges = learn([b for _, b in files["train"][::a.every]], a.vocabulary)
    print(f"a vocabulary of {len(pieces) + 1} tokens", flush=True)
    draft = begin(gguf.File(a.target), pieces)
    keys = {"general.architecture": "llama", "general.name": os.path.splitext(os.path.basename(a.out))[0], **draft.shape.keys("llama"),
            **keys_of(pieces, merges)}
    save = lambda extra: gguf.write(a.out, {**keys, **extra}, {k: v.detach().numpy() for k, v in draft.state_dict().items()})
    save({})  # its tokenizer is needed now
    rows, held = (Rows(rows_of(files[s], n, a.length, a)) for s, n in (("train", a.windows), ("held", a.held)))
    settings = {k: v for k, v in sorted(vars(a).items()) if k not in ("out", "fresh", "bar", "tandem", "threads")}
    done = loop.fit(Trainer(draft), rows, held, a, settings)
    first, last = done["curve"][0]["loss"], min(c["loss"] for c in done["curve"])
    told = "; ".join(f"{d}: {c['train']} files, {c['left_out']} left out for prompts" for d, c in report["domains"].items())
    size = save({"training.steps": done["steps"], "training.loss": done["loss"], "training.data": told + "; every tenth file held out"})
    if os.path.exists(a.out + ".ckpt"):
        os.remove(a.out + ".ckpt")
    print(f"{a.out}: {size} bytes after {done['steps']} steps in {done['minutes']} minutes, loss {done['loss_first']:.4f} -> "
          f"{done['loss']:.4f}; held-out {first:.4f} -> {last:.4f} nats a token")


def turn(a):
    """Writes the draft with its tokens in the opposite order: the same function of texts, so it shows what translating costs."""
    file = gguf.File(a.target)
    last, keys = len(file.key("tokenizer.ggml.tokens")) - 1, dict(file.keys)
    for name in ("tokens", "scores", "token_type"):
        keys[f"tokenizer.ggml.{name}"] = file.key(f"tokenizer.ggml.{name}")[::-1]
    for name, value in file.keys.items():
        if name.startswith("tokenizer.ggml.") and name.endswith("_token_id"):
            keys[name] = last - value
    tensors = {name: file.tensor(name) for name in file.tensors}
    gguf.write(a.out, keys, {n: t[::-1] if t.ndim == 2 and t.shape[0] == last + 1 else t for n, t in tensors.items()})
    print(f"{a.out}: the tokens of {a.target} in the opposite order")


def parser():
    p = argparse.ArgumentParser(prog="training/foreign", formatter_class=argparse.ArgumentDefaultsHelpFormatter,
                                description="Gives a draft (--target) of a SentencePiece vocabulary a byte-level one of its own.")
    train.common(p, {"lr": 1e-3, "epochs": 12, "warm": 50, "fade": 1}, states=False)
    p.set_defaults(length=256, tokens=2048, held=96)
    p.add_argument("--data", nargs="*", default=[], help="files or folders of text, each a domain; none: the Go and Python libraries here")
    p.add_argument("--leave-out", default=os.path.join(ROOT, "testdata", "prompts.jsonl"),
                   help="prompts whose source files are not used; empty: none")
    p.add_argument("--windows", type=int, default=1400, help="rows of text to train with")
    p.add_argument("--tandem", help="path of the program tandem; else TANDEM, the one in PATH, or one built from this source")
    p.add_argument("--vocabulary", type=int, default=2048, help="tokens of the draft's vocabulary")
    p.add_argument("--turn", action="store_true", help="no training: the same tokens in the opposite order")
    p.add_argument("--every", type=int, default=4, help="the vocabulary is learned from one file in so many")
    return p


def main():
    a = parser().parse_args()
    try:
        if not 258 <= a.vocabulary <= 1 << 18 or a.every < 1:
            raise Refused(f"--vocabulary {a.vocabulary}, --every {a.every}: want 258 to 262144 tokens, and 1 or more")
        turn(a) if a.turn else run(a)
    except Refused as e:
        sys.exit(f"training: {e}")


if __name__ == "__main__":
    main()
