// A run is what the page knows of one generation: its tokens, its rounds, its figures.

export class Run {
  constructor(request) {
    this.request = request;      // {path, body} as sent
    this.tokens = [];            // {id, text, drafted, round, depth, node, logprob}: round is an index of rounds, −1 for none
    this.rounds = [];            // as reported, with depths, path, own, at (the index of its first token)
    this.text = "";
    this.finish = "";
    this.usage = this.timings = this.stats = null;
    this.sent = performance.now();
    this.first = this.last = 0;  // when tokens came, same clock
    this.firstCount = 0;         // tokens of the first piece
  }

  // take adds one chunk of a stream and returns the piece of text that it brought and its new tokens' first index.
  take(chunk) {
    const now = performance.now();
    const choice = chunk.choices?.[0];
    const text = String(choice?.text ?? choice?.delta?.content ?? "");
    const report = chunk.tandem ?? {};
    const from = this.tokens.length;
    const round = report.round && Array.isArray(report.round.nodes) ? this.addRound(report.round, from) : null;
    for (const t of report.tokens ?? []) {
      this.tokens.push({ id: t.id, text: String(t.text ?? ""), drafted: t.origin === "draft", round: round ? this.rounds.length - 1 : -1, depth: 0, node: -1, logprob: null });
    }
    if (round) this.join(round, from);
    logprobs(choice, this.tokens, from);
    if (this.tokens.length > from) {
      if (this.first === 0) {
        this.first = now;
        this.firstCount = this.tokens.length;
      }
      this.last = now;
    }
    this.text += text;
    if (choice?.finish_reason) this.finish = choice.finish_reason;
    this.usage = chunk.usage ?? this.usage;
    this.timings = chunk.timings ?? this.timings;
    this.stats = report.stats ?? this.stats;
    return { text, from, round: round !== null };
  }

  // addRound takes over a reported round.
  addRound(r, at) {
    const nodes = r.nodes.map((n, i) => ({ id: n.id, text: String(n.text ?? ""), parent: i === 0 ? -1 : Math.min(Math.max(n.parent | 0, 0), i - 1),
      logprob: typeof n.logprob === "number" ? n.logprob : null, votes: i > 0 && Array.isArray(n.votes) ? n.votes : [], accepted: Boolean(n.accepted) }));
    if (nodes.every((n) => n.logprob === 0)) for (const n of nodes) n.logprob = null; // a draft that does not say how sure it was
    const depths = nodes.map(() => 0);
    for (let i = 1; i < nodes.length; i++) depths[i] = depths[nodes[i].parent] + 1;
    const path = nodes.map((_, i) => i).filter((i) => i > 0 && nodes[i].accepted);
    const round = { index: r.index ?? this.rounds.length, choice: String(r.choice ?? ""), why: String(r.why ?? ""), drafters: (r.drafters ?? []).map(String),
      lanes: (r.lanes ?? []).filter((l) => l.to_ms >= l.from_ms).map((l) => ({ stage: String(l.stage), by: String(l.by ?? ""), from: +l.from_ms, to: +l.to_ms })),
      nodes, depths, deepest: Math.max(...depths, 0), path, own: null, at, count: 0 };
    this.rounds.push(round);
    return round;
  }

  // join tells tokens from the given one on where they lie in their round: along the path, then the target's own.
  join(round, from) {
    round.count = this.tokens.length - from;
    for (let i = from; i < this.tokens.length; i++) {
      const t = this.tokens[i];
      t.depth = i - from + 1;
      const node = round.path[i - from];
      if (node !== undefined && round.nodes[node].id === t.id) t.node = node;
      if (!t.drafted && i === this.tokens.length - 1 && round.path.length === i - from) round.own = t;
    }
  }

  // drafters returns the names of those whose draft held a token.
  drafters(token) {
    if (token.node < 0) return [];
    const round = this.rounds[token.round];
    return round.nodes[token.node].votes.map((i) => round.drafters[i]).filter((name) => name !== undefined);
  }

  // chance returns how likely the draft held a node, after its parent; null where it did not say.
  static chance(round, i) {
    const n = round.nodes[i], p = round.nodes[n.parent];
    if (i === 0 || n.logprob === null) return null;
    return Math.min(Math.exp(n.logprob - (p.logprob ?? 0)), 1);
  }

  // lossy tells whether drafts were accepted although the target would have said something else.
  lossy() { return (this.stats ?? this.timings)?.accept === "typical" || this.request.body.accept === "typical"; }
  accepted() { return this.tokens.reduce((n, t) => n + (t.drafted ? 1 : 0), 0); }
  drafted() { return this.rounds.reduce((n, r) => n + r.nodes.length - 1, 0); }
  rate() {
    if (this.stats?.tokens_per_second) return this.stats.tokens_per_second;
    const n = this.tokens.length - this.firstCount, ms = this.last - this.first;
    return n > 0 && ms > 0 ? 1000 * n / ms : null;
  }
  // decode is the time from the first to the last token in ms, by the gateway's clock where it tells.
  decode() { return this.stats?.decode_ms ?? this.timings?.predicted_ms ?? this.last - this.first; }
  firstToken() { return this.first ? this.first - this.sent : null; }
  ids() { return this.tokens.map((t) => t.id); }
}

// logprobs adds the target's log-probabilities, in the form of completions or of chat completions.
function logprobs(choice, tokens, from) {
  const list = choice?.logprobs?.token_logprobs ?? choice?.logprobs?.content?.map((c) => c.logprob);
  if (!Array.isArray(list)) return;
  list.forEach((p, i) => {
    if (from + i < tokens.length && typeof p === "number") tokens[from + i].logprob = p;
  });
}
