"""A picture of a training: held-out loss, accuracy of the first guess and tokens a round, by the tokens that were seen."""
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP = 360, 150, 60, 46  # of a panel, and what is left of the panels and above them


def write(path, title, curve):
    """curve: what loop.fit judged, in order."""
    panels = (("tokens a round, chain of 3", [c["score"] for c in curve]),
              ("first guess right", [c["accuracy"][0]["top1"] for c in curve]), ("loss", [c["loss"] for c in curve]))
    tokens, parts = [c["tokens"] for c in curve], []
    for i, (name, values) in enumerate(panels):
        parts.append(panel(TOP + i * (HEIGHT + 52), name, tokens, values))
    height = TOP + len(panels) * (HEIGHT + 52)
    with open(path, "w") as f:
        f.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 60}" height="{height}" font-family="sans-serif" '
                'font-size="12">'
                f'<rect width="100%" height="100%" fill="white"/><text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>'
                + "".join(parts) + "</svg>\n")


def panel(top, name, tokens, values):
    low, high = min(values), max(values)
    span, last = (high - low) or 1.0, max(tokens[-1], 1)
    at = lambda t, v: (LEFT + WIDTH * t / last, top + HEIGHT * (1 - (v - low) / span))
    points = [at(t, v) for t, v in zip(tokens, values)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="#2457a6"/>' for x, y in points)
    return (f'<text x="{LEFT}" y="{top - 8}">{escape(name)}</text>'
            f'<rect x="{LEFT}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#bbb"/>'
            f'<polyline points="{line}" fill="none" stroke="#2457a6" stroke-width="1.5"/>{dots}'
            f'<text x="{LEFT - 6}" y="{top + 10}" text-anchor="end">{high:.3g}</text>'
            f'<text x="{LEFT - 6}" y="{top + HEIGHT}" text-anchor="end">{low:.3g}</text>'
            f'<text x="{LEFT}" y="{top + HEIGHT + 16}">0</text>'
            f'<text x="{LEFT + WIDTH}" y="{top + HEIGHT + 16}" text-anchor="end">{tokens[-1]:,} tokens</text>'
            f'<text x="{LEFT + WIDTH + 6}" y="{points[-1][1] + 4:.1f}">{values[-1]:.3g}</text>')
