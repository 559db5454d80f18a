"""Kimi K2: the name with its namespace and an index, then JSON."""

# ruff: noqa: E501 - outputs as models write them

from tests.tool_calls.outputs.notation import Call, Cut, case, plain

CASES = [
    # One call.
    case(
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Oslo", "days": 3}<|tool_call_end|><|tool_calls_section_end|>',
        Call("get_weather", {"city": "Oslo", "days": 3}),
    ),
    case(
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Rome", "unit": "celsius", "days": 10}<|tool_call_end|><|tool_calls_section_end|>',
        Call("get_weather", {"city": "Rome", "unit": "celsius", "days": 10}),
    ),
    case(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_time:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        Call("get_time", {}),
    ),
    case(
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.math.add:0<|tool_call_argument_begin|>{"a": 1, "b": -2.5}<|tool_call_end|><|tool_calls_section_end|>',
        Call("math.add", {"a": 1, "b": -2.5}),
    ),
    case(
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.get-quote:0<|tool_call_argument_begin|>{"symbol": "NVDA"}<|tool_call_end|><|tool_calls_section_end|>',
        Call("get-quote", {"symbol": "NVDA"}),
    ),
    # Values.
    case(
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>{"query": "x", "limit": null, "exact": true, "filters": {"lang": ["en", "de"], "deep": {"a": null}}, "tags": ["a", "b, c"]}<|tool_call_end|><|tool_calls_section_end|>',
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
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.set_light:0<|tool_call_argument_begin|>{"on": false, "level": -0.0015}<|tool_call_end|><|tool_calls_section_end|>',
        Call("set_light", {"on": False, "level": -0.0015}),
    ),
    case(
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "75001"}<|tool_call_end|><|tool_calls_section_end|>',
        Call("get_weather", {"city": "75001"}),
    ),
    case(
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>{"query": "日本の天気 ☀️ in Zürich 😀"}<|tool_call_end|><|tool_calls_section_end|>',
        Call("search", {"query": "日本の天気 ☀️ in Zürich 😀"}),
    ),
    case(
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.write_file:0<|tool_call_argument_begin|>{"path": "C:\\\\tmp\\\\a.txt", "content": "line 1\\n\\tline \\"2\\"\\r\\nit\'s"}<|tool_call_end|><|tool_calls_section_end|>',
        Call("write_file", {"path": "C:\\tmp\\a.txt", "content": 'line 1\n\tline "2"\r\nit\'s'}),
    ),
    case(
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.write_file:0<|tool_call_argument_begin|>{"path": "a.py", "content": "def f(x):\\n    if x < 3:\\n        return {\'a\': \\"b\\"}[0]\\n"}<|tool_call_end|><|tool_calls_section_end|>',
        Call(
            "write_file",
            {
                "path": "a.py",
                "content": "def f(x):\n    if x < 3:\n        return {'a': \"b\"}[0]\n",
            },
        ),
    ),
    case(
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.write_file:0<|tool_call_argument_begin|>{"path": "a.html", "content": "<p>a &amp; b</p>\\n<think>"}<|tool_call_end|><|tool_calls_section_end|>',
        Call("write_file", {"path": "a.html", "content": "<p>a &amp; b</p>\n<think>"}),
    ),
    case(
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.write_file:0<|tool_call_argument_begin|>{"content": "Write <|tool_calls_section_begin|> to call."}<|tool_call_end|><|tool_calls_section_end|>',
        Call("write_file", {"content": "Write <|tool_calls_section_begin|> to call."}),
    ),
    case(
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>{"query": "", "tags": [], "filters": {}}<|tool_call_end|><|tool_calls_section_end|>',
        Call("search", {"query": "", "tags": [], "filters": {}}),
    ),
    case(
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.send_mail:0<|tool_call_argument_begin|>{"to": ["a@b.c"], "subject": "", "body": " Hi "}<|tool_call_end|><|tool_calls_section_end|>',
        Call("send_mail", {"to": ["a@b.c"], "subject": "", "body": " Hi "}),
    ),
    # Several calls, and text around them.
    case(
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|><|tool_call_begin|>functions.get_time:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>',
        Call("get_weather", {"city": "Paris"}),
        Call("get_time", {}),
    ),
    case(
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.get_time:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_call_begin|>functions.get_weather:1<|tool_call_argument_begin|>{"city": "Oslo", "days": 1}<|tool_call_end|><|tool_call_begin|>functions.get_time:2<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>',
        Call("get_time", {}),
        Call("get_weather", {"city": "Oslo", "days": 1}),
        Call("get_time", {}),
    ),
    case(
        'I\'ll check.\n\n<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>',
        "I'll check.\n\n",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_time:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>\n\nOne moment, please.",
        Call("get_time", {}),
        "\n\nOne moment, please.",
    ),
    case(
        "\n\n<|tool_calls_section_begin|><|tool_call_begin|>functions.get_time:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>\n",
        Call("get_time", {}),
    ),
    case(
        "a <b> < [c] <|tool_calls_section_begin <|tool_calls_section_begin|><|tool_call_begin|>functions.get_time:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        "a <b> < [c] <|tool_calls_section_begin ",
        Call("get_time", {}),
    ),
    # Missing or repeated closing words, and stray brackets.
    case(
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|><|tool_calls_section_end|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|tool_calls_section_begin|><|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    # Text.
    plain("The capital of France is Paris."),
    plain('{"name": "get_time", "arguments": {}}'),
    case(
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.rm_rf:0<|tool_call_argument_begin|>{"path": "/"}<|tool_call_end|><|tool_calls_section_end|>',
        'functions.rm_rf:0{"path": "/"}',
    ),
    case("<|tool_calls_section_begin|><|tool_calls_section_end|>"),
    case("Calls stand behind <|tool_calls_section_begin|> here.", "Calls stand behind  here."),
    case("<|tool_calls_section_begin|>get_time(", "get_time("),
    # Cut off.
    plain("<|tool_calls_section_begin|"),
    case("<|tool_calls_section_begin|>"),
    case("<|tool_calls_section_begin|><|tool_call_begin|>functions.get_wea", "functions.get_wea"),
    case(
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Par',
        Cut("get_weather", '{"city": "Par'),
    ),
    case(
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris", "days": 1',
        Cut("get_weather", '{"city": "Paris", "days": 1'),
    ),
    # Broken.
    case(
        '<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|tool_calls_section_begin|><|tool_call_begin|>get_weather<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_time:0<|tool_call_argument_begin|><|tool_call_end|><|tool_calls_section_end|>",
        Call("get_time", {}),
    ),
    case(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_time:0<|tool_call_argument_begin|>null<|tool_call_end|><|tool_calls_section_end|>",
        Call("get_time", {}),
    ),
    case(
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris"<|tool_call_end|><|tool_calls_section_end|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": Paris}<|tool_call_end|><|tool_calls_section_end|>',
        Cut("get_weather", '{"city": Paris}'),
    ),
    case(
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris"}}<|tool_call_end|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<|tool_calls_section_begin|>functions.get_time:0<|tool_call_argument_begin|>{}<|tool_calls_section_end|>",
        Call("get_time", {}),
    ),
]
