"""Granite: `<|tool_call|>[…]`, `<tool_call>[…]`, and in version 4 `<tool_call>{…}</tool_call>`."""

# ruff: noqa: E501 - outputs as models write them

from tests.tool_calls.outputs.notation import Call, Cut, case, plain

CASES = [
    # One call.
    case(
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|tool_call|> [{"arguments": {"city": "Oslo", "days": 4}, "name": "get_weather"}]',
        Call("get_weather", {"city": "Oslo", "days": 4}),
    ),
    case(
        '<tool_call>[{"name": "get_weather", "arguments": {"city": "Rome"}}]',
        Call("get_weather", {"city": "Rome"}),
    ),
    case(
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>',
        Call("get_weather", {"city": "Rome"}),
    ),
    case('<|tool_call|>[{"name": "get_time", "arguments": {}}]', Call("get_time", {})),
    case('<|tool_call|>[{"name": "get_time"}]', Call("get_time", {})),
    case('<|tool_call|>[ { "name": "get_time", "arguments": null } ]\n', Call("get_time", {})),
    case('<|tool_call|>{"name": "get_time", "arguments": {}}', Call("get_time", {})),
    case(
        '<|tool_call|>[{"type": "function", "function": {"name": "get_time", "arguments": {}}}]',
        Call("get_time", {}),
    ),
    case(
        '<|tool_call|>[{"name": "get_weather", "arguments": "{\\"city\\": \\"Bonn\\"}"}]',
        Call("get_weather", {"city": "Bonn"}),
    ),
    case(
        '<|tool_call|>[{"name": "get-quote", "arguments": {"symbol": "IBM"}}]',
        Call("get-quote", {"symbol": "IBM"}),
    ),
    # Values.
    case(
        '<|tool_call|>[{"name": "search", "arguments": {"query": "a \\"b\\" [c] {d}, <|tool_call|>", '
        '"tags": ["]", "}"]}}]',
        Call("search", {"query": 'a "b" [c] {d}, <|tool_call|>', "tags": ["]", "}"]}),
    ),
    case(
        '<|tool_call|>[{"name": "search", "arguments": {"query": "Überblick 概要", "limit": 10, '
        '"exact": true, "filters": {"y": {"from": 2000, "to": null}}}}]',
        Call(
            "search",
            {
                "query": "Überblick 概要",
                "limit": 10,
                "exact": True,
                "filters": {"y": {"from": 2000, "to": None}},
            },
        ),
    ),
    case(
        '<|tool_call|>[{"name": "set_light", "arguments": {"on": true, "level": 3.5e-1}}]',
        Call("set_light", {"on": True, "level": 0.35}),
    ),
    case(
        '<|tool_call|>[{"name": "write_file", "arguments": {"path": "x", "content": "a\\nb\\\\n"}}]',
        Call("write_file", {"path": "x", "content": "a\nb\\n"}),
    ),
    case(
        '<|tool_call|>[{"name": "write_file", "arguments": {"content": "a\n\tb"}}]',
        Call("write_file", {"content": "a\n\tb"}),
    ),
    case(
        '<|tool_call|>[{"name": "search", "arguments": {"query": "\\u00df\\ud83d\\ude80"}}]',
        Call("search", {"query": "ß🚀"}),
    ),
    case(
        '<|tool_call|>[{"name": "send_mail", "arguments": {"to": [["a"], []], "subject": ""}}]',
        Call("send_mail", {"to": [["a"], []], "subject": ""}),
    ),
    # Several calls, and text around them.
    case(
        '<|tool_call|>[{"name": "get_time", "arguments": {}}, {"name": "get_weather", "arguments": '
        '{"city": "Paris"}}]',
        Call("get_time", {}),
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|tool_call|>[\n    {"name": "get_time", "arguments": {}},\n    {"name": "get_time", '
        '"arguments": {}},\n    {"name": "get_time", "arguments": {}}\n]',
        Call("get_time", {}),
        Call("get_time", {}),
        Call("get_time", {}),
    ),
    case(
        '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>\n<tool_call>\n{"name": '
        '"get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        Call("get_time", {}),
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|tool_call|>[{"name": "get_time", "arguments": {}}]<|tool_call|>[{"name": "get_time"}]',
        Call("get_time", {}),
        Call("get_time", {}),
    ),
    case(
        'I will check.\n<|tool_call|>[{"name": "get_time", "arguments": {}}]',
        "I will check.\n",
        Call("get_time", {}),
    ),
    case(
        '<|tool_call|>[{"name": "get_time", "arguments": {}}]\nThe time follows.',
        Call("get_time", {}),
        "\nThe time follows.",
    ),
    case(
        'a <| b <|tool c <|tool_call|>[{"name": "get_time"}]',
        "a <| b <|tool c ",
        Call("get_time", {}),
    ),
    # Text.
    plain("Granite is a rock."),
    plain('[{"name": "get_time", "arguments": {}}]'),
    case("<|tool_call|>"),
    case("<|tool_call|>[]", "[]"),
    case("<|tool_call|> get_time", " get_time"),
    case("<|tool_call|>[1, 2]", "[1, 2]"),
    case(
        '<|tool_call|>[{"arguments": {"query": "docling"}}]',
        '[{"arguments": {"query": "docling"}}]',
    ),
    case(
        '<|tool_call|>[{"name": "rm_rf", "arguments": {}}]', '[{"name": "rm_rf", "arguments": {}}]'
    ),
    case(
        '<|tool_call|>[{"name": "get_weather", "arguments": [1]}]',
        '[{"name": "get_weather", "arguments": [1]}]',
    ),
    case("<|tool_call|>[{'name': 'get_time'}]", "[{'name': 'get_time'}]"),
    case('<|tool_call|>[["get_time"]]', '[["get_time"]]'),
    case(
        '<|tool_call|>[{"name": "get_time" "arguments": {}}]',
        '[{"name": "get_time" "arguments": {}}]',
    ),
    # Cut off and broken.
    plain("<|tool_ca"),
    case('<|tool_call|>[{"name": "get_', '[{"name": "get_'),
    case(
        '<|tool_call|>[{"name": "get_weather", "arguments"', '[{"name": "get_weather", "arguments"'
    ),
    case('<|tool_call|>[{"arguments": {"city": "Oslo"}', '[{"arguments": {"city": "Oslo"}'),
    case(
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Pa',
        Cut("get_weather", '{"city": "Pa'),
    ),
    case(
        '<|tool_call|>[{"name": "search", "arguments": {"limit": 1',
        Cut("search", '{"limit": 1'),
    ),
    case('<|tool_call|>[{"name": "get_time", "arguments": {}}', Call("get_time", {})),
    case('<|tool_call|>[{"name": "get_time", "arguments": {}},', Call("get_time", {}), ","),
    case(
        '<|tool_call|>[{"name": "get_time", "arguments": {}}, {"name": "rm_rf"}]',
        Call("get_time", {}),
        ', {"name": "rm_rf"}]',
    ),
    case(
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"]}]',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|tool_call|>[{"name": "get_weather", "arguments": {city: "Paris"}}]',
        Cut("get_weather", '{city: "Paris"}}]'),
    ),
]
