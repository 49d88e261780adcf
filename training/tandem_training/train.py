"""The command training/train: see ../README.md."""
import argparse
import json
import os
import sys

import torch

from . import Refused, corpus, export, gguf, kinds, llama, loop, mtp, picture, served, sides
from .states import write_json

# the defaults of each kind; those of the papers stand beside them in README.md
DEFAULTS = {
    "medusa": {"lr": 1e-3, "epochs": 6, "warm": 20, "fade": 0.8},
    "ppd": {"lr": 1e-2, "epochs": 2, "warm": 0, "fade": 0.8},
    "dovetail": {"lr": 5e-4, "epochs": 12, "warm": 50, "fade": 0.8},
    "eagle": {"lr": 5e-4, "epochs": 12, "warm": 50, "fade": 0.8},
    "eagle3": {"lr": 5e-4, "epochs": 12, "warm": 50, "fade": 0.8},
    "mtp": {"lr": 1e-4, "epochs": 12, "warm": 50, "fade": 0.6},
    "distill": {"lr": 1e-3, "epochs": 12, "warm": 50, "fade": 0.8},
}
HELP = {"medusa": "heads on the target's last state", "ppd": "embeddings of prompt tokens", "dovetail": "a draft with gated fusion (DGF)",
        "eagle": "a draft with concatenation (EAGLE-1, EAGLE-2)", "eagle3": "a draft on three states (EAGLE-3)",
        "mtp": "the layer that guesses further tokens inside the target's file (MTP), as FastMTP does",
        "distill": "a plain draft, from the target's distribution"}


