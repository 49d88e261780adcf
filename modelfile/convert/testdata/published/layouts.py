#!/usr/bin/env python3
"""Writes drafts as their publishers do, with random weights, and what their publishers' code computes with them.

Each folder beside this file has config.json and model.safetensors (or a GGUF file) with the names of one publisher, and golden.json: the
states and logits of 14 rows. Row i is that of the token at position i + 1. The first 12 rows get the states of the target in
engine/testdata/sides/target.json, the other two the state that the row before gave. The formulas follow the code that README.md names, in
float64. Only the reader of GGUF files is tandem's. Needs numpy; run it from any folder. The tests need neither it nor Python.
"""
import json
import math
import os
import struct
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..", "..", "..")
sys.path.insert(0, os.path.join(ROOT, "training"))
from tandem_training.gguf import File  # noqa: E402

SIDES = os.path.join(ROOT, "engine", "testdata", "sides")
FED, DIM, VOCAB = 12, 32, 260


def bf16(x):
    """Rounds to bfloat16, so that a checkpoint holds exactly what is computed with."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


class Weights(dict):
    """Random weights by their published names."""

    def __init__(self, seed):
        super().__init__()
        self.rng = np.random.default_rng(seed)

    def matrix(self, name, rows, cols, gain=1.0):
        self[name] = bf16(self.rng.normal(0, gain / math.sqrt(cols), (rows, cols)))

    def norm(self, name, n):
        self[name] = bf16(1 + self.rng.normal(0, 0.2, n))

    def bias(self, name, n):
        self[name] = bf16(self.rng.normal(0, 0.2, n))


def rms(x, w, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * w


def silu(x):
    return x / (1 + np.exp(-x))


def frequencies(theta, n, scaling):
    """Inverse frequencies and the factor of cosines and sines."""
    inv = theta ** (-np.arange(0, n, 2) / n)
    kind = (scaling or {}).get("rope_type", "default")
    if kind == "linear":
        return inv / scaling["factor"], 1.0
    if kind == "llama3":
        old, low, high, factor = (scaling[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "factor"))
        wave = 2 * math.pi / inv
        smooth = (old / wave - low) / (high - low)
        mixed = (1 - smooth) * inv / factor + smooth * inv
        return np.where(wave < old / high, inv, np.where(wave > old / low, inv / factor, mixed)), 1.0
    if kind == "yarn":
        old, factor = scaling["original_max_position_embeddings"], scaling["factor"]

        def pair(turns):
            return n * math.log(old / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low, high = max(math.floor(pair(scaling["beta_fast"])), 0), min(math.ceil(pair(scaling["beta_slow"])), n - 1)
        kept = 1 - np.clip((np.arange(n // 2) - low) / (high - low), 0, 1)
        return inv / factor * (1 - kept) + inv * kept, 0.1 * math.log(factor) + 1
    assert kind == "default"
    return inv, 1.0


class Draft:
    """An EAGLE-3 draft as config and weights say. first: the position of row 0 as the publisher counts."""

    def __init__(self, config, weights, layer, first, embedding):
        c = dict(config, **config.get("transformer_layer_config", {}))
        self.c, self.w, self.layer, self.first, self.embedding = c, weights, layer, first, embedding
        self.heads, self.kv = c["num_attention_heads"], c["num_key_value_heads"]
        self.head = c.get("head_dim") or c["hidden_size"] // self.heads
        self.eps = c["rms_norm_eps"]
        rope = c.get("rope_parameters") or c.get("rope_scaling")
        theta = c.get("rope_theta") or rope["rope_theta"]
        self.inv, self.scale = frequencies(theta, self.head, rope)
        local = c.get("layer_types", [None])[0] == "sliding_attention"
        self.window = c["sliding_window"] if local else None
        self.keys, self.values = {}, {}

    def get(self, *names):
        return next((self.w[n] for n in names if n in self.w), None)

    def linear(self, name, x):
        y, b = self.w[name + ".weight"] @ x, self.get(name + ".bias")
        return y if b is None else y + b

    def turn(self, x, position):
        angle = np.concatenate([position * self.inv] * 2)
        half = self.head // 2
        turned = np.concatenate([-x[:, half:], x[:, :half]], axis=1)
        return x * np.cos(angle) * self.scale + turned * np.sin(angle) * self.scale

    def attend(self, prefix, i, position, x):
        q, k, v = (self.linear(f"{prefix}self_attn.{m}_proj", x).reshape(-1, self.head) for m in "qkv")
        for name, heads in (("q_norm", q), ("k_norm", k)):
            w = self.get(f"{prefix}self_attn.{name}.weight")
            if w is not None:
                heads[:] = rms(heads, w, self.eps)
        q, k = self.turn(q, position), self.turn(k, position)
        keys, values = self.keys.setdefault(i, []), self.values.setdefault(i, [])
        keys.append(k)
        values.append(v)
        seen = slice(max(0, len(keys) - self.window), None) if self.window else slice(None)
        all_k, all_v = np.stack(keys[seen]), np.stack(values[seen])
        out = []
        for h in range(self.heads):
            g = h // (self.heads // self.kv)
            s = all_k[:, g] @ q[h] / math.sqrt(self.head)
            p = np.exp(s - s.max())
            out.append(p / p.sum() @ all_v[:, g])
        return self.linear(f"{prefix}self_attn.o_proj", np.concatenate(out))

    def mlp(self, prefix, x):
        return self.linear(prefix + "mlp.down_proj", silu(self.linear(prefix + "mlp.gate_proj", x)) * self.linear(prefix + "mlp.up_proj", x))

    def fuse(self, taps):
        c = dict(self.c, **self.c.get("eagle_config", {}))
        if c.get("fc_norm"):
            taps = [rms(t, self.w[f"fc_norm.{i}.weight"], self.eps) for i, t in enumerate(taps)]
        x = np.concatenate(taps)
        if c.get("norm_before_fc"):
            x = rms(x, self.w["input_norm.weight"], self.eps)
        return self.linear("fc", x)

    def row(self, i, token, hidden):
        for block in range(self.c["num_hidden_layers"]):
            p, position = self.layer % block, self.first + i
            if block == 0:
                e = rms(self.embedding[token], self.w[p + "input_layernorm.weight"], self.eps)
                normed = rms(hidden, self.w[p + "hidden_norm.weight"], self.eps)
                residual = normed if self.c.get("norm_before_residual") else hidden
                x = np.concatenate([e, normed])
            else:
                residual, x = hidden, rms(hidden, self.w[p + "input_layernorm.weight"], self.eps)
            hidden = residual + self.attend(p, block, position, x)
            hidden = hidden + self.mlp(p, rms(hidden, self.w[p + "post_attention_layernorm.weight"], self.eps))
        normed = rms(hidden, self.w["norm.weight"], self.eps)
        return (normed if self.c.get("norm_output") else hidden), self.w["lm_head.weight"] @ normed

    def run(self, tokens, taps, layers):
        states, logits = [], []
        for i, token in enumerate(tokens[1:]):
            hidden = self.fuse([taps[str(n)][i] for n in layers]) if i < FED else states[-1]
            state, out = self.row(i, token, hidden)
            states.append(state)
            logits.append(out)
        return {"states": digits(states), "logits": digits(logits)}


def digits(x):
    return [[float(f"{v:.7g}") for v in row] for row in np.asarray(x)]


def block(w, prefix, c, first, bias=False, mlp_bias=False, head_norms=False):
    """Adds a layer's weights."""
    n, head, ffn = c["hidden_size"], c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"], c["intermediate_size"]
    q, kv = c["num_attention_heads"] * head, c["num_key_value_heads"] * head
    w.norm(prefix + "input_layernorm.weight", n)
    if first:
        w.norm(prefix + "hidden_norm.weight", n)
    w.norm(prefix + "post_attention_layernorm.weight", n)
    for m, rows in (("q", q), ("k", kv), ("v", kv)):
        w.matrix(f"{prefix}self_attn.{m}_proj.weight", rows, 2 * n if first else n, 1.5)
    w.matrix(prefix + "self_attn.o_proj.weight", n, q)
    for m, rows, cols in (("gate", ffn, n), ("up", ffn, n), ("down", n, ffn)):
        w.matrix(f"{prefix}mlp.{m}_proj.weight", rows, cols)
        if mlp_bias:
            w.bias(f"{prefix}mlp.{m}_proj.bias", rows)
    if bias:
        for m, rows in (("q", q), ("k", kv), ("v", kv), ("o", n)):
            w.bias(f"{prefix}self_attn.{m}_proj.bias", rows)
    if head_norms:
        w.norm(prefix + "self_attn.q_norm.weight", head)
        w.norm(prefix + "self_attn.k_norm.weight", head)


