#!/usr/bin/env python3
"""Makes the files beside it anew: what another engine and float arithmetic say about the shipped target. README.md says what is in it.

    gopher.py logits TYPE MODEL.gguf >gopher-19m-TYPE.jsonl
    gopher.py tokens MODEL.gguf >tokens.jsonl
    gopher.py quantize DRAFT-f16.gguf >quantized.jsonl

MODEL is the shipped target, or what `tandem model quantize --allow-requantize --type TYPE` makes of it. Needs numpy, gguf and
llama-cpp-python from PyPI. Weights are dequantised by gguf's own code, and the pass below is plain numpy in float64.
"""
import ctypes
import hashlib
import json
import os
import sys
import tempfile

import numpy as np
from gguf import GGUFReader, dequantize

PROMPTS = ["go-dev-01", "go-dev-02", "go-dev-03", "go-dev-04", "python-dev-01", "python-dev-02", "python-dev-03", "python-dev-04",
           "prose-dev-01", "prose-dev-02", "prose-dev-03", "prose-dev-04"]
POSITIONS, GREEDY, BEST = 20, 48, 5


class Truth:
    """The target in float64: RMS norms, rope on pairs (2j, 2j+1), grouped heads, SiLU, output matrix = embedding."""

    def __init__(self, path):
        f = GGUFReader(path)
        key = lambda name: f.fields["llama." + name].contents()
        self.layers, self.heads, self.kv = key("block_count"), key("attention.head_count"), key("attention.head_count_kv")
        self.eps = key("attention.layer_norm_rms_epsilon")
        self.base = key("rope.freq_base") if "llama.rope.freq_base" in f.fields else 10000.0
        self.t = {x.name: dequantize(x.data, x.tensor_type).astype(np.float64) for x in f.tensors}

    def norm(self, x, w):
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + self.eps) * w

    def turn(self, x):
        n, _, size = x.shape
        a = np.outer(np.arange(n), self.base ** (-np.arange(0, size, 2) / size))[:, None, :]
        y, c, s = np.empty_like(x), np.cos(a), np.sin(a)
        y[..., 0::2] = x[..., 0::2] * c - x[..., 1::2] * s
        y[..., 1::2] = x[..., 0::2] * s + x[..., 1::2] * c
        return y

    def logits(self, tokens):
        x, n = self.t["token_embd.weight"][tokens], len(tokens)
        for i in range(self.layers):
            w = lambda name: self.t[f"blk.{i}.{name}.weight"]
            h = self.norm(x, w("attn_norm"))
            q = self.turn((h @ w("attn_q").T).reshape(n, self.heads, -1))
            k = self.turn((h @ w("attn_k").T).reshape(n, self.kv, -1)).repeat(self.heads // self.kv, 1)
            v = (h @ w("attn_v").T).reshape(n, self.kv, -1).repeat(self.heads // self.kv, 1)
            s = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1]) + np.triu(np.full((n, n), -np.inf), 1)
            p = np.exp(s - s.max(-1, keepdims=True))
            x = x + np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), v).reshape(n, -1) @ w("attn_output").T
            h = self.norm(x, w("ffn_norm"))
            gate = h @ w("ffn_gate").T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ w("ffn_up").T)) @ w("ffn_down").T
        return self.norm(x, self.t["output_norm.weight"]) @ self.t["token_embd.weight"].T


def best(row, n):
    ids = np.argsort(-row, kind="stable")[:n]
    return [[int(i), round(float(row[i]), 4)] for i in ids]


def logits(name, path):
    import llama_cpp
    other = llama_cpp.Llama(path, n_ctx=512, n_batch=512, logits_all=True, verbose=False, n_threads=1, type_k=0, type_v=0,
                            use_mmap=False)  # keys and values in f32
    truth = Truth(path)
    here = os.path.dirname(os.path.abspath(__file__))
    texts = {c["id"]: c["prompt"] for c in map(json.loads, open(os.path.join(here, "..", "prompts.jsonl"), encoding="utf-8"))}
    cases, square, count, most = [], 0.0, 0, 0.0
    for id in PROMPTS:
        tokens = other.tokenize(texts[id].encode(), add_bos=True, special=False)
        other.reset()
        other.eval(tokens)
        theirs = np.array(other.scores[:len(tokens)], np.float64)[-POSITIONS:]
        exact = truth.logits(tokens)[-POSITIONS:]
        most = max(most, np.abs(theirs - exact).max())
        float_top = [best(row, BEST) for row in exact]
        for row, top in zip(theirs, float_top):
            square, count = square + sum((row[i] - x) ** 2 for i, x in top), count + len(top)
        greedy, top2, row = [], [], theirs[-1]
        for i in range(GREEDY):
            top2.append(best(row, 2))
            greedy.append(top2[-1][0][0])
            other.eval(greedy[-1:])
            row = np.array(other.scores[len(tokens) + i])
        cases.append({"id": id, "tokens": tokens, "prompt_top": [best(row, BEST) for row in theirs], "float_top": float_top,
                      "greedy": greedy, "greedy_top2": top2})
    rms = (square / count) ** 0.5
    for c in cases:
        c = {"id": c.pop("id"), "tol": float(f"{2 * most:.2g}"), "other_engine_rms": float(f"{rms:.3g}"), **c}
        print(json.dumps(c, separators=(",", ":")))
    print(f"{name}: the other engine is at most {most:.4f} from float arithmetic, r.m.s. of the five best {rms:.5f}", file=sys.stderr)


