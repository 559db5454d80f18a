"""Inkling: the name in a header, and again in an object."""

# ruff: noqa: E501 - outputs as models write them

from tests.tool_calls.outputs.notation import Call, Cut, case, plain

CASES = [
    # One call.
    case(
        '<|message_model|>get_weather<|content_invoke_tool_json|>{"name": "get_weather", "args": {"city": "Paris"}}<|end_message|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|message_model|>get_weather<|content_invoke_tool_json|>{"name": "get_weather", "args": {"city": "Oslo", "days": 3}}<|end_message|>',
        Call("get_weather", {"city": "Oslo", "days": 3}),
    ),
    case(
        '<|message_model|>get_weather<|content_invoke_tool_json|>{"name": "get_weather", "args": {"city": "Rome", "unit": "celsius", "days": 10}}<|end_message|>',
        Call("get_weather", {"city": "Rome", "unit": "celsius", "days": 10}),
    ),
    case(
        '<|message_model|>get_time<|content_invoke_tool_json|>{"name": "get_time", "args": {}}<|end_message|>',
        Call("get_time", {}),
    ),
    case(
        '<|message_model|>math.add<|content_invoke_tool_json|>{"name": "math.add", "args": {"a": 1, "b": -2.5}}<|end_message|>',
        Call("math.add", {"a": 1, "b": -2.5}),
    ),
    case(
        '<|message_model|>get-quote<|content_invoke_tool_json|>{"name": "get-quote", "args": {"symbol": "NVDA"}}<|end_message|>',
        Call("get-quote", {"symbol": "NVDA"}),
    ),
    # Values.
    case(
        '<|message_model|>search<|content_invoke_tool_json|>{"name": "search", "args": {"query": "x", "limit": null, "exact": true, "filters": {"lang": ["en", "de"], "deep": {"a": null}}, "tags": ["a", "b, c"]}}<|end_message|>',
        Call(
            "search",
            {
                "query": "x",
                "limit": None,
                "exact": True,
                "filters": {"lang": ["en", "de"], "deep": {"a": None}},
                "tags": ["a", "b, c"],
            },
        ),
    ),
    case(
        '<|message_model|>set_light<|content_invoke_tool_json|>{"name": "set_light", "args": {"on": false, "level": -0.0015}}<|end_message|>',
        Call("set_light", {"on": False, "level": -0.0015}),
    ),
    case(
        '<|message_model|>get_weather<|content_invoke_tool_json|>{"name": "get_weather", "args": {"city": "75001"}}<|end_message|>',
        Call("get_weather", {"city": "75001"}),
    ),
    case(
        '<|message_model|>search<|content_invoke_tool_json|>{"name": "search", "args": {"query": "日本の天気 ☀️ in Zürich 😀"}}<|end_message|>',
        Call("search", {"query": "日本の天気 ☀️ in Zürich 😀"}),
    ),
    case(
        '<|message_model|>write_file<|content_invoke_tool_json|>{"name": "write_file", "args": {"path": "C:\\\\tmp\\\\a.txt", "content": "line 1\\n\\tline \\"2\\"\\r\\nit\'s"}}<|end_message|>',
        Call("write_file", {"path": "C:\\tmp\\a.txt", "content": 'line 1\n\tline "2"\r\nit\'s'}),
    ),
    case(
        '<|message_model|>write_file<|content_invoke_tool_json|>{"name": "write_file", "args": {"path": "a.py", "content": "def f(x):\\n    if x < 3:\\n        return {\'a\': \\"b\\"}[0]\\n"}}<|end_message|>',
        Call(
            "write_file",
            {
                "path": "a.py",
                "content": "def f(x):\n    if x < 3:\n        return {'a': \"b\"}[0]\n",
            },
        ),
    ),
    case(
        '<|message_model|>write_file<|content_invoke_tool_json|>{"name": "write_file", "args": {"path": "a.html", "content": "<p>a &amp; b</p>\\n<think>"}}<|end_message|>',
        Call("write_file", {"path": "a.html", "content": "<p>a &amp; b</p>\n<think>"}),
    ),
    case(
        '<|message_model|>write_file<|content_invoke_tool_json|>{"name": "write_file", "args": {"content": "Write <|content_invoke_tool_json|> to call."}}<|end_message|>',
        Call("write_file", {"content": "Write <|content_invoke_tool_json|> to call."}),
    ),
    case(
        '<|message_model|>search<|content_invoke_tool_json|>{"name": "search", "args": {"query": "", "tags": [], "filters": {}}}<|end_message|>',
        Call("search", {"query": "", "tags": [], "filters": {}}),
    ),
    case(
        '<|message_model|>send_mail<|content_invoke_tool_json|>{"name": "send_mail", "args": {"to": ["a@b.c"], "subject": "", "body": " Hi "}}<|end_message|>',
        Call("send_mail", {"to": ["a@b.c"], "subject": "", "body": " Hi "}),
    ),
    # Several calls, and text around them.
    case(
        '<|message_model|>get_weather<|content_invoke_tool_json|>{"name": "get_weather", "args": {"city": "Paris"}}<|end_message|><|message_model|>get_time<|content_invoke_tool_json|>{"name": "get_time", "args": {}}<|end_message|>',
        Call("get_weather", {"city": "Paris"}),
        Call("get_time", {}),
    ),
    case(
        '<|message_model|>get_time<|content_invoke_tool_json|>{"name": "get_time", "args": {}}<|end_message|><|message_model|>get_weather<|content_invoke_tool_json|>{"name": "get_weather", "args": {"city": "Oslo", "days": 1}}<|end_message|><|message_model|>get_time<|content_invoke_tool_json|>{"name": "get_time", "args": {}}<|end_message|>',
        Call("get_time", {}),
        Call("get_weather", {"city": "Oslo", "days": 1}),
        Call("get_time", {}),
    ),
    case(
        'I\'ll check.\n\n<|message_model|>get_weather<|content_invoke_tool_json|>{"name": "get_weather", "args": {"city": "Paris"}}<|end_message|>',
        "I'll check.\n\n",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|message_model|>get_time<|content_invoke_tool_json|>{"name": "get_time", "args": {}}<|end_message|>\n\nOne moment, please.',
        Call("get_time", {}),
        "\n\nOne moment, please.",
    ),
    case(
        '\n\n<|message_model|>get_time<|content_invoke_tool_json|>{"name": "get_time", "args": {}}<|end_message|>\n',
        Call("get_time", {}),
    ),
    case(
        'a <b> < [c] <|content_invoke_tool_json <|message_model|>get_time<|content_invoke_tool_json|>{"name": "get_time", "args": {}}<|end_message|>',
        "a <b> < [c] <|content_invoke_tool_json ",
        Call("get_time", {}),
    ),
    # Missing or repeated closing words, and stray brackets.
    case(
        '<|message_model|>get_weather<|content_invoke_tool_json|>{"name": "get_weather", "args": {"city": "Paris"}}<|end_message|><|end_message|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|message_model|>get_weather<|content_invoke_tool_json|>{"name": "get_weather", "args": {"city": "Paris"}}',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|content_invoke_tool_json|><|message_model|>get_weather<|content_invoke_tool_json|>{"name": "get_weather", "args": {"city": "Paris"}}<|end_message|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    # Text.
    plain("The capital of France is Paris."),
    plain('{"name": "get_time", "arguments": {}}'),
    case(
        '<|message_model|>rm_rf<|content_invoke_tool_json|>{"name": "rm_rf", "args": {"path": "/"}}<|end_message|>',
        'rm_rf{"name": "rm_rf", "args": {"path": "/"}}',
    ),
    case("<|content_invoke_tool_json|><|end_message|>"),
    case("Calls stand behind <|content_invoke_tool_json|> here.", "Calls stand behind  here."),
    case("<|content_invoke_tool_json|>get_time(", "get_time("),
    # Cut off.
    plain("<|content_invoke_tool_json|"),
    case("<|content_invoke_tool_json|>"),
    case("<|message_model|>get_wea", "get_wea"),
    case(
        '<|message_model|>get_weather<|content_invoke_tool_json|>{"name": "get_weather", "args": {"city": "Par',
        Cut("get_weather", '{"city": "Par'),
    ),
    case(
        '<|message_model|>get_weather<|content_invoke_tool_json|>{"name": "get_weather", "args": {"city": "Paris", "days": 1',
        Cut("get_weather", '{"city": "Paris", "days": 1'),
    ),
    # Broken.
    case(
        'get_weather<|content_invoke_tool_json|>{"name": "get_weather", "args": {"city": "Paris"}}<|end_message|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|content_invoke_tool_json|>{"name": "get_time", "args": {}}<|end_message|><|content_model_end_sampling|>',
        Call("get_time", {}),
    ),
    case(
        '<|content_text|>Wait.<|end_message|><|message_model|>get_time<|content_invoke_tool_json|>{"name": "get_time", "args": {}}<|end_message|>',
        "Wait.",
        Call("get_time", {}),
    ),
    case('<|content_invoke_tool_json|>{"name": "get_time"}<|end_message|>', Call("get_time", {})),
    case(
        '<|content_invoke_tool_json|>{"name": "get_weather", "args": {"city": "Paris"}<|end_message|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case("get_time<|content_text|>is a function.<|end_message|>", "get_timeis a function."),
]
