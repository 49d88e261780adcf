"""Windows of tokens and the target's states in them, computed once and kept on disk: heads and drafts train without running the target.

A set of windows is a folder with tokens.npy (windows, length) i32; about.npy (windows, 3): index of the domain, source, and first position
of the source's own tokens; one file of f16 per tap; and done.json with the number of batches that are complete.
Sources: text as it is (0), the target's own greedy continuation of a beginning (1), one sampled at temperature 1 (2)."""
import hashlib
import json
import os
import shutil

import numpy as np
import torch

from . import Refused, data
from .llama import attention
from .progress import Bar

TEXT, GREEDY, SAMPLED = 0, 1, 2
BEGINNINGS = (32, 64, 96, 128)  # tokens of text before an own continuation
TOGETHER = 32, 128  # windows of text, and of own continuations, that run together


class Windows:
    """A complete set of windows."""

    def __init__(self, folder, domains, dim):
        self.tokens = torch.from_numpy(np.load(os.path.join(folder, "tokens.npy")).astype(np.int64))
        about = torch.from_numpy(np.load(os.path.join(folder, "about.npy")).astype(np.int64))
        self.domain, self.source, self.begin = about.unbind(1)
        self.folder, self.domains, self.dim = folder, domains, dim

    def __len__(self):
        return len(self.tokens)

    def states(self, rows, taps=(-1,)):
        """The target's states in windows `rows` as float32, taps side by side: (windows, length, taps · dim)."""
        parts = [torch.from_numpy(np.array(self.map(t)[rows.numpy()])).float() for t in taps]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def map(self, tap, mode="r"):
        path, shape = os.path.join(self.folder, f"tap{tap}.f16"), (*self.tokens.shape, self.dim)
        return np.memmap(path, np.float16, mode if os.path.exists(path) else "w+", shape=shape)


@torch.no_grad()
def generate(target, tokens, begins, warm, generator):
    """Continues windows (batch, length) from their begins, each greedily where warm is False, else at temperature 1. Changes tokens and
    returns the states after the final norm. Rows with the same begin run together."""
    b, length = tokens.shape
    s, device = target.shape, tokens.device
    cells = [torch.zeros(2, b, s.kv_heads, length, s.head_dim, device=device) for _ in target.blk]
    states = torch.zeros(b, length, s.dim, device=device)

    def run(begin, end):
        def attend(layer, q, k, v):
            cells[layer][0, :, :, begin:end], cells[layer][1, :, :, begin:end] = k, v
            mask = torch.full((end - begin, end), float("-inf"), device=device).triu(begin + 1) if end - begin > 1 else None
            return attention(q, cells[layer][0, :, :, :end], cells[layer][1, :, :, :end], mask)
        states[:, begin:end] = target(tokens[:, begin:end], torch.arange(begin, end, device=device), attend)[0]

    at = int(begins)
    run(0, at)
    for p in range(at, length):
        logits = target.logits(states[:, p - 1])
        best = logits.argmax(-1)
        noise = -torch.log(-torch.log(torch.rand(logits.shape, generator=generator).clamp_(1e-20, 1 - 1e-7)))
        tokens[:, p] = torch.where(warm, (logits + noise.to(device)).argmax(-1), best)
        run(p, p + 1)
    return states


