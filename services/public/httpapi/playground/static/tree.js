// The tree of a round. A node stands level with its first child, and the accepted path comes first, so that
// what was right is the straight line on top and what was not hangs below it.

import { Run } from "./run.js";
import { mark, svg, visible } from "./marks.js";

const row = 25, gap = 20, pad = 5, height = 19;
const smallest = 0.78, narrow = 500; // a wider tree scrolls, and on a telephone none gets smaller
const pen = document.createElement("canvas").getContext("2d");
let font = ""; // of the labels, once it is known

// layout places the nodes: {x, y, w, label} each, in the order of nodes.
function layout(nodes) {
  pen.font = font;
  const children = nodes.map(() => []);
  nodes.forEach((n, i) => { if (i > 0) children[n.parent].push(i); });
  const score = (i) => (nodes[i].on ? 1e9 : nodes[i].logprob ?? -1e6);
  for (const c of children) c.sort((a, b) => score(b) - score(a) || a - b);

  const places = nodes.map((n) => {
    const label = visible(n.text);
    const marks = n.votes.length * 10 + (n.votes.length > 0 ? 3 : 0);
    return { label, x: 0, y: 0, marks, w: Math.ceil(pen.measureText(label).width) + 2 * pad + marks, extra: n.chance === null ? 0 : 20 };
  });
  let rows = 0;
  const columns = [];
  const stack = [{ i: 0, depth: 0 }];
  const depths = nodes.map(() => 0);
  while (stack.length > 0) { // in order of rows: a first child shares its parent's
    const { i, depth, fresh } = stack.pop();
    if (fresh) rows++;
    places[i].y = rows;
    depths[i] = depth;
    columns[depth] = Math.max(columns[depth] ?? 0, places[i].w + places[i].extra);
    for (let k = children[i].length - 1; k >= 0; k--) stack.push({ i: children[i][k], depth: depth + 1, fresh: k > 0 });
  }
  const xs = [1];
  columns.forEach((w, d) => { xs[d + 1] = xs[d] + w + gap; });
  places.forEach((p, i) => { p.x = xs[depths[i]]; p.y = p.y * row + row / 2; });
  return { places, width: xs[columns.length] - gap + 2, height: (rows + 1) * row };
}

// draw puts a round's tree into an svg element, a little smaller if it would not fit.
export function draw(element, round, slots) {
  font ||= "12px " + getComputedStyle(element).getPropertyValue("--mono");
  const room = element.parentElement.clientWidth - 14;
  const nodes = round.nodes.map((n, i) => ({ ...n, on: i === 0 || n.accepted, own: false, chance: Run.chance(round, i) }));
  if (round.own) {
    nodes.push({ text: round.own.text, parent: round.path.at(-1) ?? 0, votes: [], logprob: null, on: true, own: true, chance: null });
  }
  const { places, width, height: tall } = layout(nodes);
  element.replaceChildren();
  const scale = room < narrow ? 1 : Math.min(1, Math.max(smallest, room / width));
  element.setAttribute("width", Math.ceil(width * scale));
  element.setAttribute("height", Math.ceil(tall * scale));
  element.setAttribute("viewBox", `0 0 ${width} ${tall}`);
  element.setAttribute("aria-label", describe(round));

  const edges = svg("g", {}, element), boxes = svg("g", {}, element);
  const order = nodes.map((_, i) => i).sort((a, b) => nodes[a].on - nodes[b].on); // what was right lies on top
  for (const i of order) {
    const n = nodes[i], p = places[i];
    if (i > 0) {
      const q = places[n.parent], x = q.x + q.w, turn = p.x - gap + 8;
      const d = p.y === q.y ? `M${x} ${q.y}H${p.x}` : `M${x} ${q.y}H${turn - 6}Q${turn} ${q.y} ${turn} ${q.y + 6}V${p.y - 6}Q${turn} ${p.y} ${turn + 6} ${p.y}H${p.x}`;
      svg("path", { d, class: n.on ? "edge on" : "edge" }, edges);
    }
    const g = svg("g", { class: n.own ? "own" : n.on ? "on" : "dead" }, boxes);
    svg("title", {}, g).textContent = title(n, i, round);
    svg("rect", { x: p.x, y: p.y - height / 2, width: p.w, height, rx: 2, class: "box" + (n.own ? " own" : n.on ? " on" : "") }, g);
    svg("text", { x: p.x + pad, y: p.y + 4 }, g).textContent = p.label;
    const marks = n.votes.filter((v) => round.drafters[v] !== undefined).map((v) => slots.add(round.drafters[v])).sort((a, b) => a - b);
    marks.forEach((slot, k) => g.append(mark(slot, p.x + p.w - p.marks - 2 + k * 10, p.y - 4, 0.8)));
    if (n.chance !== null) svg("text", { x: p.x + p.w + 3, y: p.y - 3, class: "chance" }, g).textContent = percent(n.chance);
  }
}

function percent(p) { return p < 0.01 ? "<1" : String(Math.round(100 * p)); }

function title(n, i, round) {
  if (n.own) return `“${visible(n.text, 60)}”: the target's own token`;
  if (i === 0) return `“${visible(n.text, 60)}”: committed before this round`;
  const by = n.votes.map((v) => round.drafters[v]).filter(Boolean).join(", ");
  return `“${visible(n.text, 60)}”, token ${n.id}: ${n.accepted ? "accepted" : "not taken"}` + (by ? `, drafted by ${by}` : "") +
    (n.chance === null ? "" : `, ${percent(n.chance)} % likely after its parent, says the draft`);
}

// describe says in words what the picture shows.
function describe(round) {
  const took = round.path.map((i) => "“" + visible(round.nodes[i].text) + "”").join(" ");
  const own = round.own ? `, then the target's own “${visible(round.own.text)}”` : "";
  if (round.nodes.length < 2) return `Round ${round.index}: nothing drafted${own}`;
  return `Round ${round.index}: ${round.nodes.length - 1} nodes drafted, ${round.deepest} deep; accepted ${round.path.length}: ${took || "none"}${own}`;
}
