// "Measure now": the same prompt and seed with and without speculation, in turn, nothing drawn meanwhile.

import { generate } from "./stream.js";
import { Run } from "./run.js";
import { visible } from "./marks.js";

const order = [true, false, false, true]; // so that neither side is always first

// plain returns a request like r without speculation.
function plain(r) {
  return { path: r.path, body: { ...r.body, accept: "exact", speculation: { enabled: false, report: true } } };
}

// measure runs them and returns {runs: [{on, run}], difference}; tell is called before each.
export async function measure(request, shown, { key, signal, tell }) {
  const runs = [];
  for (const [i, on] of order.entries()) {
    tell(i + 1, order.length, on);
    const r = on ? { ...request, body: { ...request.body } } : plain(request);
    r.body.cache_salt = `${Date.now()} ${Math.random()}`; // else it would draft from the answer of the run before
    const run = new Run(r);
    await generate(r.path, r.body, { key, signal, take: (chunk) => run.take(chunk) });
    runs.push({ on, run });
  }
  const all = shown ? [...runs, { on: true, run: shown, shown: true }] : runs;
  return { runs, difference: difference(all), compared: all.length };
}

// difference returns the first token at which two runs differ, null if none do.
function difference(runs) {
  const [first, ...others] = runs.map((r) => r.run);
  for (const other of others) {
    const n = Math.max(first.tokens.length, other.tokens.length);
    for (let i = 0; i < n; i++) {
      const a = first.tokens[i], b = other.tokens[i];
      if (a?.id !== b?.id) return { at: i, a, b };
    }
    if (first.text !== other.text) return { at: -1 };
  }
  return null;
}

// show puts a result into the page.
export function show({ runs, difference: d, compared }, at) {
  const time = (on) => Math.min(...runs.filter((r) => r.on === on).map((r) => r.run.decode())); // what else the machine did only made it slower
  const ratio = time(false) / time(true);
  const word = ratio >= 1.005 ? "faster with speculation" : ratio <= 0.995 ? "the speed with speculation: here it costs more than it brings" : "no difference";
  const small = document.createElement("small");
  small.textContent = ` ${word} (decoding, the faster of ${runs.length / 2} runs each)`;
  at.speedup.replaceChildren(Number.isFinite(ratio) ? ratio.toFixed(2) + " ×" : "–", small);

  const n = runs[0].run.tokens.length;
  at.equal.className = d ? "equal no" : "equal yes";
  if (!d) {
    at.equal.textContent = `✓ Bytes and token ids are equal: ${n} tokens, ${compared} runs.`;
  } else if (runs.some(({ run }) => run.lossy())) {
    at.equal.textContent = "The runs differ: typical acceptance is lossy.";
  } else if (d.at < 0) {
    at.equal.textContent = "✗ The token ids are equal, but the text is not.";
  } else {
    const word = (t) => (t ? `“${visible(t.text, 24)}” (${t.id})` : "the end");
    at.equal.textContent = `✗ The runs differ, first at token ${d.at + 1}: ${word(d.a)} or ${word(d.b)}.`;
  }

  const fastest = Math.max(...runs.map((r) => r.run.rate() ?? 0));
  const ids = JSON.stringify(runs[0].run.ids());
  at.body.replaceChildren(...runs.map(({ on, run }, i) => {
    const tr = document.createElement("tr");
    tr.className = on ? "on" : "";
    const cell = (text, className = "") => {
      const td = document.createElement("td");
      td.textContent = text;
      td.className = className;
      tr.append(td);
      return td;
    };
    cell(`${i + 1}: ${on ? "speculation" : "plain"}`);
    cell(String(run.tokens.length));
    cell(run.firstToken() === null ? "–" : run.firstToken().toFixed(1) + " ms");
    cell(run.decode().toFixed(1) + " ms");
    const pace = document.createElement("div"), fill = document.createElement("div"), figure = document.createElement("span");
    pace.className = "pace";
    fill.className = "fill";
    fill.style.width = 100 * (run.rate() ?? 0) / (fastest || 1) + "%";
    figure.textContent = run.rate() === null ? "–" : run.rate().toFixed(1);
    pace.append(figure, fill);
    cell("", "wide").append(pace);
    const same = JSON.stringify(run.ids()) === ids;
    cell(same ? "equal" : "differ", same ? "" : "no");
    return tr;
  }));
  at.box.hidden = false;
}