def parser():
    p = argparse.ArgumentParser(prog="training/train", description="Trains side files and drafts for a target.")
    commands = p.add_subparsers(dest="kind", required=True, metavar="KIND")
    for kind, defaults in DEFAULTS.items():
        c = commands.add_parser(kind, help=HELP[kind], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        common(c, defaults)
        own(c, kind)
    return p


def common(c, d, states=True):
    c.add_argument("--target", required=True, help="GGUF file as it is served")
    c.add_argument("--out", required=True, help="the file to write; metrics go to OUT.json, checkpoints to OUT.ckpt")
    c.add_argument("--states", action="append", required=states, metavar="FOLDER",
                   help="folder of the target's states, from tandem model states; may be repeated")
    c.add_argument("--length", type=int, default=1024, help="tokens of a text that are used, the first ones")
    c.add_argument("--held", type=int, default=60, help="most held-out texts to judge by")
    c.add_argument("--seed", type=int, default=1, help="of weights, order and noise")
    c.add_argument("--minutes", type=float, default=45, help="most minutes of training")
    c.add_argument("--judge", type=float, default=5, help="minutes of training between judgements")
    c.add_argument("--patience", type=int, default=4, help="judgements without a better acceptance length that end the training")
    c.add_argument("--fraction", type=float, default=1, help="share of the texts, for ablations")
    c.add_argument("--epochs", type=float, default=d["epochs"], help="most passes over the texts")
    c.add_argument("--tokens", type=int, default=1024, help="most tokens in a step, where texts are shorter")
    c.add_argument("--lr", type=float, default=d["lr"], help="learning rate, after the warm-up")
    c.add_argument("--warm", type=int, default=d["warm"], help="steps of warm-up")
    c.add_argument("--fade", type=float, default=d["fade"], help="weight of each further head, prompt token or step")
    c.add_argument("--decay", type=float, default=0.0, help="weight decay of AdamW")
    c.add_argument("--clip", type=float, default=1.0, help="most length of a gradient")
    c.add_argument("--threads", type=int, default=os.cpu_count(), help="threads on a CPU")
    c.add_argument("--device", default="cpu", help="cpu or cuda")
    c.add_argument("--compute", choices=["f32", "bf16"], default="bf16" if loop.fast_bf16() else "f32",
                   help="type of products of matrices; bf16 is faster where the processor has AVX512_BF16 or AMX, or on a GPU")
    c.add_argument("--type", choices=list(gguf.TYPE_NAMES), default="f16", help="of matrices in the file")
    c.add_argument("--from", dest="start", help="a file of this kind to start from, with its shape")
    c.add_argument("--name", help="general.name of the file; else its file name")
    c.add_argument("--fresh", action="store_true", help="do not continue from a checkpoint")
    c.add_argument("--no-bar", dest="bar", action="store_false", help="no progress bar")


def own(c, kind):
    draft, layer = kind in ("dovetail", "eagle", "eagle3"), kind == "mtp"
    if kind == "medusa":
        c.add_argument("--heads", type=int, default=5, help="K")
        c.add_argument("--blocks", type=int, default=1, help="residual blocks of a head")
        c.add_argument("--own-output", action="store_true", help="every head has an output matrix, instead of the target's")
    if kind == "ppd":
        c.add_argument("--prompts", type=int, default=3, help="m: prompt tokens")
        c.add_argument("--members", type=int, default=1, help="n: embeddings of each prompt token (EPT)")
        c.add_argument("--points", type=int, default=64, help="insertion points of a text")
        c.add_argument("--labels", choices=["distribution", "greedy"], default="distribution", help="greedy: no distillation")
    if kind in ("dovetail", "eagle"):
        c.add_argument("--blocks", type=int, default=1, help="M")
    if draft or layer:
        c.add_argument("--state", type=float, default=0.1 if kind in ("dovetail", "eagle") else 0,
                       help="weight of the loss on states beside KL's 1")
        c.add_argument("--steps", type=int, default=3, help="steps of drafting that are trained at every position")
        c.add_argument("--alone", type=float, default=0.3 if draft else 0,
                       help="share of the training with one step only, which is cheaper")
        c.add_argument("--noise", type=float, default=0 if layer else 0.05, help="noise on the target's states, of their root mean square")
        c.add_argument("--blind", type=float, default=0.2, help="share of texts of whose prompt no states are known")
    if draft:
        c.add_argument("--init", choices=["target", "random"], default="random" if kind == "eagle3" else "target",
                       help="what the block starts from")
        c.add_argument("--taps", type=int, nargs="+", help="layers whose states are read, -1 for the last state; else "
                       + ("a quarter, half and all but one of the layers" if kind == "eagle3" else "-1"))
        c.add_argument("--ffn", type=int, default=4096, help="most feed-forward neurons of a block")
    if draft or kind in ("medusa", "ppd", "mtp", "distill"):
        c.add_argument("--draft-vocab", type=int, default=8192, help="tokens that the draft knows, the most used ones; 0: all"
                       + (" (with --from; it keeps the others, untrained)" if kind == "distill" else ""))
    if kind == "eagle":
        c.add_argument("--input-norm", action="store_true", help="a norm before the block's attention, which EAGLE has not")
    if kind == "distill":
        c.add_argument("--keep", type=int, help="blocks of --from that are kept, those that change their input most; else all")
        c.add_argument("--layers", type=int, default=2)
        c.add_argument("--dim", type=int, default=256)
        c.add_argument("--heads", type=int, default=4)
        c.add_argument("--kv-heads", type=int, default=2)
        c.add_argument("--ffn", type=int, default=512)


def check(a):
    """Refuses impossible settings."""
    for name, low, high in (("length", 16, 1 << 20), ("held", 1, 1 << 24), ("minutes", 0.01, 1e5), ("judge", 0.01, 1e5),
                            ("patience", 1, 1000), ("fraction", 1e-3, 1), ("epochs", 0.01, 1e5), ("tokens", 16, 1 << 20),
                            ("lr", 1e-8, 10), ("threads", 1, 1024), ("heads", 1, 16 if a.kind == "medusa" else 256),
                            ("blocks", 1, 4 if a.kind == "medusa" else 8), ("prompts", 1, 16), ("members", 1, 256), ("points", 1, 1024),
                            ("steps", 1, 8), ("noise", 0, 1), ("alone", 0, 1), ("blind", 0, 1), ("state", 0, 100), ("fade", 0.01, 1),
                            ("ffn", 1, 1 << 20), ("draft_vocab", 0, 1 << 24), ("keep", 1, 1 << 16)):
        v = getattr(a, name, None)
        if v is not None and not low <= v <= high:
            raise Refused(f"--{name.replace('_', '-')} is {v}: want {low} to {high}")
    if a.kind == "ppd" and a.prompts * a.members > 1024:
        raise Refused(f"--prompts {a.prompts} times --members {a.members} is {a.prompts * a.members}: want at most 1024")
    if a.device != "cpu" and not torch.cuda.is_available():
        raise Refused(f"--device {a.device}: PyTorch {torch.__version__} finds no GPU here: want cpu")
    folder = os.path.dirname(os.path.abspath(a.out))
    if not os.path.isdir(folder):
        raise Refused(f"--out {a.out}: {folder} is no folder")


def trainer(a, train, held):
    """The trainer of a kind, its module with starting values."""
    torch.manual_seed(a.seed)
    if a.kind in ("ppd", "distill"):
        target = llama.load(gguf.File(a.target), a.device) if a.kind == "ppd" else None
        shape = target.shape if target else llama.read_shape(gguf.File(a.target), strict=False)
    else:
        layer = mtp.start(gguf.File(a.target)) if a.kind == "mtp" else ""
        target = served.Served(a.target, train.seen() + held.seen(), a.device, layer)
        shape = target.shape
    if a.kind == "distill":
        side = plain(a, shape, train)
        some = a.start and a.draft_vocab
        return kinds.Distil(side, side, a, served.Head(side, served.choose(train.used(), a.draft_vocab)) if some else None)
    side = export.read(a.start, target) if a.start else None
    if side and side.arch != a.kind:
        raise Refused(f"--from {a.start} is {side.arch}: want {a.kind}")
    most = 0 if getattr(a, "own_output", False) else a.draft_vocab
    used = served.choose(train.used(), most or shape.vocab)
    d2t = side.d2t if side else used
    head = served.Head(target, used if d2t is None else d2t)
    if a.kind in ("medusa", "ppd"):
        kind = kinds.Medusa if a.kind == "medusa" else kinds.Prompts
        if not side:
            side = (sides.Medusa(target, a.heads, a.blocks, a.own_output) if a.kind == "medusa"
                    else sides.Prompts(target, a.prompts, a.members))
            side.d2t = d2t if most else None
        return kind(target, side, a, head)
    if a.kind == "mtp":
        return kinds.Draft(target, side or mtp.inside(target.file, d2t if a.draft_vocab else None), a, head)
    train.need(side.reads if side else taps_of(a, shape))
    return kinds.Draft(target, side or draft(a, target, shape, d2t if a.draft_vocab or a.kind == "eagle3" else None, train), a, head)


def taps_of(a, shape):
    n = shape.layers
    return tuple(a.taps or ((max(1, n // 4), max(1, n // 2), max(1, n - 1)) if a.kind == "eagle3" else (-1,)))


def draft(a, target, shape, d2t, train):
    """A draft that reads states, with its starting values."""
    taps, blocks = taps_of(a, shape), served.like(shape, getattr(a, "blocks", 1), min(a.ffn, shape.ffn))
    if a.kind == "eagle3":
        return sides.Eagle3(target, taps, d2t, blocks)
    more = {"shape": blocks, "taps": taps, "d2t": d2t}
    if a.kind == "dovetail":
        side = sides.Dovetail(target, a.blocks, **more)
    else:
        side = sides.Eagle(target, a.blocks, input_norm=a.input_norm or a.init == "target", **more)
    if a.init == "target":
        kinds.like_target(side.to(a.device), target, train)
    return side


def plain(a, t, train):
    """The plain draft to distil, for a target of shape t. A finished one keeps its embedding and output matrix as they are."""
    if a.keep and not a.start:
        raise Refused(f"--keep {a.keep} without --from: want the file whose blocks are kept")
    if a.start:
        draft = llama.load(gguf.File(a.start))
        if draft.shape.vocab != t.vocab:
            raise Refused(f"--from {a.start} has {draft.shape.vocab} tokens: the target has {t.vocab}")
        if a.keep:
            kinds.shorten(draft, a.keep, train)
    else:
        if a.dim % a.heads or a.heads % a.kv_heads or a.dim // a.heads % 2:
            raise Refused(f"--dim {a.dim}, --heads {a.heads}, --kv-heads {a.kv_heads}: "
                          "want heads of an even size, and whole groups of them")
        draft = llama.Llama(llama.Shape(a.dim, a.layers, a.heads, a.kv_heads, a.dim // a.heads, a.ffn, t.vocab, t.context, t.eps, t.base,
                                        a.dim // a.heads), tied=True)
        torch.nn.init.normal_(draft.token_embd.weight, std=0.02)
    for name, p in draft.named_parameters():
        p.requires_grad_(not a.start or name not in ("token_embd.weight", "output.weight"))
    return draft


def run(a):
    check(a)
    torch.set_num_threads(a.threads)
    train = corpus.Corpus(a.states, False, a.length, a.fraction)
    lineage, _ = export.names(a.target)
    if train.header["lineage"] != lineage:
        raise Refused(f"{a.states[0]}: states of {train.header['name']}, lineage {train.header['lineage']}: {a.target} has {lineage}; "
                      "want the states of that file (tandem model states)")
    held = corpus.Corpus(a.states, True, a.length, check=False).first(a.held)
    t = trainer(a, train, held)
    for c in (train, held):
        c.need(t.taps)
    settings = {k: v for k, v in sorted(vars(a).items()) if k not in ("out", "fresh", "bar", "threads", "name", "device")}
    print(f"{len(train.texts)} texts of {train.tokens} tokens, {len(held.texts)} held out of {held.tokens}; "
          f"{sum(p.numel() for p in t.side.parameters() if p.requires_grad)} numbers to train, products in {a.compute}", flush=True)
    done = loop.fit(t, train, held, a, settings)
    h, first, last = train.header, done["curve"][0], max(done["curve"], key=loop.order)
    metrics = {"kind": a.kind, "target": h["name"], "identity": h["identity"], "settings": settings, **done,
               "parameters": sum(p.numel() for p in t.side.parameters() if p.requires_grad), "held": last}
    extra = {"training.data": f"{len(train.texts)} texts, {train.tokens} tokens", "training.seed": a.seed, "training.steps": done["steps"],
             "training.loss": done["loss"], "training.held.loss": last["loss"], "training.held.tau": last["score"],
             "training.settings": json.dumps({k: v for k, v in settings.items() if k not in ("target", "states", "start")})}
    metrics["bytes"] = store(a, t, h, extra)
    write_json(a.out + ".json", metrics)
    picture.write(a.out + ".svg", f"{a.kind} for {h['name']}", done["curve"])
    prompts_of(held, a.out + ".held.jsonl")
    if os.path.exists(a.out + ".ckpt"):
        os.remove(a.out + ".ckpt")
    tops = " ".join(f"{x['top1']:.3f}/{x['top10']:.3f}" for x in last["accuracy"])
    print(f"held-out loss {first['loss']:.4f} -> {last['loss']:.4f}, tokens a round {first['score']:.3f} -> {last['score']:.3f}, "
          f"top 1/10 by distance {tops}")
    print(f"{a.out}: {metrics['bytes']} bytes after {done['steps']} steps in {done['minutes']} minutes, "
          f"loss {done['loss_first']:.4f} -> {done['loss']:.4f}")
    return metrics


def prompts_of(held, path):
    """Writes the prompts of held-out answers as tokens, for tandem-lab bench guesses."""
    with open(path, "w") as f:
        for t in held.texts:
            if t.prompt:
                f.write(json.dumps({"id": t.origin, "domain": "held out", "tokens": [int(i) for i in t.ids[:t.prompt]]}) + "\n")


def store(a, t, header, extra):
    """Writes the file. Returns its size."""
    name, kind = a.name or os.path.splitext(os.path.basename(a.out))[0], gguf.TYPE_NAMES[a.type]
    t.side.cpu()
    if a.kind != "distill":
        return export.write(a.out, t.side, t.target, name, header["lineage"], header["vocabulary"], extra, kind)
    file = gguf.File(a.start or a.target)
    if a.start:
        arch = file.key("general.architecture")
        keys = {**{k: v for k, v in file.keys.items() if k != "general.file_type"}, f"{arch}.block_count": len(t.side.blk)}
    else:
        keys = {"general.architecture": "llama", **t.side.shape.keys("llama"),
                **{k: v for k, v in file.keys.items() if k.startswith("tokenizer.")}}
    keys.update({"general.name": name, **extra})
    return gguf.write(a.out, keys, {k: v.detach().numpy() for k, v in t.side.state_dict().items()}, kind)


def main():
    try:
        run(parser().parse_args())
    except Refused as e:
        sys.exit(f"training: {e}")
    except KeyboardInterrupt:
        sys.exit("training: stopped; the same command continues from the last checkpoint")


if __name__ == "__main__":
    main()
