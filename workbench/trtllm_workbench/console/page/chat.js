// One answer of /v1/chat/completions: events of the stream, and its text in the page.

// Yields the choices' deltas and at the end the usage; throws if the answer is not whole.
export async function* stream(body, signal) {
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  if (!response.ok) throw new Error(await errorOf(response));
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new Error(event.error.message);
    yield event;
  }
  throw new Error("The answer was cut off; see the server's terminal.");
}

async function errorOf(response) {
  const text = await response.text();
  try {
    return `${JSON.parse(text).error.message} (HTTP ${response.status})`;
  } catch {
    return `${text.slice(0, 500)} (HTTP ${response.status})`;
  }
}

async function* events(bytes) {
  const reader = bytes.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const frames = (rest + value).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      if (frame.startsWith("data: ")) yield frame.slice(6);
    }
  }
}

const FLUSH_MS = 40;
const BLOCK_LENGTH = 2000;
const LONGEST_BLOCK = 8000;
const FENCE = /^ {0,3}```[^`\n]*\n/gm;
const MAY_BECOME_FENCE = /^ {0,3}(`{0,3}|```[^`\n]{0,60})$/;

// Appends text to an element, as text nodes only, a few times a second. The text lies in blocks
// that end at line ends, or within a line that is very long; a block that has ended is never laid
// out again. Code between fences has blocks of its own; a line that may become a fence waits for its
// end.
export class TextWriter {
  // `around` runs the function that changes the page.
  constructor(element, around) {
    this.element = element;
    this.around = around;
    this.pending = "";
    this.text = "";
    this.timer = null;
    this.node = null;
    this.atLineStart = true;
    this.inCode = false;
  }

  write(text) {
    this.text += text;
    this.pending += text;
    this.timer ??= setTimeout(() => this.show(this.held()), FLUSH_MS);
  }

  flush() {
    this.show(0);
  }

  // The length of the last line if it may become a fence.
  held() {
    const line = this.pending.slice(this.pending.lastIndexOf("\n") + 1);
    const isWhole = line.length < this.pending.length || this.atLineStart;
    return isWhole && MAY_BECOME_FENCE.test(line) ? line.length : 0;
  }

  show(held) {
    clearTimeout(this.timer);
    this.timer = null;
    const end = this.pending.length - held;
    const text = this.pending.slice(0, end);
    this.pending = this.pending.slice(end);
    if (text) this.around(() => this.append(text));
  }

  append(text) {
    let begin = 0;
    for (const { index, 0: fence } of text.matchAll(FENCE)) {
      if (index === 0 && !this.atLineStart) continue;
      if (this.inCode && fence.trim() !== "```") continue;
      const end = index + fence.length;
      this.put(text.slice(begin, this.inCode ? end : index));
      begin = this.inCode ? end : index;
      this.inCode = !this.inCode;
      this.node = null;
    }
    this.put(text.slice(begin));
    this.atLineStart = text.endsWith("\n");
  }

  put(text) {
    for (let begin = 0; begin < text.length; ) {
      this.node ??= this.newBlock();
      const used = this.node.length;
      const line = text.indexOf("\n", begin + Math.max(0, BLOCK_LENGTH - used)) + 1;
      const limit = begin + LONGEST_BLOCK - used;
      let end = line || text.length;
      if (end > limit) end = cut(text, begin, limit);
      this.node.appendData(text.slice(begin, end));
      if (end === line || end < text.length) this.node = null;
      begin = end;
    }
  }

  newBlock() {
    const block = document.createElement("div");
    block.dir = this.inCode ? "ltr" : "auto";
    if (this.inCode) block.className = "code";
    this.element.append(block);
    return block.appendChild(document.createTextNode(""));
  }
}

// The end of a block: behind a space if one is near, and never inside a character.
function cut(text, begin, limit) {
  const space = text.lastIndexOf(" ", limit - 1) + 1;
  if (space > begin && space > limit - 200) return space;
  const isHalf = limit > begin && /[\uD800-\uDBFF]/.test(text[limit - 1]);
  return isHalf ? limit - 1 : limit;
}
