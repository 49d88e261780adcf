// The output as text. The text is what the server sent; tokens only cut and colour it.

// Aligner cuts a stream of text at the borders of tokens. Text may lag behind the tokens, while a character is
// incomplete or a stop sequence may have begun; a token that holds part of a character is shown with its neighbours.
export class Aligner {
  constructor() {
    this.buffer = "";
    this.pending = []; // {text, index}
  }

  // push takes new tokens and new text and returns the pieces that are certain: {text, index, count}.
  push(tokens, text) {
    this.pending.push(...tokens);
    this.buffer += text;
    const pieces = [];
    while (this.pending.length > 0) {
      const head = this.pending[0];
      if (!head.text.includes("\ufffd")) {
        if (this.buffer.startsWith(head.text)) this.emit(pieces, 1, head.text.length);
        else if (head.text.startsWith(this.buffer)) break;
        else this.emit(pieces, this.pending.length, this.buffer.length); // not what the tokens say: the text is right
        continue;
      }
      let n = 1;
      while (n < this.pending.length && (this.pending[n].text === "" || this.pending[n].text.includes("\ufffd"))) n++;
      if (n === this.pending.length) break;
      const end = this.buffer.indexOf(this.pending[n].text, 1);
      if (end < 0) break;
      this.emit(pieces, n, end);
    }
    return pieces;
  }

  // end returns what is left when no more will come.
  end() {
    const pieces = [];
    if (this.buffer !== "") this.emit(pieces, Math.max(this.pending.length, 1), this.buffer.length);
    this.pending = [];
    return pieces;
  }

  emit(pieces, tokens, length) {
    const taken = this.pending.splice(0, tokens);
    pieces.push({ text: this.buffer.slice(0, length), index: taken.length > 0 ? taken[0].index : -1, count: taken.length });
    this.buffer = this.buffer.slice(length);
  }
}

// TextView shows pieces. A line is a block of its own, so that a new token lays out no more than its line.
// Everything is put in as text nodes. Goes along with the end unless the reader has scrolled away from it.
export class TextView {
  constructor(pane) {
    this.pane = pane;
    this.follow = true;
    this.clear();
    pane.addEventListener("scroll", () => {
      this.follow = pane.scrollTop + pane.clientHeight >= pane.scrollHeight - 24;
    }, { passive: true });
  }

  clear() {
    this.pane.replaceChildren();
    this.follow = true;
    this.begin();
  }

  // begin starts the tokens of another answer; those of earlier ones stay as text.
  begin(className = "") {
    this.spans = [];
    this.marked = [];
    this.current = -1;
    this.block = document.createElement("div");
    if (className) this.block.className = className;
    this.pane.append(this.block);
    this.line = null;
  }

  // add appends text, as token index if that is not negative.
  add(text, className, index = -1) {
    for (let at = 0; at < text.length;) {
      const end = text.indexOf("\n", at) + 1 || text.length;
      if (!this.line) {
        this.line = document.createElement("div");
        this.line.className = "line";
        this.block.append(this.line);
      }
      const span = document.createElement("span");
      span.className = className;
      span.textContent = text.slice(at, end);
      if (index >= 0) {
        span.dataset.i = index;
        (this.spans[index] ??= []).push(span);
      }
      this.line.append(span);
      if (span.textContent.endsWith("\n")) this.line = null;
      at = end;
    }
  }

  // settle is called once per frame, after adding.
  settle() {
    if (this.follow) this.pane.scrollTop = this.pane.scrollHeight;
  }

  // show marks one token as current and others as belonging to it.
  show(index, from, to) {
    for (const s of this.marked) s.classList.remove("cur", "hit");
    this.marked = [];
    for (let i = from; i < to; i++) this.mark(i, "hit");
    this.mark(index, "cur");
    this.current = index;
  }

  mark(index, className) {
    for (const s of this.spans[index] ?? []) {
      s.classList.add(className);
      this.marked.push(s);
    }
  }

  reveal(index) {
    this.spans[index]?.[0]?.scrollIntoView({ block: "nearest" });
  }

  // indexOf returns the token of an element of this answer, −1 for none.
  indexOf(element) {
    const i = element instanceof HTMLElement && element.dataset.i !== undefined ? Number(element.dataset.i) : -1;
    return i >= 0 && this.spans[i]?.includes(element) ? i : -1;
  }
}
