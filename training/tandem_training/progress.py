"""A line that says how far a loop is."""
import sys
import time


class Bar:
    """Prints name, share, and time left: on a terminal in one line, else a line every half minute."""

    def __init__(self, name, total, on=True):
        self.name, self.total, self.on, self.begun, self.last, self.first = name, max(1, total), on, time.monotonic(), 0.0, None
        self.terminal = sys.stderr.isatty()

    def at(self, n, note="", share=None):
        """n of the total are done; share, if given, is the share of the time that has gone."""
        now = time.monotonic()
        if self.first is None:
            self.first = (now, share if share is not None else n / self.total)
        if not self.on or now - self.last < (0.2 if self.terminal else 30):
            return
        self.last, share = now, min(1.0, share if share is not None else n / self.total)
        gone = share - self.first[1]
        left = f"{(now - self.first[0]) * (1 - share) / gone / 60:.1f} min left" if gone > 0 else "…"
        filled = round(share * 24)
        line = f"{self.name} [{'=' * filled}{' ' * (24 - filled)}] {n}/{self.total} {note} {left}"
        print(f"\r{line}\x1b[K" if self.terminal else line, end="" if self.terminal else "\n", file=sys.stderr, flush=True)

    def end(self):
        if self.on and self.terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
