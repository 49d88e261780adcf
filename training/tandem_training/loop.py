"""The training loop: schedule, checkpoints, bounds of time."""
import math
import os
import time

import torch

from . import Refused
from .progress import Bar

BETWEEN = 60  # seconds between checkpoints


@torch.no_grad()
def wanted(logits):
    """What kl compares with: the target's probabilities, and the mean of their logarithms in each row."""
    t = logits.log_softmax(-1)
    p = t.exp()
    return p, (p * t.clamp(min=-100)).sum(-1)


def kl(logits, p, mean_log):
    """KL(target ‖ logits) of each row."""
    return mean_log - (p * logits.log_softmax(-1)).sum(-1)


def fit(module, loss_of, count, a, settings):
    """Trains module's parameters. loss_of(rows, share) is the loss for windows `rows`, of which there are
    `count`, after that share of the training. settings name the run: a checkpoint
    beside a.out with the same settings is continued. The rate falls like a cosine to 0 at the end, which is after a.epochs or a.minutes,
    whatever comes first. Returns what happened: steps, minutes, loss (the mean of the last twentieth)."""
    params = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=a.lr, betas=(0.9, 0.95), weight_decay=a.decay)
    count = max(1, int(count * a.fraction))
    batch = min(a.batch, count)
    per_epoch = count // batch
    steps = max(1, int(a.epochs * per_epoch))
    limit, before, losses, step = a.minutes * 60 * a.fraction, 0.0, [], 0
    path = a.out + ".ckpt"
    if os.path.exists(path) and not a.fresh:
        c = torch.load(path, map_location=a.device, weights_only=True)
        if c["settings"] != settings:
            raise Refused(f"{path} is of a run with other settings: want the same ones to continue it, or --fresh to begin anew")
        module.load_state_dict(c["module"])
        optimizer.load_state_dict(c["optimizer"])
        step, before, losses = c["step"], c["seconds"], c["losses"]
    begun, saved, show = time.monotonic() - before, time.monotonic(), Bar(os.path.basename(a.out), steps, a.bar)
    while step < steps:
        gone = time.monotonic() - begun
        share = max(step / steps, gone / limit)
        if share >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = a.lr * min(1.0, (step + 1) / max(1, a.warm)) * 0.5 * (1 + math.cos(math.pi * share))
        epoch, at = divmod(step, per_epoch)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(a.seed * 7919 + epoch))
        torch.manual_seed(a.seed * 1000003 + step)
        loss = loss_of(order[at * batch:(at + 1) * batch], share)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, a.clip)
        optimizer.step()
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            raise Refused(f"the loss is {losses[-1]} after {step} steps: want a lower --lr than {a.lr}")
        step += 1
        show.at(step, f"loss {mean(losses[-20:]):.4f}", share)
        if time.monotonic() - saved > BETWEEN:
            saved = time.monotonic()
            save(path, settings, module, optimizer, step, saved - begun, losses)
    show.end()
    return {"steps": step, "minutes": round((time.monotonic() - begun) / 60, 2), "windows": count, "batch": batch,
            "loss_first": mean(losses[:10]), "loss": mean(losses[-max(1, len(losses) // 20):])}


def save(path, settings, module, optimizer, step, seconds, losses):
    torch.save({"settings": settings, "module": module.state_dict(), "optimizer": optimizer.state_dict(), "step": step,
                "seconds": seconds, "losses": losses}, path + ".part")
    os.replace(path + ".part", path)


def mean(x):
    return sum(x) / max(1, len(x))


class Tally:
    """Counts how often the right token is among the best, by distance and domain, and how long chains of best tokens are right."""
    TOPS = (1, 2, 3, 5, 10)

    def __init__(self, domains):
        self.domains, self.hits, self.rows, self.chain = domains, {}, {}, {}

    def add(self, domain, ranks):
        """ranks (rows, distances): how many tokens the right one has before it."""
        hits = torch.stack([(ranks < t).sum(0) for t in self.TOPS], 1)  # (distances, tops)
        chain = (ranks == 0).cumprod(1).sum(0)
        name = self.domains[domain]
        self.hits[name] = self.hits.get(name, 0) + hits
        self.chain[name] = self.chain.get(name, 0) + chain
        self.rows[name] = self.rows.get(name, 0) + len(ranks)

    def report(self):
        out = {}
        for name, n in self.rows.items():
            shares = (self.hits[name] / n).tolist()
            out[name] = {"rows": n, "chain": round(1 + (self.chain[name].sum() / n).item(), 4),
                         "accuracy": [{f"top{t}": round(x, 4) for t, x in zip(self.TOPS, row)} for row in shares]}
        return out


def rank(logits, right):
    """How many tokens are before the right one, which is -1 where it is no token of the draft's: then very many."""
    own = logits.gather(-1, right.clamp(min=0)[..., None])
    return torch.where(right >= 0, (logits > own).sum(-1), 1 << 30)
