// The server's vital signs, once a second while the page is visible.

const PERIOD_MS = 1000;
const SAMPLES = 120;
const $ = (id) => document.getElementById(id);
const STATES = {
  starting: "starting",
  ready: "ready",
  restarting: "the engine is restarting",
  unreachable: "the server does not answer",
  stopping: "the server is stopping",
  stopped: "the server has stopped; start it again in its terminal",
};
const rates = [];

export function watch(onPulse) {
  let timer = null;
  async function beat() {
    clearTimeout(timer);
    timer = null;
    if (document.hidden) return;
    let pulse = { state: "stopped" };
    try {
      const response = await fetch("/pulse");
      if (response.ok) pulse = await response.json();
    } catch {
      // The console ends with the server.
    }
    show(pulse);
    onPulse(pulse);
    clearTimeout(timer);
    timer = setTimeout(beat, PERIOD_MS);
  }
  document.addEventListener("visibilitychange", beat);
  beat();
}

function put(id, text) {
  const element = typeof id === "string" ? $(id) : id;
  if (element.textContent !== text) element.textContent = text;
}

const shown = (value, digits = 0) => (value == null ? "–" : value.toFixed(digits));

function show(pulse) {
  const state = $("state");
  if (state.dataset.state !== pulse.state || !state.textContent) {
    state.dataset.state = pulse.state;
    state.textContent = STATES[pulse.state];
  }
  if (pulse.state === "stopped") return;
  const isStarting = pulse.state === "starting";
  $("start").hidden = !isStarting;
  $("figures").hidden = isStarting;
  if (isStarting) showStart(pulse);
  else showFigures(pulse);
  fill($("events"), pulse.events, (each) => [`${each.time} ${each.text}`], "li");
  fill($("requests"), pulse.requests, requestCells, "tr");
}

function showStart(pulse) {
  const cells = (each) => {
    const end = each.took_s === null ? "…" : `(${each.took_s} s)`;
    return [`${each.name}: ${each.detail && `${each.detail} `}${end}`];
  };
  fill($("phases"), pulse.phases, cells, "li");
  put("last-line", pulse.last_line);
}

function showFigures(pulse) {
  put("tokens-per-s", shown(pulse.tokens_per_s));
  put("running", shown(pulse.running));
  put("waiting", shown(pulse.waiting));
  put("restarts", shown(pulse.restarts));
  for (const [id, values] of [["first-token", pulse.first_token_ms], ["gap", pulse.gap_ms]]) {
    const cells = $(id).cells;
    ["p50", "p90", "p99"].forEach((name, place) => put(cells[place + 1], shown(values?.[name], 1)));
  }
  const isKnown = pulse.kv_share != null;
  put("kv-title", `KV cache, ${pulse.kv_is_reserved ? "reserved" : "used"}`);
  put("kv-text", isKnown ? `${shown(100 * pulse.kv_share, 1)} %` : "not reported by this engine");
  $("kv").hidden = !isKnown;
  $("kv").value = pulse.kv_share ?? 0;
  draw(pulse.tokens_per_s ?? 0);
}

function draw(rate) {
  rates.push(rate);
  if (rates.length > SAMPLES) rates.shift();
  const top = Math.max(...rates, 1);
  const first = SAMPLES - rates.length;
  const points = rates.map((each, place) => `${first + place},${(31 - (30 * each) / top).toFixed(1)}`);
  $("chart-line").setAttribute("points", points.join(" "));
  put("chart-top", shown(top));
}

const ms = (value) => (value == null ? "" : value < 10000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`);

function requestCells(each) {
  const end = (each.reason ?? each.status).replaceAll("_", " "); // a finish reason or an error's code
  const tokens = each.prompt_tokens == null ? "" : `${each.prompt_tokens}+${each.generation_tokens}`;
  return [each.time, end, tokens, ms(each.ttft_ms), ms(each.total_ms), shown(each.tokens_per_s)];
}

// Rows keep their elements, so that an hour of pulses makes no garbage.
function fill(parent, items, textsOf, tag) {
  while (parent.childElementCount > items.length) parent.lastElementChild.remove();
  items.forEach((item, place) => {
    let row = parent.children[place];
    const texts = textsOf(item);
    if (!row) {
      row = document.createElement(tag);
      if (tag === "tr") for (const _ of texts) row.append(document.createElement("td"));
      parent.append(row);
    }
    if (tag === "tr") texts.forEach((text, cell) => put(row.cells[cell], text));
    else put(row, texts[0]);
  });
}
