#!/usr/bin/env python3
"""Writes block drafts (DFlash) as their publishers do, with random weights, and what their publishers' code computes with them.

As layouts.py beside it. golden.json has the length of the text, and the logits of all rows of one block behind it: row 0 is the last
token's, the others are of mask tokens. The forward pass follows dflash/model.py of z-lab/dflash: keys and values of the text are made of
the target's states, those of the block of its own rows, and each row sees all of both. Masks of layers with a window follow
create_dflash_sdpa_mask of SpecForge (causal inside the block) or, where the configuration says so, vLLM's qwen3_dflash.py and llama.cpp's
dflash.cpp (not causal). Needs numpy; run it from any folder. The tests need neither it nor Python.
"""
import math
import os

import numpy as np

from layouts import DIM, HERE, Target, Weights, bf16, block, digits, frequencies, put, rms, shape, silu, vocabulary, write_gguf

TEXT = 12  # tokens; the last has no states


class BlockDraft:
    """A draft as config and weights say. causal: for each layer, whether a row of the block sees no later row of it."""

    def __init__(self, config, weights, embedding, head, mask, causal):
        c = dict(config, **config.get("transformer_layer_config", {}))
        self.c, self.w, self.embedding, self.head, self.mask, self.causal = c, weights, embedding, head, mask, causal
        rope = c.get("rope_parameters") or c.get("rope_scaling")
        self.inv, self.scale = frequencies(c.get("rope_theta") or rope["rope_theta"], c["head_dim"], rope)

    def linear(self, name, x):
        b = self.w.get(name + ".bias")
        y = x @ self.w[name + ".weight"].T
        return y if b is None else y + b

    def turn(self, x, positions):
        """x: (rows, heads, head_dim)."""
        angle = np.concatenate([np.outer(positions, self.inv)] * 2, axis=1)[:, None]
        half = x.shape[-1] // 2
        return x * np.cos(angle) * self.scale + np.concatenate([-x[..., half:], x[..., :half]], axis=-1) * np.sin(angle) * self.scale

    def attend(self, i, x, c):
        p, head, eps = f"layers.{i}.self_attn.", self.c["head_dim"], self.c["rms_norm_eps"]
        n, rows = len(c), len(x)
        q = rms(self.linear(p + "q_proj", x).reshape(rows, -1, head), self.w[p + "q_norm.weight"], eps)
        both = np.concatenate([c, x])
        k = rms(self.linear(p + "k_proj", both).reshape(n + rows, -1, head), self.w[p + "k_norm.weight"], eps)
        v = self.linear(p + "v_proj", both).reshape(n + rows, -1, head)
        positions = np.arange(n + rows)
        q, k = self.turn(q, positions[n:]), self.turn(k, positions)
        apart = positions[n:, None] - positions[None]
        seen = np.ones((rows, n + rows), bool)
        if (self.c.get("layer_types") or ["full_attention"] * 8)[i] == "sliding_attention":
            seen &= apart < self.c["sliding_window"]
        if self.causal[i]:
            seen &= apart >= 0
        out = []
        for h in range(q.shape[1]):
            g = h // (q.shape[1] // k.shape[1])
            s = np.where(seen, q[:, h] @ k[:, g].T / math.sqrt(head), -np.inf)
            e = np.exp(s - s.max(axis=1, keepdims=True))
            out.append(e / e.sum(axis=1, keepdims=True) @ v[:, g])
        return self.linear(p + "o_proj", np.concatenate(out, axis=1))

    def run(self, tokens, taps, layers, rows):
        eps = self.c["rms_norm_eps"]
        states = np.concatenate([np.asarray(taps[str(n)][:TEXT - 1], np.float64) for n in layers], axis=1)
        c = rms(self.linear("fc", states), self.w["hidden_norm.weight"], eps)
        x = self.embedding[[tokens[TEXT - 1]] + [self.mask] * (rows - 1)]
        for i in range(self.c["num_hidden_layers"]):
            p = f"layers.{i}."
            x = x + self.attend(i, rms(x, self.w[p + "input_layernorm.weight"], eps), c)
            y = rms(x, self.w[p + "post_attention_layernorm.weight"], eps)
            x = x + self.linear(p + "mlp.down_proj", silu(self.linear(p + "mlp.gate_proj", y)) * self.linear(p + "mlp.up_proj", y))
        return {"text": TEXT, "logits": digits(rms(x, self.w["norm.weight"], eps) @ self.head.T)}


def small(**more):
    return shape(**dict({"model_type": "qwen3", "head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32,
                         "num_hidden_layers": 2, "attention_bias": False}, **more))