# spaces, line ends, case, digits, accents in both forms, scripts without spaces, emoji of several characters, marks that change direction,
# and texts that look like tokens
TEXTS = ["", " ", "  ", "   ", "\t", "\n", "\n\n", "\n\n\n", "\t\n", " \n x", "a", " a", "a ", "Hello world", " Hello world", "Hello World", " Hello  World",
         "Hello, world!", "Hello, y'all! How are you?", "it's  we'll  I'D", "func (r *Reader) Read(p []byte) (n int, err error) {",
         "\treturn nil, fmt.Errorf(\"%w: %d\", err, n)\n}\n", "if x != 0x7f && y >= 1e-9 {", "def f(self, *args, **kwargs):\n    pass\n",
         "3", "33", "333", "3333333333", "1.5e-3", "\u00e9t\u00e9 caf\u00e9", "e\u0301te\u0301", "na\u00efve fa\u00e7ade", "\u00df\u017f\u0130\u0131", "\u1e9e",
         "\u0441\u043a\u043e\u0440\u043e \u0432\u0435\u0441\u043d\u0430", "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u3002", "\uc548\ub155\ud558\uc138\uc694", "\u0645\u0631\u062d\u0628\u0627", "\u0928\u092e\u0938\u094d\u0924\u0947",
         "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea", "a\u00a0b\u2003c\u3000d", "a\u2581b", "\u2581", "\u202eabc\u202c", "\ufeffbom", "x\u0000y",
         "\u0001\u007f\u0085", "<s>", "</s>", "<unk>", "<0x41>", "[INST] <<SYS>> <|im_end|>", "======= ------- _______", "!!!!!!", "a" * 40, " " * 17 + "x",
         "\r\nwindows\r\n", "\ud7ff\ue000\ufffd", "\U0010ffff", "The quick brown fox jumps over the lazy dog. " * 2]


def tokens(path):
    import llama_cpp
    other = llama_cpp.Llama(path, vocab_only=True, verbose=False)
    for text in TEXTS:
        print(json.dumps({"text": text, "tokens": other.tokenize(text.encode(), add_bos=False, special=False)}, separators=(",", ":")))


def quantize(path):
    """What the other engine's tool makes of a model: digests, and how far the weights are from the model's, over every eighth row."""
    import llama_cpp
    digest = lambda b: hashlib.sha256(b).hexdigest()
    truth = {x.name: dequantize(x.data, x.tensor_type) for x in GGUFReader(path).tensors}
    for name, kind in {"q8_0": 7, "q4_0": 2, "q5_0": 8, "q4_k_m": 15, "q6_k": 18}.items():
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "out.gguf")
            how = llama_cpp.llama_model_quantize_default_params()
            how.ftype, how.nthread = kind, 1
            if llama_cpp.llama_model_quantize(path.encode(), out.encode(), ctypes.byref(how)) != 0:
                sys.exit(f"{name} could not be made")
            f, whole = GGUFReader(out), open(out, "rb").read()
            tensors, far = [], {}
            for x in f.tensors:
                sort = x.tensor_type.name.lower()
                tensors.append({"name": x.name, "type": sort, "sha256": digest(x.data.tobytes())})
                if sort in ("q4_k", "q6_k"):
                    far.setdefault(sort, []).append((dequantize(x.data, x.tensor_type)[::8] - truth[x.name][::8]).astype(np.float64).ravel())
            print(json.dumps({"type": name, "bytes": len(whole), "head": digest(whole[:f.data_offset]), "sha256": digest(whole),
                              "tensors": tensors, "rms": {k: float(np.sqrt(np.mean(np.concatenate(v) ** 2))) for k, v in far.items()}},
                             separators=(",", ":")))


if __name__ == "__main__":
    {"logits": logits, "tokens": tokens, "quantize": quantize}[sys.argv[1]](*sys.argv[2:])
