"""Nemotron Nano v2: an array of objects."""

# ruff: noqa: E501 - outputs as models write them

from tests.tool_calls.outputs.notation import Call, Cut, case, plain

CASES = [
    # One call.
    case(
        '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</TOOLCALL>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}]</TOOLCALL>',
        Call("get_weather", {"city": "Oslo", "days": 3}),
    ),
    case(
        '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Rome", "unit": "celsius", "days": 10}}]</TOOLCALL>',
        Call("get_weather", {"city": "Rome", "unit": "celsius", "days": 10}),
    ),
    case('<TOOLCALL>[{"name": "get_time", "arguments": {}}]</TOOLCALL>', Call("get_time", {})),
    case(
        '<TOOLCALL>[{"name": "math.add", "arguments": {"a": 1, "b": -2.5}}]</TOOLCALL>',
        Call("math.add", {"a": 1, "b": -2.5}),
    ),
    case(
        '<TOOLCALL>[{"name": "get-quote", "arguments": {"symbol": "NVDA"}}]</TOOLCALL>',
        Call("get-quote", {"symbol": "NVDA"}),
    ),
    # Values.
    case(
        '<TOOLCALL>[{"name": "search", "arguments": {"query": "x", "limit": null, "exact": true, "filters": {"lang": ["en", "de"], "deep": {"a": null}}, "tags": ["a", "b, c"]}}]</TOOLCALL>',
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
        '<TOOLCALL>[{"name": "set_light", "arguments": {"on": false, "level": -0.0015}}]</TOOLCALL>',
        Call("set_light", {"on": False, "level": -0.0015}),
    ),
    case(
        '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "75001"}}]</TOOLCALL>',
        Call("get_weather", {"city": "75001"}),
    ),
    case(
        '<TOOLCALL>[{"name": "search", "arguments": {"query": "日本の天気 ☀️ in Zürich 😀"}}]</TOOLCALL>',
        Call("search", {"query": "日本の天気 ☀️ in Zürich 😀"}),
    ),
    case(
        '<TOOLCALL>[{"name": "write_file", "arguments": {"path": "C:\\\\tmp\\\\a.txt", "content": "line 1\\n\\tline \\"2\\"\\r\\nit\'s"}}]</TOOLCALL>',
        Call("write_file", {"path": "C:\\tmp\\a.txt", "content": 'line 1\n\tline "2"\r\nit\'s'}),
    ),
    case(
        '<TOOLCALL>[{"name": "write_file", "arguments": {"path": "a.py", "content": "def f(x):\\n    if x < 3:\\n        return {\'a\': \\"b\\"}[0]\\n"}}]</TOOLCALL>',
        Call(
            "write_file",
            {
                "path": "a.py",
                "content": "def f(x):\n    if x < 3:\n        return {'a': \"b\"}[0]\n",
            },
        ),
    ),
    case(
        '<TOOLCALL>[{"name": "write_file", "arguments": {"path": "a.html", "content": "<p>a &amp; b</p>\\n<think>"}}]</TOOLCALL>',
        Call("write_file", {"path": "a.html", "content": "<p>a &amp; b</p>\n<think>"}),
    ),
    case(
        '<TOOLCALL>[{"name": "write_file", "arguments": {"content": "Write <TOOLCALL> to call."}}]</TOOLCALL>',
        Call("write_file", {"content": "Write <TOOLCALL> to call."}),
    ),
    case(
        '<TOOLCALL>[{"name": "search", "arguments": {"query": "", "tags": [], "filters": {}}}]</TOOLCALL>',
        Call("search", {"query": "", "tags": [], "filters": {}}),
    ),
    case(
        '<TOOLCALL>[{"name": "send_mail", "arguments": {"to": ["a@b.c"], "subject": "", "body": " Hi "}}]</TOOLCALL>',
        Call("send_mail", {"to": ["a@b.c"], "subject": "", "body": " Hi "}),
    ),
    # Several calls, and text around them.
    case(
        '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "get_time", "arguments": {}}]</TOOLCALL>',
        Call("get_weather", {"city": "Paris"}),
        Call("get_time", {}),
    ),
    case(
        '<TOOLCALL>[{"name": "get_time", "arguments": {}}, {"name": "get_weather", "arguments": {"city": "Oslo", "days": 1}}, {"name": "get_time", "arguments": {}}]</TOOLCALL>',
        Call("get_time", {}),
        Call("get_weather", {"city": "Oslo", "days": 1}),
        Call("get_time", {}),
    ),
    case(
        'I\'ll check.\n\n<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</TOOLCALL>',
        "I'll check.\n\n",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<TOOLCALL>[{"name": "get_time", "arguments": {}}]</TOOLCALL>\n\nOne moment, please.',
        Call("get_time", {}),
        "\n\nOne moment, please.",
    ),
    case(
        '\n\n<TOOLCALL>[{"name": "get_time", "arguments": {}}]</TOOLCALL>\n', Call("get_time", {})
    ),
    case(
        'a <b> < [c] <TOOLCAL <TOOLCALL>[{"name": "get_time", "arguments": {}}]</TOOLCALL>',
        "a <b> < [c] <TOOLCAL ",
        Call("get_time", {}),
    ),
    # Missing or repeated closing words, and stray brackets.
    case(
        '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</TOOLCALL></TOOLCALL>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}]',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<TOOLCALL><TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</TOOLCALL>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}</TOOLCALL>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}}]</TOOLCALL>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}]</TOOLCALL>',
        Call("get_weather", {"city": "Paris"}),
    ),
    # Text.
    plain("The capital of France is Paris."),
    plain('{"name": "get_time", "arguments": {}}'),
    case(
        '<TOOLCALL>[{"name": "rm_rf", "arguments": {"path": "/"}}]</TOOLCALL>',
        '[{"name": "rm_rf", "arguments": {"path": "/"}}]',
    ),
    case("<TOOLCALL></TOOLCALL>"),
    case("Calls stand behind <TOOLCALL> here.", "Calls stand behind  here."),
    case("<TOOLCALL>get_time(", "get_time("),
    # Cut off.
    plain("<TOOLCALL"),
    case("<TOOLCALL>"),
    case('<TOOLCALL>[{"name": "get_wea', '[{"name": "get_wea'),
    case(
        '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Par',
        Cut("get_weather", '{"city": "Par'),
    ),
    case(
        '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 1',
        Cut("get_weather", '{"city": "Paris", "days": 1'),
    ),
    # Broken.
    case(
        '<TOOLCALL>[{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}]</TOOLCALL>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case('<TOOLCALL>{"name": "get_time", "arguments": {}}</TOOLCALL>', Call("get_time", {})),
    case('<TOOLCALL>[{"name": "get_time", "arguments": null}]</TOOLCALL>', Call("get_time", {})),
    case('<TOOLCALL>[{"name": "get_time"}]</TOOLCALL>', Call("get_time", {})),
    case("<TOOLCALL>[]</TOOLCALL>", "[]"),
    case(
        '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": Paris}}]</TOOLCALL>',
        Cut("get_weather", '{"city": Paris}}]'),
    ),
    case(
        '<TOOLCALL>[{"name": "get_time", "arguments": {}}, {"name": "rm_rf"}]</TOOLCALL>',
        Call("get_time", {}),
        ', {"name": "rm_rf"}]',
    ),
]
