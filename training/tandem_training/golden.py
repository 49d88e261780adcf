"""Writes the golden files of engine/testdata/sides: a tiny target with random weights, a side file of each kind, and what PyTorch makes of
them. They were written once and are committed; writing them anew changes them only if this file or a formula changes."""
import json
import os
import sys
from dataclasses import replace

import torch

from . import export, gguf, mtp, sides
from .llama import Llama, Shape, attention, causal

TOKENS = [1, 75, 104, 111, 111, 114, 35, 122, 114, 117, 111, 103, 13, 100, 259]
LAYERS = {"qwen35": None, "qwen35moe": mtp.Experts(8, 2, 16, 24)}  # targets with an MTP layer, by architecture
SHAPE = Shape(dim=32, layers=3, heads=2, kv_heads=1, head_dim=16, ffn=64, vocab=260, context=64, eps=1e-5, base=10000.0, rope_dim=16)


def tiny(seed, shape=SHAPE):
    """A target with random weights; the vocabulary's size is that of vocabulary()."""
    m = Llama(shape, tied=True)
    randomise(m, seed)
    for p in m.parameters():
        p.requires_grad_(False)
    return m


def randomise(module, seed):
    g = torch.Generator().manual_seed(seed)
    for p in module.parameters():
        noise = torch.randn(p.shape, generator=g)
        p.data = noise * p.shape[-1] ** -0.5 if p.dim() > 1 else p.data + 0.2 * noise


def tiny_mtp(arch, seed):
    """A target with an MTP layer, with random weights."""
    m = mtp.Model(replace(SHAPE, layers=1, context=512, rope_dim=8, halves=True, head_norms=True), LAYERS[arch])
    randomise(m, seed)
    for p in m.parameters():
        p.requires_grad_(False)
    return m


def vocabulary():
    """Keys of a SentencePiece vocabulary of 260 tokens: three special ones, the bytes, and the space."""
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)] + ["\u2581"]
    key = "tokenizer.ggml."
    return {key + "model": "llama", key + "tokens": pieces, key + "scores": [0.0] * 260, key + "token_type": [2, 3, 3] + [6] * 256 + [1],
            key + "bos_token_id": 1, key + "eos_token_id": 2, key + "unknown_token_id": 0}


def write_target(path, m):
    keys = {"general.architecture": "llama", "general.name": "tiny", **m.shape.keys("llama"), **vocabulary()}
    gguf.write(path, keys, {k: v.numpy() for k, v in m.state_dict().items()}, gguf.F32)


def write_mtp(path, m):
    keys = {**m.keys(), "general.name": "tiny", **vocabulary()}
    gguf.write(path, keys, m.tensors(), gguf.F32)


def run(target, tokens, taps):
    """States of taps side by side (1, rows, width), and keys and values of each layer, for a sequence of tokens."""
    cells, mask = [], causal(len(tokens), len(tokens))

    def attend(layer, q, k, v):
        cells.append((k, v))
        return attention(q, k, v, mask)

    states = target(torch.tensor([tokens]), torch.arange(len(tokens)), attend, taps)
    return torch.cat(states, -1), cells


def of_heads(side, target, tokens):
    h, rows = run(target, tokens, (-1,))[0][0], [1, 5, len(tokens) - 1]
    return {"rows": rows, "logits": [[plain(side(h[r], k, target)) for k in range(len(side.medusa))] for r in rows]}


def of_prompts(side, target, tokens):
    cells, points = run(target, tokens, (-1,))[1], [1, 5, len(tokens) - 1]
    return {"rows": points, "logits": plain(side(target, cells, torch.tensor([points]))[0])}


def of_draft(side, target, tokens, own=2, taps=None):
    fed, rows = len(tokens) - 1 - own, len(tokens) - 1  # rows with the target's states; all rows, at positions 1 to `rows`
    taps = (run(target, tokens, side.reads)[0] if taps is None else taps)[:, :-1]
    e = target.token_embd(torch.tensor([tokens[1:]]))
    steps = side.steps(e, taps, torch.arange(1, rows + 1), own + 1)
    out = torch.cat([steps[0][0, :fed]] + [steps[s][0, fed - 1:fed] for s in range(1, own + 1)])
    return {"fed": fed, "states": plain(out), "logits": plain(side.logits(out, target))}


def plain(t):
    """Nested lists of numbers with seven digits."""
    return [plain(x) for x in t] if t.dim() else float(f"{t.item():.7g}")


def tiny_sides(target):
    """One of each kind, by the name of its files."""
    torch.manual_seed(16)
    return {
        "medusa-shared": sides.Medusa(target, 3, 2), "medusa-own": sides.Medusa(target, 2, 1, own=True, bias=False),
        "ppd-1": sides.Prompts(target, 3, 1), "ppd-4": sides.Prompts(target, 3, 4),
        "dovetail": sides.Dovetail(target, 2, bias=True), "dovetail-bare": sides.Dovetail(target, 1, norm=False, input_norm=False),
        "eagle": sides.Eagle(target, 1), "eagle3": sides.Eagle3(target, (1, 2, 3), torch.arange(100) * 2 + 60),
    }


@torch.no_grad()
def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(export.ROOT, "engine", "testdata", "sides")
    os.makedirs(folder, exist_ok=True)
    target, path = tiny(16), os.path.join(folder, "target.gguf")
    write_target(path, target)
    lineage, fingerprint = export.names(path)
    states = run(target, TOKENS, (-1, 1, 2, 3))[0][0].split(SHAPE.dim, -1)
    save(folder, "target", {"tokens": TOKENS, "taps": {t: plain(s) for t, s in zip(("-1", "1", "2", "3"), states)},
                            "logits": plain(target.logits(states[0]))})
    for seed, (name, side) in enumerate(tiny_sides(target).items()):
        randomise(side, 100 + seed)
        export.write(os.path.join(folder, name + ".gguf"), side, target, name, lineage, fingerprint, kind=gguf.F32)
        of = {"medusa": of_heads, "ppd": of_prompts}.get(side.arch, of_draft)
        save(folder, name, {"tokens": TOKENS, **of(side, target, TOKENS)})
    for arch in LAYERS:
        layers(folder, arch)


def layers(folder, arch):
    """A target with an MTP layer, and a side file with another layer in its place, which knows some tokens only."""
    target, path = tiny_mtp(arch, 200), os.path.join(folder, arch + ".gguf")
    write_mtp(path, target)
    states = target(torch.tensor([TOKENS]))
    save(folder, arch, {"tokens": TOKENS, "taps": {"-1": plain(states[0])}, **of_draft(target.mtp, target, TOKENS, taps=states)})
    side = mtp.inside(gguf.File(path), torch.arange(100) * 2 + 60)
    randomise(side, 201)
    export.write(f"{path[:-5]}-mtp.gguf", side, target, arch + "-mtp", *export.names(path), kind=gguf.F32)
    save(folder, arch + "-mtp", {"tokens": TOKENS, **of_draft(side, target, TOKENS, taps=states)})


def save(folder, name, what):
    with open(os.path.join(folder, name + ".json"), "w") as f:
        f.write(json.dumps(what, separators=(",", ":")).replace('],"', '],\n"') + "\n")


if __name__ == "__main__":
    main()
