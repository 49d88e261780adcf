// The controls: from what is typed to a request.

const $ = (id) => document.getElementById(id);

export const examples = {
  go: "// ReadAll reads from r until an error or EOF and returns the data it read.\nfunc ReadAll(r io.Reader) ([]byte, error) {\n",
  python: "class Queue:\n    \"\"\"A first-in, first-out queue.\"\"\"\n\n    def __init__(self, maxsize=0):\n",
  prose: "The package provides functions for reading and writing files. A reader returns an error when",
};

// number returns what a field holds: undefined when empty.
function number(id) {
  const v = $(id).value.trim();
  return v === "" ? undefined : Number(v);
}

// request returns {path, body} for what the controls say. messages: the conversation in chat mode, else null.
export function request(model, messages) {
  let seed = number("seed");
  if (seed === undefined) seed = crypto.getRandomValues(new Uint32Array(1))[0];
  const most = number("max_tokens"); // 0 and -1: no limit, as when it is empty
  const body = { model, stream: true, stream_options: { include_usage: true }, max_tokens: most > 0 ? most : undefined, temperature: number("temperature"),
    top_p: number("top_p"), seed, speculation: speculation() }; // and what no control says as over HTTP
  if ($("typical").checked) body.accept = "typical";
  if ($("ignore_eos").checked) body.ignore_eos = true;
  if (messages) {
    body.messages = messages;
    if ($("logprobs").checked) body.logprobs = true;
    return { path: "v1/chat/completions", body };
  }
  body.prompt = $("prompt").value;
  if ($("logprobs").checked) body.logprobs = 0; // of the tokens themselves, no others
  return { path: "v1/completions", body };
}

function speculation() {
  const strategy = $("strategy").value;
  if (strategy === "off") return { enabled: false, report: true };
  const s = { enabled: true, strategy, vote: $("vote").value, report: true };
  for (const name of ["max_nodes", "max_depth", "max_branches"]) {
    const v = number(name);
    if (v !== undefined) s[name] = v;
  }
  const boxes = [...$("drafters").querySelectorAll("input")];
  const chosen = boxes.filter((b) => b.checked).map((b) => b.value);
  if (boxes.length > 0 && chosen.length < boxes.length) {
    if (chosen.length === 0) return { enabled: false, report: true };
    s.drafters = chosen;
  }
  return s;
}

// offer lists the drafters that may be chosen, keeping what was unticked.
export function offer(names, icon) {
  const there = [...$("drafters").querySelectorAll("input")].map((b) => b.value);
  if (there.join("\0") === names.join("\0")) return;
  const off = new Set([...$("drafters").querySelectorAll("input")].filter((b) => !b.checked).map((b) => b.value));
  $("drafters").replaceChildren(...names.map((name) => {
    const label = document.createElement("label"), box = document.createElement("input"), text = document.createElement("span");
    label.className = "check";
    box.type = "checkbox";
    box.value = name;
    box.checked = !off.has(name);
    text.textContent = name;
    label.append(box, icon(name), text);
    return label;
  }));
  $("drafters-field").hidden = names.length === 0;
}
