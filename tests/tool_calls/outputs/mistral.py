"""Mistral: `[TOOL_CALLS] [{…}, …]`, and `[TOOL_CALLS]name[ARGS]{…}` since Small 3.2."""

# ruff: noqa: E501 - outputs as models write them

from tests.tool_calls.outputs.notation import Call, Cut, case, plain

CASES = [
    # An array.
    case(
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}]',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '[TOOL_CALLS][{"name":"get_weather","arguments":{"city":"Paris"}}]',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo"}, "id": "abc123def"}]',
        Call("get_weather", {"city": "Oslo"}),
    ),
    case(
        '[TOOL_CALLS] [{"arguments": {"city": "Oslo", "days": 2}, "name": "get_weather"}]',
        Call("get_weather", {"city": "Oslo", "days": 2}),
    ),
    case('[TOOL_CALLS] [{"name": "get_time", "arguments": {}}]', Call("get_time", {})),
    case('[TOOL_CALLS] [{"name": "get_time"}]', Call("get_time", {})),
    case('[TOOL_CALLS] {"name": "get_time", "arguments": {}}', Call("get_time", {})),
    case(
        '[TOOL_CALLS] [{"name": "get_time", "arguments": {}}, {"name": "get_weather", "arguments": '
        '{"city": "Rome"}}]',
        Call("get_time", {}),
        Call("get_weather", {"city": "Rome"}),
    ),
    case(
        '[TOOL_CALLS] [\n  {"name": "get_time", "arguments": {}},\n  {"name": "get_time", '
        '"arguments": {}, "id": "123456789"}\n]\n',
        Call("get_time", {}),
        Call("get_time", {}),
    ),
    case(
        '[TOOL_CALLS] [{"name": "search", "arguments": {"query": "[TOOL_CALLS] [{}] ]}, \\"x\\"", '
        '"tags": ["[ARGS]", "a]b"]}}]',
        Call("search", {"query": '[TOOL_CALLS] [{}] ]}, "x"', "tags": ["[ARGS]", "a]b"]}),
    ),
    case(
        '[TOOL_CALLS] [{"name": "search", "arguments": {"query": "fenêtre 窓 \\u7a93", "limit": null,'
        ' "filters": {"a": [1, 2.5, {"b": false}]}}}]',
        Call(
            "search",
            {"query": "fenêtre 窓 窓", "limit": None, "filters": {"a": [1, 2.5, {"b": False}]}},
        ),
    ),
    case(
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": "{\\"city\\": \\"Nice\\"}"}]',
        Call("get_weather", {"city": "Nice"}),
    ),
    case('[TOOL_CALLS] [{"name": "get_time", "arguments": ""}]', Call("get_time", {})),
    # By name.
    case('[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}', Call("get_weather", {"city": "Paris"})),
    case("[TOOL_CALLS]get_time[ARGS]{}", Call("get_time", {})),
    case('[TOOL_CALLS]get_weather{"city": "Paris"}', Call("get_weather", {"city": "Paris"})),
    case(
        '[TOOL_CALLS]get_weather[CALL_ID]123456789[ARGS]{"city": "Paris"}',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]get_time[ARGS]{}',
        Call("get_weather", {"city": "Paris"}),
        Call("get_time", {}),
    ),
    case(
        "[TOOL_CALLS]get_time[CALL_ID]a1[ARGS]{}[TOOL_CALLS]get_time[CALL_ID]a2[ARGS]{}\n",
        Call("get_time", {}),
        Call("get_time", {}),
    ),
    case('[TOOL_CALLS]math.add[ARGS]{"a": -1, "b": 2e3}', Call("math.add", {"a": -1, "b": 2000.0})),
    case('[TOOL_CALLS]get-quote[ARGS] {"symbol": "MC.PA"}', Call("get-quote", {"symbol": "MC.PA"})),
    case(
        '[TOOL_CALLS]write_file[ARGS]{"path": "a", "content": "x = [TOOL_CALLS]\\n{}"}',
        Call("write_file", {"path": "a", "content": "x = [TOOL_CALLS]\n{}"}),
    ),
    case(
        '[TOOL_CALLS]set_light[ARGS]{"on": true, "color": null, "level": 0.0}',
        Call("set_light", {"on": True, "color": None, "level": 0.0}),
    ),
    # Text around calls.
    case(
        'Je regarde.[TOOL_CALLS] [{"name": "get_time", "arguments": {}}]',
        "Je regarde.",
        Call("get_time", {}),
    ),
    case(
        "See [1] and [TOOL.[TOOL_CALLS]get_time[ARGS]{}",
        "See [1] and [TOOL.",
        Call("get_time", {}),
    ),
    case(
        '[TOOL_CALLS] [{"name": "get_time", "arguments": {}}] Un moment.',
        Call("get_time", {}),
        " Un moment.",
    ),
    case("[TOOL_CALLS]get_time[ARGS]{} [0]", Call("get_time", {}), " [0]"),
    # Text.
    plain("Bonjour [monde]."),
    plain('[{"name": "get_time", "arguments": {}}]'),
    case("[TOOL_CALLS] []", " []"),
    case("[TOOL_CALLS] none", " none"),
    case("[TOOL_CALLS]rm_rf[ARGS]{}", "rm_rf{}"),
    case(
        '[TOOL_CALLS] [{"name": "rm_rf", "arguments": {"path": "/"}}]',
        ' [{"name": "rm_rf", "arguments": {"path": "/"}}]',
    ),
    case("[TOOL_CALLS]get_time[CALL_ID]x{}", Call("get_time", {})),
    case('[TOOL_CALLS]get_time[ARGS]["x"]', 'get_time["x"]'),
    case(
        '[TOOL_CALLS] [{name: "get_weather", "arguments": {"city": "Oslo"',
        ' [{name: "get_weather", "arguments": {"city": "Oslo"',
    ),
    case("[TOOL_CALLS] [{'name': 'get_time'}]", " [{'name': 'get_time'}]"),
    case('[TOOL_CALLS] ["get_time"]', ' ["get_time"]'),
    # Cut off and broken.
    plain("[TOOL_CAL"),
    case("[TOOL_CALLS]"),
    case('[TOOL_CALLS] [{"name": "get_wea', ' [{"name": "get_wea'),
    case("[TOOL_CALLS]get_wea", "get_wea"),
    case("[TOOL_CALLS]get_weather[AR", "get_weather[AR"),
    case("[TOOL_CALLS]get_weather[ARGS]", Call("get_weather", {})),
    case(
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Pa',
        Cut("get_weather", '{"city": "Pa'),
    ),
    case('[TOOL_CALLS]get_weather[ARGS]{"ci', Cut("get_weather", '{"ci')),
    case(
        '[TOOL_CALLS] [{"name": "get_time", "arguments": {}}, {"name": "get_weather", "argum',
        Call("get_time", {}),
        ', {"name": "get_weather", "argum',
    ),
    case(
        '[TOOL_CALLS] [{"name": "get_time", "arguments": {}}, {"name": "rm_rf", "arguments": {}}]',
        Call("get_time", {}),
        ', {"name": "rm_rf", "arguments": {}}]',
    ),
    case('[TOOL_CALLS] [{"name": "get_time", "arguments": {}}', Call("get_time", {})),
    case('[TOOL_CALLS]get_weather[ARGS]{"city" "Oslo"}', Cut("get_weather", '{"city" "Oslo"}')),
    case(
        '[TOOL_CALLS] [{"name": "search", "arguments": {"limit": 01}}]',
        Cut("search", '{"limit": 01}}]'),
    ),
]
