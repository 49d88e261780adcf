"""One trainer for each kind of side file: what its loss is, and how good it is on held-out texts.

Every trainer has side (the module), taps (what it needs of the shards), loss(batch, share) for a corpus.Batch after that share of the
training, and ranks(batch): for rows of the batch and distances, how many tokens the drafter
puts before the one that came, and of how many rows each text is, if they follow each other."""
import torch
import torch.nn.functional as F

from . import Refused, loop, sides
from .llama import attention, causal


class Trainer:
    def __init__(self, target, side, a):
        self.target, self.side, self.a = target, side.to(a.device), a

    def known(self, ids):
        """The numbers of tokens among those that the drafter knows, or -1."""
        return ids if self.head is None else self.head.back[ids]

    def wanted(self, batch, rows, later):
        """What kl_top compares with, for the distributions `later` rows after those of `rows` (texts, n), a mask of the batch's first
        rows: numbers of the likeliest tokens, and their log-probabilities."""
        end = later + rows.shape[1]
        return (self.known(batch.top_ids[:, later:end][rows]).to(self.a.device),
                batch.top_logprobs[:, later:end][rows].to(self.a.device))

    def judged(self, batch, later, first=0):
        """Mask (texts, rows − later − first) of rows from `first` on that are judged, and `later` rows after which there is one."""
        mask = batch.judged[:, first:batch.judged.shape[1] - later].clone()
        at = torch.arange(mask.shape[1]) + first + later
        return mask & (at[None] < batch.lengths[:, None])

    @torch.no_grad()
    def judge(self, corpus, tokens):
        """Held-out loss, accuracies by distance, and the acceptance length of chains, over a whole corpus."""
        torch.manual_seed(0)  # of insertion points
        tally, losses, rows = loop.Tally(), 0.0, 0
        for indices in corpus.epoch(0, tokens):
            b = corpus.batch(indices, self.taps)
            n = int(b.judged.sum())
            losses, rows = losses + self.loss(b, 1.0).item() * n, rows + n
            tally.add(*self.ranks(b))
        return {"loss": round(losses / max(1, rows), 4), **tally.report()}


class Medusa(Trainer):
    """Heads: KL to the target's distribution at the later position; fade^k for head k."""
    taps = (-1,)

    def __init__(self, target, side, a, head):
        super().__init__(target, side, a)
        self.head = head

    def out(self, h, k):
        parts = self.side.medusa[k]
        return parts["output"](self.side.hidden(h, k)) if "output" in parts else self.head(self.side.hidden(h, k))

    def loss(self, batch, share=1.0):
        h, total, weights = batch.taps(self.taps).to(self.a.device), 0.0, 0.0
        for k in range(len(self.side.medusa)):
            rows = self.judged(batch, 1 + k)
            part = loop.kl_top(self.out(h[:, :rows.shape[1]][rows], k), *self.wanted(batch, rows, 1 + k))
            total, weights = total + self.a.fade ** k * part, weights + self.a.fade ** k
        return total / weights

    def ranks(self, batch):
        """Row p and head k guess token p + 2 + k."""
        h, heads = batch.taps(self.taps).to(self.a.device), len(self.side.medusa)
        rows = self.judged(batch, 1 + heads)
        n = rows.shape[1]
        h = h[:, :n][rows]
        right = [self.known(batch.ids[:, 2 + k:2 + k + n][rows]) for k in range(heads)]
        return torch.stack([loop.rank(self.out(h, k), right[k].to(h.device)) for k in range(heads)], -1), rows.sum(1).tolist()


