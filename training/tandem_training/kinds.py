"""One trainer for each kind of side file: what its loss is, and how good it is on held-out text.

Every trainer has side (the module), loss(w, rows, share) for windows `rows` of a set w after that share of the training, and
ranks(w, rows, begin): for positions of the target's own greedy continuations (windows, positions, distances) how many tokens the drafter
puts before the target's choice."""
import torch
import torch.nn.functional as F

from . import Refused, loop, sides
from .llama import attention, causal
from .windows import GREEDY

LOSS = 16  # windows of a domain that held-out losses are of


class Trainer:
    def __init__(self, target, side, a):
        self.target, self.side, self.a = target, side.to(a.device), a

    def get(self, w, rows, taps=(-1,)):
        """Tokens and states of windows."""
        return w.tokens[rows].to(self.a.device), w.states(rows, taps).to(self.a.device)

    @torch.no_grad()
    def judge(self, w, ranks=True):
        """Held-out loss on LOSS windows of each domain, and accuracies against all of the target's own greedy continuations."""
        torch.manual_seed(0)  # of insertion points
        tally, losses = loop.Tally(w.domains), {}
        for d, name in enumerate(w.domains):
            mine = torch.nonzero(w.domain == d).flatten()
            some = mine[:LOSS]
            parts = [self.loss(w, rows).item() * len(rows) for rows in some.split(8)]
            losses[name] = round(sum(parts) / max(1, len(some)), 4)
            mine = mine[w.source[mine] == GREEDY] if ranks else mine[:0]
            for begin in sorted({int(b) for b in w.begin[mine]}):
                for rows in mine[w.begin[mine] == begin].split(8):
                    tally.add(d, self.ranks(w, rows, begin).flatten(0, 1))
        out = tally.report()
        for name, loss in losses.items():
            out.setdefault(name, {})["loss"] = loss
        return out


class Medusa(Trainer):
    """Heads: KL to the target's distribution at the later position, and with --hard cross entropy with its best token; 0.8^k for head k."""

    def loss(self, w, rows, share=1.0):
        _, h = self.get(w, rows)
        p, mean_log = loop.wanted(self.target.logits(h))
        total, weights = 0.0, 0.0
        for k in range(len(self.side.medusa)):
            mine, theirs = self.side(h[:, :-1 - k], k, self.target), p[:, 1 + k:]
            part = loop.kl(mine, theirs, mean_log[:, 1 + k:]).mean()
            if self.a.hard:
                part = (1 - self.a.hard) * part + self.a.hard * F.cross_entropy(mine.flatten(0, 1), theirs.argmax(-1).flatten())
            total, weights = total + self.a.fade ** k * part, weights + self.a.fade ** k
        return total / weights

    def ranks(self, w, rows, begin):
        tokens, h = self.get(w, rows)
        heads, length = len(self.side.medusa), tokens.shape[1]
        end = length - 1 - heads  # row t and head k guess token t + 2 + k
        h = h[:, begin:end]
        return torch.stack([loop.rank(self.side(h, k, self.target), tokens[:, begin + 2 + k:end + 2 + k]) for k in range(heads)], -1)


class Prompts(Trainer):
    """Prompt tokens: KL to the target's distribution at the token's position, α^i for token i, at random insertion points."""

    def cells(self, tokens):
        cells, mask = [], causal(tokens.shape[1], tokens.shape[1], tokens.device)

        def attend(layer, q, k, v):
            cells.append((k, v))
            return attention(q, k, v, mask)

        with torch.no_grad():
            self.target(tokens, torch.arange(tokens.shape[1], device=tokens.device), attend)
        return cells

    def loss(self, w, rows, share=1.0):
        tokens, h = self.get(w, rows)
        b, last, m = len(rows), tokens.shape[1] - self.side.m, self.side.m
        points = torch.rand(b, last).argsort(1)[:, :self.a.points].to(tokens.device)
        mine = self.side(self.target, self.cells(tokens), points)
        later = points[:, :, None] + 1 + torch.arange(m, device=tokens.device)
        with torch.no_grad():
            wanted = h.gather(1, later.flatten(1)[..., None].expand(-1, -1, h.shape[-1]))
            wanted = self.target.logits(wanted).view(mine.shape)
            if self.a.labels == "greedy":
                wanted = F.one_hot(wanted.argmax(-1), wanted.shape[-1]) * 1e4
        fade = self.a.fade ** torch.arange(m, device=tokens.device)
        return (loop.kl(mine, *loop.wanted(wanted)).mean((0, 1)) * fade).mean()

    def ranks(self, w, rows, begin):
        tokens, _ = self.get(w, rows)
        m, length = self.side.m, tokens.shape[1]
        points = torch.arange(begin, length - 1 - m, 4, device=tokens.device)
        logits = self.side(self.target, self.cells(tokens), points[None].expand(len(rows), -1))
        return torch.stack([loop.rank(logits[:, :, i], tokens[:, points + 2 + i]) for i in range(m)], -1)


