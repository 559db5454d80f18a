r"""Hermes and Qwen: `<tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>`."""

# ruff: noqa: E501 - outputs as models write them

from tests.tool_calls.outputs.notation import Call, Cut, case, plain

CASES = [
    # One call.
    case(
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<tool_call>{"name":"get_weather","arguments":{"city":"Oslo","days":3}}</tool_call>',
        Call("get_weather", {"city": "Oslo", "days": 3}),
    ),
    case(
        '<tool_call>\n{"arguments": {"city": "Rome", "unit": "celsius"}, "name": "get_weather"}'
        "\n</tool_call> ",
        Call("get_weather", {"city": "Rome", "unit": "celsius"}),
    ),
    case(
        '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>',
        Call("get_time", {}),
    ),
    case('<tool_call>\n{"name": "get_time", "arguments": { }}\n</tool_call>', Call("get_time", {})),
    case('<tool_call>\n{"name": "get_time"}\n</tool_call>', Call("get_time", {})),
    case(
        '<tool_call>\n{"name": "get_time", "arguments": null}\n</tool_call>', Call("get_time", {})
    ),
    case(
        '<tool_call>\n{"name": "get_weather", "parameters": {"city": "Bern"}}\n</tool_call>',
        Call("get_weather", {"city": "Bern"}),
    ),
    case(
        '<tool_call>\n{"name": "get_weather", "arguments": "{\\"city\\": \\"Kyiv\\"}"}\n</tool_call>',
        Call("get_weather", {"city": "Kyiv"}),
    ),
    case(
        '<tool_call>\n{"type": "function", "function": {"name": "get_weather", "arguments": '
        '{"city": "Lima"}}}\n</tool_call>',
        Call("get_weather", {"city": "Lima"}),
    ),
    case(
        '<tool_call>\n{"id": "call_1", "type": "function", "name": "get_time", "arguments": {}, '
        '"index": 0}\n</tool_call>',
        Call("get_time", {}),
    ),
    # Values.
    case(
        '<tool_call>\n{"name": "search", "arguments": {"query": "a", "filters": {"lang": ["en", '
        '"de"], "year": {"from": 1990, "to": null}}, "exact": true}}\n</tool_call>',
        Call(
            "search",
            {
                "query": "a",
                "filters": {"lang": ["en", "de"], "year": {"from": 1990, "to": None}},
                "exact": True,
            },
        ),
    ),
    case(
        '<tool_call>\n{"name": "set_light", "arguments": {"on": false, "level": -1.5e-3, "color": '
        "null}}\n</tool_call>",
        Call("set_light", {"on": False, "level": -0.0015, "color": None}),
    ),
    case(
        '<tool_call>\n{"name": "set_light", "arguments": {"level": 0, "on": true}}\n</tool_call>',
        Call("set_light", {"level": 0, "on": True}),
    ),
    case(
        '<tool_call>\n{"name": "search", "arguments": {"query": "日本の天気 ☀️ in Zürich"}}\n</tool_call>',
        Call("search", {"query": "日本の天気 ☀️ in Zürich"}),
    ),
    case(
        '<tool_call>\n{"name": "search", "arguments": {"query": "\\u65e5\\u672c \\ud83d\\ude00"}}'
        "\n</tool_call>",
        Call("search", {"query": "日本 😀"}),
    ),
    case(
        '<tool_call>\n{"name": "write_file", "arguments": {"path": "C:\\\\tmp\\\\a.txt", "content": '
        '"line 1\\n\\tline \\"2\\"\\r\\n"}}\n</tool_call>',
        Call("write_file", {"path": "C:\\tmp\\a.txt", "content": 'line 1\n\tline "2"\r\n'}),
    ),
    case(
        '<tool_call>\n{"name": "write_file", "arguments": {"path": "a.c", "content": "int main() '
        '{ return x[0]; } // }]"}}\n</tool_call>',
        Call("write_file", {"path": "a.c", "content": "int main() { return x[0]; } // }]"}),
    ),
    case(
        '<tool_call>\n{"name": "write_file", "arguments": {"path": "a.md", "content": "Write '
        '<tool_call>{}</tool_call> and <think>."}}\n</tool_call>',
        Call(
            "write_file",
            {"path": "a.md", "content": "Write <tool_call>{}</tool_call> and <think>."},
        ),
    ),
    case(
        '<tool_call>\n{"name": "write_file", "arguments": {"path": "a", "content": "a\nb\tc"}}'
        "\n</tool_call>",
        Call("write_file", {"path": "a", "content": "a\nb\tc"}),
    ),
    case(
        '<tool_call>\n{\n  "name": "send_mail",\n  "arguments": {\n    "to": [\n      "a@b.c"\n    '
        '],\n    "subject": "",\n    "body": "Hi"\n  }\n}\n</tool_call>',
        Call("send_mail", {"to": ["a@b.c"], "subject": "", "body": "Hi"}),
    ),
    case(
        '<tool_call>\n{"name": "math.add", "arguments": {"a": 12345678901234567890, "b": 1E+2}}'
        "\n</tool_call>",
        Call("math.add", {"a": 12345678901234567890, "b": 100.0}),
    ),
    case(
        '<tool_call>\n{"name": "get-quote", "arguments": {"symbol": "NVDA"}}\n</tool_call>',
        Call("get-quote", {"symbol": "NVDA"}),
    ),
    # Several calls, and text around them.
    case(
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>',
        Call("get_weather", {"city": "Paris"}),
        Call("get_time", {}),
    ),
    case(
        '<tool_call>{"name": "get_time", "arguments": {}}</tool_call><tool_call>{"name": "get_time",'
        ' "arguments": {}}</tool_call><tool_call>{"name": "get_time"}</tool_call>',
        Call("get_time", {}),
        Call("get_time", {}),
        Call("get_time", {}),
    ),
    case(
        '<tool_call>\n[{"name": "get_time", "arguments": {}}, {"name": "get_weather", "arguments": '
        '{"city": "Oslo"}}]\n</tool_call>',
        Call("get_time", {}),
        Call("get_weather", {"city": "Oslo"}),
    ),
    case(
        '<tool_call>\n{"name": "get_time", "arguments": {}}\n{"name": "get_weather", "arguments": '
        '{"city": "Oslo"}}\n</tool_call>',
        Call("get_time", {}),
        Call("get_weather", {"city": "Oslo"}),
    ),
    case(
        "I'll check both cities.\n\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        "I'll check both cities.\n\n",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '\n\n<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>\n\nOne moment, please.',
        Call("get_time", {}),
        "\n\nOne moment, please.",
    ),
    case(
        '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>\nAnd then:\n<tool_call>\n'
        '{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n',
        Call("get_time", {}),
        "\nAnd then:\n",
        Call("get_weather", {"city": "Oslo"}),
    ),
    case(
        'Use `a <tool_b` or <tool>.<tool_call>{"name": "get_time", "arguments": {}}</tool_call>',
        "Use `a <tool_b` or <tool>.",
        Call("get_time", {}),
    ),
    # No closing marker, a marker twice.
    case('<tool_call>\n{"name": "get_time", "arguments": {}}', Call("get_time", {})),
    case('<tool_call>\n{"name": "get_time", "arguments": {}', Call("get_time", {})),
    case(
        '<tool_call><tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>',
        Call("get_time", {}),
    ),
    # Text.
    plain("The capital of France is Paris."),
    plain("  \n"),
    plain('{"name": "get_time", "arguments": {}}'),
    case(
        "A call is written between <tool_call> and </tool_call>.",
        "A call is written between  and .",
    ),
    case("<tool_call>get_time()</tool_call>", "get_time()"),
    case("<tool_call>\n</tool_call>", "\n"),
    case("<tool_call>\n[]\n</tool_call>", "\n[]\n"),
    case(
        '<tool_call>\n{"name": "rm_rf", "arguments": {"path": "/"}}\n</tool_call>',
        '\n{"name": "rm_rf", "arguments": {"path": "/"}}\n',
    ),
    case(
        '<tool_call>\n{"arguments": {"path": "/"}, "name": "rm_rf"}\n</tool_call>',
        '\n{"arguments": {"path": "/"}, "name": "rm_rf"}\n',
    ),
    case(
        '<tool_call>\n{"arguments": {"city": "Oslo"}}\n</tool_call>',
        '\n{"arguments": {"city": "Oslo"}}\n',
    ),
    case(
        '<tool_call>\n{"name": 5, "arguments": {}}\n</tool_call>',
        '\n{"name": 5, "arguments": {}}\n',
    ),
    case(
        '<tool_call>\n{"name": "", "arguments": {}}\n</tool_call>',
        '\n{"name": "", "arguments": {}}\n',
    ),
    case(
        '<tool_call>\n{"name": "get_weather", "arguments": ["Oslo"]}\n</tool_call>',
        '\n{"name": "get_weather", "arguments": ["Oslo"]}\n',
    ),
    case(
        '<tool_call>\n{"name": "get_weather", "arguments": "Oslo"}\n</tool_call>',
        '\n{"name": "get_weather", "arguments": "Oslo"}\n',
    ),
    case(
        "<tool_call>\n{'name': 'get_time', 'arguments': {}}\n</tool_call>",
        "\n{'name': 'get_time', 'arguments': {}}\n",
    ),
    case('<tool_call>\n{"name" "get_time"}\n</tool_call>', '\n{"name" "get_time"}\n'),
    # Cut off before the call is certain.
    plain("<tool_ca"),
    case("<tool_call>\n", "\n"),
    case('Well. <tool_call>\n{"name": "get_wea', 'Well. \n{"name": "get_wea'),
    case('<tool_call>\n{"name": "get_weather", "argu', '\n{"name": "get_weather", "argu'),
    case(
        '<tool_call>\n{"arguments": {"city": "Oslo"}, "na', '\n{"arguments": {"city": "Oslo"}, "na'
    ),
    # Cut off or broken after that.
    case(
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Par',
        Cut("get_weather", '{"city": "Par'),
    ),
    case(
        '<tool_call>\n{"name": "search", "arguments": {"query": "\\u65',
        Cut("search", '{"query": "\\u65'),
    ),
    case(
        '<tool_call>\n{"name": "set_light", "arguments": {"on": tru',
        Cut("set_light", '{"on": tru'),
    ),
    case(
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": Paris}}\n</tool_call>',
        Cut("get_weather", '{"city": Paris}}\n'),
    ),
    case(
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris",}}\n</tool_call>',
        Cut("get_weather", '{"city": "Paris",}}\n'),
    ),
    case(
        '<tool_call>\n{"name": "search", "arguments": {"query": "\\x"}}\n</tool_call>\n<tool_call>\n'
        '{"name": "get_time"}\n</tool_call>',
        Cut("search", '{"query": "\\x"}}\n'),
        Call("get_time", {}),
    ),
    case(
        '<tool_call>\n{"name": "get_time", "arguments": {}, oops}\n</tool_call>',
        Call("get_time", {}),
        ", oops}\n",
    ),
]
