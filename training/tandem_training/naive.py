"""Slow restatements of what sides.py computes in one go, to check it with: one sequence for each prompt member, drafts row by row."""
import torch

from .llama import attention


def prompts(side, target, tokens, point):
    """Logits (m, vocab) of the prompt tokens after the node at point: each member is an ordinary sequence of its own."""
    total = 0
    for j in range(side.n):
        x = torch.cat([target.token_embd(torch.tensor(tokens[:point + 1])), side.ppd["embd"].weight[j * side.m:(j + 1) * side.m]])
        h = target(x[None], torch.arange(len(x)))[0]
        total = total + target.logits(h[0, point + 1:])
    return total / side.n


def draft(side, target, tokens, taps, fed):
    """Outputs of rows 1 to len(tokens) − 1, one at a time: the first `fed` get taps (rows, width), the others the row before's output."""
    past, outputs = [[] for _ in side.blk], []
    for p in range(1, len(tokens)):
        h = side.start(taps[p - 1][None, None]) if p <= fed else outputs[-1]

        def attend(i, q, k, v):
            past[i].append((k, v))
            return attention(q, torch.cat([k for k, _ in past[i]], 2), torch.cat([v for _, v in past[i]], 2))

        e = target.token_embd(torch.tensor([[tokens[p]]]))
        outputs.append(side.run(e, h, side.rotary.angles(torch.tensor([p])), attend))
    return torch.cat(outputs, 1)[0]
