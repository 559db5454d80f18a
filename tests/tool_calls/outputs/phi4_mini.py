"""Phi-4-mini: `<|tool_call|>[…]<|/tool_call|>` or `functools[…]`."""

# ruff: noqa: E501 - outputs as models write them

from tests.tool_calls.outputs.notation import Call, Cut, case, plain

CASES = [
    # One call.
    case(
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]<|/tool_call|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        'functools[{"name": "get_weather", "arguments": {"city": "Paris"}}]',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|tool_call|>{"name": "get_weather", "arguments": {"city": "Oslo", "days": 5}}<|/tool_call|>',
        Call("get_weather", {"city": "Oslo", "days": 5}),
    ),
    case(
        'functools [ {"name": "get_weather", "arguments": {"city": "Oslo"}} ]',
        Call("get_weather", {"city": "Oslo"}),
    ),
    case(
        '<|tool_call|>[{"type": "function", "function": {"name": "get_weather", "arguments": '
        '{"city": "Oslo"}}}]<|/tool_call|>',
        Call("get_weather", {"city": "Oslo"}),
    ),
    case('functools[{"name": "get_time", "arguments": {}}]', Call("get_time", {})),
    case('functools[{"name": "get_time", "arguments": null}]', Call("get_time", {})),
    case('<|tool_call|>[{"name": "get_time"}]<|/tool_call|>\n', Call("get_time", {})),
    case(
        '<|tool_call|>\n[\n{"arguments": {"city": "Oslo"}, "name": "get_weather"}\n]\n<|/tool_call|>',
        Call("get_weather", {"city": "Oslo"}),
    ),
    case(
        'functools[{"name": "get_weather", "parameters": {"city": "Oslo"}}]',
        Call("get_weather", {"city": "Oslo"}),
    ),
    case(
        'functools[{"name": "get_weather", "arguments": "{\\"city\\": \\"Oslo\\", \\"days\\": 1}"}]',
        Call("get_weather", {"city": "Oslo", "days": 1}),
    ),
    # Values.
    case(
        'functools[{"name": "math.add", "arguments": {"a": 7.0, "b": -0.5}}]',
        Call("math.add", {"a": 7.0, "b": -0.5}),
    ),
    case(
        'functools[{"name": "search", "arguments": {"query": "functools[{}] \\"]\\"", "exact": false, '
        '"limit": null, "tags": ["x", "é", "字"]}}]',
        Call(
            "search",
            {"query": 'functools[{}] "]"', "exact": False, "limit": None, "tags": ["x", "é", "字"]},
        ),
    ),
    case(
        'functools[{"name": "search", "arguments": {"filters": {"a": [{"b": {"c": []}}]}}}]',
        Call("search", {"filters": {"a": [{"b": {"c": []}}]}}),
    ),
    case(
        '<|tool_call|>[{"name": "write_file", "arguments": {"path": "p", "content": "<|/tool_call|>\\n'
        '\\t{}"}}]<|/tool_call|>',
        Call("write_file", {"path": "p", "content": "<|/tool_call|>\n\t{}"}),
    ),
    case(
        '<|tool_call|>[{"name": "write_file", "arguments": {"content": "a\nb"}}]<|/tool_call|>',
        Call("write_file", {"content": "a\nb"}),
    ),
    case(
        'functools[{"name": "search", "arguments": {"query": "\\u00e9\\\\ \\/"}}]',
        Call("search", {"query": "é\\ /"}),
    ),
    case(
        'functools[{"name": "get-quote", "arguments": {"symbol": ""}}]',
        Call("get-quote", {"symbol": ""}),
    ),
    # Several calls, and text around them.
    case(
        'functools[{"name": "get_time", "arguments": {}}, {"name": "get_weather", "arguments": '
        '{"city": "Paris"}}]',
        Call("get_time", {}),
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|tool_call|>[{"name": "get_time", "arguments": {}},{"name": "get_time", "arguments": {}}]'
        "<|/tool_call|>",
        Call("get_time", {}),
        Call("get_time", {}),
    ),
    case(
        '<|tool_call|>{"name": "get_time", "arguments": {}}<|/tool_call|><|tool_call|>{"name": '
        '"get_weather", "arguments": {"city": "Paris"}}<|/tool_call|>',
        Call("get_time", {}),
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        'functools[{"name": "get_time"}]\nfunctools[{"name": "get_time"}]',
        Call("get_time", {}),
        Call("get_time", {}),
    ),
    case(
        'Checking now. functools[{"name": "get_time", "arguments": {}}]',
        "Checking now. ",
        Call("get_time", {}),
    ),
    case(
        '<|tool_call|>[{"name": "get_time", "arguments": {}}]<|/tool_call|> Please wait.',
        Call("get_time", {}),
        " Please wait.",
    ),
    case(
        'from functools import wraps. functools[{"name": "get_time"}]',
        "from functools import wraps. ",
        Call("get_time", {}),
    ),
    # Text.
    plain("Phi is 1.618."),
    plain("Use functools.reduce for that."),
    plain("functools"),
    plain("functools[0]"),
    plain("functools[]"),
    plain('[{"name": "get_time", "arguments": {}}]'),
    plain('functools[{"name": "rm_rf", "arguments": {"path": "/"}}]'),
    plain("functools[{'name': 'get_time'}]"),
    plain('functools[{"name": "get_weather", "arguments": ["Oslo"]}]'),
    plain('functools[{"arguments": {}}]'),
    case("<|tool_call|><|/tool_call|>"),
    case("<|tool_call|>get_time()<|/tool_call|>", "get_time()"),
    case("<|/tool_call|>"),
    # Cut off and broken.
    plain("func"),
    plain("functools["),
    case('<|tool_call|>[{"name": "get_wea', '[{"name": "get_wea'),
    plain('functools[{"name": "get_weather", "arguments": '),
    case(
        'functools[{"name": "get_weather", "arguments": {"city": "Pa',
        Cut("get_weather", '{"city": "Pa'),
    ),
    case(
        '<|tool_call|>[{"name": "set_light", "arguments": {"on": f',
        Cut("set_light", '{"on": f'),
    ),
    case(
        '<|tool_call|>[{"name": "get_time", "arguments": {}}]<|/tool',
        Call("get_time", {}),
    ),
    case(
        'functools[{"name": "get_time", "arguments": {}}, {"name": "get_weather", "arguments": {"c',
        Call("get_time", {}),
        Cut("get_weather", '{"c'),
    ),
    case(
        'functools[{"name": "get_time", "arguments": {}}; {"name": "get_time"}]',
        Call("get_time", {}),
        '; {"name": "get_time"}]',
    ),
    case(
        'functools[{"name": "get_weather", "arguments": {"city": True}}]',
        Cut("get_weather", '{"city": True}}]'),
    ),
]
