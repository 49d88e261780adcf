// The page: what the reader does, what the gateway says, and what is drawn of it, once per frame.

import { Failure, generate, get, ready } from "./stream.js";
import { Run } from "./run.js";
import { Aligner, TextView } from "./text.js";
import { Slots, icon, visible } from "./marks.js";
import { draw } from "./tree.js";
import { Lanes, share } from "./lanes.js";
import { measure, show } from "./measure.js";
import { examples, offer, request } from "./form.js";

const $ = (id) => document.getElementById(id);
const slots = new Slots();
const view = new TextView($("text"));
const lanes = new Lanes($("lanes"), slots, laneReadout);

let about = { model: "", chat: false, context: 0 };
let described = false;
let gateway = "connecting"; // "ready", "busy", "away"
let run = null;             // what is shown
let aligner = null;
let selected = -1;          // round
let abort = null;           // of what runs now
let chat = false, messages = [];
let dirty = { text: false, figures: false, round: false }, frame = 0, drawn = 0;

// ---- what the gateway is

function say(state, text) {
  gateway = state;
  document.body.dataset.state = state;
  $("state-text").textContent = text;
  const idle = abort === null;
  $("run").disabled = !idle || state !== "ready";
  $("measure").disabled = !idle || state !== "ready";
  $("stop").disabled = idle;
}

function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = text === "";
}

const key = () => sessionStorage.getItem("tandem-key") ?? "";

// describe asks what the gateway is and shows it.
async function describe() {
  const d = await get("tandem/v1/describe", key());
  const drafters = (d.drafters ?? []).map(String);
  about = { model: String(d.model ?? ""), chat: Boolean(d.chat), context: Number(d.context) || 0 };
  const facts = [about.model, d.context ? `${d.context} tokens of context` : "", drafters.length === 1 ? "1 drafter" : `${drafters.length} drafters`];
  $("facts").replaceChildren(...facts.filter(Boolean).map((f, i) => {
    const e = document.createElement(i === 0 ? "b" : "span");
    e.textContent = f;
    return e;
  }));
  drafters.forEach((name) => slots.add(name));
  offer(drafters, (name) => icon(slots.add(name)));
  legend();
  $("modes").hidden = !about.chat;
  for (const [id, most] of Object.entries(d.limits ?? {})) {
    if ($(id)?.type === "number") $(id).max = most;
  }
  for (const name of ["temperature", "top_p"]) $(name).placeholder = String(d.defaults?.[name] ?? "auto");
  const defaults = d.defaults?.speculation ?? {}, strategy = defaults.enabled === false ? "off" : defaults.strategy;
  if (!described && [...$("strategy").options].some((o) => o.value === strategy)) $("strategy").value = strategy;
  if (!described && about.chat && $("prompt").value === examples.go) mode(true); // unless something is written already
  described = true;
}

// mode turns the page to a chat, or to text that is continued.
function mode(on) {
  if (abort) return;
  chat = on;
  messages = [];
  $("mode-text").setAttribute("aria-pressed", String(!on));
  $("mode-chat").setAttribute("aria-pressed", String(on));
  $("clear").hidden = !on;
  $("examples").hidden = on;
  document.querySelector("label[for=prompt]").textContent = on ? "Message" : "Prompt";
  $("prompt").value = on ? "" : examples.go;
}

// connect waits for the gateway, then asks what it is. Only one wait runs at a time.
async function connect() {
  if (connect.runs) return;
  connect.runs = true;
  for (let wait = 250; ; wait = Math.min(wait * 1.5, 2000)) {
    const { ok, reason } = await ready();
    if (ok) {
      try {
        await describe();
        say("ready", "ready");
        if (connect.was) notice(connect.was + " It is back: run again.");
        break;
      } catch (err) {
        if (err.status === 401 || err.status === 403) {
          $("access").open = true;
          notice("This gateway wants an API key: " + err.message);
          say("away", "API key wanted");
          break; // goes on with the key's change
        }
        if (!err.gone) notice(err.message);
      }
    }
    say("away", reason ? "not ready: " + reason : "waiting for the gateway");
    await new Promise((done) => setTimeout(done, wait));
  }
  connect.was = "";
  connect.runs = false;
}

