"""Hunyuan: tags for keys and values, or an array of objects."""

# ruff: noqa: E501 - outputs as models write them

from tests.tool_calls.outputs.notation import Call, Cut, case, plain

CASES = [
    # One call.
    case(
        "<tool_calls><tool_call>get_weather<tool_sep><arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call></tool_calls>",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<tool_calls><tool_call>get_weather<tool_sep><arg_key>city</arg_key><arg_value>Oslo</arg_value><arg_key>days</arg_key><arg_value>3</arg_value></tool_call></tool_calls>",
        Call("get_weather", {"city": "Oslo", "days": 3}),
    ),
    case(
        "<tool_calls><tool_call>get_weather<tool_sep><arg_key>city</arg_key><arg_value>Rome</arg_value><arg_key>unit</arg_key><arg_value>celsius</arg_value><arg_key>days</arg_key><arg_value>10</arg_value></tool_call></tool_calls>",
        Call("get_weather", {"city": "Rome", "unit": "celsius", "days": 10}),
    ),
    case(
        "<tool_calls><tool_call>get_time<tool_sep></tool_call></tool_calls>", Call("get_time", {})
    ),
    case(
        "<tool_calls><tool_call>math.add<tool_sep><arg_key>a</arg_key><arg_value>1</arg_value><arg_key>b</arg_key><arg_value>-2.5</arg_value></tool_call></tool_calls>",
        Call("math.add", {"a": 1, "b": -2.5}),
    ),
    case(
        "<tool_calls><tool_call>get-quote<tool_sep><arg_key>symbol</arg_key><arg_value>NVDA</arg_value></tool_call></tool_calls>",
        Call("get-quote", {"symbol": "NVDA"}),
    ),
    # Values.
    case(
        '<tool_calls><tool_call>search<tool_sep><arg_key>query</arg_key><arg_value>x</arg_value><arg_key>limit</arg_key><arg_value>null</arg_value><arg_key>exact</arg_key><arg_value>true</arg_value><arg_key>filters</arg_key><arg_value>{"lang": ["en", "de"], "deep": {"a": null}}</arg_value><arg_key>tags</arg_key><arg_value>["a", "b, c"]</arg_value></tool_call></tool_calls>',
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
        "<tool_calls><tool_call>set_light<tool_sep><arg_key>on</arg_key><arg_value>false</arg_value><arg_key>level</arg_key><arg_value>-0.0015</arg_value></tool_call></tool_calls>",
        Call("set_light", {"on": False, "level": -0.0015}),
    ),
    case(
        "<tool_calls><tool_call>get_weather<tool_sep><arg_key>city</arg_key><arg_value>75001</arg_value></tool_call></tool_calls>",
        Call("get_weather", {"city": "75001"}),
    ),
    case(
        "<tool_calls><tool_call>search<tool_sep><arg_key>query</arg_key><arg_value>日本の天気 ☀️ in Zürich 😀</arg_value></tool_call></tool_calls>",
        Call("search", {"query": "日本の天気 ☀️ in Zürich 😀"}),
    ),
    case(
        '<tool_calls><tool_call>write_file<tool_sep><arg_key>path</arg_key><arg_value>C:\\tmp\\a.txt</arg_value><arg_key>content</arg_key><arg_value>line 1\n\tline "2"\r\nit\'s</arg_value></tool_call></tool_calls>',
        Call("write_file", {"path": "C:\\tmp\\a.txt", "content": 'line 1\n\tline "2"\r\nit\'s'}),
    ),
    case(
        "<tool_calls><tool_call>write_file<tool_sep><arg_key>path</arg_key><arg_value>a.py</arg_value><arg_key>content</arg_key><arg_value>def f(x):\n    if x < 3:\n        return {'a': \"b\"}[0]\n</arg_value></tool_call></tool_calls>",
        Call(
            "write_file",
            {
                "path": "a.py",
                "content": "def f(x):\n    if x < 3:\n        return {'a': \"b\"}[0]\n",
            },
        ),
    ),
    case(
        "<tool_calls><tool_call>write_file<tool_sep><arg_key>path</arg_key><arg_value>a.html</arg_value><arg_key>content</arg_key><arg_value><p>a &amp; b</p>\n<think></arg_value></tool_call></tool_calls>",
        Call("write_file", {"path": "a.html", "content": "<p>a &amp; b</p>\n<think>"}),
    ),
    case(
        "<tool_calls><tool_call>write_file<tool_sep><arg_key>content</arg_key><arg_value>Write <tool_calls> to call.</arg_value></tool_call></tool_calls>",
        Call("write_file", {"content": "Write <tool_calls> to call."}),
    ),
    case(
        "<tool_calls><tool_call>search<tool_sep><arg_key>query</arg_key><arg_value></arg_value><arg_key>tags</arg_key><arg_value>[]</arg_value><arg_key>filters</arg_key><arg_value>{}</arg_value></tool_call></tool_calls>",
        Call("search", {"query": "", "tags": [], "filters": {}}),
    ),
    case(
        '<tool_calls><tool_call>send_mail<tool_sep><arg_key>to</arg_key><arg_value>["a@b.c"]</arg_value><arg_key>subject</arg_key><arg_value></arg_value><arg_key>body</arg_key><arg_value> Hi </arg_value></tool_call></tool_calls>',
        Call("send_mail", {"to": ["a@b.c"], "subject": "", "body": " Hi "}),
    ),
    # Several calls, and text around them.
    case(
        "<tool_calls><tool_call>get_weather<tool_sep><arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call><tool_call>get_time<tool_sep></tool_call></tool_calls>",
        Call("get_weather", {"city": "Paris"}),
        Call("get_time", {}),
    ),
    case(
        "<tool_calls><tool_call>get_time<tool_sep></tool_call><tool_call>get_weather<tool_sep><arg_key>city</arg_key><arg_value>Oslo</arg_value><arg_key>days</arg_key><arg_value>1</arg_value></tool_call><tool_call>get_time<tool_sep></tool_call></tool_calls>",
        Call("get_time", {}),
        Call("get_weather", {"city": "Oslo", "days": 1}),
        Call("get_time", {}),
    ),
    case(
        "I'll check.\n\n<tool_calls><tool_call>get_weather<tool_sep><arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call></tool_calls>",
        "I'll check.\n\n",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<tool_calls><tool_call>get_time<tool_sep></tool_call></tool_calls>\n\nOne moment, please.",
        Call("get_time", {}),
        "\n\nOne moment, please.",
    ),
    case(
        "\n\n<tool_calls><tool_call>get_time<tool_sep></tool_call></tool_calls>\n",
        Call("get_time", {}),
    ),
    case(
        "a <b> < [c] <tool_call <tool_calls><tool_call>get_time<tool_sep></tool_call></tool_calls>",
        "a <b> < [c] <tool_call ",
        Call("get_time", {}),
    ),
    # Missing or repeated closing words, and stray brackets.
    case(
        "<tool_calls><tool_call>get_weather<tool_sep><arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call></tool_calls></tool_calls>",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<tool_calls><tool_call>get_weather<tool_sep><arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<tool_calls><tool_calls><tool_call>get_weather<tool_sep><arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call></tool_calls>",
        Call("get_weather", {"city": "Paris"}),
    ),
    # Text.
    plain("The capital of France is Paris."),
    plain('{"name": "get_time", "arguments": {}}'),
    case(
        "<tool_calls><tool_call>rm_rf<tool_sep><arg_key>path</arg_key><arg_value>/</arg_value></tool_call></tool_calls>",
        "rm_rfpath/",
    ),
    case("<tool_calls></tool_calls>"),
    case("Calls stand behind <tool_calls> here.", "Calls stand behind  here."),
    case("<tool_calls>get_time(", "get_time("),
    # Cut off.
    plain("<tool_calls"),
    case("<tool_calls>"),
    case("<tool_calls><tool_call>get_wea", "get_wea"),
    case(
        "<tool_calls><tool_call>get_weather<tool_sep><arg_key>city</arg_key><arg_value>Par",
        Cut("get_weather", '{"city": "Par'),
    ),
    case(
        "<tool_calls><tool_call>get_weather<tool_sep><arg_key>city</arg_key><arg_value>Paris</arg_value><arg_key>days</arg_key><arg_value>1",
        Cut("get_weather", '{"city": "Paris", "days": 1'),
    ),
    # Broken.
    case(
        '<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</tool_calls>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "get_time", "arguments": {}}]</tool_calls>',
        Call("get_weather", {"city": "Paris"}),
        Call("get_time", {}),
    ),
    case(
        "<tool_calls>\n<tool_call>get_weather\n<tool_sep>\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>\n</tool_calls>",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<tool_call>get_weather<tool_sep><arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<tool_calls><tool_call>get_weather<tool_sep>Paris</tool_call></tool_calls>",
        "get_weatherParis",
    ),
    case(
        '<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris"}]</tool_calls>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<tool_calls><tool_call>get_weather<tool_sep><arg_key>city</arg_key><arg_value>Paris</arg_value></tool_calls>",
        Call("get_weather", {"city": "Paris"}),
    ),
]
