"""GLM 4.5 to 5: tags for keys and values behind the name."""

# ruff: noqa: E501 - outputs as models write them

from tests.tool_calls.outputs.notation import Call, Cut, case, plain

CASES = [
    # One call.
    case(
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        Call("get_weather", {"city": "Oslo", "days": 3}),
    ),
    case(
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>unit</arg_key>\n<arg_value>celsius</arg_value>\n<arg_key>days</arg_key>\n<arg_value>10</arg_value>\n</tool_call>",
        Call("get_weather", {"city": "Rome", "unit": "celsius", "days": 10}),
    ),
    case("<tool_call>get_time\n</tool_call>", Call("get_time", {})),
    case(
        "<tool_call>math.add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>\n<arg_value>-2.5</arg_value>\n</tool_call>",
        Call("math.add", {"a": 1, "b": -2.5}),
    ),
    case(
        "<tool_call>get-quote\n<arg_key>symbol</arg_key>\n<arg_value>NVDA</arg_value>\n</tool_call>",
        Call("get-quote", {"symbol": "NVDA"}),
    ),
    # Values.
    case(
        '<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>x</arg_value>\n<arg_key>limit</arg_key>\n<arg_value>null</arg_value>\n<arg_key>exact</arg_key>\n<arg_value>true</arg_value>\n<arg_key>filters</arg_key>\n<arg_value>{"lang": ["en", "de"], "deep": {"a": null}}</arg_value>\n<arg_key>tags</arg_key>\n<arg_value>["a", "b, c"]</arg_value>\n</tool_call>',
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
        "<tool_call>set_light\n<arg_key>on</arg_key>\n<arg_value>false</arg_value>\n<arg_key>level</arg_key>\n<arg_value>-0.0015</arg_value>\n</tool_call>",
        Call("set_light", {"on": False, "level": -0.0015}),
    ),
    case(
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>75001</arg_value>\n</tool_call>",
        Call("get_weather", {"city": "75001"}),
    ),
    case(
        "<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>日本の天気 ☀️ in Zürich 😀</arg_value>\n</tool_call>",
        Call("search", {"query": "日本の天気 ☀️ in Zürich 😀"}),
    ),
    case(
        '<tool_call>write_file\n<arg_key>path</arg_key>\n<arg_value>C:\\tmp\\a.txt</arg_value>\n<arg_key>content</arg_key>\n<arg_value>line 1\n\tline "2"\r\nit\'s</arg_value>\n</tool_call>',
        Call("write_file", {"path": "C:\\tmp\\a.txt", "content": 'line 1\n\tline "2"\r\nit\'s'}),
    ),
    case(
        "<tool_call>write_file\n<arg_key>path</arg_key>\n<arg_value>a.py</arg_value>\n<arg_key>content</arg_key>\n<arg_value>def f(x):\n    if x < 3:\n        return {'a': \"b\"}[0]\n</arg_value>\n</tool_call>",
        Call(
            "write_file",
            {
                "path": "a.py",
                "content": "def f(x):\n    if x < 3:\n        return {'a': \"b\"}[0]\n",
            },
        ),
    ),
    case(
        "<tool_call>write_file\n<arg_key>path</arg_key>\n<arg_value>a.html</arg_value>\n<arg_key>content</arg_key>\n<arg_value><p>a &amp; b</p>\n<think></arg_value>\n</tool_call>",
        Call("write_file", {"path": "a.html", "content": "<p>a &amp; b</p>\n<think>"}),
    ),
    case(
        "<tool_call>write_file\n<arg_key>content</arg_key>\n<arg_value>Write <tool_call> to call.</arg_value>\n</tool_call>",
        Call("write_file", {"content": "Write <tool_call> to call."}),
    ),
    case(
        "<tool_call>search\n<arg_key>query</arg_key>\n<arg_value></arg_value>\n<arg_key>tags</arg_key>\n<arg_value>[]</arg_value>\n<arg_key>filters</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>",
        Call("search", {"query": "", "tags": [], "filters": {}}),
    ),
    case(
        '<tool_call>send_mail\n<arg_key>to</arg_key>\n<arg_value>["a@b.c"]</arg_value>\n<arg_key>subject</arg_key>\n<arg_value></arg_value>\n<arg_key>body</arg_key>\n<arg_value> Hi </arg_value>\n</tool_call>',
        Call("send_mail", {"to": ["a@b.c"], "subject": "", "body": " Hi "}),
    ),
    # Several calls, and text around them.
    case(
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>\n<tool_call>get_time\n</tool_call>",
        Call("get_weather", {"city": "Paris"}),
        Call("get_time", {}),
    ),
    case(
        "<tool_call>get_time\n</tool_call>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>1</arg_value>\n</tool_call>\n<tool_call>get_time\n</tool_call>",
        Call("get_time", {}),
        Call("get_weather", {"city": "Oslo", "days": 1}),
        Call("get_time", {}),
    ),
    case(
        "I'll check.\n\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>",
        "I'll check.\n\n",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<tool_call>get_time\n</tool_call>\n\nOne moment, please.",
        Call("get_time", {}),
        "\n\nOne moment, please.",
    ),
    case("\n\n<tool_call>get_time\n</tool_call>\n", Call("get_time", {})),
    case(
        "a <b> < [c] <tool_cal <tool_call>get_time\n</tool_call>",
        "a <b> < [c] <tool_cal ",
        Call("get_time", {}),
    ),
    # Missing or repeated closing words, and stray brackets.
    case(
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call></tool_call>",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<tool_call><tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>",
        Call("get_weather", {"city": "Paris"}),
    ),
    # Text.
    plain("The capital of France is Paris."),
    plain('{"name": "get_time", "arguments": {}}'),
    case(
        "<tool_call>rm_rf\n<arg_key>path</arg_key>\n<arg_value>/</arg_value>\n</tool_call>",
        "rm_rf\npath\n/\n",
    ),
    case("<tool_call></tool_call>"),
    case("Calls stand behind <tool_call> here.", "Calls stand behind  here."),
    case("<tool_call>get_time(", "get_time("),
    # Cut off.
    plain("<tool_call"),
    case("<tool_call>"),
    case("<tool_call>get_wea", "get_wea"),
    case(
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Par",
        Cut("get_weather", '{"city": "Par'),
    ),
    case(
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>1",
        Cut("get_weather", '{"city": "Paris", "days": 1'),
    ),
    # Broken.
    case(
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n</tool_call>",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\noops\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
        Call("get_weather", {"city": "Paris", "days": 2}),
    ),
    case("<tool_call>get_weather Paris</tool_call>", "get_weather Paris"),
    case(
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<tool_call>get_weather\n{"city": "Paris"}\n</tool_call>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<tool_call>get_time\n</tool_call>",
        Call("get_weather", {"city": "Paris"}),
        Call("get_time", {}),
    ),
]
