"""The command training/train: see ../README.md."""
import argparse
import json
import os
import sys

import torch

from . import Refused, export, gguf, kinds, llama, loop, sides, windows

# the defaults of each kind; those of the papers stand beside them in README.md
DEFAULTS = {
    "medusa": {"lr": 1e-3, "batch": 4, "epochs": 6, "warm": 20, "fade": 0.8},
    "ppd": {"lr": 1e-2, "batch": 2, "epochs": 2, "warm": 0, "fade": 0.8},
    "dovetail": {"lr": 5e-4, "batch": 4, "epochs": 12, "warm": 50, "fade": 0.8},
    "eagle": {"lr": 5e-4, "batch": 4, "epochs": 12, "warm": 50, "fade": 0.8},
    "eagle3": {"lr": 5e-4, "batch": 4, "epochs": 12, "warm": 50, "fade": 0.8},
    "distill": {"lr": 1e-3, "batch": 8, "epochs": 12, "warm": 50, "fade": 0.8},
}
HELP = {"medusa": "heads on the target's last state", "ppd": "embeddings of prompt tokens", "dovetail": "a draft with gated fusion (DGF)",
        "eagle": "a draft with concatenation (EAGLE-1, EAGLE-2)", "eagle3": "a draft on three states (EAGLE-3)",
        "distill": "a plain draft, from the target's distribution"}


def parser():
    p = argparse.ArgumentParser(prog="training/train", description="Trains side files and drafts for a target.")
    commands = p.add_subparsers(dest="kind", required=True, metavar="KIND")
    for kind, defaults in DEFAULTS.items():
        c = commands.add_parser(kind, help=HELP[kind], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        common(c, defaults)
        own(c, kind)
    return p


def common(c, d):
    c.add_argument("--target", required=True, help="GGUF file of the llama family")
    c.add_argument("--out", required=True, help="the file to write; metrics go to OUT.json, checkpoints to OUT.ckpt")
    c.add_argument("--data", nargs="*", default=[], help="files or folders of text, each a domain; none: the Go and Python libraries here")
    c.add_argument("--leave-out", default=os.path.join(export.ROOT, "testdata", "prompts.jsonl"),
                   help="prompts whose source files are not used; empty: none")
    c.add_argument("--work", default=os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "tandem", "training"),
                   help="folder for tokens and states, which all kinds share")
    c.add_argument("--length", type=int, default=256, help="tokens of a window")
    c.add_argument("--windows", type=int, default=1400, help="windows to train with")
    c.add_argument("--held", type=int, default=96, help="held-out windows, half of them the target's own greedy text")
    c.add_argument("--own", type=float, nargs=2, default=[0.25, 0.1], help="shares of windows that the target continues: greedily, sampled")
    c.add_argument("--data-seed", type=int, default=1, help="of the choice of windows")
    c.add_argument("--seed", type=int, default=1, help="of weights, order and noise")
    c.add_argument("--minutes", type=float, default=45, help="most minutes of training, after the windows are made")
    c.add_argument("--fraction", type=float, default=1, help="share of windows and minutes, for ablations")
    c.add_argument("--epochs", type=float, default=d["epochs"], help="most passes over the windows")
    c.add_argument("--batch", type=int, default=d["batch"], help="windows in a step")
    c.add_argument("--lr", type=float, default=d["lr"], help="learning rate, after the warm-up")
    c.add_argument("--warm", type=int, default=d["warm"], help="steps of warm-up")
    c.add_argument("--fade", type=float, default=d["fade"], help="weight of each further head, prompt token or step")
    c.add_argument("--decay", type=float, default=0.0, help="weight decay of AdamW")
    c.add_argument("--clip", type=float, default=1.0, help="most length of a gradient")
    c.add_argument("--threads", type=int, default=os.cpu_count(), help="threads on a CPU")
    c.add_argument("--device", default="cpu", help="cpu or cuda")
    c.add_argument("--type", choices=list(gguf.TYPE_NAMES), default="f16", help="of matrices in the file")
    c.add_argument("--from", dest="start", help="a file of this kind to start from, with its shape")
    c.add_argument("--name", help="general.name of the file; else its file name")
    c.add_argument("--tandem", help="path of the program tandem; else TANDEM, the one in PATH, or go run")
    c.add_argument("--fresh", action="store_true", help="do not continue from a checkpoint")
    c.add_argument("--no-bar", dest="bar", action="store_false", help="no progress bar")


