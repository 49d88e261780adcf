"""Writes what was trained as a GGUF side file, docs/sidefiles.md, and reads it back."""
import atexit
import functools
import json
import os
import shutil
import subprocess
import tempfile

import torch

from . import Refused, gguf, mtp, sides

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@functools.lru_cache(None)
def program(path=None):
    """The path of tandem: the one given, the variable TANDEM's, the one in PATH, or one built from this source."""
    path = path or os.environ.get("TANDEM") or shutil.which("tandem")
    if path:
        if not os.access(path, os.X_OK) or os.path.isdir(path):
            raise Refused(f"{path} is no program: want --tandem with the path of tandem")
        return os.path.abspath(path)
    if shutil.which("go") is None:
        raise Refused("neither tandem nor go is in PATH: want --tandem FILE, the program that reads the target's names and tokens")
    built = os.path.join(tempfile.mkdtemp(prefix="tandem-training-"), "tandem")
    atexit.register(shutil.rmtree, os.path.dirname(built), True)
    build = ["go", "build", "-trimpath", "-tags", "nomodels", "-o", built, "./cmd/tandem"]
    r = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    if r.returncode:
        raise Refused(f"tandem cannot be built: {r.stderr.strip()}: want --tandem FILE")
    return built


def tandem(args, path=None, stdin=b""):
    """Runs tandem and returns its standard output."""
    r = subprocess.run([program(path), *args], input=stdin, capture_output=True)
    if r.returncode:
        raise Refused(f"tandem {' '.join(args)}: {r.stderr.decode('utf-8', 'replace').strip()}")
    return r.stdout


def names(path, program=None):
    """The lineage and the fingerprint of the vocabulary of the target at path."""
    info = json.loads(tandem(["model", "info", "--identity", "--json", os.path.abspath(path)], program))
    return info["lineage"], info["tokenizer"]["fingerprint"]


def write(path, side, target, name, lineage, fingerprint, extra=(), kind=gguf.F16):
    """Writes a side file: side is one of sides', target the model, extra more keys. Returns its size in bytes."""
    arch = side.arch
    keys = {"general.architecture": arch, "general.name": name, "tandem.target.lineage": lineage,
            "tandem.target.vocabulary": fingerprint, f"{arch}.embedding_length": target.shape.dim, f"{arch}.vocab_size": target.shape.vocab}
    if side.reads is not None:
        keys[f"{arch}.taps"] = list(side.reads)
    keys.update(side.keys())
    keys.update(extra)
    return gguf.write(path, keys, {k: v.detach().cpu().numpy() for k, v in side.state_dict().items()}, kind)


def shape_of(f, arch, target):
    """The shape of the blocks of a draft in a file."""
    s = target.shape.of_draft(f.key(f"{arch}.block_count"))
    s.ffn, s.bias = f.key(f"{arch}.feed_forward_length"), "blk.0.attn_q.bias" in f.tensors
    return s


def read(path, target):
    """Reads a side file that this module wrote."""
    f = gguf.File(path)
    arch = f.key("general.architecture")
    for name, have in (("embedding_length", target.shape.dim), ("vocab_size", target.shape.vocab)):
        if f.key(f"{arch}.{name}") != have:
            raise Refused(f"{path}: {arch}.{name} is {f.key(f'{arch}.{name}')}: the target has {have}")
    has = f.tensors.__contains__
    d2t = torch.tensor(f.key(f"{arch}.d2t")) if f"{arch}.d2t" in f.keys else None
    if arch == "medusa":
        side = sides.Medusa(target, f.key("medusa.head_count"), f.key("medusa.block_count"), has("medusa.0.output.weight"),
                            has("medusa.0.0.bias"))
    elif arch == "ppd":
        side = sides.Prompts(target, f.key("ppd.token_count"), f.key("ppd.ensemble_count"))
    elif arch in ("dovetail", "eagle"):
        kind, bias = (sides.Dovetail, "fuse.gate.bias") if arch == "dovetail" else (sides.Eagle, "fc.bias")
        side = kind(target, f.key(f"{arch}.block_count"), has(bias), has("output_norm.weight"), has("blk.0.attn_norm.weight"),
                    shape=shape_of(f, arch, target), taps=f.key(f"{arch}.taps"), d2t=d2t)
    elif arch == "eagle3":
        side = sides.Eagle3(target, f.key("eagle3.taps"), d2t, shape_of(f, arch, target))
    elif arch == "mtp":
        side = mtp.MTP(*mtp.sizes(target.file), d2t)
    else:
        raise Refused(f"{path} has architecture {arch!r}: want medusa, ppd, dovetail, eagle, eagle3 or mtp")
    state = {name: torch.from_numpy(f.tensor(name)) for name in f.tensors}
    want = side.state_dict()
    for name in sorted(set(want) | set(state)):
        a, b = want.get(name), state.get(name)
        if a is None or b is None or a.shape != b.shape:
            raise Refused(f"{path}: tensor {name!r} is {tuple(b.shape) if b is not None else 'missing'}: "
                          f"want {tuple(a.shape) if a is not None else 'none of that name'}")
    side.load_state_dict(state)
    side.d2t = d2t
    return side
