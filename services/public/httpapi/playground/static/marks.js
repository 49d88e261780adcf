// What a drafter looks like: a colour, an underline and a shape, so that none of them is needed alone.

const shapes = [
  "M5 1a4 4 0 1 1 0 8a4 4 0 1 1 0-8z",  // circle
  "M1.500 1.500h7v7h-7z",               // square
  "M5 .8l4.500 8h-9z",                  // triangle
  "M5 0l5 5-5 5-5-5z",                  // diamond
  "M3.500 0h3v3.500h3.500v3h-3.500v3.500h-3v-3.500h-3.500v-3h3.500z", // cross
  "M.5 1.200h9l-4.500 8z",              // triangle, down
];
const ns = "http://www.w3.org/2000/svg";

// Slots gives each drafter a slot, in the order in which they are named first.
export class Slots {
  constructor() { this.names = []; }
  // short returns a name without what it begins and ends with like others, such as "go" of "gopher-draft-go-f16" beside
  // "gopher-draft-py-f16". No two names become the same.
  short(name) {
    const cut = (n) => {
      const own = n.split("-"), kin = this.names.filter((k) => k !== n).map((k) => k.split("-")).filter((k) => k[0] === own[0]);
      if (kin.length === 0) return n;
      const same = (at) => kin.every((k) => at(k) !== undefined && at(k) === at(own));
      let from = 0, end = 0;
      while (from < own.length - 1 && same((k) => k[from])) from++;
      while (end < own.length - 1 - from && same((k) => k[k.length - 1 - end])) end++;
      return own.slice(from, own.length - end).join("-");
    };
    const own = cut(name);
    return own === "" || this.names.some((n) => n !== name && (n === own || cut(n) === own)) ? name : own;
  }
  add(name) {
    let i = this.names.indexOf(name);
    if (i < 0) i = this.names.push(name) - 1;
    return i % shapes.length;
  }
  // shorten does so wherever a name stands in a text.
  shorten(text) {
    for (const name of [...this.names].sort((a, b) => b.length - a.length)) text = text.replaceAll(name, this.short(name));
    return text;
  }
  // className is how a token looks that these drafters held; none: the target's own.
  className(names) {
    if (names.length === 0) return "t";
    return names.length === 1 ? "d" + this.add(names[0]) : "dm";
  }
}

export function svg(name, attributes = {}, parent = null) {
  const e = document.createElementNS(ns, name);
  for (const k in attributes) e.setAttribute(k, attributes[k]);
  if (parent) parent.append(e);
  return e;
}

// mark returns a drafter's shape, 10 × 10, as a path to be put into a drawing.
export function mark(slot, x = 0, y = 0, scale = 1) {
  return svg("path", { d: shapes[slot], class: "m" + slot, transform: `translate(${x} ${y}) scale(${scale})` });
}

// icon returns the same as an image of its own.
export function icon(slot) {
  const s = svg("svg", { viewBox: "0 0 10 10", class: "mark", "aria-hidden": "true" });
  s.append(mark(slot));
  return s;
}

// visible shows what would not be seen: spaces, line ends, tabs, nothing.
export function visible(text, most = 16) {
  let out = text.replace(/ /g, "·").replace(/\r?\n/g, "⏎").replace(/\t/g, "⇥").replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, "�");
  const letters = [...out];
  if (letters.length > most) out = letters.slice(0, most - 1).join("") + "…";
  return out || "∅";
}