def own(c, kind):
    if kind == "medusa":
        c.add_argument("--heads", type=int, default=5, help="K")
        c.add_argument("--blocks", type=int, default=1, help="residual blocks of a head")
        c.add_argument("--own-output", action="store_true", help="every head has an output matrix, instead of the target's")
    if kind == "ppd":
        c.add_argument("--tokens", type=int, default=3, help="m: prompt tokens")
        c.add_argument("--members", type=int, default=1, help="n: embeddings of each prompt token (EPT)")
        c.add_argument("--points", type=int, default=64, help="insertion points of a window")
        c.add_argument("--labels", choices=["distribution", "greedy"], default="distribution", help="greedy: no distillation")
    if kind in ("dovetail", "eagle"):
        c.add_argument("--blocks", type=int, default=2 if kind == "dovetail" else 1, help="M")
        c.add_argument("--state", type=float, default=0.1, help="weight of the smooth L1 loss on states beside KL's 1")
    if kind in ("dovetail", "eagle", "eagle3"):
        c.add_argument("--steps", type=int, default=2, help="steps of drafting that are trained at every position")
        c.add_argument("--alone", type=float, default=0.5, help="share of the training with one step only, which is cheaper")
        c.add_argument("--noise", type=float, default=0.05, help="noise on the target's states, of their root mean square")
        c.add_argument("--init", choices=["target", "random"], default="random" if kind == "eagle3" else "target",
                       help="what blocks start from")
    if kind == "eagle":
        c.add_argument("--input-norm", action="store_true", help="a norm before the first block's attention, which EAGLE does not have")
    if kind == "eagle3":
        c.add_argument("--taps", type=int, nargs=3, help="layers whose states are read; else low, middle and high ones")
        c.add_argument("--draft-vocab", type=int, default=0, help="tokens of the draft's vocabulary; 0: half of the target's")
    if kind == "distill":
        c.add_argument("--layers", type=int, default=2)
        c.add_argument("--dim", type=int, default=256)
        c.add_argument("--heads", type=int, default=4)
        c.add_argument("--kv-heads", type=int, default=2)
        c.add_argument("--ffn", type=int, default=512)
    if kind in ("medusa", "distill"):
        c.add_argument("--hard", type=float, default=0.0, help="share of cross entropy with one token, beside KL")


def check(a):
    """Refuses impossible settings."""
    for name, low, high in (("length", 32, 8192), ("windows", 8, 1 << 24), ("held", 4, 1 << 20), ("minutes", 0.01, 1e5),
                            ("fraction", 1e-3, 1), ("epochs", 0.01, 1e5), ("batch", 1, 4096), ("lr", 1e-8, 10), ("threads", 1, 1024),
                            ("heads", 1, 16 if a.kind == "medusa" else 256), ("blocks", 1, 4 if a.kind == "medusa" else 8),
                            ("tokens", 1, 16), ("members", 1, 256), ("points", 1, 1024),
                            ("steps", 1, 8), ("noise", 0, 1), ("alone", 0, 1), ("state", 0, 100), ("fade", 0.01, 1), ("hard", 0, 1)):
        v = getattr(a, name, None)
        if v is not None and not low <= v <= high:
            raise Refused(f"--{name} is {v}: want {low} to {high}")
    if min(a.own) < 0 or sum(a.own) > 1:
        raise Refused(f"--own is {a.own}: want two shares that add up to at most 1")
    if a.kind == "ppd" and a.tokens * a.members > 1024:
        raise Refused(f"--tokens {a.tokens} times --members {a.members} is {a.tokens * a.members}: want at most 1024")
    if a.device != "cpu" and not torch.cuda.is_available():
        raise Refused(f"--device {a.device}: PyTorch {torch.__version__} finds no GPU here: want cpu")
    folder = os.path.dirname(os.path.abspath(a.out))
    if not os.path.isdir(folder):
        raise Refused(f"--out {a.out}: {folder} is no folder")


