"""Llama 3: `{"name": …, "parameters": {…}}`, bare or after `<|python_tag|>`."""

# ruff: noqa: E501 - outputs as models write them

from tests.tool_calls.outputs.notation import Call, Cut, case, plain

CASES = [
    # One call.
    case(
        '{"name": "get_weather", "parameters": {"city": "Paris"}}',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris", "days": 2}}',
        Call("get_weather", {"city": "Paris", "days": 2}),
    ),
    case(
        '<|python_tag|>{"type": "function", "name": "get_weather", "parameters": {"city": "Oslo"}}',
        Call("get_weather", {"city": "Oslo"}),
    ),
    case(
        '{"type": "function", "name": "get_weather", "parameters": {"city": "Oslo"}}',
        Call("get_weather", {"city": "Oslo"}),
    ),
    case(
        '{"function": "get_weather", "parameters": {"city": "Oslo"}}',
        Call("get_weather", {"city": "Oslo"}),
    ),
    case(
        '{"name": "get_weather", "arguments": {"city": "Rome"}}',
        Call("get_weather", {"city": "Rome"}),
    ),
    case(
        '{"parameters": {"city": "Rome"}, "name": "get_weather"}',
        Call("get_weather", {"city": "Rome"}),
    ),
    case('{"name": "get_time", "parameters": {}}', Call("get_time", {})),
    case('{"name": "get_time", "parameters": null}', Call("get_time", {})),
    case('<|python_tag|>{"name": "get_time"}', Call("get_time", {})),
    case('\n\n{"name": "get_time", "parameters": {}}\n', Call("get_time", {})),
    case('  { "name" : "get_time" , "parameters" : { } }', Call("get_time", {})),
    case(
        '{\n    "name": "get_weather",\n    "parameters": {\n        "city": "Paris"\n    }\n}',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '{"name": "get_weather", "parameters": "{\\"city\\": \\"Kyiv\\"}"}',
        Call("get_weather", {"city": "Kyiv"}),
    ),
    case(
        '<|python_start|>{"name": "get_weather", "parameters": {"city": "Oslo"}}<|python_end|>',
        Call("get_weather", {"city": "Oslo"}),
    ),
    # Values.
    case(
        '{"name": "search", "parameters": {"query": "a {b} [c] \\"d\\" ; e", "tags": ["}", ";"]}}',
        Call("search", {"query": 'a {b} [c] "d" ; e', "tags": ["}", ";"]}),
    ),
    case(
        '{"name": "search", "parameters": {"query": "", "limit": null, "exact": true, "filters": '
        '{"a": {"b": {"c": [[], {}, [1.5, -2]]}}}}}',
        Call(
            "search",
            {
                "query": "",
                "limit": None,
                "exact": True,
                "filters": {"a": {"b": {"c": [[], {}, [1.5, -2]]}}},
            },
        ),
    ),
    case(
        '{"name": "search", "parameters": {"query": "größe ✓ 東京 \\u00e9"}}',
        Call("search", {"query": "größe ✓ 東京 é"}),
    ),
    case(
        '{"name": "write_file", "parameters": {"path": "/tmp/x", "content": "a\\n\\tb\\\\c"}}',
        Call("write_file", {"path": "/tmp/x", "content": "a\n\tb\\c"}),
    ),
    case(
        '{"name": "write_file", "parameters": {"path": "x", "content": "<|python_tag|>{\\"name\\": '
        '\\"get_time\\"}"}}',
        Call("write_file", {"path": "x", "content": '<|python_tag|>{"name": "get_time"}'}),
    ),
    case(
        '{"name": "math.add", "parameters": {"a": "2", "b": 3e2}}',
        Call("math.add", {"a": "2", "b": 300.0}),
    ),
    # Several calls.
    case(
        '{"name": "get_time", "parameters": {}}; {"name": "get_weather", "parameters": {"city": '
        '"Oslo"}}',
        Call("get_time", {}),
        Call("get_weather", {"city": "Oslo"}),
    ),
    case(
        '<|python_tag|>{"name": "get_time", "parameters": {}};{"name": "get_time", "parameters": {}}'
        ' ; {"name": "get_time", "parameters": {}}',
        Call("get_time", {}),
        Call("get_time", {}),
        Call("get_time", {}),
    ),
    case(
        '{"name": "get_time", "parameters": {}}\n{"name": "get_weather", "parameters": {"city": '
        '"Oslo"}}',
        Call("get_time", {}),
        Call("get_weather", {"city": "Oslo"}),
    ),
    case(
        '<|python_tag|>[{"name": "get_time", "parameters": {}}, {"name": "get_weather", '
        '"parameters": {"city": "Oslo"}}]',
        Call("get_time", {}),
        Call("get_weather", {"city": "Oslo"}),
    ),
    case(
        '[{"name": "get_time", "parameters": {}}, {"name": "get_time", "parameters": {}}]',
        Call("get_time", {}),
        Call("get_time", {}),
    ),
    # The way of built-in tools.
    case(
        '<|python_tag|>get_weather(city="Paris", days=2)',
        Call("get_weather", {"city": "Paris", "days": 2}),
    ),
    case("<|python_tag|>get_time()", Call("get_time", {})),
    # Text around calls.
    case(
        'I will look it up.\n{"name": "get_weather", "parameters": {"city": "Paris"}}',
        "I will look it up.\n",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        'Sure:\n```json\n{"name": "get_time", "parameters": {}}\n```',
        "Sure:\n```json\n",
        Call("get_time", {}),
        "\n```",
    ),
    case(
        'Let me see. <|python_tag|>{"name": "get_time", "parameters": {}}',
        "Let me see. ",
        Call("get_time", {}),
    ),
    case(
        '{"name": "get_time", "parameters": {}} Please wait; thanks.',
        Call("get_time", {}),
        " Please wait; thanks.",
    ),
    case(
        '{"name": "get_time", "parameters": {}}; and so on',
        Call("get_time", {}),
        "; and so on",
    ),
    # Text.
    plain("Paris is the capital of France."),
    plain('{"city": "Paris", "name": "get_time", "parameters": {}}'),
    plain('{"answer": 42, "items": [{"name": "get_time", "parameters": {}}]}'),
    plain('Send {"name": "get_time", "parameters": {}} to the server.'),
    plain('{"name": "Alice", "parameters": {"age": 5}}'),
    plain('{"name": "get_time"}'),
    plain('{"name": "get_weather", "parameters": ["Oslo"]}'),
    plain('{"name": "get_weather"; "parameters": {}}'),
    plain("{name: get_time, parameters: {}}"),
    plain("if (x) {\n{ y(); }\n}"),
    case("<|python_tag|>print('hello')", "print('hello')"),
    case("<|python_tag|>import math\nmath.add(a=1, b=2)", "import math\nmath.add(a=1, b=2)"),
    plain('[1] See [2].\n[{"city": "Paris"}]'),
    plain("{"),
    plain("{}"),
    case("<|python_tag|>"),
    # Cut off.
    plain('{"name": "get_wea'),
    plain('{"name": "get_weather", "parameters":'),
    case("<|python_tag|>get_weather(city=", "get_weather(city="),
    case(
        '{"name": "get_weather", "parameters": {"city": "Par',
        Cut("get_weather", '{"city": "Par'),
    ),
    case('{"name": "get_weather", "parameters": {', Cut("get_weather", "{")),
    case(
        '{"name": "set_light", "parameters": {"level": 1.',
        Cut("set_light", '{"level": 1.'),
    ),
    case(
        '{"name": "get_time", "parameters": {}}; {"name": "get_weather", "parameters": {"city": "O',
        Call("get_time", {}),
        Cut("get_weather", '{"city": "O'),
    ),
    case(
        '{"name": "get_time", "parameters": {}}; {"name": "get_wea',
        Call("get_time", {}),
        '; {"name": "get_wea',
    ),
    case('{"name": "get_time", "parameters": {}', Call("get_time", {})),
    case(
        '{"name": "get_weather", "parameters": {"city": \'Paris\'}}',
        Cut("get_weather", "{\"city\": 'Paris'}}"),
    ),
]