def vocabulary(seed, n):
    """d2t with differences, and t2d."""
    ids = np.sort(np.random.default_rng(seed).permutation(VOCAB)[:n])
    known = np.zeros(VOCAB, bool)
    known[ids] = True
    return ids - np.arange(n), known


def save(path, tensors):
    """Writes a safetensors file: floats as BF16, others as they are."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, x in tensors.items():
        kind = {"int64": "I64", "bool": "BOOL"}.get(x.dtype.name, "BF16")
        raw = x.tobytes() if kind != "BF16" else (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
        header[name] = {"dtype": kind, "shape": list(x.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def put(name, config, tensors, golden):
    folder = os.path.join(HERE, name)
    os.makedirs(folder, exist_ok=True)
    if config is not None:
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(config, f, indent=1)
            f.write("\n")
        save(os.path.join(folder, "model.safetensors"), tensors)
    with open(os.path.join(folder, "golden.json"), "w") as f:
        json.dump(golden, f, separators=(",", ":"))
        f.write("\n")


def shape(**more):
    return dict({"hidden_act": "silu", "hidden_size": DIM, "intermediate_size": 48, "max_position_embeddings": 2048,
                 "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1, "rms_norm_eps": 1e-5,
                 "rope_theta": 10000.0, "rope_scaling": None, "tie_word_embeddings": False, "vocab_size": VOCAB}, **more)


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 256}


def specforge(t):
    """As SpecForge saves: midlayer, no embedding; SGLang's way to name layers; Llama 3's RoPE."""
    c = shape(architectures=["LlamaForCausalLMEagle3"], model_type="llama", draft_vocab_size=100, rope_theta=500.0, rope_scaling=LLAMA3,
              eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "use_aux_hidden_state": True})
    w = Weights(1)
    w.matrix("fc.weight", DIM, 3 * DIM)
    block(w, "midlayer.", c, True)
    w.norm("norm.weight", DIM)
    w.matrix("lm_head.weight", 100, DIM)
    golden = Draft(c, w, "midlayer.%.0s", 0, t.embedding).run(t.tokens, t.taps, [1, 2, 3])
    d2t, t2d = vocabulary(1, 100)
    put("specforge", c, dict(w, d2t=d2t, t2d=t2d), golden)


def eagle31(t):
    """EAGLE-3.1 with fc_norm and norm_output, a width and an embedding of its own, and YaRN."""
    c = shape(architectures=["LlamaForCausalLMEagle3"], model_type="llama", draft_vocab_size=100, hidden_size=48, head_dim=16,
              num_key_value_heads=1, target_hidden_size=DIM, fc_norm=True, norm_output=True,
              rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1},
              eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 2]})
    w = Weights(2)
    w.matrix("embed_tokens.weight", VOCAB, 48, 4)
    w.matrix("fc.weight", 48, 3 * DIM)
    for i in range(3):
        w.norm(f"fc_norm.{i}.weight", DIM)
    block(w, "midlayer.", c, True)
    w.norm("norm.weight", 48)
    w.matrix("lm_head.weight", 100, 48)
    golden = Draft(c, w, "midlayer.%.0s", 0, w["embed_tokens.weight"]).run(t.tokens, t.taps, [1, 2, 3])
    d2t, t2d = vocabulary(2, 100)
    put("eagle31", c, dict(w, d2t=d2t, t2d=t2d), golden)


def speculators(t):
    """Speculators: norm_before_residual, two layers, biases everywhere, RoPE as Transformers 5 writes it, scaled linearly."""
    layer = shape(model_type="llama", num_hidden_layers=2, attention_bias=True, mlp_bias=True,
                  rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0})
    del layer["rope_theta"], layer["rope_scaling"]
    c = {"architectures": ["Eagle3DraftModel"], "model_type": "eagle3", "speculators_model_type": "eagle3", "draft_vocab_size": 100,
         "norm_before_residual": True, "norm_before_fc": False, "target_hidden_size": None, "embed_requires_grad": False,
         "eagle_aux_hidden_state_layer_ids": [1, 2, 3], "transformer_layer_config": layer}
    w = Weights(3)
    w.matrix("fc.weight", DIM, 3 * DIM)
    block(w, "layers.0.", layer, True, bias=True, mlp_bias=True)
    block(w, "layers.1.", layer, False, bias=True, mlp_bias=True)
    w.norm("norm.weight", DIM)
    w.matrix("lm_head.weight", 100, DIM)
    golden = Draft(c, w, "layers.%d.", 1, t.embedding).run(t.tokens, t.taps, [1, 2, 3])
    d2t, t2d = vocabulary(3, 100)
    put("speculators", c, dict(w, d2t=d2t, t2d=t2d), golden)


def speculators31(t):
    """Speculators' EAGLE-3.1: one norm on all states, norm_output, layers as Qwen 3's with a window, two states, all of the vocabulary."""
    layer = shape(model_type="qwen3", head_dim=16, attention_bias=False, layer_types=["sliding_attention"], sliding_window=4,
                  use_sliding_window=True)
    c = {"architectures": ["Eagle3DraftModel"], "model_type": "eagle3", "speculators_model_type": "eagle3", "draft_vocab_size": VOCAB,
         "norm_before_residual": True, "norm_before_fc": True, "fc_norm": False, "norm_output": True, "target_hidden_size": None,
         "eagle_aux_hidden_state_layer_ids": [1, 3], "transformer_layer_config": layer}
    w = Weights(4)
    w["embed_tokens.weight"] = bf16(t.embedding)
    w.matrix("fc.weight", DIM, 2 * DIM)
    w.norm("input_norm.weight", 2 * DIM)
    block(w, "layers.0.", layer, True, head_norms=True)
    w.norm("norm.weight", DIM)
    w.matrix("lm_head.weight", VOCAB, DIM)
    golden = Draft(c, w, "layers.%d.", 1, t.embedding).run(t.tokens, t.taps, [1, 3])
    put("speculators31", c, w, golden)


def sglang(t):
    """What SGLang reads beside: a bias of fc and of attention's output, and an output matrix that is the draft's own embedding."""
    c = shape(architectures=["LlamaForCausalLMEagle3"], model_type="llama", bias=True, tie_word_embeddings=True,
              eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 2]})
    w = Weights(6)
    w.matrix("embed_tokens.weight", VOCAB, DIM, 2)
    w.matrix("fc.weight", DIM, 3 * DIM)
    w.bias("fc.bias", DIM)
    block(w, "midlayer.", c, True)
    w.bias("midlayer.self_attn.o_proj.bias", DIM)
    w.norm("norm.weight", DIM)
    tied = Weights(0)
    tied.update(w)
    tied["lm_head.weight"] = w["embed_tokens.weight"]
    put("sglang", c, w, Draft(c, tied, "midlayer.%.0s", 0, w["embed_tokens.weight"]).run(t.tokens, t.taps, [1, 2, 3]))


def medusa(t, name, config, tensor, blocks, head):
    """Heads as FasterDecoding/Medusa or vLLM names them: residual blocks on the target's last state, and an output matrix."""
    w, logits = Weights(7 + blocks), []
    for k in range(2):
        for b in range(blocks):
            w.matrix(tensor % (k, b) + ".weight", DIM, DIM)
            w.bias(tensor % (k, b) + ".bias", DIM)
        if head:
            w.matrix(head % k, VOCAB, DIM)
    output = t.output
    if not head:
        w["lm_heads.0.weight"] = output
    for row in (3, 11):
        for k in range(2):
            z = t.taps["-1"][row]
            for b in range(blocks):
                z = z + silu(w[tensor % (k, b) + ".weight"] @ z + w[tensor % (k, b) + ".bias"])
            logits.append((w[head % k] if head else output) @ z)
    put(name, config, w, {"rows": [3, 11], "logits": digits(logits)})