def plan(streams, held, count, length, bos, shares, seed):
    """Chooses the windows: (tokens, about). Beginnings come from evenly spread places of each domain's stream."""
    rng, tokens, about = np.random.default_rng(seed), [], []
    for d, stream in enumerate(streams):
        n = count // len(streams)
        room = len(stream) - length
        if room < n:
            raise Refused(f"a domain has {len(stream)} tokens {'held out' if held else 'to train with'}: "
                          "want more text, or fewer windows (--windows, --held)")
        starts = np.linspace(0, room, n, dtype=np.int64)
        kinds = np.repeat([TEXT, GREEDY, SAMPLED], [n - round(n * shares[0]) - round(n * shares[1]), *(round(n * s) for s in shares)])
        rng.shuffle(kinds)
        for start, kind in zip(starts, kinds):
            body = stream[start:start + length]
            tokens.append(np.concatenate([[bos], body[:-1]]) if bos is not None else body)
            about.append((d, kind, length if kind == TEXT else min(rng.choice(BEGINNINGS), length // 2)))
    order = rng.permutation(len(tokens))
    return np.array(tokens, np.int32)[order], np.array(about, np.int32)[order]


def batches(about):
    """Indices of windows that run together: text, and own continuations by the length of their beginnings."""
    for begin in sorted({int(x) for x in about[:, 2]}):
        rows = np.flatnonzero(about[:, 2] == begin)
        size = TOGETHER[int(begin < about[:, 2].max())]
        for i in range(0, len(rows), size):
            yield begin, rows[i:i + size]


@torch.no_grad()
def fill(target, folder, device, seed, bar=True):
    """Computes what is missing of a set: own continuations and states after the final norm."""
    tokens = np.load(os.path.join(folder, "tokens.npy"), mmap_mode="r+")
    about = np.load(os.path.join(folder, "about.npy"))
    length = tokens.shape[1]
    states = Windows(folder, [], target.shape.dim).map(-1, "r+")
    todo, path = list(batches(about)), os.path.join(folder, "done.json")
    done = json.load(open(path))
    show = Bar("states", len(tokens), bar)
    for i, (begin, rows) in enumerate(todo):
        if i < done["batches"]:
            continue
        g = torch.Generator().manual_seed(seed * 100003 + i)
        t = torch.from_numpy(np.array(tokens[rows], np.int64)).to(device)
        if begin == length:
            h = target(t, torch.arange(length, device=device))[0]
        else:
            h = generate(target, t, begin, torch.from_numpy(about[rows, 1] == SAMPLED).to(device), g)
        tokens[rows], states[rows] = t.cpu().numpy(), h.cpu().numpy()
        tokens.flush(), states.flush()
        write_json(path, {**done, "batches": i + 1})
        show.at(int(sum(len(r) for _, r in todo[:i + 1])))
    show.end()


@torch.no_grad()
def fill_taps(target, w, taps, device, bar=True):
    """Computes the states of other taps that are not there yet, from the tokens of a complete set."""
    path = os.path.join(w.folder, "taps.json")
    done = json.load(open(path)) if os.path.exists(path) else {}
    missing = [t for t in taps if t != -1 and done.get(str(t), 0) < len(w)]
    if not missing:
        return
    maps, show, first = [w.map(t, "r+") for t in missing], Bar("taps", len(w), bar), min(done.get(str(t), 0) for t in missing)
    for i in range(first, len(w), TOGETHER[0]):
        t = w.tokens[i:i + TOGETHER[0]].to(device)
        for m, h in zip(maps, target(t, torch.arange(t.shape[1], device=device), taps=missing)):
            m[i:i + TOGETHER[0]] = h.cpu().numpy()
            m.flush()
        write_json(path, {**done, **{str(t): min(i + TOGETHER[0], len(w)) for t in missing}})
        show.at(min(i + TOGETHER[0], len(w)))
    show.end()


def write_json(path, what):
    with open(path + ".part", "w") as f:
        json.dump(what, f, indent=1)
        f.write("\n")
    os.replace(path + ".part", path)


def prepare(target, a, lineage, bos):
    """Returns (train, held, report): the sets of windows for the settings a, made now as far as they are not in a.work yet."""
    settings = {"version": 1, "lineage": lineage, "length": a.length, "windows": a.windows, "held": a.held, "seed": a.data_seed,
                "own": a.own, "data": [os.path.abspath(d) for d in a.data], "prompts": a.leave_out}
    name = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
    folder = os.path.join(a.work, name)
    report_path = os.path.join(folder, "report.json")
    if not os.path.exists(report_path):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        print(f"reading text into {folder}")
        text, report = data.collect(a.data, a.leave_out)
        for d, c in report["domains"].items():
            print(f"{d}: {c['files']} files, {c['left_out']} left out because of a prompt, {c['train']} to train with, "
                  f"{c['held']} held out")
        f = report["prompts_found"]
        print(f"of {report['prompts_read']} prompts, {f['whole']} stand in a file as a whole, {f['part']} in part, {f['none']} in none")
        report.update(settings=settings, order=list(text))
        for split, count, shares in (("train", a.windows, a.own), ("held", a.held, (0.5, 0.0))):
            n = max(2 * count * a.length // len(text), 8 * a.length)
            streams = [data.tokens(text[d][split], n, a.target, a.tandem) for d in text]
            for d, s in zip(text, streams):
                report["domains"][d][f"{split}_tokens"] = len(s)
            part = os.path.join(folder, split)
            os.makedirs(part)
            tokens, about = plan(streams, split == "held", count, a.length, bos, shares, a.data_seed)
            np.save(os.path.join(part, "tokens.npy"), tokens)
            np.save(os.path.join(part, "about.npy"), about)
            write_json(os.path.join(part, "done.json"), {"batches": 0})
        write_json(report_path, report)
    report = json.load(open(report_path))
    sets = []
    for seed, split in enumerate(("train", "held")):
        fill(target, os.path.join(folder, split), a.device, 2 * a.data_seed + seed, a.bar)
        sets.append(Windows(os.path.join(folder, split), report["order"], target.shape.dim))
    return (*sets, report)
