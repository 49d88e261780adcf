// The time chart: a lane per stage and drafter, all rounds on one clock.

const laneHeight = 21, top = 18, axis = 20;

export class Lanes {
  constructor(canvas, slots, say) {
    this.canvas = canvas;
    this.slots = slots;
    this.say = say; // called with a bar under the pointer, or null
    this.boxes = [];
    this.lanes = [];
    this.theme();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.theme(); this.repaint?.(); });
    canvas.addEventListener("pointermove", (e) => this.point(e));
    canvas.addEventListener("pointerdown", (e) => this.point(e));
  }

  theme() {
    const css = getComputedStyle(document.documentElement);
    const v = (name) => css.getPropertyValue(name).trim();
    this.colours = { ink: v("--ink"), muted: v("--muted"), line: v("--line"), faint: v("--faint"), band: v("--band"), pool: v("--pool"), panel: v("--panel"),
      drafters: [0, 1, 2, 3, 4, 5].map((i) => v("--d" + i)) };
    this.mono = v("--mono");
  }

  // clear forgets which lanes there were.
  clear() { this.lanes = []; }

  // rows returns the lanes that there are, in the order in which work goes through them.
  rows(rounds) {
    const seen = new Set();
    for (const r of rounds) for (const l of r.lanes) seen.add(l.stage + "\0" + l.by);
    const order = ["draft", "ahead", "pool", "verify", "guess", "commit"];
    const rank = (s) => { const i = order.indexOf(s); return i < 0 ? order.length : i; };
    return [...seen].map((k) => { const [stage, by] = k.split("\0"); return { stage, by, name: by ? stage + " " + this.slots.short(by) : stage }; })
      .sort((a, b) => rank(a.stage) - rank(b.stage) || this.slots.names.indexOf(a.by) - this.slots.names.indexOf(b.by) || (a.by < b.by ? -1 : 1));
  }

  // draw shows rounds, all of them; current is the one that is looked at.
  draw(rounds, all, current) {
    this.repaint = () => this.draw(rounds, all, current);
    const canvas = this.canvas, c = this.colours, width = canvas.clientWidth;
    const known = this.rows(all);
    for (const l of known) { // a lane that has been there stays
      if (!this.lanes.some((k) => k.stage === l.stage && k.by === l.by)) this.lanes = this.rows([{ lanes: [...this.lanes, ...known] }]);
    }
    const height = top + Math.max(this.lanes.length, 3) * laneHeight + axis;
    const scale = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      canvas.style.height = height + "px";
    }
    const g = canvas.getContext("2d");
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.clearRect(0, 0, width, height);
    this.boxes = [];
    const bars = rounds.flatMap((r) => r.lanes.map((l) => ({ ...l, round: r })));
    if (bars.length === 0) return;
    // what was drafted ahead of the first round lies further back: it is cut off
    const began = bars.filter((b) => b.stage !== "ahead").map((b) => b.from);
    const from = Math.min(...(began.length > 0 ? began : bars.map((b) => b.from))), to = Math.max(...bars.map((b) => b.to), from + 0.01);
    g.font = "11px " + this.mono;
    const gutter = Math.min(Math.max(...this.lanes.map((l) => g.measureText(l.name).width)) + 12, width * 0.38);
    const x = (ms) => gutter + (ms - from) / (to - from) * (width - gutter - 8);
    const bottom = height - axis;

    for (const [a, b] of overlaps(bars)) { // behind everything
      g.fillStyle = c.band;
      g.fillRect(Math.max(x(a), gutter), top, Math.max(x(b) - Math.max(x(a), gutter), 1), bottom - top);
    }
    this.clock(g, x, from, to, width, bottom);
    this.borders(g, rounds, x, bottom, current);
    this.lanes.forEach((lane, i) => {
      const y = top + i * laneHeight;
      g.fillStyle = c.line;
      g.fillRect(0, y + laneHeight - 0.5, width, 0.5);
      g.fillStyle = c.muted;
      g.textAlign = "left";
      g.fillText(fit(g, lane.name, gutter - 8), 0, y + 14);
      for (const b of bars) {
        if (b.stage !== lane.stage || b.by !== lane.by || b.to <= from) continue;
        const left = x(Math.max(b.from, from));
        const box = { x: left, y: y + 4, w: Math.max(x(b.to) - left, 1.2), h: laneHeight - 8, bar: b };
        this.bar(g, box, lane);
        this.boxes.push(box);
      }
    });
  }

  bar(g, box, lane) {
    const c = this.colours;
    const own = lane.by ? c.drafters[this.slots.add(lane.by)] : c.drafters[0];
    g.fillStyle = { draft: own, ahead: own, pool: c.pool, verify: c.ink, commit: c.muted }[lane.stage] ?? c.muted;
    if (lane.stage !== "ahead") return g.fillRect(box.x, box.y, box.w, box.h);
    g.globalAlpha = 0.3; // ahead: the drafter's colour, hollow
    g.fillRect(box.x, box.y, box.w, box.h);
    g.globalAlpha = 1;
    g.strokeStyle = own;
    g.strokeRect(box.x + 0.5, box.y + 0.5, Math.max(box.w - 1, 0.2), box.h - 1);
  }

  clock(g, x, from, to, width, bottom) {
    const about = (to - from) / Math.max(2, Math.floor(width / 110));
    const power = 10 ** Math.floor(Math.log10(about));
    const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= about) ?? about;
    g.textAlign = "center";
    for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
      g.fillStyle = this.colours.line;
      g.fillRect(x(t), top, 0.5, bottom - top + 4);
      g.fillStyle = this.colours.muted;
      const label = `${step < 1 ? t.toFixed(1) : Math.round(t)} ms`;
      const half = g.measureText(label).width / 2;
      g.fillText(label, Math.min(x(t), width - half), bottom + 15);
    }
  }

  // borders marks where a round begins: with its first stage that is not ahead of it. Labels keep clear of each other: the current round
  // has its own in any case, the others where there is room.
  borders(g, rounds, x, bottom, current) {
    g.textAlign = "left";
    this.labels = []; // {from, to, text}
    const first = (r) => Math.min(...r.lanes.filter((l) => l.stage !== "ahead").map((l) => l.from));
    const begun = rounds.filter((r) => first(r) < Infinity).sort((a, b) => (b === current) - (a === current));
    for (const r of begun) {
      const at = x(first(r)), is = r === current;
      const high = is ? 2 : this.labels.some((l) => at > l.from - 3 && at < l.to + 3) ? top - 2 : 8; // below a label, not through it
      g.fillStyle = is ? this.colours.ink : this.colours.muted;
      g.fillRect(at - (is ? 1 : 0), high, is ? 2 : 1, bottom - high);
      const text = (is ? "round " : "") + r.index, wide = g.measureText(text).width;
      const from = at + 4 + wide > g.canvas.clientWidth ? at - 4 - wide : at + 4;
      if (this.labels.some((l) => from < l.to + 5 && l.from < from + wide + 5)) continue;
      this.labels.push({ from, to: from + wide, text });
      g.fillText(text, from, 12);
    }
  }

  point(e) {
    const r = this.canvas.getBoundingClientRect(), px = e.clientX - r.left, py = e.clientY - r.top;
    let best = null;
    for (const b of this.boxes) {
      if (py < b.y - 4 || py > b.y + b.h + 4 || px < b.x - 3 || px > b.x + b.w + 3) continue;
      if (!best || Math.abs(px - b.x - b.w / 2) < Math.abs(px - best.x - best.w / 2)) best = b;
    }
    this.say(best ? best.bar : null);
  }
}