def medusas(t):
    medusa(t, "medusa", {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "x"}, "%d.%d.linear", 1, "%d.1.weight")
    medusa(t, "medusa-vllm", {"architectures": ["MedusaModel"], "num_heads": 2, "num_hidden_layers": 2, "medusa_fc_bias": True,
                              "original_lm_head": True, "vocab_size": VOCAB, "hidden_size": DIM}, "medusa_heads.blocks.%d.layers.%d", 2, None)


class Llama(Draft):
    """A plain model; row i of a text has position i."""

    def row(self, i, token, hidden=None):
        hidden = self.embedding[token]
        for block in range(self.c["num_hidden_layers"]):
            p = self.layer % block
            hidden = hidden + self.attend(p, block, i, rms(hidden, self.w[p + "input_layernorm.weight"], self.eps))
            hidden = hidden + self.mlp(p, rms(hidden, self.w[p + "post_attention_layernorm.weight"], self.eps))
        return self.w["lm_head.weight"] @ rms(hidden, self.w["model.norm.weight"], self.eps)


def pard(t):
    """PARD: the tiny target as a draft, with mask tokens behind its text; the last 12 rows guess. The checkpoint has one of its layers."""
    f = t.file
    heads, kv = f.key("llama.attention.head_count"), f.key("llama.attention.head_count_kv")
    layers, mask, k = f.key("llama.block_count"), 7, 12
    c = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": DIM, "num_attention_heads": heads,
         "num_key_value_heads": kv, "num_hidden_layers": layers, "rms_norm_eps": f.key("llama.attention.layer_norm_rms_epsilon"),
         "rope_theta": f.key("llama.rope.freq_base", 10000.0), "vocab_size": VOCAB, "pard_token": mask}

    def tensor(name):
        x = np.array(f.tensor(name), np.float64)
        n = {"attn_q": heads, "attn_k": kv}.get(name.split(".")[-2])
        return x.reshape(n, x.shape[0] // n // 2, 2, -1).swapaxes(1, 2).reshape(x.shape) if n else x

    w = {"model.norm.weight": tensor("output_norm.weight"), "model.embed_tokens.weight": t.embedding}
    w["lm_head.weight"] = t.output
    for i in range(layers):
        for ours, theirs in NAMES:
            w[f"model.layers.{i}.{theirs}.weight"] = tensor(f"blk.{i}.{ours}.weight")
    embedding = t.embedding.copy()
    embedding[mask] = bf16(embedding[mask])  # as the checkpoint has it
    m = Llama(c, w, "model.layers.%d.", 0, embedding)
    text = t.tokens[:8] + [mask] * (k - 1)
    logits = [m.row(i, token) for i, token in enumerate(text)][-k:]
    few = {n: bf16(x) for n, x in w.items() if "layers" not in n or ".0.mlp.down" in n}
    put("pard", c, few, {"text": t.tokens[:8], "logits": digits(logits)})


NAMES = (("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm"), ("attn_q", "self_attn.q_proj"),
         ("attn_k", "self_attn.k_proj"), ("attn_v", "self_attn.v_proj"), ("attn_output", "self_attn.o_proj"),
         ("ffn_gate", "mlp.gate_proj"), ("ffn_up", "mlp.up_proj"), ("ffn_down", "mlp.down_proj"))


def pairs(x, heads):
    """Rows of queries or keys as llama.cpp's converter orders them."""
    return x.reshape(heads, 2, x.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(x.shape)


def llamacpp(t):
    """A GGUF file as llama.cpp's converter makes it of a draft with norm_before_residual and Llama 3's RoPE."""
    c = shape(draft_vocab_size=100, rope_theta=500.0, rope_scaling=LLAMA3, norm_before_residual=True)
    w = Weights(5)
    w.matrix("fc.weight", DIM, 3 * DIM)
    block(w, "layers.0.", c, True)
    w.norm("norm.weight", DIM)
    w.matrix("lm_head.weight", 100, DIM)
    golden = Draft(c, w, "layers.%d.", 1, t.embedding).run(t.tokens, t.taps, [1, 2, 3])
    put("llamacpp", None, None, golden)
    d2t, _ = vocabulary(5, 100)
    plain, _ = frequencies(500.0, 8, None)
    scaled, _ = frequencies(500.0, 8, LLAMA3)
    tensors = {"fc.weight": w["fc.weight"], "output_norm.weight": w["norm.weight"], "output.weight": w["lm_head.weight"],
               "rope_freqs.weight": plain / scaled, "d2t": d2t + np.arange(100)}
    for ours, theirs in NAMES + (("attn_norm_2", "hidden_norm"),):
        x = w[f"layers.0.{theirs}.weight"]
        heads = {"attn_q": 4, "attn_k": 2}.get(ours)
        tensors[f"blk.0.{ours}.weight"] = pairs(x, heads) if heads else x
    keys = {"general.architecture": "eagle3", "general.name": "draft", "eagle3.block_count": 1, "eagle3.context_length": 2048,
            "eagle3.embedding_length": DIM, "eagle3.feed_forward_length": 48, "eagle3.attention.head_count": 4,
            "eagle3.attention.head_count_kv": 2, "eagle3.attention.layer_norm_rms_epsilon": 1e-5, "eagle3.rope.freq_base": 500.0,
            "eagle3.rope.dimension_count": 8, "eagle3.vocab_size": VOCAB, "eagle3.extract_layers": [1, 2, 3],
            "eagle3.target_hidden_size": DIM, "eagle3.norm_before_residual": True}
    write_gguf(os.path.join(HERE, "llamacpp", "draft.gguf"), keys, tensors)


def write_gguf(path, keys, tensors):
    """Writes a GGUF file: vectors as F32, matrices as BF16, whole numbers as I64."""
    def text(s):
        return struct.pack("<Q", len(s)) + s.encode()

    def value(v):
        if isinstance(v, bool):
            return struct.pack("<IB", 7, v)
        if isinstance(v, int):
            return struct.pack("<II", 4, v)
        if isinstance(v, float):
            return struct.pack("<If", 6, v)
        if isinstance(v, list) and isinstance(v[0], bool):
            return struct.pack(f"<IIQ{len(v)}?", 9, 7, len(v), *v)
        if isinstance(v, list):
            return struct.pack(f"<IIQ{len(v)}i", 9, 5, len(v), *v)
        return struct.pack("<I", 8) + text(v)

    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    for k, v in keys.items():
        out += text(k) + value(v)
    data = b""
    for name, x in tensors.items():
        if x.dtype == np.int64:
            kind, raw = 27, x.tobytes()
        elif x.ndim == 1:
            kind, raw = 0, x.astype(np.float32).tobytes()
        else:
            kind, raw = 30, (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
        dims = x.shape[::-1]
        out += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, len(data))
        data += raw + b"\0" * (-len(raw) % 32)
    with open(path, "wb") as f:
        f.write(out + b"\0" * (-len(out) % 32) + data)


class Target:
    def __init__(self):
        with open(os.path.join(SIDES, "target.json")) as f:
            g = json.load(f)
        self.tokens, self.taps = g["tokens"], {k: np.array(v) for k, v in g["taps"].items()}
        self.file = File(os.path.join(SIDES, "target.gguf"))
        head = "output.weight" if "output.weight" in self.file.tensors else "token_embd.weight"
        self.output = np.array(self.file.tensor(head), np.float64)
        self.embedding = np.array(self.file.tensor("token_embd.weight"), np.float64).reshape(VOCAB, DIM)


if __name__ == "__main__":
    target = Target()
    for layout in (specforge, eagle31, speculators, speculators31, sglang, llamacpp, pard, medusas):
        layout(target)
