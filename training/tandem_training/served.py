"""What a draft takes from the served file: rows of its embedding and output matrices, its final norm, and its last block to begin from.
Nothing here runs the target: its states come from shards."""
import numpy as np
import torch
from torch import nn

from . import gguf, llama


class Served:
    """Parts of the GGUF file at path, with the tokens that training meets: those of `seen` (counts by token). layer: what the names of
    tensors begin with that come before the model's own, if the file has them: those of its MTP layer."""

    def __init__(self, path, seen, device="cpu", layer=""):
        self.file, self.device, self.layer = gguf.File(path), device, layer
        self.shape = llama.read_shape(self.file, strict=False)
        arch = self.file.key("general.architecture")
        self.cap = float(self.file.key(f"{arch}.final_logit_softcapping", 0.0))
        self.scale = float(self.file.key(f"{arch}.logit_scale", 1.0))
        ids = torch.nonzero(seen).flatten()
        self.place = torch.full((self.shape.vocab,), -1)
        self.place[ids] = torch.arange(len(ids))
        self.rows = self.matrix(("nextn.embed_tokens.weight", "token_embd.weight"), ids)
        self.output_norm = llama.Norm(self.shape.dim, self.shape.eps)
        self.output_norm.weight.data.copy_(torch.from_numpy(self.file.tensor("output_norm.weight")))

    def matrix(self, names, ids):
        """Rows of the first of these matrices that the file has."""
        at = [n for own in names for n in (self.layer + own, own) if n in self.file.tensors] or names[-1:]
        return torch.from_numpy(self.file.rows(at[0], ids.numpy())).to(self.device)

    def token_embd(self, ids):
        """Embeddings of ids that were seen."""
        return self.rows[self.place[ids].to(self.device)]

    def head(self, ids=None):
        """The output matrix, (vocab, dim), or its rows for some tokens."""
        ids = torch.arange(self.shape.vocab) if ids is None else ids
        return self.matrix(("nextn.shared_head_head.weight", "output.weight", "token_embd.weight"), ids)

    def bend(self, logits):
        """What the target does to the products of its output matrix."""
        logits = logits * self.scale if self.scale != 1 else logits
        return torch.tanh(logits / self.cap) * self.cap if self.cap else logits

    def block(self, layer, neurons=None):
        """The tensors of a layer as a draft's block has them, by their names: RoPE on pairs of neighbours, and of the feed-forward
        neurons those alone."""
        prefix, s, out = f"blk.{layer}.", self.shape, {}
        for name in self.file.tensors:
            if name.startswith(prefix):
                out[name[len(prefix):]] = torch.from_numpy(self.file.tensor(name))
        if s.halves:  # element i of a head and i + half become neighbours
            order = torch.arange(s.head_dim).view(2, -1).t().flatten()
            for name, heads in (("attn_q", s.heads), ("attn_k", s.kv_heads)):
                rows = (torch.arange(heads)[:, None] * s.head_dim + order).flatten()
                for key in (name + ".weight", name + ".bias"):
                    if key in out:
                        out[key] = out[key][rows]
        if neurons is not None:
            for name in ("ffn_gate.weight", "ffn_up.weight"):
                out[name] = out[name][neurons]
            out["ffn_down.weight"] = out["ffn_down.weight"][:, neurons]
        return out


def like(shape, blocks, ffn):
    """The shape of a draft's blocks: the target's, with another number of feed-forward neurons."""
    s = shape.of_draft(blocks)
    s.ffn, s.bias = ffn, shape.bias
    return s


class Head(nn.Module):
    """The rows of the target's output matrix for the draft's tokens d2t. They are not trained, and no file holds them."""

    def __init__(self, served, d2t):
        super().__init__()
        self.served, self.d2t = served, d2t
        self.rows = served.head(d2t)
        self.back = torch.full((served.shape.vocab,), -1)
        self.back[d2t] = torch.arange(len(d2t))

    def forward(self, h):
        return self.served.bend(nn.functional.linear(h, self.rows))


def choose(counts, most):
    """The ids of the tokens that the target used most often, at most so many, in rising order."""
    return torch.from_numpy(np.sort(np.argsort(-counts.numpy(), kind="stable")[:most]))