class Draft(Trainer):
    """Drafts: KL on logits, and smooth L1 on states (a.state), for a.steps steps of drafting at every position (one step until the
    share a.alone of the training); step s counts fade^s. Uniform noise on the target's states, of a.noise times their root mean
    square, as in EAGLE. In a share a.blind of the texts the states of the prompt are zeros: so it is where a verifier has a prompt in its
    cache from a request without this draft."""
    distances = loop.Tally.CHAIN

    def __init__(self, target, side, a, head):
        super().__init__(target, side, a)
        self.head = head
        self.taps = tuple(dict.fromkeys((*side.reads, -1))) if getattr(a, "state", 0) else tuple(side.reads)

    def outputs(self, batch, steps, noise=0.0):
        taps = batch.taps(self.side.reads).to(self.a.device)
        if noise:
            taps = taps + (torch.rand_like(taps) * 2 - 1) * noise * taps.pow(2).mean().sqrt()
        if torch.is_grad_enabled() and self.a.blind:
            blind = torch.where(torch.rand(len(taps)) < self.a.blind, batch.prompts, 0)
            taps = taps.masked_fill((torch.arange(taps.shape[1])[None] < blind[:, None])[..., None].to(taps.device), 0.0)
        positions = torch.arange(1, batch.ids.shape[1], device=self.a.device)
        return self.side.steps(self.target.token_embd(batch.ids[:, 1:]), taps[:, :-1], positions, steps)

    def guess(self, out):
        return self.side.own_logits(out) if self.head is None or hasattr(self.side, "output") else self.head(out)

    def loss(self, batch, share=1.0):
        """Row i of step s is that of position 1 + s + i."""
        noise = self.a.noise if torch.is_grad_enabled() else 0.0
        outs = self.outputs(batch, self.a.steps if share >= self.a.alone else 1, noise)
        total, weights = 0.0, 0.0
        for s, out in enumerate(outs):
            rows = self.judged(batch, 0, 1 + s)
            mine = out[rows]
            part = loop.kl_top(self.guess(mine), *(self.wanted_at(batch, rows, 1 + s)))
            if self.a.state:
                h = batch.states[-1][:, 1 + s:][rows].to(self.a.device)
                part = part + self.a.state * F.smooth_l1_loss(mine, h)
            total, weights = total + self.a.fade ** s * part, weights + self.a.fade ** s
        return total / weights

    def wanted_at(self, batch, rows, first):
        return (self.known(batch.top_ids[:, first:][rows]).to(self.a.device), batch.top_logprobs[:, first:][rows].to(self.a.device))

    def ranks(self, batch):
        outs, last = self.outputs(batch, self.distances), self.distances
        rows = self.judged(batch, last, 1)
        n, ranks = rows.shape[1], []
        for s, out in enumerate(outs):
            right = self.known(batch.ids[:, 2 + s:2 + s + n][rows]).to(out.device)
            ranks.append(loop.rank(self.guess(out[:, :n][rows]), right))
        return torch.stack(ranks, -1), rows.sum(1).tolist()


class Prompts(Trainer):
    """Prompt tokens: KL to the target's distribution at the token's position, fade^i for token i, at random insertion points. The
    target is a whole model, in float32."""
    taps = ()

    def __init__(self, target, side, a, head=None):
        super().__init__(target, side, a)
        self.head = head

    def cells(self, ids):
        cells, mask = [], causal(ids.shape[1], ids.shape[1], ids.device)

        def attend(layer, q, k, v):
            cells.append((k, v))
            return attention(q, k, v, mask)

        with torch.no_grad():
            self.target(ids, torch.arange(ids.shape[1], device=ids.device), attend)
        return cells

    def loss(self, batch, share=1.0):
        ids, m = batch.ids.to(self.a.device), self.side.m
        rows = self.judged(batch, m)
        most = min(self.a.points, max(1, int(rows.sum(1).min())))
        points = (torch.rand(rows.shape) - 2 * (~rows)).argsort(1, descending=True)[:, :most]
        mine, fade = self.side(self.target, self.cells(ids), points.to(ids.device), self.head), 0.0
        at = points[:, :, None] + 1 + torch.arange(m)
        text = torch.arange(len(ids))[:, None, None]
        for i in range(m):
            part = loop.kl_top(mine[:, :, i].flatten(0, 1), self.known(batch.top_ids[text, at][:, :, i].flatten(0, 1)).to(ids.device),
                               batch.top_logprobs[text, at][:, :, i].flatten(0, 1).to(ids.device), self.a.labels == "greedy")
            fade = fade + self.a.fade ** i * part
        return fade / m

    def ranks(self, batch):
        ids, m = batch.ids.to(self.a.device), self.side.m
        rows = self.judged(batch, m + 1)
        points = torch.arange(0, rows.shape[1], 4)
        logits = self.side(self.target, self.cells(ids), points[None].expand(len(ids), -1).to(ids.device), self.head)
        mask = rows[:, points]
        right = [self.known(batch.ids[:, points + 2 + i][mask]).to(ids.device) for i in range(m)]
        return torch.stack([loop.rank(logits[:, :, i][mask], right[i]) for i in range(m)], -1), None


class Distil(Trainer):
    """A plain draft: KL to the target's distribution at every judged position, over the tokens of head, if it is not None."""
    taps, distances = (), loop.Tally.CHAIN

    def __init__(self, target, side, a, head=None):
        super().__init__(target, side, a)
        self.head = head

    def states(self, batch):
        ids = batch.ids.to(self.a.device)
        return self.side(ids, torch.arange(ids.shape[1], device=ids.device))[0]

    def logits(self, h):
        return self.side.logits(h) if self.head is None else self.head(h)

    def loss(self, batch, share=1.0):
        rows = self.judged(batch, 0)
        return loop.kl_top(self.logits(self.states(batch)[rows]), *self.wanted(batch, rows, 0))

    def ranks(self, batch):
        h, last = self.states(batch), self.distances
        rows = self.judged(batch, last)
        n = rows.shape[1]
        return torch.stack([loop.rank(self.logits(h[:, i:i + n][rows]), self.known(batch.ids[:, 1 + i:1 + i + n][rows]).to(h.device))
                            for i in range(last)], -1), rows.sum(1).tolist()