function lost(text) {
  connect.was = text;
  notice(text + " Waiting for it.");
  say("away", "waiting for the gateway");
  connect();
}

setInterval(async () => { // a gateway that goes, or drafters that come, while nothing runs
  if (gateway !== "ready" || abort || document.hidden) return;
  const { ok } = await ready();
  if (gateway !== "ready" || abort) return;
  if (ok) describe().catch(() => {});
  else lost("The gateway went away.");
}, 4000);

// ---- a generation

// valid reports whether the controls hold what can be asked for, and shows which does not.
function valid() {
  if (!$("form").checkValidity()) $("options").open = true;
  return $("form").reportValidity();
}

async function start(e) {
  e?.preventDefault();
  if (abort || gateway !== "ready" || !valid()) return;
  const said = $("prompt").value;
  if (said === "") return notice("The prompt is empty: write something to continue.");
  notice("");
  const first = messages.length === 0;
  if (chat) messages.push({ role: "user", content: said });
  run = new Run(request(about.model, chat ? [...messages] : null));
  aligner = new Aligner();
  if (!chat || first) view.clear();
  if (chat) {
    view.begin("you");
    view.add(said, "given");
    view.begin("turn");
    $("prompt").value = "";
  } else {
    view.add(said, "given");
  }
  selected = -1;
  drawn = 0;
  lanes.clear();
  $("live").checked = true;
  $("measured").hidden = true;
  abort = new AbortController();
  say("busy", "generating");
  schedule({ text: true, figures: true, round: true });
  let end = "";
  try {
    await generate(run.request.path, run.request.body, { key: key(), signal: abort.signal, take });
    end = finished();
  } catch (err) {
    end = failed(err, `after ${run.tokens.length} tokens`);
  }
  for (const p of aligner.end()) view.add(p.text, classOf(p.index), p.index);
  if (chat) messages.push({ role: "assistant", content: run.text });
  abort = null;
  if (gateway === "busy") say("ready", "ready");
  if (end) $("readout").textContent = end;
  schedule({ text: true, figures: true, round: true });
}

function take(chunk) {
  const { text, from, round } = run.take(chunk);
  const fresh = run.tokens.slice(from).map((t, k) => ({ text: t.text, index: from + k }));
  for (const p of aligner.push(fresh, text)) view.add(p.text, classOf(p.index), p.index);
  if (round) run.rounds.at(-1).drafters.forEach((name) => slots.add(name));
  schedule({ text: true, figures: true, round });
}

function classOf(index) {
  const t = run.tokens[index];
  if (!t || !t.drafted) return "t";
  return slots.className(run.drafters(t)) === "t" ? "d0" : slots.className(run.drafters(t));
}

function finished() {
  const n = run.tokens.length, prompt = run.usage?.prompt_tokens ?? 0;
  if (run.finish !== "length") return `${n} tokens: ${run.finish === "stop" ? "the text ended" : run.finish}.`;
  if (n >= run.request.body.max_tokens) return `Cut at ${n} tokens: raise “Max tokens”, or leave it empty.`;
  if (about.context > 0 && prompt + n >= about.context) return `Cut at ${n} tokens: the context of ${about.context} is full.`;
  return `Cut at ${n} tokens by the gateway.`;
}

// failed says what became of a request that did not end well; what has come is kept.
function failed(err, when) {
  if (err?.name === "AbortError") return `Stopped ${when}.`;
  if (err instanceof Failure && err.gone) {
    lost(`${err.message[0].toUpperCase()}${err.message.slice(1)}, ${when}. What has come is kept.`);
    return "";
  }
  if (err instanceof Failure && (err.status === 401 || err.status === 403)) $("access").open = true;
  notice(err instanceof Failure ? err.message : "The page failed: " + err);
  if (!(err instanceof Failure)) console.error(err);
  return "";
}

