// The API: one request, its stream of events, its errors. Addresses are relative to the page, so that a proxy
// may put a path before all of them.

// Failure is an answer that is none. gone: the gateway is away, or went away in the middle of a stream.
export class Failure extends Error {
  constructor(message, { status = 0, gone = false } = {}) {
    super(message);
    this.status = status;
    this.gone = gone;
  }
}

function headers(key) {
  const h = { "Content-Type": "application/json" };
  if (key) h.Authorization = "Bearer " + key;
  return h;
}

// message words an answer of the server that is not 2xx.
async function message(response) {
  try {
    const body = await response.json();
    if (typeof body?.error?.message === "string") return body.error.message;
  } catch { /* no JSON */ }
  return "the gateway answered " + response.status + " " + response.statusText;
}

// get asks for a JSON document.
export async function get(path, key) {
  let response;
  try {
    response = await fetch(path, { headers: headers(key), cache: "no-store" });
  } catch {
    throw new Failure("the gateway does not answer", { gone: true });
  }
  if (!response.ok) throw new Failure(await message(response), { status: response.status, gone: response.status === 503 });
  return response.json();
}

// ready reports whether the gateway would take a request now, and why not.
export async function ready() {
  try {
    const response = await fetch("readyz", { cache: "no-store" });
    if (response.ok) return { ok: true, reason: "" };
    let reason = (await response.text()).trim();
    try {
      const body = JSON.parse(reason);
      reason = body.reason ?? body.error?.message ?? body.status ?? "";
    } catch { /* plain text */ }
    return { ok: false, reason: String(reason).slice(0, 200) };
  } catch {
    return { ok: false, reason: "" };
  }
}

// events yields the server-sent events of a body: {event, data}, data a string. Comments are skipped.
export async function* events(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "", event = "message", data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      const lines = rest.split("\n");
      rest = lines.pop();
      for (let line of lines) {
        if (line.endsWith("\r")) line = line.slice(0, -1);
        if (line === "") {
          if (data.length > 0) yield { event, data: data.join("\n") };
          event = "message";
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        } else if (line.startsWith("event:")) {
          event = line.slice(6).trim();
        }
      }
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// generate runs one streaming request and calls take with each chunk. It returns when the stream has said
// [DONE], and throws Failure, or what signal was aborted with.
export async function generate(path, body, { key, signal, take }) {
  let response;
  try {
    response = await fetch(path, { method: "POST", headers: headers(key), body: JSON.stringify(body), signal, cache: "no-store" });
  } catch (err) {
    if (signal.aborted) throw signal.reason;
    throw new Failure("the gateway does not answer", { gone: true });
  }
  if (!response.ok) throw new Failure(await message(response), { status: response.status, gone: response.status === 503 });
  try {
    for await (const { event, data } of events(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (event === "error" || chunk.error) {
        const kind = chunk.error?.type ?? chunk.error?.code ?? "";
        throw new Failure(chunk.error?.message ?? "the gateway ended the stream with an error",
          { gone: /unavailable/i.test(String(kind)) });
      }
      take(chunk);
    }
  } catch (err) {
    if (signal.aborted) throw signal.reason;
    if (err instanceof Failure) throw err;
    if (err instanceof SyntaxError) throw new Failure("the gateway sent what is no JSON: " + err.message);
    throw new Failure("the connection broke", { gone: true });
  }
  if (signal.aborted) throw signal.reason;
  throw new Failure("the stream ended before its end", { gone: true });
}