@torch.no_grad()
def shorten(model, keep, corpus, texts=24):
    """Leaves of a plain model those blocks that change their input most, by one minus the mean cosine of what goes in and what comes out
    (block influence of ShortGPT, Men et al. 2024), and always the first and the last one."""
    n = len(model.blk)
    if not 2 <= keep <= n:
        raise Refused(f"--keep {keep}: the model of --from has {n} blocks: want 2 to {n}")
    change = torch.zeros(n)
    for indices in spread(corpus, texts):
        b = corpus.batch(indices, ())
        *states, _ = model(b.ids, torch.arange(b.ids.shape[1]), taps=(*range(n + 1), -1))
        for i in range(n):
            change[i] += (1 - F.cosine_similarity(states[i][b.judged], states[i + 1][b.judged], dim=-1)).sum()
    change[0] = change[-1] = float("inf")
    kept = change.argsort(descending=True)[:keep].sort().values.tolist()
    print("blocks that are kept: " + " ".join(map(str, kept)), flush=True)
    model.blk = torch.nn.ModuleList(model.blk[i] for i in kept)
    model.shape.layers = keep


@torch.no_grad()
def like_target(side, target, corpus, texts=200):
    """Starts a draft of M blocks from the target's last M, with the most active of their feed-forward neurons; and its fusion from the
    linear map of state and embedding that comes nearest (ridge regression over some texts) to what the first of them gets in the target."""
    layer, d = target.shape.layers - len(side.blk), target.shape.dim
    least = side.shape.ffn < target.shape.ffn  # neurons are chosen by each block's input; else the first one's is enough
    need = range(layer, target.shape.layers) if least else (layer,)
    if layer < 1:
        raise Refused(f"--init target with --blocks {len(side.blk)}: the target has {target.shape.layers} layers: want fewer blocks")
    for tap in need:
        if tap not in corpus.header["taps"]:
            raise Refused(f"--init target with --blocks {len(side.blk)} needs the states after {tap} layers, which one of the target's "
                          f"last blocks gets: the states have taps {corpus.header['taps']}: want {tap} among them, or --init random")
    for i, block in enumerate(side.blk):
        chosen = active(target.block(layer + i), target, corpus, layer + i, side.shape.ffn) if least else None
        have = target.block(layer + i, chosen)
        for name, p in block.named_parameters():
            if name in have and have[name].shape == p.shape:
                p.copy_(have[name])
    square, cross = torch.zeros(2 * d, 2 * d, dtype=torch.float64), torch.zeros(2 * d, d, dtype=torch.float64)
    for indices in spread(corpus, texts):
        b = corpus.batch(indices, (layer, -1))
        ok = (torch.arange(1, b.ids.shape[1])[None] < b.lengths[:, None])
        given = torch.cat([b.states[-1][:, :-1][ok], target.token_embd(b.ids[:, 1:][ok])], -1)
        square += (given.t() @ given).double()
        cross += (given.t() @ b.states[layer][:, 1:][ok]).double()
    scale = square.diagonal().sqrt().clamp(min=1e-12)  # as if every input had the same size
    square = square / scale[:, None] / scale + 1e-3 * torch.eye(2 * d, dtype=torch.float64)
    of_state, of_token = (torch.linalg.solve(square, cross / scale[:, None]) / scale[:, None]).float().t().split(d, 1)
    if isinstance(side, sides.Dovetail):  # the gate starts at one half
        side.fuse["hidden"].weight.copy_(2 * of_state), side.fuse["embd"].weight.copy_(2 * of_token)
        side.fuse["gate"].hidden.weight.zero_(), side.fuse["gate"].embd.weight.zero_()
    else:
        side.fc["hidden"].weight.copy_(of_state), side.fc["embd"].weight.copy_(of_token)


def spread(corpus, texts):
    """Groups of four texts, from everywhere in a corpus."""
    order = torch.linspace(0, len(corpus.texts) - 1, min(texts, len(corpus.texts))).long().unique()
    return [g.tolist() for g in order.split(4)]


def active(have, target, corpus, layer, most):
    """The feed-forward neurons of a block that add most to the residual stream: by the mean square of what they put out, times the
    length of their column. What the block's attention adds is left out of their input."""
    down = have["ffn_down.weight"]
    total = torch.zeros(down.shape[1])
    for indices in spread(corpus, 60):
        b = corpus.batch(indices, (layer,))
        x = b.states[layer][b.judged]
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + target.shape.eps) * have["ffn_norm.weight"]
        total += (F.silu(x @ have["ffn_gate.weight"].t()) * (x @ have["ffn_up.weight"].t())).pow(2).sum(0)
    return (total * down.pow(2).sum(0)).argsort(descending=True)[:most].sort().values