async function compare() {
  if (abort || gateway !== "ready" || !valid()) return;
  let r = chat ? run?.request : request(about.model, null);
  if (!r || (!chat && r.body.prompt === "")) return notice("There is nothing to measure yet: write a prompt.");
  const but = (body) => JSON.stringify({ ...body, seed: 0, speculation: 0 });
  if (!chat && $("seed").value.trim() === "" && run && but(run.request.body) === but(r.body)) { // its seed was drawn
    r = { path: r.path, body: { ...r.body, seed: run.request.body.seed } };
  }
  const off = !r.body.speculation.enabled;
  if (off) r = { path: r.path, body: { ...r.body, speculation: { enabled: true, report: true } } };
  notice("");
  const same = run && run.finish && JSON.stringify({ ...run.request.body, speculation: 0 }) === JSON.stringify({ ...r.body, speculation: 0 });
  abort = new AbortController();
  say("busy", "measuring");
  try {
    const result = await measure(r, same ? run : null, { key: key(), signal: abort.signal,
      tell: (i, n, on) => { $("measure-state").textContent = `run ${i} of ${n}: ${on ? "with speculation" : "plain"} …`; } });
    show(result, { box: $("measured"), speedup: $("speedup"), equal: $("equal"), body: $("runs").tBodies[0] });
    $("measure-state").textContent = `same prompt, seed and options; ${off ? "the planner" : r.body.speculation.strategy} against plain decoding, in turn`;
  } catch (err) {
    const end = failed(err, "while measuring");
    $("measure-state").textContent = end || "The measurement did not end.";
  }
  abort = null;
  if (gateway === "busy") say("ready", "ready");
}

// ---- what is drawn

// schedule asks for a frame that draws what has changed.
function schedule(what) {
  for (const k in what) dirty[k] ||= what[k];
  frame ||= requestAnimationFrame(paint);
}

const drawEvery = 90; // ms between two trees while text comes: faster could not be read

function paint(now) {
  frame = 0;
  if (dirty.text) view.settle();
  dirty.text = false;
  if (!run) return;
  if (abort && now - drawn < drawEvery) {
    frame = requestAnimationFrame(paint);
    return;
  }
  drawn = now;
  if (dirty.figures) tiles();
  if (dirty.round) {
    if ($("live").checked) selected = run.rounds.length - 1;
    rounds();
    bars();
    legend();
  }
  dirty.figures = dirty.round = false;
}

function tile(id, figure, unit = "") {
  const small = document.createElement("small");
  small.textContent = unit;
  $(id).replaceChildren(figure, small);
}

function tiles() {
  const rate = run.rate(), first = run.firstToken(), drafted = run.drafted(), accepted = run.accepted();
  tile("t-tokens", String(run.tokens.length));
  tile("t-rate", rate === null ? "–" : rate.toFixed(rate < 100 ? 1 : 0));
  tile("t-round", run.rounds.length === 0 ? "–" : (run.tokens.length / run.rounds.length).toFixed(2));
  tile("t-first", first === null ? "–" : first.toFixed(first < 100 ? 1 : 0), " ms");
  tile("t-accepted", drafted === 0 ? "–" : String(accepted), (drafted === 0 ? "" : ` of ${drafted} nodes`) + (run.lossy() ? " · accept: typical (lossy)" : ""));
}

function legend() {
  const item = (className, text, mark) => {
    const li = document.createElement("li"), span = document.createElement("span");
    span.className = className;
    span.textContent = text;
    if (mark) li.append(mark);
    li.append(span);
    return li;
  };
  if (legend.shown === slots.names.join("\0")) return;
  legend.shown = slots.names.join("\0");
  const items = [item("t", "the target's own")];
  slots.names.forEach((name) => items.push(item("d" + slots.add(name), slots.names.length === 1 ? "drafted by " + name : slots.short(name), icon(slots.add(name)))));
  if (slots.names.length > 1) items.push(item("dm", "several agree"));
  $("legend").replaceChildren(...items);
}

