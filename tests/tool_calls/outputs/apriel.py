"""Apriel 1.5 and 1.6: an array of objects with ids."""

# ruff: noqa: E501 - outputs as models write them

from tests.tool_calls.outputs.notation import Call, Cut, case, plain

CASES = [
    # One call.
    case(
        '<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "call_1"}]</tool_calls>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<tool_calls>[{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}, "id": "call_1"}]</tool_calls>',
        Call("get_weather", {"city": "Oslo", "days": 3}),
    ),
    case(
        '<tool_calls>[{"name": "get_weather", "arguments": {"city": "Rome", "unit": "celsius", "days": 10}, "id": "call_1"}]</tool_calls>',
        Call("get_weather", {"city": "Rome", "unit": "celsius", "days": 10}),
    ),
    case(
        '<tool_calls>[{"name": "get_time", "arguments": {}, "id": "call_1"}]</tool_calls>',
        Call("get_time", {}),
    ),
    case(
        '<tool_calls>[{"name": "math.add", "arguments": {"a": 1, "b": -2.5}, "id": "call_1"}]</tool_calls>',
        Call("math.add", {"a": 1, "b": -2.5}),
    ),
    case(
        '<tool_calls>[{"name": "get-quote", "arguments": {"symbol": "NVDA"}, "id": "call_1"}]</tool_calls>',
        Call("get-quote", {"symbol": "NVDA"}),
    ),
    # Values.
    case(
        '<tool_calls>[{"name": "search", "arguments": {"query": "x", "limit": null, "exact": true, "filters": {"lang": ["en", "de"], "deep": {"a": null}}, "tags": ["a", "b, c"]}, "id": "call_1"}]</tool_calls>',
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
        '<tool_calls>[{"name": "set_light", "arguments": {"on": false, "level": -0.0015}, "id": "call_1"}]</tool_calls>',
        Call("set_light", {"on": False, "level": -0.0015}),
    ),
    case(
        '<tool_calls>[{"name": "get_weather", "arguments": {"city": "75001"}, "id": "call_1"}]</tool_calls>',
        Call("get_weather", {"city": "75001"}),
    ),
    case(
        '<tool_calls>[{"name": "search", "arguments": {"query": "日本の天気 ☀️ in Zürich 😀"}, "id": "call_1"}]</tool_calls>',
        Call("search", {"query": "日本の天気 ☀️ in Zürich 😀"}),
    ),
    case(
        '<tool_calls>[{"name": "write_file", "arguments": {"path": "C:\\\\tmp\\\\a.txt", "content": "line 1\\n\\tline \\"2\\"\\r\\nit\'s"}, "id": "call_1"}]</tool_calls>',
        Call("write_file", {"path": "C:\\tmp\\a.txt", "content": 'line 1\n\tline "2"\r\nit\'s'}),
    ),
    case(
        '<tool_calls>[{"name": "write_file", "arguments": {"path": "a.py", "content": "def f(x):\\n    if x < 3:\\n        return {\'a\': \\"b\\"}[0]\\n"}, "id": "call_1"}]</tool_calls>',
        Call(
            "write_file",
            {
                "path": "a.py",
                "content": "def f(x):\n    if x < 3:\n        return {'a': \"b\"}[0]\n",
            },
        ),
    ),
    case(
        '<tool_calls>[{"name": "write_file", "arguments": {"path": "a.html", "content": "<p>a &amp; b</p>\\n<think>"}, "id": "call_1"}]</tool_calls>',
        Call("write_file", {"path": "a.html", "content": "<p>a &amp; b</p>\n<think>"}),
    ),
    case(
        '<tool_calls>[{"name": "write_file", "arguments": {"content": "Write <tool_calls> to call."}, "id": "call_1"}]</tool_calls>',
        Call("write_file", {"content": "Write <tool_calls> to call."}),
    ),
    case(
        '<tool_calls>[{"name": "search", "arguments": {"query": "", "tags": [], "filters": {}}, "id": "call_1"}]</tool_calls>',
        Call("search", {"query": "", "tags": [], "filters": {}}),
    ),
    case(
        '<tool_calls>[{"name": "send_mail", "arguments": {"to": ["a@b.c"], "subject": "", "body": " Hi "}, "id": "call_1"}]</tool_calls>',
        Call("send_mail", {"to": ["a@b.c"], "subject": "", "body": " Hi "}),
    ),
    # Several calls, and text around them.
    case(
        '<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "call_1"}, {"name": "get_time", "arguments": {}, "id": "call_1"}]</tool_calls>',
        Call("get_weather", {"city": "Paris"}),
        Call("get_time", {}),
    ),
    case(
        '<tool_calls>[{"name": "get_time", "arguments": {}, "id": "call_1"}, {"name": "get_weather", "arguments": {"city": "Oslo", "days": 1}, "id": "call_1"}, {"name": "get_time", "arguments": {}, "id": "call_1"}]</tool_calls>',
        Call("get_time", {}),
        Call("get_weather", {"city": "Oslo", "days": 1}),
        Call("get_time", {}),
    ),
    case(
        'I\'ll check.\n\n<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "call_1"}]</tool_calls>',
        "I'll check.\n\n",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<tool_calls>[{"name": "get_time", "arguments": {}, "id": "call_1"}]</tool_calls>\n\nOne moment, please.',
        Call("get_time", {}),
        "\n\nOne moment, please.",
    ),
    case(
        '\n\n<tool_calls>[{"name": "get_time", "arguments": {}, "id": "call_1"}]</tool_calls>\n',
        Call("get_time", {}),
    ),
    case(
        'a <b> < [c] <tool_call <tool_calls>[{"name": "get_time", "arguments": {}, "id": "call_1"}]</tool_calls>',
        "a <b> < [c] <tool_call ",
        Call("get_time", {}),
    ),
    # Missing or repeated closing words, and stray brackets.
    case(
        '<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "call_1"}]</tool_calls></tool_calls>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "call_1"}]',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<tool_calls><tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "call_1"}]</tool_calls>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "call_1"}</tool_calls>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "call_1"}}]</tool_calls>',
        Call("get_weather", {"city": "Paris"}),
    ),
    # Text.
    plain("The capital of France is Paris."),
    plain('{"name": "get_time", "arguments": {}}'),
    case(
        '<tool_calls>[{"name": "rm_rf", "arguments": {"path": "/"}, "id": "call_1"}]</tool_calls>',
        '[{"name": "rm_rf", "arguments": {"path": "/"}, "id": "call_1"}]',
    ),
    case("<tool_calls></tool_calls>"),
    case("Calls stand behind <tool_calls> here.", "Calls stand behind  here."),
    case("<tool_calls>get_time(", "get_time("),
    # Cut off.
    plain("<tool_calls"),
    case("<tool_calls>"),
    case('<tool_calls>[{"name": "get_wea', '[{"name": "get_wea'),
    case(
        '<tool_calls>[{"name": "get_weather", "arguments": {"city": "Par',
        Cut("get_weather", '{"city": "Par'),
    ),
    case(
        '<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 1',
        Cut("get_weather", '{"city": "Paris", "days": 1'),
    ),
    # Broken.
    case(
        '<tool_calls>[{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}]</tool_calls>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case('<tool_calls>{"name": "get_time", "arguments": {}}</tool_calls>', Call("get_time", {})),
    case('<tool_calls>[{"name": "get_time", "arguments": ""}]</tool_calls>', Call("get_time", {})),
    case('<tool_calls>[{"name": "get_time"}]</tool_calls>', Call("get_time", {})),
    case("<tool_calls>[]</tool_calls>", "[]"),
    case(
        '<tool_calls>[{"name": "get_weather", "arguments": {"city": Paris}}]</tool_calls>',
        Cut("get_weather", '{"city": Paris}}]'),
    ),
    case(
        '<tool_calls>[{"name": "get_time", "arguments": {}}, {"name": "rm_rf"}]</tool_calls>',
        Call("get_time", {}),
        ', {"name": "rm_rf"}]',
    ),
]