// fit cuts a text in the middle: names differ at their ends.
function fit(g, text, most) {
  let n = text.length;
  const cut = () => (n >= text.length ? text : text.slice(0, Math.ceil(n / 2)) + "…" + text.slice(text.length - Math.floor(n / 2)));
  while (n > 2 && g.measureText(cut()).width > most) n--;
  return cut();
}

const drafting = (b) => b.stage === "draft" || b.stage === "ahead";

// union returns the stretches that bars cover, ascending and disjoint.
function union(bars) {
  const out = [];
  for (const b of bars.map((b) => [b.from, b.to]).sort((a, b) => a[0] - b[0])) {
    const last = out.at(-1);
    if (last && b[0] <= last[1]) last[1] = Math.max(last[1], b[1]);
    else out.push(b);
  }
  return out;
}

// overlaps returns the stretches in which something was drafted while the target verified.
export function overlaps(bars) {
  const a = union(bars.filter(drafting)), b = union(bars.filter((l) => l.stage === "verify")), out = [];
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    const from = Math.max(a[i][0], b[j][0]), to = Math.min(a[i][1], b[j][1]);
    if (from < to) out.push([from, to]);
    if (a[i][1] < b[j][1]) i++;
    else j++;
  }
  return out;
}

// share returns how much of the drafting lay beside a verification: {both, drafted} in ms.
export function share(bars) {
  const sum = (list) => list.reduce((n, [a, b]) => n + b - a, 0);
  return { both: sum(overlaps(bars)), drafted: sum(union(bars.filter(drafting))) };
}
