// The conversation: messages, parameters, buttons.
import { stream, TextWriter } from "./chat.js";
import { watch } from "./pulse.js";
import { curl, python } from "./snippets.js";

const $ = (id) => document.getElementById(id);
const NUMBERS = ["max_tokens", "temperature", "top_p", "seed"];
const turns = []; // {question, answer: string or null, elements: […]}
let running = null; // the AbortController of the answer that streams
let server = { model: "model", api_url: "" };

function element(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

function messages() {
  const system = $("system").value.trim();
  const list = system ? [{ role: "system", content: system }] : [];
  for (const { question, answer } of turns) {
    list.push({ role: "user", content: question });
    if (answer !== null) list.push({ role: "assistant", content: answer });
  }
  return list;
}

function bodyFor(list) {
  const body = { model: server.model, messages: list };
  for (const name of NUMBERS) {
    if ($(name).value !== "") body[name] = $(name).valueAsNumber;
  }
  return { ...body, stream: true, stream_options: { include_usage: true } };
}

// Show the request that was sent last, or else the one that Send would send.
let sent = null;
function showRequest() {
  if (!$("request").open) return;
  const next = [...messages(), { role: "user", content: $("message").value || "What is machine learning?" }];
  const body = sent ?? bodyFor(next);
  $("curl").textContent = curl(server.api_url, body);
  $("python").textContent = python(server.api_url, body);
}

function updateButtons() {
  $("send").disabled = running !== null;
  $("stop").disabled = running === null;
  $("retry").disabled = running !== null || !turns.length;
  $("clear").disabled = running !== null || !turns.length;
}

// Change the page; stay at the end of the conversation if the reader was there.
function follow(change) {
  const list = $("turns");
  const bottom = (each) => each.getBoundingClientRect().bottom;
  const last = list.lastElementChild;
  const isAtEnd = !last || bottom(last) <= Math.min(innerHeight, bottom(list)) + 40;
  change();
  if (isAtEnd) list.lastElementChild.lastElementChild.scrollIntoView({ block: "nearest" });
}

function addTurn(role, title) {
  const item = element("li", `turn ${role}`);
  const text = element("div", "text");
  item.append(element("h3", "", title), text);
  $("turns").append(item);
  text.scrollIntoView({ block: "nearest" });
  return { item, text };
}

async function answer(turn) {
  const controller = new AbortController();
  running = controller;
  updateButtons();
  const { item, text } = addTurn("assistant", server.model);
  turn.elements.push(item);
  item.setAttribute("aria-busy", "true");
  const note = element("p", "note", "…");
  item.append(note);
  turn.answer = null;
  sent = bodyFor(messages());
  showRequest();
  $("announcement").textContent = "Answering.";
  const writer = new TextWriter(text, follow);
  let reasoning = null;
  const begun = performance.now();
  let first = null;
  let reason = null;
  let usage = null;
  try {
    for await (const event of stream(sent, controller.signal)) {
      usage = event.usage ?? usage;
      const choice = event.choices[0];
      if (!choice) continue;
      reason = choice.finish_reason ?? reason;
      const { content, reasoning_content: thought } = choice.delta;
      if (content || thought) first ??= performance.now();
      if (thought) {
        reasoning ??= reasoningWriter(item, text);
        reasoning.write(thought);
      }
      if (content) writer.write(content);
    }
    turn.answer = writer.text;
    note.textContent = summary(reason, usage, begun, first);
  } catch (error) {
    const stopped = controller.signal.aborted;
    if (stopped && writer.text) turn.answer = writer.text;
    note.textContent = stopped ? "stopped" : error.message;
    note.classList.toggle("bad", !stopped);
  } finally {
    writer.flush();
    reasoning?.flush();
    item.removeAttribute("aria-busy");
    // A screen reader gets the answer once, whole.
    $("announcement").textContent = `${writer.text} ${note.textContent}`;
    running = null;
    updateButtons();
  }
}

function reasoningWriter(item, text) {
  const block = element("div", "text reasoning");
  item.insertBefore(block, text);
  return new TextWriter(block, follow);
}

function summary(reason, usage, begun, first) {
  if (!usage) return reason ?? "";
  const end = performance.now();
  const firstMs = Math.round((first ?? end) - begun);
  const rate = first !== null && end > first ? usage.completion_tokens / ((end - first) / 1000) : 0;
  return `${usage.prompt_tokens} + ${usage.completion_tokens} tokens, ended by ${reason}; first token after ${firstMs} ms, then ${rate.toFixed(0)} tokens/s`;
}

function ask(question) {
  const last = turns.at(-1);
  if (last?.answer === null) turns.pop(); // it has no answer: not part of the conversation
  const { item, text } = addTurn("user", "You");
  const writer = new TextWriter(text, follow);
  writer.write(question);
  writer.flush();
  const turn = { question, answer: null, elements: [item] };
  turns.push(turn);
  answer(turn);
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const question = $("message").value.trim();
  const invalid = NUMBERS.map($).find((input) => !input.validity.valid);
  if (invalid) {
    $("parameters").open = true;
    invalid.reportValidity();
  } else if (question && !running) {
    $("message").value = "";
    ask(question);
  }
});

$("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("ask").requestSubmit();
  }
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});

$("stop").addEventListener("click", () => {
  running?.abort();
  $("message").focus();
});

$("retry").addEventListener("click", () => {
  const turn = turns.at(-1);
  turn.elements.pop().remove();
  answer(turn);
  $("message").focus();
});

$("clear").addEventListener("click", () => {
  turns.length = 0;
  sent = null;
  $("turns").replaceChildren();
  updateButtons();
  showRequest();
  $("message").focus();
});

$("request").addEventListener("toggle", showRequest);
for (const input of ["system", "message", ...NUMBERS].map($)) {
  input.addEventListener("input", () => {
    sent = null;
    showRequest();
  });
}

for (const button of document.querySelectorAll("[data-copies]")) {
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText($(button.dataset.copies).textContent);
    $("announcement").textContent = "Copied.";
  });
}

watch((pulse) => {
  if (!pulse.model || pulse.model === server.model) return;
  server = pulse;
  $("model").textContent = pulse.model;
  document.title = `${pulse.model} – console`;
  showRequest();
});
updateButtons();