class Draft(Trainer):
    """Drafts: smooth L1 on states and KL on logits, for a.steps steps of drafting at every position (one step until the
    share a.alone of the training); step s counts fade^s. Uniform noise on the target's states, of a.noise times their root mean
    square, as in EAGLE."""
    distances = 5

    def outputs(self, w, rows, steps, noise=0.0):
        tokens, taps = self.get(w, rows, self.side.taps)
        if noise:
            taps = taps + (torch.rand_like(taps) * 2 - 1) * noise * taps.pow(2).mean().sqrt()
        positions = torch.arange(1, tokens.shape[1], device=tokens.device)
        return tokens, self.side.steps(self.target.token_embd(tokens[:, 1:]), taps[:, :-1], positions, steps)

    def loss(self, w, rows, share=1.0):
        noise = self.a.noise if torch.is_grad_enabled() else 0.0
        _, outs = self.outputs(w, rows, self.a.steps if share >= self.a.alone else 1, noise)
        h = w.states(rows).to(self.a.device)
        wanted = self.wanted(self.target.logits(h))
        total, weights = 0.0, 0.0
        for s, out in enumerate(outs):
            total = total + self.a.fade ** s * self.part(out, h[:, 1 + s:], *(x[:, 1 + s:] for x in wanted))
            weights += self.a.fade ** s
        return total / weights

    def wanted(self, logits):
        return loop.wanted(logits)

    def part(self, out, h, p, mean_log):
        loss = loop.kl(self.side.logits(out, self.target), p, mean_log).mean()
        return loss + self.a.state * F.smooth_l1_loss(out, h) if self.a.state else loss

    def ranks(self, w, rows, begin):
        tokens, outs = self.outputs(w, rows, self.distances)
        end = tokens.shape[1] - 1 - self.distances
        ranks = []
        for s, out in enumerate(outs):  # row i of step s is at position 1 + s + i and guesses the token after it
            logits = self.side.logits(out[:, begin:end], self.target)
            ranks.append(loop.rank(logits, self.right(tokens[:, begin + 2 + s:end + 2 + s])))
        return torch.stack(ranks, -1)

    def right(self, tokens):
        return tokens


class Eagle3(Draft):
    """EAGLE-3: no loss on states; the target's distribution over the draft's tokens, where its best token is one of them."""

    def __init__(self, target, side, a):
        super().__init__(target, side, a)
        self.back = torch.full((target.shape.vocab,), -1)
        self.back[side.d2t] = torch.arange(len(side.d2t))
        self.back, self.d2t = self.back.to(a.device), side.d2t.to(a.device)

    def wanted(self, logits):
        return (*loop.wanted(logits[..., self.d2t]), self.back[logits.argmax(-1)] >= 0)

    def part(self, out, h, p, mean_log, known):
        return (loop.kl(self.side.logits(out, self.target), p, mean_log) * known).sum() / known.sum().clamp(min=1)

    def right(self, tokens):
        return self.back[tokens]


class Distil(Trainer):
    """A plain draft: KL to the target's distribution at every position."""
    distances = 5

    def logits(self, tokens):
        return self.side.logits(self.side(tokens, torch.arange(tokens.shape[1], device=tokens.device))[0])

    def loss(self, w, rows, share=1.0):
        tokens, h = self.get(w, rows)
        mine = self.logits(tokens)
        part = loop.kl(mine, *loop.wanted(self.target.logits(h))).mean()
        if self.a.hard:
            part = (1 - self.a.hard) * part + self.a.hard * F.cross_entropy(mine[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        return part

    def ranks(self, w, rows, begin):
        tokens, _ = self.get(w, rows)
        r = loop.rank(self.logits(tokens)[:, begin:-1], tokens[:, begin + 1:])
        return torch.stack([r[:, i:r.shape[1] - self.distances + i] for i in range(self.distances)], -1)


@torch.no_grad()
def like_target(side, target, w, device, windows=64):
    """Starts a draft from the target: its blocks from the target's last M, and its fusion from the linear map of state and embedding that
    comes nearest (ridge regression on some windows) to what those blocks get in the target."""
    blocks, layers = len(side.blk), target.shape.layers
    if blocks >= layers:
        raise Refused(f"--init target with --blocks {blocks}: the target has {layers} layers, want fewer blocks or --init random")
    for mine, theirs in zip(side.blk, target.blk[-blocks:]):
        have = dict(theirs.named_parameters())
        for name, p in mine.named_parameters():
            if name in have and have[name].shape == p.shape:
                p.copy_(have[name])
    d = target.shape.dim
    square, cross = torch.zeros(2 * d, 2 * d, dtype=torch.float64), torch.zeros(2 * d, d, dtype=torch.float64)
    for rows in torch.arange(min(windows, len(w))).split(8):
        tokens, h = w.tokens[rows].to(device), w.states(rows).to(device)
        wanted = target(tokens, torch.arange(tokens.shape[1], device=device), taps=(layers - blocks,))[0][:, 1:].flatten(0, 1)
        given = torch.cat([h[:, :-1], target.token_embd(tokens[:, 1:])], -1).flatten(0, 1)
        square += (given.t() @ given).double().cpu()
        cross += (given.t() @ wanted).double().cpu()
    scale = square.diagonal().sqrt().clamp(min=1e-12)  # as if every input had the same size
    square = square / scale[:, None] / scale + 1e-3 * torch.eye(2 * d, dtype=torch.float64)
    of_state, of_token = (torch.linalg.solve(square, cross / scale[:, None]) / scale[:, None]).float().t().split(d, 1)
    if isinstance(side, sides.Dovetail):  # the gate starts at one half
        side.fuse["hidden"].weight.copy_(2 * of_state), side.fuse["embd"].weight.copy_(2 * of_token)
        side.fuse["gate"].hidden.weight.zero_(), side.fuse["gate"].embd.weight.zero_()
    else:
        side.fc["hidden"].weight.copy_(of_state), side.fc["embd"].weight.copy_(of_token)
