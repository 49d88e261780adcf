"""Text files: which are used, which are held out, and their tokens."""
import glob
import hashlib
import json
import os
import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from . import Refused, export

RUN = 64      # characters of a prompt, without all but letters and digits, that give away the file it was taken from
COMMON = 20   # a run that more files have says nothing: licences, imports
LARGEST = 200_000  # bytes of a file: larger ones are tables
HELD = 10     # every tenth file is held out


def sources(folders):
    """Returns (domain, root, pattern) of folders of text; without any, of the machine's Go and Python standard libraries."""
    if folders:
        for f in folders:
            if not os.path.exists(f):
                raise Refused(f"--data {f}: no such file or folder")
        return [(os.path.basename(os.path.abspath(f)) or "data", os.path.abspath(f), "*") for f in folders]
    if shutil.which("go") is None:
        raise Refused("go is not in PATH, so its standard library cannot be found: want go, or --data with text files")
    goroot = subprocess.run(["go", "env", "GOROOT"], capture_output=True, text=True, check=True).stdout.strip()
    return [("go", os.path.join(goroot, "src"), "*.go"), ("python", sysconfig.get_paths()["stdlib"], "*.py")]


def listed(root, pattern):
    """Paths of text files below root, relative to it, sorted. Compilers, tests' data and installed packages are no library."""
    if os.path.isfile(root):
        return [""]
    out = []
    for path in glob.glob(os.path.join(root, "**", pattern), recursive=True):
        relative = os.path.relpath(path, root)
        if not {"cmd", "testdata", "dist-packages", "site-packages", "__pycache__"} & set(relative.split(os.sep)) and os.path.isfile(path):
            out.append(relative)
    return sorted(out)


def read(path):
    """The bytes of a text file; None if it is too large, empty, or no text."""
    size = os.path.getsize(path)
    if not 0 < size <= LARGEST:
        return None
    with open(path, "rb") as f:
        b = f.read()
    try:
        b.decode()
    except UnicodeDecodeError:
        return None
    return None if b"\0" in b else b


def bare(b):
    """The letters and digits of bytes b, as an array, in lower case. They do not depend on indentation, wrapping or comment marks."""
    a = np.frombuffer(b.replace(b"\\n", b" ").lower(), np.uint8)
    return a[((a >= 97) & (a <= 122)) | ((a >= 48) & (a <= 57))]


def prints(a, n=RUN):
    """Hashes of all runs of n characters of array a: sums of a[i+j]·odd^j modulo 2^64."""
    if len(a) < n:
        return np.zeros(0, np.uint64)
    odd = 0x9E3779B97F4A7C15
    h, size, done = a.astype(np.uint64) * np.uint64(odd) + np.uint64(1), 1, 0
    parts, at, power = None, 0, odd | 1
    while size <= n:  # runs of 1, 2, 4, ... characters; those that n's digits name are joined
        if n & size:
            mul = np.uint64(pow(power, at, 1 << 64))
            part = h[at:] * mul if at else h
            parts = part if parts is None else parts[:len(part)] + part[:len(parts)]
            at += size
        step = np.uint64(pow(power, size, 1 << 64))
        h, size = h[:-size] + h[size:] * step if len(h) > size else h[:0], size * 2
    return parts[:len(a) - n + 1]


class Exclusion:
    """Finds the files from which prompts were taken: those that hold all of a prompt, or a run of RUN characters that is not common."""

    def __init__(self, path):
        self.path, self.prompts, runs = path, [], []
        if path:
            with open(path) as f:
                texts = [json.loads(line)["prompt"] for line in f]
            self.prompts = [bare(t.encode()) for t in texts]
            runs = [prints(p) for p in self.prompts]
        self.runs = np.unique(np.concatenate(runs)) if runs else np.zeros(0, np.uint64)
        self.files = np.zeros(len(self.runs), np.int64)  # that hold each run
        self.seen = []  # per file: (name, indices of runs it holds, whole prompts it holds)

    def look(self, name, b):
        text = bare(b)
        p = prints(text)
        at = np.searchsorted(self.runs, p)
        hit = np.unique(at[(at < len(self.runs)) & (self.runs[np.minimum(at, len(self.runs) - 1)] == p)]) if len(self.runs) else at[:0]
        raw = text.tobytes()
        whole = [i for i, q in enumerate(self.prompts) if len(q) >= 16 and q.tobytes() in raw]
        self.files[hit] += 1
        self.seen.append((name, hit, whole))

    def left_out(self):
        """Names of the files to leave out, and of how many prompts the whole, a part, or nothing but common runs was found."""
        out, whole = set(), set()
        for name, hit, inside in self.seen:
            if inside or (self.files[hit] <= COMMON).any():
                out.add(name)
                whole.update(inside)
        rare = self.runs[(self.files > 0) & (self.files <= COMMON)]
        part = {i for i, p in enumerate(self.prompts) if np.isin(prints(p), rare).any()} - whole
        return out, {"whole": len(whole), "part": len(part), "none": len(self.prompts) - len(whole) - len(part)}


def collect(folders, prompts):
    """Reads all text. Returns {domain: {"train" or "held": [(relative path, bytes)] in order of their hashes}} and a report."""
    out, report, check = {}, {"prompts": prompts, "domains": {}}, Exclusion(prompts)
    for domain, root, pattern in sources(folders):
        files = []
        for relative in listed(root, pattern):
            b = read(os.path.join(root, relative) if relative else root)
            if b is not None:
                check.look((domain, relative), b)
                files.append((hashlib.sha256(relative.encode()).hexdigest(), relative, b))
        out[domain] = sorted(files)
    gone, found = check.left_out()
    report.update(prompts_read=len(check.prompts), prompts_found=found)
    for domain, files in out.items():
        kept = [f for f in files if (domain, f[1]) not in gone]
        split = {"train": [], "held": []}
        for digest, relative, b in kept:
            split["held" if int(digest[:8], 16) % HELD == 0 else "train"].append((relative, b))
        report["domains"][domain] = {"files": len(files), "left_out": len(files) - len(kept),
                                     **{s: len(v) for s, v in split.items()}, "bytes": sum(len(f[2]) for f in kept)}
        if not split["train"] or not split["held"]:
            raise Refused(f"{domain}: {len(split['train'])} files to train with and {len(split['held'])} held out: want text in more files")
        out[domain] = split
    return out, report


def tokens(files, most, model, program):
    """The tokens of files, one after the other, each with its begin-of-text token, until there are `most`; by tandem's tokenizer."""
    def one(f):
        return np.array(json.loads(export.tandem(["tokenize", "--json", "--model", model], program, f[1]))["tokens"], np.int32)
    got, n = [], 0
    with ThreadPoolExecutor(2) as pool:
        for i in range(0, len(files), 16):
            for t in pool.map(one, files[i:i + 16]):
                got.append(t)
                n += len(t)
            if n >= most:
                break
    return np.concatenate(got)[:most]
