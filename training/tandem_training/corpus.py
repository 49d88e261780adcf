"""Texts with the served file's states, from the folders that `tandem model states` wrote (docs/states.md), in batches for training."""
import numpy as np
import torch

from . import Refused, states


class Batch:
    """Some texts side by side, filled up at their ends: ids (texts, rows); judged (texts, rows), the rows whose next token the target
    chose or would choose: those of answers, and all rows of plain texts; top_ids and top_logprobs (texts, rows, top) of the next token."""

    def __init__(self, texts, taps):
        n = max(len(t.ids) for t in texts)
        fill = lambda of, dtype: torch.from_numpy(np.stack([pad(of(t), n, dtype) for t in texts]))
        self.ids = fill(lambda t: t.ids, np.int64)
        self.top_ids = fill(lambda t: t.top_ids, np.int64)
        self.top_logprobs = fill(lambda t: t.top_logprobs, np.float32)
        self.states = {tap: fill(lambda t: t.states[tap], np.float32) for tap in taps}
        self.judged = torch.zeros(self.ids.shape, dtype=torch.bool)
        for row, t in zip(self.judged, texts):
            row[max(0, t.prompt - 1):len(t.ids)] = True
        self.lengths = torch.tensor([len(t.ids) for t in texts])
        self.prompts = torch.tensor([t.prompt for t in texts])
        self.tokens = int(self.lengths.sum())

    def inside(self):
        """Mask (texts, rows) of rows that are no filling."""
        return torch.arange(self.ids.shape[1])[None] < self.lengths[:, None]

    def taps(self, taps):
        """States of taps side by side: (texts, rows, taps · width)."""
        return torch.cat([self.states[t] for t in taps], -1) if taps else None


def pad(x, n, dtype):
    out = np.zeros((n, *x.shape[1:]), dtype)
    out[:len(x)] = x
    return out


class Corpus:
    """The texts of some folders that are held out, or those that are not."""

    def __init__(self, folders, held, longest=0, fraction=1.0, check=True):
        self.texts, self.header = [], None
        for folder in folders:
            for shard in states.shards(folder, check):
                h = self.header = self.header or shard.header
                for key in ("identity", "taps", "top", "dim", "vocabulary"):
                    if shard.header[key] != h[key]:
                        raise Refused(f"{shard.path}: {key} is {shard.header[key]}, and {h[key]} in {folders[0]}: "
                                      "want folders of one model with the same --taps and --top")
            self.texts += [cut(t, longest) for t in states.texts(folder, held, check=False) if len(t.ids) > 8]
        self.texts = self.texts[:max(1, int(len(self.texts) * fraction))]
        if not self.texts:
            raise Refused(f"{', '.join(folders)}: no texts that are {'held out' if held else 'not held out'}: want more states")
        self.tokens = sum(len(t.ids) for t in self.texts)

    def first(self, most):
        """The same with at most so many texts."""
        self.texts = self.texts[:most]
        self.tokens = sum(len(t.ids) for t in self.texts)
        return self

    def seen(self):
        """How often each token of the vocabulary stands in the texts."""
        counts = np.zeros(self.header["vocab"], np.int64)
        for t in self.texts:
            counts += np.bincount(t.ids, minlength=len(counts))
        return torch.from_numpy(counts)

    def need(self, taps):
        """Refuses taps that the shards have not."""
        for t in taps:
            if t not in self.header["taps"]:
                raise Refused(f"the states have taps {self.header['taps']}: want {t} among them (tandem model states --taps)")

    def used(self):
        """How often each token of the vocabulary stands where the target chose it or would choose it."""
        counts = np.zeros(self.header["vocab"], np.int64)
        for t in self.texts:
            own = t.top_ids[max(0, t.prompt - 1):, 0]
            counts += np.bincount(own, minlength=len(counts)) + np.bincount(t.ids[t.prompt:], minlength=len(counts))
        return torch.from_numpy(counts)

    def epoch(self, seed, tokens):
        """Batches of indices in an order of their own for each seed; a batch has at most that many rows, or is one text. Texts of like
        length are together."""
        rng, batches = np.random.default_rng(seed), []
        order = rng.permutation(len(self.texts))
        for pool in np.array_split(order, max(1, len(order) // 64)):
            pool, batch = sorted(pool, key=lambda i: len(self.texts[i].ids)), []
            for i in pool:
                if batch and (len(batch) + 1) * len(self.texts[i].ids) > tokens:
                    batches.append(batch)
                    batch = []
                batch.append(int(i))
            batches.append(batch)
        return [batches[i] for i in rng.permutation(len(batches))]

    def batch(self, indices, taps):
        return Batch([self.texts[i] for i in indices], taps)


def cut(t, longest):
    """A text without what is behind its first `longest` tokens; 0: whole."""
    if not longest or len(t.ids) <= longest:
        return t
    return t._replace(ids=t.ids[:longest], log_sum=t.log_sum[:longest], top_ids=t.top_ids[:longest],
                      top_logprobs=t.top_logprobs[:longest], states={k: v[:longest] for k, v in t.states.items()})