def weights(seed, c, taps, bias=False):
    n = c["hidden_size"]
    w = Weights(seed)
    w.matrix("fc.weight", n, taps * DIM)
    w.norm("hidden_norm.weight", n)
    for i in range(c["num_hidden_layers"]):
        block(w, f"layers.{i}.", c, False, bias=bias, head_norms=True)
    w.norm("norm.weight", n)
    return w


def zlab(t):
    """As z-lab and SpecForge publish: the target's embedding and head, a window in the first layer, which is causal in the block."""
    c = small(architectures=["DFlashDraftModel"], block_size=6, num_target_layers=4, sliding_window=5, use_sliding_window=True,
              layer_types=["sliding_attention", "full_attention"], dflash_config={"mask_token_id": 7, "target_layer_ids": [0, 1, 2]})
    w = weights(21, c, 3)
    put("dflash", c, w, BlockDraft(c, w, t.embedding, t.output, 7, [True, False]).run(t.tokens, t.taps, [1, 2, 3], 6))


def speculators(t):
    """Speculators: a draft vocabulary, biases, linear RoPE, the last token's row guesses, and a window that is not causal."""
    layer = small(attention_bias=True, sliding_window=4, use_sliding_window=True, layer_types=["full_attention", "sliding_attention"],
                  rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0})
    del layer["rope_theta"], layer["rope_scaling"]
    c = {"architectures": ["DFlashSpeculator"], "speculators_model_type": "dflash", "block_size": 5, "draft_vocab_size": 60,
         "target_hidden_size": None, "aux_hidden_state_layer_ids": [1, 3], "mask_token_id": 9, "sliding_window_non_causal": True,
         "sample_from_anchor": True, "transformer_layer_config": layer}
    w = weights(22, layer, 2, bias=True)
    w["embed_tokens.weight"] = bf16(t.embedding)
    w.matrix("lm_head.weight", 60, DIM)
    golden = BlockDraft(c, w, t.embedding, w["lm_head.weight"], 9, [False, False]).run(t.tokens, t.taps, [1, 3], 5)
    d2t, t2d = vocabulary(22, 60)
    put("dflash-speculators", c, dict(w, d2t=d2t, t2d=t2d), golden)


NAMES = (("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm"), ("attn_q", "self_attn.q_proj"),
         ("attn_k", "self_attn.k_proj"), ("attn_v", "self_attn.v_proj"), ("attn_output", "self_attn.o_proj"),
         ("attn_q_norm", "self_attn.q_norm"), ("attn_k_norm", "self_attn.k_norm"),
         ("ffn_gate", "mlp.gate_proj"), ("ffn_up", "mlp.up_proj"), ("ffn_down", "mlp.down_proj"))


def llamacpp(t):
    """A GGUF file as llama.cpp's converter makes it: rows of queries and keys as they are, windows that are not causal."""
    c = small(sliding_window=4, layer_types=["full_attention", "sliding_attention"])
    w = weights(23, c, 2)
    put("dflash-llamacpp", None, None, BlockDraft(c, w, t.embedding, t.output, 5, [False, False]).run(t.tokens, t.taps, [2, 3], 4))
    tensors = {"fc.weight": w["fc.weight"], "enc.output_norm.weight": w["hidden_norm.weight"], "output_norm.weight": w["norm.weight"]}
    for i in range(2):
        for ours, theirs in NAMES:
            tensors[f"blk.{i}.{ours}.weight"] = w[f"layers.{i}.{theirs}.weight"]
    keys = {"general.architecture": "dflash", "dflash.block_count": 2, "dflash.context_length": 2048, "dflash.embedding_length": DIM,
            "dflash.feed_forward_length": 32, "dflash.attention.head_count": 2, "dflash.attention.head_count_kv": 1,
            "dflash.attention.key_length": 16, "dflash.attention.value_length": 16, "dflash.attention.layer_norm_rms_epsilon": 1e-5,
            "dflash.rope.freq_base": 10000.0, "dflash.block_size": 4, "dflash.target_layers": [2, 3],
            "dflash.attention.sliding_window": 4, "dflash.attention.sliding_window_pattern": [False, True],
            "dflash.attention.causal": False, "tokenizer.ggml.mask_token_id": 5}
    write_gguf(os.path.join(HERE, "dflash-llamacpp", "draft.gguf"), keys, tensors)


if __name__ == "__main__":
    target = Target()
    for layout in (zlab, speculators, llamacpp):
        layout(target)
