"""The training loop: schedule, checkpoints, bounds of time."""
import json
import math
import os
import time

import torch

from . import Refused
from .progress import Bar

BETWEEN = 60  # seconds between checkpoints


def kl_top(logits, numbers, log_probs, hard=False):
    """The mean KL(target ‖ drafter) over the target's likeliest tokens, of rows whose likeliest the drafter knows: logits (rows, tokens)
    of the drafter; numbers and log_probs (rows, top), best first, of the target's, the number -1 for tokens that the drafter has not. The
    probabilities count as shares of their sum. Hard: cross entropy with the likeliest alone."""
    ok = numbers[:, 0] >= 0
    if not ok.any():
        return logits.sum() * 0
    mine, numbers, p = logits[ok].float().log_softmax(-1), numbers[ok], log_probs[ok]
    if hard:
        return -mine.gather(1, numbers[:, :1]).mean()
    p = p.masked_fill(numbers < 0, float("-inf")).log_softmax(-1)
    share = p.exp()
    return (share * (p.clamp(min=-100) - mine.gather(1, numbers.clamp(min=0)))).sum(-1).mean()


def fit(trainer, corpus, held, a, settings, export=False):
    """Trains the parameters of trainer.side over a corpus, and judges them over held-out texts every a.judge minutes. settings name the
    run: a checkpoint beside a.out with the same settings is continued. The rate falls like a cosine to 0 at the end, which is after
    a.epochs or a.minutes, whatever comes first; or where the score (simulated tokens a round) was no better at a.patience
    judgements in a row. What is left in the module is what was judged best. Returns what happened: steps, minutes, loss (the mean of the
    last twentieth), and a curve of what was judged. export: nothing is trained beyond what a checkpoint has."""
    module, run = trainer.side, Run(trainer.side, a, settings)
    per_epoch = len(corpus.epoch(a.seed, a.tokens))
    steps, limit = max(1, int(a.epochs * per_epoch)), a.minutes * 60
    begun, saved, show = time.monotonic() - run.seconds, time.monotonic(), Bar(os.path.basename(a.out), steps, a.bar)
    if not run.curve:
        run.judge(trainer, held)
    while not export and run.step < steps and run.worse < a.patience:
        gone = time.monotonic() - begun - run.judging
        share = max(run.step / steps, gone / limit)
        if share >= 1:
            break
        loss = run.one(trainer, corpus, share, per_epoch)
        show.at(run.step, f"loss {loss:.4f}, held out {run.curve[-1]['score']:.4f}", share)
        if gone > a.judge * 60 * run.judged:
            run.judge(trainer, held)
        if time.monotonic() - saved > BETWEEN:
            saved, run.seconds = time.monotonic(), time.monotonic() - begun
            run.save()
    show.end()
    if not export:
        run.judge(trainer, held)
    module.load_state_dict(run.best)
    losses = run.losses
    return {"steps": run.step, "minutes": round((time.monotonic() - begun) / 60, 2), "texts": len(corpus.texts), "tokens": corpus.tokens,
            "tokens_seen": run.seen, "loss_first": mean(losses[:10]), "loss": mean(losses[-max(1, len(losses) // 20):]),
            "curve": run.curve}


class Run:
    """A training under way: what a checkpoint holds."""
    KEEPS = ("step", "seconds", "judging", "seen", "losses", "curve", "worse", "judged")  # beside tensors

    def __init__(self, module, a, settings):
        self.module, self.a, self.settings = module, a, settings
        self.params = [p for p in module.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.params, lr=a.lr, betas=(0.9, 0.95), weight_decay=a.decay)
        self.step, self.seconds, self.judging, self.seen, self.worse, self.judged = 0, 0.0, 0.0, 0, 0, 0
        self.losses, self.curve, self.best, self.order = [], [], None, (-1, [])
        self.path = a.out + ".ckpt"
        if os.path.exists(self.path) and not a.fresh:
            c = torch.load(self.path, map_location=a.device, weights_only=True)  # values alone: a pickle could run anything
            kept = json.loads(c["kept"])
            if kept["settings"] != json.loads(json.dumps(settings)):
                raise Refused(f"{self.path} is of a run with other settings: want the same ones to continue it, or --fresh to begin anew")
            module.load_state_dict(c["module"])
            self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": c["optimizer"]})
            self.best = c["best"]
            for k in self.KEEPS:
                setattr(self, k, kept[k])

    def one(self, trainer, corpus, share, per_epoch):
        """One step. Returns the mean of the last losses."""
        a = self.a
        for group in self.optimizer.param_groups:
            group["lr"] = a.lr * min(1.0, (self.step + 1) / max(1, a.warm)) * 0.5 * (1 + math.cos(math.pi * share))
        epoch, at = divmod(self.step, per_epoch)
        if self.order[0] != epoch:
            self.order = (epoch, corpus.epoch(a.seed * 7919 + epoch, a.tokens))
        if at >= len(self.order[1]):  # epochs may differ by a batch or two
            at = at % len(self.order[1])
        torch.manual_seed(a.seed * 1000003 + self.step)
        batch = corpus.batch(self.order[1][at], trainer.taps)
        with cast(a):
            loss = trainer.loss(batch, share)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.params, a.clip)
        self.optimizer.step()
        self.losses.append(loss.item())
        if not math.isfinite(self.losses[-1]):
            raise Refused(f"the loss is {self.losses[-1]} after {self.step} steps: want a lower --lr than {a.lr}")
        self.step, self.seen = self.step + 1, self.seen + batch.tokens
        return mean(self.losses[-20:])

    def judge(self, trainer, held):
        begun = time.monotonic()
        with cast(self.a):
            found = trainer.judge(held, self.a.tokens)
        self.judging, self.judged = self.judging + time.monotonic() - begun, self.judged + 1
        better = not self.curve or order(found) > max(map(order, self.curve))
        self.curve.append({"tokens": self.seen, "steps": self.step, **found})
        self.worse = 0 if better else self.worse + 1
        if better:
            self.best = {k: v.detach().clone() for k, v in self.module.state_dict().items()}

    def save(self):
        kept = {"settings": self.settings, **{k: getattr(self, k) for k in self.KEEPS}}  # as text: PyTorch 1.13 reads no floats back
        torch.save({"kept": json.dumps(kept), "best": self.best, "module": self.module.state_dict(),
                    "optimizer": self.optimizer.state_dict()["state"]}, self.path + ".part")
        os.replace(self.path + ".part", self.path)


def order(found):
    """What is better comes later: the score, and among equals the loss."""
    return found["score"], -found["loss"]


def cast(a):
    """Products of matrices in a.compute's type; weights and sums stay float32."""
    return torch.autocast("cuda" if a.device.startswith("cuda") else "cpu", dtype=torch.bfloat16, enabled=a.compute == "bf16")


def fast_bf16():
    """Whether the processor multiplies bf16 faster than f32: with AVX512_BF16 or AMX, 1.8 times on Zen 4 (PyTorch 1.13, oneDNN)."""
    try:
        with open("/proc/cpuinfo") as f:
            flags = next((line for line in f if line.startswith("flags")), "").split()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def mean(x):
    return sum(x) / max(1, len(x))


class Tally:
    """Counts how often the right token is among the best, by distance, how many best tokens are right in a row from each place (chain),
    and how many tokens a round of such chains brings (score)."""
    TOPS = (1, 2, 3, 5, 10)
    CHAIN = 3  # guesses of the chain whose acceptance length is the one figure that trainings are compared by

    def __init__(self):
        self.hits, self.rows, self.chain, self.rounds, self.tokens = 0, 0, 0, 0, 0

    def add(self, ranks, texts=None):
        """ranks (rows, distances): how many tokens the right one has before it. texts: how many of the rows, which follow each other, are
        of each text; then rounds of drafting and verifying are played through."""
        for of in ranks[:, :self.CHAIN].split(texts) if texts is not None else ():
            right, at = (of == 0).long().cumprod(1).sum(1).tolist(), 0
            while at < len(right):
                at, self.rounds = at + right[at] + 1, self.rounds + 1
            self.tokens += at
        self.hits = self.hits + torch.stack([(ranks < t).sum(0) for t in self.TOPS], 1)  # (distances, tops)
        self.chain = self.chain + (ranks == 0).cumprod(1).sum(0)
        self.rows += len(ranks)

    def report(self):
        if not self.rows:
            raise Refused("the held-out texts have no rows to judge: want more states")
        shares, chain = (self.hits / self.rows).tolist(), (self.chain / self.rows).tolist()
        length = round(1 + sum(chain[:self.CHAIN]), 4)
        tau = round(self.tokens / self.rounds, 4) if self.rounds else length
        return {"rows": self.rows, "score": tau, "chain": length, "by_distance": [round(x, 4) for x in chain],
                "accuracy": [{f"top{t}": round(x, 4) for t, x in zip(self.TOPS, row)} for row in shares]}


def rank(logits, right):
    """How many tokens are before the right one, which is -1 where it is no token of the draft's: then very many."""
    own = logits.gather(-1, right.clamp(min=0)[..., None])
    return torch.where(right >= 0, (logits > own).sum(-1), 1 << 30)
