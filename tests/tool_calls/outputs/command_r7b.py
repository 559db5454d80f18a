"""Command R7B and A: an array of objects, the name under `tool_name`."""

# ruff: noqa: E501 - outputs as models write them

from tests.tool_calls.outputs.notation import Call, Cut, case, plain

CASES = [
    # One call.
    case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}}\n]<|END_ACTION|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Oslo", "days": 3}}\n]<|END_ACTION|>',
        Call("get_weather", {"city": "Oslo", "days": 3}),
    ),
    case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Rome", "unit": "celsius", "days": 10}}\n]<|END_ACTION|>',
        Call("get_weather", {"city": "Rome", "unit": "celsius", "days": 10}),
    ),
    case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_time", "parameters": {}}\n]<|END_ACTION|>',
        Call("get_time", {}),
    ),
    case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "math.add", "parameters": {"a": 1, "b": -2.5}}\n]<|END_ACTION|>',
        Call("math.add", {"a": 1, "b": -2.5}),
    ),
    case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get-quote", "parameters": {"symbol": "NVDA"}}\n]<|END_ACTION|>',
        Call("get-quote", {"symbol": "NVDA"}),
    ),
    # Values.
    case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "search", "parameters": {"query": "x", "limit": null, "exact": true, "filters": {"lang": ["en", "de"], "deep": {"a": null}}, "tags": ["a", "b, c"]}}\n]<|END_ACTION|>',
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
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "set_light", "parameters": {"on": false, "level": -0.0015}}\n]<|END_ACTION|>',
        Call("set_light", {"on": False, "level": -0.0015}),
    ),
    case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "75001"}}\n]<|END_ACTION|>',
        Call("get_weather", {"city": "75001"}),
    ),
    case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "search", "parameters": {"query": "日本の天気 ☀️ in Zürich 😀"}}\n]<|END_ACTION|>',
        Call("search", {"query": "日本の天気 ☀️ in Zürich 😀"}),
    ),
    case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "write_file", "parameters": {"path": "C:\\\\tmp\\\\a.txt", "content": "line 1\\n\\tline \\"2\\"\\r\\nit\'s"}}\n]<|END_ACTION|>',
        Call("write_file", {"path": "C:\\tmp\\a.txt", "content": 'line 1\n\tline "2"\r\nit\'s'}),
    ),
    case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "write_file", "parameters": {"path": "a.py", "content": "def f(x):\\n    if x < 3:\\n        return {\'a\': \\"b\\"}[0]\\n"}}\n]<|END_ACTION|>',
        Call(
            "write_file",
            {
                "path": "a.py",
                "content": "def f(x):\n    if x < 3:\n        return {'a': \"b\"}[0]\n",
            },
        ),
    ),
    case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "write_file", "parameters": {"path": "a.html", "content": "<p>a &amp; b</p>\\n<think>"}}\n]<|END_ACTION|>',
        Call("write_file", {"path": "a.html", "content": "<p>a &amp; b</p>\n<think>"}),
    ),
    case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "write_file", "parameters": {"content": "Write <|START_ACTION|> to call."}}\n]<|END_ACTION|>',
        Call("write_file", {"content": "Write <|START_ACTION|> to call."}),
    ),
    case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "search", "parameters": {"query": "", "tags": [], "filters": {}}}\n]<|END_ACTION|>',
        Call("search", {"query": "", "tags": [], "filters": {}}),
    ),
    case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "send_mail", "parameters": {"to": ["a@b.c"], "subject": "", "body": " Hi "}}\n]<|END_ACTION|>',
        Call("send_mail", {"to": ["a@b.c"], "subject": "", "body": " Hi "}),
    ),
    # Several calls, and text around them.
    case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}},\n    {"tool_call_id": "0", "tool_name": "get_time", "parameters": {}}\n]<|END_ACTION|>',
        Call("get_weather", {"city": "Paris"}),
        Call("get_time", {}),
    ),
    case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_time", "parameters": {}},\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Oslo", "days": 1}},\n    {"tool_call_id": "0", "tool_name": "get_time", "parameters": {}}\n]<|END_ACTION|>',
        Call("get_time", {}),
        Call("get_weather", {"city": "Oslo", "days": 1}),
        Call("get_time", {}),
    ),
    case(
        'I\'ll check.\n\n<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}}\n]<|END_ACTION|>',
        "I'll check.\n\n",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_time", "parameters": {}}\n]<|END_ACTION|>\n\nOne moment, please.',
        Call("get_time", {}),
        "\n\nOne moment, please.",
    ),
    case(
        '\n\n<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_time", "parameters": {}}\n]<|END_ACTION|>\n',
        Call("get_time", {}),
    ),
    case(
        'a <b> < [c] <|START_ACTION <|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_time", "parameters": {}}\n]<|END_ACTION|>',
        "a <b> < [c] <|START_ACTION ",
        Call("get_time", {}),
    ),
    # Missing or repeated closing words, and stray brackets.
    case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}}\n]<|END_ACTION|><|END_ACTION|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}}\n]',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|START_ACTION|><|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}}\n]<|END_ACTION|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}}\n<|END_ACTION|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}}\n}]<|END_ACTION|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    # Text.
    plain("The capital of France is Paris."),
    plain('{"name": "get_time", "arguments": {}}'),
    case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "rm_rf", "parameters": {"path": "/"}}\n]<|END_ACTION|>',
        '[\n    {"tool_call_id": "0", "tool_name": "rm_rf", "parameters": {"path": "/"}}\n]',
    ),
    case("<|START_ACTION|><|END_ACTION|>"),
    case("Calls stand behind <|START_ACTION|> here.", "Calls stand behind  here."),
    case("<|START_ACTION|>get_time(", "get_time("),
    # Cut off.
    plain("<|START_ACTION|"),
    case("<|START_ACTION|>"),
    case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_wea',
        '[\n    {"tool_call_id": "0", "tool_name": "get_wea',
    ),
    case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Par',
        Cut("get_weather", '{"city": "Par'),
    ),
    case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris", "days": 1',
        Cut("get_weather", '{"city": "Paris", "days": 1'),
    ),
    # Broken.
    case(
        '<|START_ACTION|>[{"tool_name": "get_weather", "parameters": {"city": "Paris"}}]<|END_ACTION|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|START_ACTION|>[{"tool_name": "get_time", "parameters": null}]<|END_ACTION|>',
        Call("get_time", {}),
    ),
    case('<|START_ACTION|>[{"tool_name": "get_time"}]<|END_ACTION|>', Call("get_time", {})),
    case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "directly-answer", "parameters": {}}\n]<|END_ACTION|>',
        '[\n    {"tool_call_id": "0", "tool_name": "directly-answer", "parameters": {}}\n]',
    ),
    case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": Paris}}\n]<|END_ACTION|>',
        Cut("get_weather", '{"city": Paris}}\n]'),
    ),
    case("<|START_ACTION|>[]<|END_ACTION|>", "[]"),
]
