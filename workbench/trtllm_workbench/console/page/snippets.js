// The request as programs that a user can paste.

const shellQuoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

export function curl(apiUrl, body) {
  return [
    `curl -N ${apiUrl}/v1/chat/completions \\`,
    "  -H 'Content-Type: application/json' \\",
    `  -d ${shellQuoted(JSON.stringify(body, null, 2))}`,
  ].join("\n");
}

export function python(apiUrl, body) {
  const { model, messages, stream, stream_options, ...rest } = body;
  const fields = Object.entries({ model, messages, ...rest });
  const lines = fields.map(([name, value]) => `    ${name}=${literal(value, "    ")},`);
  return [
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(`${apiUrl}/v1`)}, api_key="none")`,
    "chunks = client.chat.completions.create(",
    ...lines,
    "    stream=True,",
    ")",
    "for chunk in chunks:",
    "    if chunk.choices:",
    '        print(chunk.choices[0].delta.content or "", end="", flush=True)',
    "",
  ].join("\n");
}

// A JSON string is a Python string, a JSON number a Python number.
function literal(value, indent) {
  const deeper = `${indent}    `;
  if (Array.isArray(value)) {
    return `[\n${value.map((each) => `${deeper}${literal(each, deeper)},\n`).join("")}${indent}]`;
  }
  if (value !== null && typeof value === "object") {
    const items = Object.entries(value).map(([key, each]) => `${JSON.stringify(key)}: ${literal(each, indent)}`);
    return `{${items.join(", ")}}`;
  }
  return JSON.stringify(value);
}
