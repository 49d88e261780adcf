#!/usr/bin/env python3
"""Writes block drafts of DFlash2 as their publishers do, with random weights, and what their publishers' code computes with them.

As dflash.py beside it. The convolutions around attention and feed-forward follow GroupedDynamicCausalConv, the scores of steps and the path
CandidateSelector, in dflash/model.py of z-lab/dflash; models/dflash2 of Speculators, qwen3_dflash2.py of vLLM and llama.cpp's dflash.cpp
compute the same. golden.json has, beside the logits of a block's rows: for each guessed level the candidates, the scores of all steps to
them (from the last token, or from each candidate of the level before, in order), and the path of the best steps.
"""
import os

import numpy as np

from dflash import NAMES, TEXT, BlockDraft, small, weights
from layouts import DIM, HERE, VOCAB, Target, bf16, digits, put, rms, silu, write_gguf


class Convolution:
    """Of one layer's attention or feed-forward part: w has base_kernel (2, taps, width) and kernel_projection."""

    def __init__(self, w, prefix, group):
        self.base, self.project, self.group = w[prefix + "base_kernel"], w[prefix + "kernel_projection.weight"], group

    def kernels(self, x):
        """(rows, 2, taps, groups), of a side before and one behind the part."""
        taps, width = self.base.shape[1:]
        return (x @ self.project.T).reshape(len(x), 2, taps, width // self.group)

    def apply(self, side, x, kernels):
        y = np.zeros_like(x)
        for tap in range(self.base.shape[1]):
            w = self.base[side, tap] + np.repeat(kernels[:, side, tap], self.group, axis=1)
            y[tap:] += w[tap:] * x[:len(x) - tap]
        return y


class BlockDraft2(BlockDraft):
    def setting(self, name, default=None):
        return {**self.c, **self.c.get("dflash_config", {})}.get(name, default)

    def convolved(self, prefix, x, part):
        conv = Convolution(self.w, prefix, self.setting("conv_group_size"))
        kernels = conv.kernels(x)
        return conv.apply(1, part(conv.apply(0, x, kernels)), kernels)

    def run(self, tokens, taps, layers, rows):
        eps = self.c["rms_norm_eps"]
        states = np.concatenate([np.asarray(taps[str(n)][:TEXT - 1], np.float64) for n in layers], axis=1)
        c = rms(self.linear("fc", states), self.w["hidden_norm.weight"], eps)
        x = self.embedding[[tokens[TEXT - 1]] + [self.mask] * (rows - 1)] * self.setting("input_embedding_scale", 1)
        for i in range(self.c["num_hidden_layers"]):
            p = f"layers.{i}."
            n = rms(x, self.w[p + "input_layernorm.weight"], eps)
            x = x + self.convolved(p + "attention_conv.", n, lambda y: self.attend(i, y, c))
            n = rms(x, self.w[p + "post_attention_layernorm.weight"], eps)
            x = x + self.convolved(p + "mlp_conv.", n, lambda y: self.linear(
                p + "mlp.down_proj", silu(self.linear(p + "mlp.gate_proj", y)) * self.linear(p + "mlp.up_proj", y)))
        y = rms(x, self.w["norm.weight"], eps)
        logits, cap = y @ self.head.T * self.setting("output_multiplier", 1), self.setting("final_logit_softcapping")
        if cap:
            logits = cap * np.tanh(logits / cap)
        return {"text": TEXT, "logits": digits(logits), **self.select(y[1:], logits[1:], tokens[TEXT - 1])}

    def select(self, y, logits, last):
        s = "candidate_selector."
        before, after = self.w[s + "predecessor_codebook"], self.w[s + "successor_codebook"]
        hidden = y @ self.w[s + "hidden_projection.weight"].T
        candidates = np.argsort(-logits, axis=1, kind="stable")[:, :self.setting("selector_top_k")]
        steps, path, at = [], [], 0
        for i, list_ in enumerate(candidates):
            above = candidates[i - 1] if i else np.array([last])
            scores = logits[i, list_][None] + (before[above] * hidden[i]) @ after[list_].T
            steps.append(digits(scores))
            at = int(np.argmax(scores[at]))
            path.append(int(list_[at]))
        return {"candidates": candidates.tolist(), "steps": steps, "path": path}


def weights2(seed, c, states, taps, group, rank):
    w, n = weights(seed, c, states), c["hidden_size"]
    for i in range(c["num_hidden_layers"]):
        for part in ("attention", "mlp"):
            base = w.rng.normal(0, 0.4, (2, taps, n))
            base[:, 0] += 1
            w[f"layers.{i}.{part}_conv.base_kernel"] = bf16(base)
            w.matrix(f"layers.{i}.{part}_conv.kernel_projection.weight", 2 * taps * (n // group), n, 0.5)
    w.matrix("candidate_selector.hidden_projection.weight", rank, n)
    for name in ("predecessor", "successor"):
        w[f"candidate_selector.{name}_codebook"] = bf16(w.rng.normal(0, 1, (VOCAB, rank)))
    return w


def zlab(t):
    """As z-lab publishes: everything in dflash_config, a window that is not causal, factors and a cap of its own."""
    c = small(architectures=["DFlash2DraftModel"], num_target_layers=4, sliding_window=7, use_sliding_window=True, is_causal=False,
              layer_types=["sliding_attention", "full_attention"],
              dflash_config={"block_size": 6, "mask_token_id": 7, "target_layer_ids": [0, 1, 2], "conv_kernel_size": 2,
                             "conv_group_size": 4, "selector_rank": 8, "selector_top_k": 5, "input_embedding_scale": 1.5,
                             "output_multiplier": 0.75, "final_logit_softcapping": 4.0})
    w = weights2(31, c, 3, 2, 4, 8)
    put("dflash2", c, w, BlockDraft2(c, w, t.embedding, t.output, 7, [False, False]).run(t.tokens, t.taps, [1, 2, 3], 6))


def speculators(t):
    """As Speculators saves: numbers at the top, maps of the whole vocabulary, copies of the target's matrices, three taps."""
    layer = small(sliding_window=4, use_sliding_window=True, layer_types=["full_attention", "sliding_attention"])
    c = {"architectures": ["DFlash2DraftModel"], "speculators_model_type": "dflash2", "block_size": 5, "draft_vocab_size": VOCAB,
         "target_hidden_size": None, "aux_hidden_state_layer_ids": [1, 3], "mask_token_id": 9, "sliding_window_non_causal": True,
         "sample_from_anchor": False, "draft_ffn_type": "dense", "conv_kernel_size": 3, "conv_group_size": 8, "selector_rank": 6,
         "selector_top_k": 4, "transformer_layer_config": layer}
    w = weights2(32, layer, 2, 3, 8, 6)
    golden = BlockDraft2(c, w, t.embedding, t.output, 9, [False, False]).run(t.tokens, t.taps, [1, 3], 5)
    w["embed_tokens.weight"], w["lm_head.weight"] = bf16(t.embedding), bf16(t.output)
    put("dflash2-speculators", c, dict(w, d2t=np.zeros(VOCAB, np.int64), t2d=np.ones(VOCAB, bool)), golden)


def llamacpp(t):
    """A GGUF file as llama.cpp reads it."""
    c = dict(small(), conv_group_size=16, selector_top_k=3)
    w = weights2(33, c, 2, 2, 16, 4)
    put("dflash2-llamacpp", None, None, BlockDraft2(c, w, t.embedding, t.output, 5, [False, False]).run(t.tokens, t.taps, [2, 3], 4))
    tensors = {"fc.weight": w["fc.weight"], "enc.output_norm.weight": w["hidden_norm.weight"], "output_norm.weight": w["norm.weight"]}
    for i in range(2):
        for ours, theirs in NAMES:
            tensors[f"blk.{i}.{ours}.weight"] = w[f"layers.{i}.{theirs}.weight"]
        for ours, theirs in (("attn", "attention"), ("ffn", "mlp")):
            tensors[f"blk.{i}.{ours}_conv_base"] = w[f"layers.{i}.{theirs}_conv.base_kernel"]
            tensors[f"blk.{i}.{ours}_conv_proj.weight"] = w[f"layers.{i}.{theirs}_conv.kernel_projection.weight"]
    for ours, theirs in (("hidden", "hidden_projection.weight"), ("predecessor", "predecessor_codebook"), ("successor", "successor_codebook")):
        tensors[f"selector_{ours}.weight"] = w["candidate_selector." + theirs]
    keys = {"general.architecture": "dflash", "dflash.block_count": 2, "dflash.context_length": 2048, "dflash.embedding_length": DIM,
            "dflash.feed_forward_length": 32, "dflash.attention.head_count": 2, "dflash.attention.head_count_kv": 1,
            "dflash.attention.key_length": 16, "dflash.attention.value_length": 16, "dflash.attention.layer_norm_rms_epsilon": 1e-5,
            "dflash.rope.freq_base": 10000.0, "dflash.block_size": 4, "dflash.target_layers": [2, 3], "dflash.conv_kernel_size": 2,
            "dflash.conv_group_size": 16, "dflash.selector_rank": 4, "dflash.selector_top_k": 3, "tokenizer.ggml.mask_token_id": 5}
    write_gguf(os.path.join(HERE, "dflash2-llamacpp", "draft.gguf"), keys, tensors)


if __name__ == "__main__":
    target = Target()
    for layout in (zlab, speculators, llamacpp):
        layout(target)