function rounds() {
  const last = run.rounds.length - 1, r = run.rounds[selected], range = $("round");
  range.max = Math.max(last, 0);
  range.value = Math.max(selected, 0);
  range.disabled = last < 1;
  $("prev").disabled = selected <= 0;
  $("next").disabled = selected >= last;
  $("round-text").textContent = last < 0 ? "–" : `${selected} of ${last}`;
  if (!r) return;
  range.setAttribute("aria-valuetext", `round ${r.index}, ${r.path.length} accepted`);
  why(r);
  draw($("tree"), r, slots);
  const span = Number($("span").value), to = Math.max(selected + 1, Math.min(span, last + 1));
  const window = run.rounds.slice(Math.max(0, to - span), to);
  lanes.draw(window, run.rounds.slice(0, 64).concat(window), r);
  const { both, drafted } = share(window.flatMap((w) => w.lanes));
  $("overlap").textContent = drafted === 0 ? "nothing was drafted in these rounds" : `drafting beside verifying: ${both.toFixed(1)} of ${drafted.toFixed(1)} ms (${Math.round(100 * both / drafted)} %)`;
  $("lanes").setAttribute("aria-label", `Rounds ${window[0].index} to ${window.at(-1).index} on one clock; ${$("overlap").textContent}`);
  view.show(view.current, r.at, r.at + r.count);
}

function why(r) {
  const b = document.createElement("b"), code = document.createElement("code");
  const reason = slots.shorten(r.why), choice = slots.shorten(r.choice) || "no choice told";
  b.textContent = choice;
  const drafted = r.nodes.length - 1;
  const out = drafted === 0 ? "nothing drafted" : `${drafted} ${drafted === 1 ? "node" : "nodes"}, ${r.deepest} deep; accepted ${r.path.length}`;
  code.textContent = run.tokens.slice(r.at, r.at + r.count).map((t) => visible(t.text)).join(" ");
  $("why").replaceChildren(b, reason === "" ? "" : ": " + (reason.startsWith(choice + ": ") ? reason.slice(choice.length + 2) : reason), " — ", out, r.count > 0 ? ". Committed " : ".", r.count > 0 ? code : "");
}

// bars counts, by depth, how many of the trees that go so deep were accepted so far; and choices.
function bars() {
  const offered = [], accepted = [], choices = new Map();
  for (const r of run.rounds) {
    for (let d = 1; d <= r.deepest; d++) offered[d] = (offered[d] ?? 0) + 1;
    for (let d = 1; d <= r.path.length; d++) accepted[d] = (accepted[d] ?? 0) + 1;
    choices.set(r.choice, (choices.get(r.choice) ?? 0) + 1);
  }
  const div = (className, text = "") => {
    const e = document.createElement("div");
    e.className = className;
    e.textContent = text;
    return e;
  };
  const track = (p) => {
    const t = div("track"), f = div("fill");
    f.style.width = 100 * p + "%";
    t.append(f);
    return t;
  };
  const figure = (strong, small) => {
    const e = div("of", strong), s = document.createElement("small");
    s.textContent = small;
    e.append(s);
    return e;
  };
  if (offered.length > 1) {
    $("depths").replaceChildren(...offered.slice(1, 17).map((n, i) => {
      const d = i + 1, k = accepted[d] ?? 0, b = div("bar");
      b.append(div("", String(d)), track(k / n), figure(Math.round(100 * k / n) + " %", `  ${k}/${n}`));
      return b;
    }));
  }
  const most = [...choices].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).slice(0, 6);
  $("choices").replaceChildren(...most.map(([name, n]) => {
    const c = div("choice"), label = div("name", slots.shorten(name) || "–");
    label.title = name;
    c.append(label, figure(String(n), ""), track(n / run.rounds.length));
    return c;
  }));
}

