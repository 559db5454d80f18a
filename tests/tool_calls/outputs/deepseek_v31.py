"""DeepSeek V3.1: name, separator, arguments."""

# ruff: noqa: E501 - outputs as models write them

from tests.tool_calls.outputs.notation import Call, Case, Cut, case, plain


def calls(inner: str, *parts: Call | Cut | str) -> Case:
    """Calls in their outer markers."""
    return case(f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>", *parts)


CASES = [
    # One call.
    calls(
        '<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>',
        Call("get_weather", {"city": "Paris"}),
    ),
    calls(
        '<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city":"Oslo","days":7}<｜tool▁call▁end｜>',
        Call("get_weather", {"city": "Oslo", "days": 7}),
    ),
    calls("<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜>", Call("get_time", {})),
    calls(
        "\n<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>\n{\n}\n<｜tool▁call▁end｜>\n",
        Call("get_time", {}),
    ),
    case(
        '<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Rome"}<｜tool▁call▁end｜>',
        Call("get_weather", {"city": "Rome"}),
    ),
    calls(
        '<｜tool▁call▁begin｜>math.add<｜tool▁sep｜>{"a": 1, "b": -2.50}<｜tool▁call▁end｜>',
        Call("math.add", {"a": 1, "b": -2.5}),
    ),
    calls(
        '<｜tool▁call▁begin｜>get-quote<｜tool▁sep｜>{"symbol": "0700.HK"}<｜tool▁call▁end｜>',
        Call("get-quote", {"symbol": "0700.HK"}),
    ),
    calls(
        '<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{"city": "Rome"}\n```<｜tool▁call▁end｜>',
        Call("get_weather", {"city": "Rome"}),
    ),
    # Values.
    calls(
        '<｜tool▁call▁begin｜>search<｜tool▁sep｜>{"query": "上海 — \\"外滩\\"", "tags": ["旅游", ""]}'
        "<｜tool▁call▁end｜>",
        Call("search", {"query": '上海 — "外滩"', "tags": ["旅游", ""]}),
    ),
    calls(
        '<｜tool▁call▁begin｜>search<｜tool▁sep｜>{"query": "x", "limit": null, "exact": true, '
        '"filters": {"a": {"b": [1, [2, [3]]]}, "c": {}}}<｜tool▁call▁end｜>',
        Call(
            "search",
            {
                "query": "x",
                "limit": None,
                "exact": True,
                "filters": {"a": {"b": [1, [2, [3]]]}, "c": {}},
            },
        ),
    ),
    calls(
        '<｜tool▁call▁begin｜>search<｜tool▁sep｜>{"query": "<｜tool▁sep｜>{}<｜tool▁calls▁end｜>"}'
        "<｜tool▁call▁end｜>",
        Call("search", {"query": "<｜tool▁sep｜>{}<｜tool▁calls▁end｜>"}),
    ),
    calls(
        '<｜tool▁call▁begin｜>write_file<｜tool▁sep｜>{"path": "a/b.py", "content": "if a:\\n\\tb = '
        '{\\"c\\": [1]}\\n"}<｜tool▁call▁end｜>',
        Call("write_file", {"path": "a/b.py", "content": 'if a:\n\tb = {"c": [1]}\n'}),
    ),
    calls(
        '<｜tool▁call▁begin｜>write_file<｜tool▁sep｜>{"path": "\\\\\\\\srv\\\\x", "content": "\\/\\b\\f"}'
        "<｜tool▁call▁end｜>",
        Call("write_file", {"path": "\\\\srv\\x", "content": "/\b\f"}),
    ),
    calls(
        '<｜tool▁call▁begin｜>search<｜tool▁sep｜>{"query": "\\ud83c\\udf27 \\u0041"}<｜tool▁call▁end｜>',
        Call("search", {"query": "🌧 A"}),
    ),
    calls(
        '<｜tool▁call▁begin｜>write_file<｜tool▁sep｜>{"content": "one\ttab\r\nend"}<｜tool▁call▁end｜>',
        Call("write_file", {"content": "one\ttab\r\nend"}),
    ),
    calls(
        '<｜tool▁call▁begin｜>set_light<｜tool▁sep｜>{"on": false, "color": null, "level": 1E2}'
        "<｜tool▁call▁end｜>",
        Call("set_light", {"on": False, "color": None, "level": 100.0}),
    ),
    calls(
        '<｜tool▁call▁begin｜>send_mail<｜tool▁sep｜>{"to": [], "subject": "", "body": " "}'
        "<｜tool▁call▁end｜>",
        Call("send_mail", {"to": [], "subject": "", "body": " "}),
    ),
    # Several calls, and text around them.
    calls(
        '<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        Call("get_weather", {"city": "Paris"}),
        Call("get_time", {}),
    ),
    calls(
        "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜>\n"
        "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜>\n"
        "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        Call("get_time", {}),
        Call("get_time", {}),
        Call("get_time", {}),
    ),
    case(
        "Let me check.\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "Let me check.\n",
        Call("get_time", {}),
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>\n\nOne moment.",
        Call("get_time", {}),
        "\n\nOne moment.",
    ),
    case(
        "<｜ and <｜tool▁ and <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜ and <｜tool▁ and ",
        Call("get_time", {}),
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        Call("get_time", {}),
    ),
    # Missing closing markers.
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        Call("get_time", {}),
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}", Call("get_time", {})
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁ca",
        Call("get_time", {}),
    ),
    # Text.
    plain("The weather in Paris is mild."),
    plain('{"name": "get_time", "arguments": {}}'),
    plain("</think>"),
    case("<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>"),
    case("<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>", "{}"),
    case("<｜tool▁call▁begin｜>rm_rf<｜tool▁sep｜>{}<｜tool▁call▁end｜>", "rm_rf{}"),
    case("<｜tool▁call▁begin｜><｜tool▁sep｜>{}<｜tool▁call▁end｜>", "{}"),
    case("<｜tool▁call▁begin｜>get_time<｜tool▁call▁end｜>", "get_time"),
    case('<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>"{}"<｜tool▁call▁end｜>', 'get_time"{}"'),
    case(
        "<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>city=Oslo<｜tool▁call▁end｜>",
        "get_weathercity=Oslo",
    ),
    plain("<|tool▁calls▁begin|><|tool▁call▁begin|>get_time<|tool▁sep|>{}"),
    # Cut off and broken.
    case("<｜tool▁calls▁begin｜><｜tool▁call▁be", "<｜tool▁call▁be"),
    case("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_we", "get_we"),
    case("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁s", "get_weather<｜tool▁s"),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>",
        Call("get_weather", {}),
    ),
    case(
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Par',
        Cut("get_weather", '{"city": "Par'),
    ),
    case(
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>search<｜tool▁sep｜>{"query": "a\\',
        Cut("search", '{"query": "a\\'),
    ),
    calls(
        '<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"<｜tool▁call▁end｜>',
        Call("get_weather", {"city": "Paris"}),
    ),
    calls(
        "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁call▁begin｜>rm_rf"
        "<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        Call("get_time", {}),
        "rm_rf{}",
    ),
]
