r"""Qwen3-Coder: `<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>`."""

# ruff: noqa: E501 - outputs as models write them

from tests.tool_calls.outputs.notation import Call, Case, Cut, case, plain


def written(inner: str, *parts: Call | Cut | str) -> Case:
    """A call in its outer tag."""
    return case(f"<tool_call>\n{inner}\n</tool_call>", *parts)


CASES = [
    # One call.
    written(
        "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>",
        Call("get_weather", {"city": "Paris"}),
    ),
    written(
        "<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n"
        "</parameter>\n</function>",
        Call("get_weather", {"city": "Oslo", "days": 3}),
    ),
    written("<function=get_time>\n</function>", Call("get_time", {})),
    written("<function=get_time></function>", Call("get_time", {})),
    case(
        "<tool_call><function=get_weather><parameter=city>Paris</parameter></function></tool_call>",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n</function>\n"
        "</seed:tool_call>",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        Call("get_weather", {"city": "Paris"}),
    ),
    written(
        "<function=get-quote>\n<parameter=symbol>\nNVDA\n</parameter>\n</function>",
        Call("get-quote", {"symbol": "NVDA"}),
    ),
    # Types by the schema.
    written(
        "<function=get_weather>\n<parameter=city>\n75001\n</parameter>\n</function>",
        Call("get_weather", {"city": "75001"}),
    ),
    written(
        "<function=get_weather>\n<parameter=city>\ntrue\n</parameter>\n<parameter=unit>\ncelsius\n"
        "</parameter>\n</function>",
        Call("get_weather", {"city": "true", "unit": "celsius"}),
    ),
    written(
        "<function=get_weather>\n<parameter=days>\nthree\n</parameter>\n</function>",
        Call("get_weather", {"days": "three"}),
    ),
    written(
        "<function=search>\n<parameter=limit>\nnull\n</parameter>\n</function>",
        Call("search", {"limit": None}),
    ),
    written(
        "<function=search>\n<parameter=limit>\n 10 \n</parameter>\n</function>",
        Call("search", {"limit": 10}),
    ),
    written(
        '<function=search>\n<parameter=filters>\n{"lang": ["en"], "deep": {"a": null}}\n</parameter>'
        "\n</function>",
        Call("search", {"filters": {"lang": ["en"], "deep": {"a": None}}}),
    ),
    written(
        "<function=search>\n<parameter=filters>\n{'lang': ['en'], 'exact': True}\n</parameter>\n"
        "</function>",
        Call("search", {"filters": {"lang": ["en"], "exact": True}}),
    ),
    written(
        '<function=search>\n<parameter=tags>\n["a", "b, c"]\n</parameter>\n</function>',
        Call("search", {"tags": ["a", "b, c"]}),
    ),
    written(
        "<function=search>\n<parameter=tags>\na, b\n</parameter>\n</function>",
        Call("search", {"tags": "a, b"}),
    ),
    written(
        "<function=search>\n<parameter=exact>\nTrue\n</parameter>\n</function>",
        Call("search", {"exact": True}),
    ),
    written(
        "<function=search>\n<parameter=exact>\nfalse\n</parameter>\n</function>",
        Call("search", {"exact": False}),
    ),
    written(
        "<function=set_light>\n<parameter=level>\n-0.5e1\n</parameter>\n<parameter=color>\nnull\n"
        "</parameter>\n</function>",
        Call("set_light", {"level": -5.0, "color": None}),
    ),
    written(
        "<function=set_light>\n<parameter=color>\nred\n</parameter>\n</function>",
        Call("set_light", {"color": "red"}),
    ),
    written(
        '<function=write_file>\n<parameter=meta>\n{"mode": 420}\n</parameter>\n</function>',
        Call("write_file", {"meta": {"mode": 420}}),
    ),
    written(
        "<function=get_time>\n<parameter=zone>\n5\n</parameter>\n</function>",
        Call("get_time", {"zone": "5"}),
    ),
    # Texts.
    written(
        "<function=search>\n<parameter=query>\n\n</parameter>\n</function>",
        Call("search", {"query": ""}),
    ),
    written(
        "<function=search>\n<parameter=query></parameter>\n</function>",
        Call("search", {"query": ""}),
    ),
    written(
        '<function=search>\n<parameter=query>\n日本 ☀️ "quoted" \\n {}\n</parameter>\n</function>',
        Call("search", {"query": '日本 ☀️ "quoted" \\n {}'}),
    ),
    written(
        "<function=write_file>\n<parameter=path>\na.py\n</parameter>\n<parameter=content>\n"
        "def f(x):\n    if x < 3:\n        return {'a': \"b\"}\n\n\n</parameter>\n</function>",
        Call(
            "write_file",
            {
                "path": "a.py",
                "content": "def f(x):\n    if x < 3:\n        return {'a': \"b\"}\n\n",
            },
        ),
    ),
    written(
        "<function=write_file>\n<parameter=content>\n<html>\n<p>a</p>\n</html>\n</parameter>\n"
        "</function>",
        Call("write_file", {"content": "<html>\n<p>a</p>\n</html>"}),
    ),
    written(
        "<function=write_file>\n<parameter=content>\nSee <function=f>, <parameter=a> and </function>"
        " inline.\n</parameter>\n</function>",
        Call("write_file", {"content": "See <function=f>, <parameter=a> and </function> inline."}),
    ),
    written(
        "<function=write_file>\n<parameter=content>\n    indented\n</parameter>\n</function>",
        Call("write_file", {"content": "    indented"}),
    ),
    # Several calls, and text around them.
    case(
        "<tool_call>\n<function=get_time>\n</function>\n</tool_call>\n<tool_call>\n"
        "<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>",
        Call("get_time", {}),
        Call("get_weather", {"city": "Oslo"}),
    ),
    written(
        "<function=get_time>\n</function>\n<function=get_weather>\n<parameter=city>\nOslo\n"
        "</parameter>\n</function>",
        Call("get_time", {}),
        Call("get_weather", {"city": "Oslo"}),
    ),
    case(
        "Let me look.\n\n<tool_call>\n<function=get_time>\n</function>\n</tool_call>",
        "Let me look.\n\n",
        Call("get_time", {}),
    ),
    case(
        "<tool_call>\n<function=get_time>\n</function>\n</tool_call>\nDone <b>soon</b>.",
        Call("get_time", {}),
        "\nDone <b>soon</b>.",
    ),
    # Missing tags.
    written(
        "<function=get_weather>\n<parameter=city>\nParis\n<parameter=days>\n2\n</parameter>\n"
        "</function>",
        Call("get_weather", {"city": "Paris", "days": 2}),
    ),
    written(
        "<function=get_weather>\n<parameter=city>\nParis\n</function>",
        Call("get_weather", {"city": "Paris"}),
    ),
    written(
        "<function=get_weather>\n<parameter=city>\nParis\n</parameter>",
        Call("get_weather", {"city": "Paris"}),
    ),
    case("<tool_call>\n<function=get_time>\n</function>", Call("get_time", {})),
    # Text.
    plain("Plain text with a < b and <i>tags</i>."),
    plain("Write <function= and a name."),
    case("<tool_call>\n</tool_call>", "\n"),
    case('<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>', Call("get_time", {})),
    case(
        "<tool_call>\n<function=rm_rf>\n<parameter=path>\n/\n</parameter>\n</function>\n</tool_call>",
        "\n<function=rm_rf>\n<parameter=path>\n/\n</parameter>\n</function>\n",
    ),
    case(
        "<tool_call>\n<function=get_time\n</function>\n</tool_call>",
        "\n<function=get_time\n</function>\n",
    ),
    case(
        "<tool_call>\n<function=get_weather>\nParis\n</function>\n</tool_call>",
        "\n<function=get_weather>\nParis\n</function>\n",
    ),
    case(
        "<tool_call>\n<function=get_weather>\n<parameter=\nParis\n</parameter>\n</tool_call>",
        "\n<function=get_weather>\n<parameter=\nParis\n</parameter>\n",
    ),
    case(
        "<tool_call>\n<function=get_weather>\n<parameter=city: Paris\n</tool_call>",
        "\n<function=get_weather>\n<parameter=city: Paris\n",
    ),
    # Cut off.
    case("<tool_call>\n<function=get_wea", "\n<function=get_wea"),
    case(
        "<tool_call>\n<function=get_weather>\n<parameter=ci",
        "\n<function=get_weather>\n<parameter=ci",
    ),
    case("<tool_call>\n<function=get_weather>\n", "\n<function=get_weather>\n"),
    case(
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar",
        Cut("get_weather", '{"city": "Par'),
    ),
    case(
        "<tool_call>\n<function=get_weather>\n<parameter=days>\n12",
        Cut("get_weather", '{"days": 12'),
    ),
    case(
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n",
        Cut("get_weather", '{"city": "Paris"'),
    ),
    written(
        "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\noops\n</function>",
        Call("get_weather", {"city": "Paris"}),
    ),
]
