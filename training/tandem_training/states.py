"""Reads the shards that `tandem model states` writes: what the served file computes over texts. Needs numpy alone. docs/states.md
describes the format.

    for t in states.texts(folder, held=False):
        t.ids                 # (n,) i32
        t.states[-1]          # (n, d) f16: a tap by its number
        t.top_ids, t.top_logprobs  # (n, top) i32 and f16: of the next token

    python3 -m tandem_training.states FOLDER     # checks all shards and says what they hold
"""
import glob
import hashlib
import json
import os
import struct
import sys
from typing import NamedTuple

import numpy as np

from . import Refused

MAGIC, VERSION, SUM = b"TDMSTATE", 1, 32


class Shard:
    """A shard: `header` as a dictionary, and arrays with a row for each token, which are parts of the mapped file."""

    def __init__(self, path, check=True):
        self.path = path
        if os.path.getsize(path) < len(MAGIC) + 8 + SUM:
            raise Refused(f"{path}: too short for a shard of states")
        raw = np.memmap(path, np.uint8, "r")
        begin = len(MAGIC) + 8
        if bytes(raw[:len(MAGIC)]) != MAGIC:
            raise Refused(f"{path}: begins with {bytes(raw[:len(MAGIC)])!r}: want {MAGIC!r}, a shard of states")
        version, length = struct.unpack("<II", bytes(raw[len(MAGIC):begin]))
        if version != VERSION:
            raise Refused(f"{path}: version {version} of states: want {VERSION}")
        if check and hashlib.sha256(raw[:-SUM]).digest() != bytes(raw[-SUM:]):
            raise Refused(f"{path}: damaged: its sum is not what it says: make it again with tandem model states")
        try:
            self.header = h = json.loads(bytes(raw[begin:begin + length]))
            n, top, taps, dim = h["tokens"], h["top"], len(h["taps"]), h["dim"]
        except (ValueError, KeyError) as e:
            raise Refused(f"{path}: its header is none: {e}") from e
        rest, at = len(raw) - SUM - begin - length, begin + length
        want = n * (8 + top * 6 + taps * dim * 2)
        if rest != want or sum(t["tokens"] for t in h["texts"]) != n:
            raise Refused(f"{path}: {rest} bytes of arrays: want {want} for {n} tokens")

        def array(kind, *shape):
            nonlocal at
            size = int(np.prod(shape)) * np.dtype(kind).itemsize
            at += size
            return raw[at - size:at].view(kind).reshape(shape)
        self.ids, self.log_sum = array("<i4", n), array("<f4", n)
        self.top_ids, self.top_logprobs = array("<i4", n, top), array("<f2", n, top)
        self.states = array("<f2", n, taps, dim)


class Text(NamedTuple):
    """The rows of one text. `prompt` tokens are before its answer; 0 for plain text."""
    origin: str
    kind: str
    held: bool
    prompt: int
    ids: np.ndarray
    log_sum: np.ndarray
    top_ids: np.ndarray
    top_logprobs: np.ndarray
    states: dict


def shards(folder, check=True):
    """The shards of a folder, in their order; all are of one model and follow each other without a gap."""
    paths, first, at = sorted(glob.glob(os.path.join(folder, "*.states"))), None, {"text": 0, "piece": 0}
    if not paths:
        raise Refused(f"{folder}: no shards: want a folder that tandem model states has written")
    for path in paths:
        s = Shard(path, check)
        first = first or s.header
        for key in ("identity", "taps", "top", "dim"):
            if s.header[key] != first[key]:
                raise Refused(f"{path}: {key} is {s.header[key]}, and {first[key]} in {paths[0]}: want shards of one run")
        if s.header["from"] != at:
            raise Refused(f"{path}: begins at {s.header['from']}: want {at}, where the shard before it ends")
        at = s.header["next"]
        yield s


def texts(folder, held=None, check=True):
    """The texts of a folder: those held out, those to train with, or all for None."""
    for s in shards(folder, check):
        at = 0
        for t in s.header["texts"]:
            rows = slice(at, at + t["tokens"])
            at = rows.stop
            if held is None or t["held"] == held:
                states = {tap: s.states[rows, i] for i, tap in enumerate(s.header["taps"])}
                yield Text(t["origin"], t["kind"], t["held"], t["prompt"], s.ids[rows], s.log_sum[rows], s.top_ids[rows],
                           s.top_logprobs[rows], states)


def summary(folder):
    """What a folder holds, with sums of its arrays that do not depend on how they are read."""
    out = {"texts": 0, "held": 0, "tokens": 0, "held_tokens": 0, "ids": 0, "top_ids": 0, "bits": 0, "finite": True}
    for s in shards(folder):
        out.update({k: s.header[k] for k in ("name", "identity", "taps", "top", "dim")})
    for t in texts(folder, check=False):
        n = len(t.ids)
        out["texts"], out["held"] = out["texts"] + 1, out["held"] + t.held
        out["tokens"], out["held_tokens"] = out["tokens"] + n, out["held_tokens"] + n * t.held
        out["ids"] += int(t.ids.astype(np.int64).sum())
        out["top_ids"] += int(t.top_ids.astype(np.int64).sum())
        for a in (t.top_logprobs, *t.states.values()):
            out["bits"] += int(np.ascontiguousarray(a).view(np.uint16).astype(np.int64).sum())
            out["finite"] = out["finite"] and bool(np.isfinite(a).all())
    return out


def write_json(path, what):
    with open(path + ".part", "w") as f:
        json.dump(what, f, indent=1)
        f.write("\n")
    os.replace(path + ".part", path)


if __name__ == "__main__":
    try:
        print(json.dumps(summary(sys.argv[1])))
    except (IndexError, OSError) as e:
        sys.exit(f"states: {e}: want a folder of shards")
    except Refused as e:
        sys.exit(f"states: {e}")
