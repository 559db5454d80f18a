"""Apertus: an array of objects, each with the name as its key."""

# ruff: noqa: E501 - outputs as models write them

from tests.tool_calls.outputs.notation import Call, Cut, case, plain

CASES = [
    # One call.
    case(
        '<|tools_prefix|>[{"get_weather": {"city": "Paris"}}]<|tools_suffix|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|tools_prefix|>[{"get_weather": {"city": "Oslo", "days": 3}}]<|tools_suffix|>',
        Call("get_weather", {"city": "Oslo", "days": 3}),
    ),
    case(
        '<|tools_prefix|>[{"get_weather": {"city": "Rome", "unit": "celsius", "days": 10}}]<|tools_suffix|>',
        Call("get_weather", {"city": "Rome", "unit": "celsius", "days": 10}),
    ),
    case('<|tools_prefix|>[{"get_time": {}}]<|tools_suffix|>', Call("get_time", {})),
    case(
        '<|tools_prefix|>[{"math.add": {"a": 1, "b": -2.5}}]<|tools_suffix|>',
        Call("math.add", {"a": 1, "b": -2.5}),
    ),
    case(
        '<|tools_prefix|>[{"get-quote": {"symbol": "NVDA"}}]<|tools_suffix|>',
        Call("get-quote", {"symbol": "NVDA"}),
    ),
    # Values.
    case(
        '<|tools_prefix|>[{"search": {"query": "x", "limit": null, "exact": true, "filters": {"lang": ["en", "de"], "deep": {"a": null}}, "tags": ["a", "b, c"]}}]<|tools_suffix|>',
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
        '<|tools_prefix|>[{"set_light": {"on": false, "level": -0.0015}}]<|tools_suffix|>',
        Call("set_light", {"on": False, "level": -0.0015}),
    ),
    case(
        '<|tools_prefix|>[{"get_weather": {"city": "75001"}}]<|tools_suffix|>',
        Call("get_weather", {"city": "75001"}),
    ),
    case(
        '<|tools_prefix|>[{"search": {"query": "日本の天気 ☀️ in Zürich 😀"}}]<|tools_suffix|>',
        Call("search", {"query": "日本の天気 ☀️ in Zürich 😀"}),
    ),
    case(
        '<|tools_prefix|>[{"write_file": {"path": "C:\\\\tmp\\\\a.txt", "content": "line 1\\n\\tline \\"2\\"\\r\\nit\'s"}}]<|tools_suffix|>',
        Call("write_file", {"path": "C:\\tmp\\a.txt", "content": 'line 1\n\tline "2"\r\nit\'s'}),
    ),
    case(
        '<|tools_prefix|>[{"write_file": {"path": "a.py", "content": "def f(x):\\n    if x < 3:\\n        return {\'a\': \\"b\\"}[0]\\n"}}]<|tools_suffix|>',
        Call(
            "write_file",
            {
                "path": "a.py",
                "content": "def f(x):\n    if x < 3:\n        return {'a': \"b\"}[0]\n",
            },
        ),
    ),
    case(
        '<|tools_prefix|>[{"write_file": {"path": "a.html", "content": "<p>a &amp; b</p>\\n<think>"}}]<|tools_suffix|>',
        Call("write_file", {"path": "a.html", "content": "<p>a &amp; b</p>\n<think>"}),
    ),
    case(
        '<|tools_prefix|>[{"write_file": {"content": "Write <|tools_prefix|> to call."}}]<|tools_suffix|>',
        Call("write_file", {"content": "Write <|tools_prefix|> to call."}),
    ),
    case(
        '<|tools_prefix|>[{"search": {"query": "", "tags": [], "filters": {}}}]<|tools_suffix|>',
        Call("search", {"query": "", "tags": [], "filters": {}}),
    ),
    case(
        '<|tools_prefix|>[{"send_mail": {"to": ["a@b.c"], "subject": "", "body": " Hi "}}]<|tools_suffix|>',
        Call("send_mail", {"to": ["a@b.c"], "subject": "", "body": " Hi "}),
    ),
    # Several calls, and text around them.
    case(
        '<|tools_prefix|>[{"get_weather": {"city": "Paris"}}, {"get_time": {}}]<|tools_suffix|>',
        Call("get_weather", {"city": "Paris"}),
        Call("get_time", {}),
    ),
    case(
        '<|tools_prefix|>[{"get_time": {}}, {"get_weather": {"city": "Oslo", "days": 1}}, {"get_time": {}}]<|tools_suffix|>',
        Call("get_time", {}),
        Call("get_weather", {"city": "Oslo", "days": 1}),
        Call("get_time", {}),
    ),
    case(
        'I\'ll check.\n\n<|tools_prefix|>[{"get_weather": {"city": "Paris"}}]<|tools_suffix|>',
        "I'll check.\n\n",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|tools_prefix|>[{"get_time": {}}]<|tools_suffix|>\n\nOne moment, please.',
        Call("get_time", {}),
        "\n\nOne moment, please.",
    ),
    case('\n\n<|tools_prefix|>[{"get_time": {}}]<|tools_suffix|>\n', Call("get_time", {})),
    case(
        'a <b> < [c] <|tools_prefix <|tools_prefix|>[{"get_time": {}}]<|tools_suffix|>',
        "a <b> < [c] <|tools_prefix ",
        Call("get_time", {}),
    ),
    # Missing or repeated closing words, and stray brackets.
    case(
        '<|tools_prefix|>[{"get_weather": {"city": "Paris"}}]<|tools_suffix|><|tools_suffix|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|tools_prefix|>[{"get_weather": {"city": "Paris"}}]',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|tools_prefix|><|tools_prefix|>[{"get_weather": {"city": "Paris"}}]<|tools_suffix|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|tools_prefix|>[{"get_weather": {"city": "Paris"}}<|tools_suffix|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|tools_prefix|>[{"get_weather": {"city": "Paris"}}}]<|tools_suffix|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|tools_prefix|>[{"get_weather": {"city": "Paris"}]<|tools_suffix|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    # Text.
    plain("The capital of France is Paris."),
    plain('{"name": "get_time", "arguments": {}}'),
    case(
        '<|tools_prefix|>[{"rm_rf": {"path": "/"}}]<|tools_suffix|>', '[{"rm_rf": {"path": "/"}}]'
    ),
    case("<|tools_prefix|><|tools_suffix|>"),
    case("Calls stand behind <|tools_prefix|> here.", "Calls stand behind  here."),
    case("<|tools_prefix|>get_time(", "get_time("),
    # Cut off.
    plain("<|tools_prefix|"),
    case("<|tools_prefix|>"),
    case('<|tools_prefix|>[{"get_wea', '[{"get_wea'),
    case('<|tools_prefix|>[{"get_weather": {"city": "Par', Cut("get_weather", '{"city": "Par')),
    case(
        '<|tools_prefix|>[{"get_weather": {"city": "Paris", "days": 1',
        Cut("get_weather", '{"city": "Paris", "days": 1'),
    ),
    # Broken.
    case('<|tools_prefix|>[{"get_time": null}]<|tools_suffix|>', Call("get_time", {})),
    case(
        '<|tools_prefix|>[{"get_weather": {"city": "Paris"}}, {"rm_rf": {}}]<|tools_suffix|>',
        Call("get_weather", {"city": "Paris"}),
        ', {"rm_rf": {}}]',
    ),
    case(
        '<|tools_prefix|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]<|tools_suffix|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|tools_prefix|>[{"get_weather": "Paris"}]<|tools_suffix|>', '[{"get_weather": "Paris"}]'
    ),
    case("<|tools_prefix|>[]<|tools_suffix|>", "[]"),
    case(
        '<|tools_prefix|>[{"get_weather": {"city": Paris}}]<|tools_suffix|>',
        Cut("get_weather", '{"city": Paris}}]'),
    ),
]