// tell describes a token below the text, and goes to its round if pin.
function tell(i, pin) {
  const t = run?.tokens[i];
  if (!t) return;
  const r = run.rounds[t.round], by = run.drafters(t);
  const b = document.createElement("b"), code = document.createElement("code");
  b.textContent = "Token " + (i + 1);
  code.textContent = visible(t.text, 24);
  const parts = [` id ${t.id}`];
  if (r) parts.push(`round ${r.index}, depth ${t.depth}`);
  parts.push(!t.drafted ? "the target's own" : by.length > 0 ? "drafted by " + by.map((n) => slots.short(n)).join(", ") : "drafted");
  if (t.node >= 0 && Run.chance(r, t.node) !== null) parts.push(`the draft gave it ${(100 * Run.chance(r, t.node)).toFixed(1)} %`);
  if (t.logprob !== null) parts.push(`log-probability ${t.logprob.toFixed(3)}`);
  $("readout").replaceChildren(b, " ", code, parts.join(" · "));
  if (pin && t.round >= 0) select(t.round);
  const at = run.rounds[selected];
  view.show(i, at?.at ?? 0, at ? at.at + at.count : 0);
}

function select(i) {
  if (!run || run.rounds.length === 0) return;
  selected = Math.min(Math.max(i, 0), run.rounds.length - 1);
  $("live").checked = false;
  rounds();
}

function laneReadout(bar) {
  if (!bar) return;
  const b = document.createElement("b");
  b.textContent = bar.by ? `${bar.stage} ${slots.short(bar.by)}` : bar.stage;
  $("lane-readout").replaceChildren(b, ` · round ${bar.round.index} · ${bar.from.toFixed(2)} to ${bar.to.toFixed(2)} ms: ${(bar.to - bar.from).toFixed(2)} ms`);
}

// ---- what the reader does

$("form").addEventListener("submit", start);
$("stop").addEventListener("click", () => abort?.abort());
$("measure").addEventListener("click", compare);
$("clear").addEventListener("click", () => {
  messages = [];
  if (!abort) view.clear();
});
$("prompt").addEventListener("keydown", (e) => { if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) start(e); });
document.addEventListener("keydown", (e) => { if (e.key === "Escape") abort?.abort(); });
$("examples").addEventListener("click", (e) => {
  const name = e.target.dataset?.example;
  if (name) $("prompt").value = examples[name];
});
$("mode-text").addEventListener("click", () => mode(false));
$("mode-chat").addEventListener("click", () => mode(true));
$("round").addEventListener("input", () => select(Number($("round").value)));
$("prev").addEventListener("click", () => select(selected - 1));
$("next").addEventListener("click", () => select(selected + 1));
$("live").addEventListener("change", () => schedule({ round: true }));
$("span").addEventListener("change", () => run && rounds());
for (const type of ["pointerover", "click"]) {
  $("text").addEventListener(type, (e) => {
    const i = view.indexOf(e.target);
    if (i >= 0) tell(i, type === "click");
  });
}
$("text").addEventListener("keydown", (e) => {
  const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[e.key];
  if (step === undefined || !run || run.tokens.length === 0 || e.ctrlKey || e.metaKey || e.altKey) return;
  e.preventDefault();
  const i = Math.min(Math.max(view.current + step, 0), run.tokens.length - 1);
  tell(i, true);
  view.reveal(i);
});
$("key").value = key();
$("key").addEventListener("change", () => {
  if ($("key").value) sessionStorage.setItem("tandem-key", $("key").value);
  else sessionStorage.removeItem("tandem-key");
  notice("");
  connect();
});
new ResizeObserver(() => run && run.rounds.length > 0 && lanes.repaint?.()).observe($("lanes"));

$("prompt").value = examples.go;
const narrow = matchMedia("(max-width: 899px)"); // there the text comes before the options
narrow.addEventListener("change", () => { $("options").open = !narrow.matches; });
if (narrow.matches) {
  $("options").open = false;
  $("span").value = "4";
}
say("connecting", "connecting");
connect();
