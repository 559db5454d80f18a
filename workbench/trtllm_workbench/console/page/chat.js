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

// Appends text to an element, as text nodes only, a few times a second. The text lies in blocks
// that end at line ends, or within a line that is very long; a block that has ended is never laid
// out again.
export class TextWriter {
  // `around` runs the function that changes the page.
  constructor(element, around) {
    this.element = element;
    this.around = around;
    this.pending = "";
    this.text = "";
    this.timer = null;
    this.node = null;
  }

  write(text) {
    this.text += text;
    this.pending += text;
    this.timer ??= setTimeout(() => this.flush(), FLUSH_MS);
  }

  flush() {
    clearTimeout(this.timer);
    this.timer = null;
    const text = this.pending;
    this.pending = "";
    if (text) this.around(() => this.append(text));
  }

  append(text) {
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
    block.dir = "auto";
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