def trainer(a, target, train):
    """The trainer of a kind, its module with starting values."""
    g = torch.Generator().manual_seed(a.seed)
    torch.manual_seed(a.seed)
    kind = {"medusa": kinds.Medusa, "ppd": kinds.Prompts, "eagle3": kinds.Eagle3, "distill": kinds.Distil}.get(a.kind, kinds.Draft)
    if a.start and a.kind != "distill":
        side = export.read(a.start, target)
        if side.arch != a.kind:
            raise Refused(f"--from {a.start} is {side.arch}: want {a.kind}")
        return kind(target, side, a)
    if a.kind == "medusa":
        side = sides.Medusa(target, a.heads, a.blocks, a.own_output)
    elif a.kind == "ppd":
        side = sides.Prompts(target, a.tokens, a.members, g)
    elif a.kind == "eagle3":
        n = target.shape.layers
        taps = a.taps or [max(1, n // 4), max(1, n // 2), max(1, n - 1)]
        if not all(1 <= t <= n for t in taps):
            raise Refused(f"--taps are {taps}: want layers from 1 to {n}")
        most = min(a.draft_vocab or target.shape.vocab // 2, target.shape.vocab)
        counts = torch.bincount(train.tokens.flatten(), minlength=target.shape.vocab)
        side = sides.Eagle3(target, taps, counts.argsort(descending=True)[:most].sort().values)
    elif a.kind == "distill":
        side = plain(a, target)
    else:
        side = sides.Dovetail(target, a.blocks) if a.kind == "dovetail" else sides.Eagle(target, a.blocks, input_norm=a.input_norm)
        if a.init == "target":
            kinds.like_target(side.to(a.device), target, train, a.device)
    return kind(target, side, a)


def plain(a, target):
    """The plain draft to distil."""
    if a.start:
        draft = llama.load(gguf.File(a.start))
        if draft.shape.vocab != target.shape.vocab:
            raise Refused(f"--from {a.start} has {draft.shape.vocab} tokens: the target has {target.shape.vocab}")
    else:
        t = target.shape
        if a.dim % a.heads or a.heads % a.kv_heads or a.dim // a.heads % 2:
            raise Refused(f"--dim {a.dim}, --heads {a.heads}, --kv-heads {a.kv_heads}: "
                          "want heads of an even size, and whole groups of them")
        draft = llama.Llama(llama.Shape(a.dim, a.layers, a.heads, a.kv_heads, a.dim // a.heads, a.ffn, t.vocab, t.context, t.eps, t.base,
                                        a.dim // a.heads), tied=True)
        torch.nn.init.normal_(draft.token_embd.weight, std=0.02)
    for p in draft.parameters():
        p.requires_grad_(True)
    return draft


def told(report):
    """A line that describes the text."""
    parts = [f"{d}: {c['train']} files, {c['left_out']} left out for prompts" for d, c in report["domains"].items()]
    return "; ".join(parts) + "; every tenth file held out"


def run(a):
    check(a)
    torch.set_num_threads(a.threads)
    file = gguf.File(a.target)
    llama.read_shape(file)
    lineage, fingerprint = export.names(a.target, a.tandem)
    target = llama.load(file, a.device)
    if a.length > target.shape.context:
        raise Refused(f"--length is {a.length}: the target's context is {target.shape.context}")
    bos = file.key("tokenizer.ggml.bos_token_id", -1) if file.key("tokenizer.ggml.add_bos_token", True) else -1
    train, held, report = windows.prepare(target, a, lineage, None if bos < 0 else bos)
    t = trainer(a, target, train)
    if taps := getattr(t.side, "taps", None):
        for w in (train, held):
            windows.fill_taps(target, w, taps, a.device, a.bar)
    settings = {k: v for k, v in sorted(vars(a).items()) if k not in ("out", "work", "fresh", "bar", "tandem", "threads", "name", "device")}
    first = t.judge(held, ranks=False)
    done = loop.fit(t.side, lambda rows, share: t.loss(train, rows, share), len(train), a, settings)
    metrics = {"kind": a.kind, "target": os.path.basename(a.target), "lineage": lineage, "settings": settings, **done,
               "parameters": sum(p.numel() for p in t.side.parameters() if p.requires_grad), "data": report,
               "before": first, "held": t.judge(held)}
    extra = {"training.data": told(report), "training.seed": a.seed, "training.steps": done["steps"], "training.loss": done["loss"],
             "training.settings": json.dumps({k: v for k, v in settings.items() if k not in ("target", "leave_out", "data")})}
    for domain, m in metrics["held"].items():
        extra[f"training.held.{domain}.loss"] = m["loss"]
        extra[f"training.held.{domain}.chain"] = m.get("chain", 0.0)
    name = a.name or os.path.splitext(os.path.basename(a.out))[0]
    t.side.cpu(), target.cpu()
    if a.kind == "distill":
        keys = {"general.architecture": "llama", "general.name": name, **t.side.shape.keys("llama"),
                **{k: v for k, v in file.keys.items() if k.startswith("tokenizer.")}, **extra}
        size = gguf.write(a.out, keys, {k: v.numpy() for k, v in t.side.state_dict().items()}, gguf.TYPE_NAMES[a.type])
    else:
        size = export.write(a.out, t.side, target, name, lineage, fingerprint, extra, gguf.TYPE_NAMES[a.type])
    metrics["bytes"] = size
    windows.write_json(a.out + ".json", metrics)
    if os.path.exists(a.out + ".ckpt"):
        os.remove(a.out + ".ckpt")
    for domain, m in metrics["held"].items():
        tops = " ".join(f"{x['top1']:.3f}/{x['top10']:.3f}" for x in m.get("accuracy", []))
        print(f"{domain}: held-out loss {first[domain]['loss']:.4f} -> {m['loss']:.4f}, chain {m.get('chain', 0):.3f}, "
              f"top 1/10 by distance {tops}")
    print(f"{a.out}: {size} bytes after {done['steps']} steps in {done['minutes']} minutes, "
          f"loss {done['loss_first']:.4f} -> {done['loss']:.4f}")
    return metrics


def main():
    try:
        run(parser().parse_args())
    except Refused as e:
        sys.exit(f"training: {e}")
    except KeyboardInterrupt:
        sys.exit("training: stopped; the same command continues from the last checkpoint")


if __name__ == "__main__":
    main()
