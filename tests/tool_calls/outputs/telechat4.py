"""TeleChat 4 and XingChen 4: tags for keys and values, or an object."""

# ruff: noqa: E501 - outputs as models write them

from tests.tool_calls.outputs.notation import Call, Cut, case, plain

CASES = [
    # One call.
    case(
        "<tool_call>get_weather<param_key>city</param_key><param_value>Paris</param_value></tool_call>",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<tool_call>get_weather<param_key>city</param_key><param_value>Oslo</param_value><param_key>days</param_key><param_value>3</param_value></tool_call>",
        Call("get_weather", {"city": "Oslo", "days": 3}),
    ),
    case(
        "<tool_call>get_weather<param_key>city</param_key><param_value>Rome</param_value><param_key>unit</param_key><param_value>celsius</param_value><param_key>days</param_key><param_value>10</param_value></tool_call>",
        Call("get_weather", {"city": "Rome", "unit": "celsius", "days": 10}),
    ),
    case("<tool_call>get_time</tool_call>", Call("get_time", {})),
    case(
        "<tool_call>math.add<param_key>a</param_key><param_value>1</param_value><param_key>b</param_key><param_value>-2.5</param_value></tool_call>",
        Call("math.add", {"a": 1, "b": -2.5}),
    ),
    case(
        "<tool_call>get-quote<param_key>symbol</param_key><param_value>NVDA</param_value></tool_call>",
        Call("get-quote", {"symbol": "NVDA"}),
    ),
    # Values.
    case(
        '<tool_call>search<param_key>query</param_key><param_value>x</param_value><param_key>limit</param_key><param_value>null</param_value><param_key>exact</param_key><param_value>true</param_value><param_key>filters</param_key><param_value>{"lang": ["en", "de"], "deep": {"a": null}}</param_value><param_key>tags</param_key><param_value>["a", "b, c"]</param_value></tool_call>',
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
        "<tool_call>set_light<param_key>on</param_key><param_value>false</param_value><param_key>level</param_key><param_value>-0.0015</param_value></tool_call>",
        Call("set_light", {"on": False, "level": -0.0015}),
    ),
    case(
        "<tool_call>get_weather<param_key>city</param_key><param_value>75001</param_value></tool_call>",
        Call("get_weather", {"city": "75001"}),
    ),
    case(
        "<tool_call>search<param_key>query</param_key><param_value>日本の天気 ☀️ in Zürich 😀</param_value></tool_call>",
        Call("search", {"query": "日本の天気 ☀️ in Zürich 😀"}),
    ),
    case(
        '<tool_call>write_file<param_key>path</param_key><param_value>C:\\tmp\\a.txt</param_value><param_key>content</param_key><param_value>line 1\n\tline "2"\r\nit\'s</param_value></tool_call>',
        Call("write_file", {"path": "C:\\tmp\\a.txt", "content": 'line 1\n\tline "2"\r\nit\'s'}),
    ),
    case(
        "<tool_call>write_file<param_key>path</param_key><param_value>a.py</param_value><param_key>content</param_key><param_value>def f(x):\n    if x < 3:\n        return {'a': \"b\"}[0]\n</param_value></tool_call>",
        Call(
            "write_file",
            {
                "path": "a.py",
                "content": "def f(x):\n    if x < 3:\n        return {'a': \"b\"}[0]\n",
            },
        ),
    ),
    case(
        "<tool_call>write_file<param_key>path</param_key><param_value>a.html</param_value><param_key>content</param_key><param_value><p>a &amp; b</p>\n<think></param_value></tool_call>",
        Call("write_file", {"path": "a.html", "content": "<p>a &amp; b</p>\n<think>"}),
    ),
    case(
        "<tool_call>write_file<param_key>content</param_key><param_value>Write <tool_call> to call.</param_value></tool_call>",
        Call("write_file", {"content": "Write <tool_call> to call."}),
    ),
    case(
        "<tool_call>search<param_key>query</param_key><param_value></param_value><param_key>tags</param_key><param_value>[]</param_value><param_key>filters</param_key><param_value>{}</param_value></tool_call>",
        Call("search", {"query": "", "tags": [], "filters": {}}),
    ),
    case(
        '<tool_call>send_mail<param_key>to</param_key><param_value>["a@b.c"]</param_value><param_key>subject</param_key><param_value></param_value><param_key>body</param_key><param_value> Hi </param_value></tool_call>',
        Call("send_mail", {"to": ["a@b.c"], "subject": "", "body": " Hi "}),
    ),
    # Several calls, and text around them.
    case(
        "<tool_call>get_weather<param_key>city</param_key><param_value>Paris</param_value></tool_call>\n<tool_call>get_time</tool_call>",
        Call("get_weather", {"city": "Paris"}),
        Call("get_time", {}),
    ),
    case(
        "<tool_call>get_time</tool_call>\n<tool_call>get_weather<param_key>city</param_key><param_value>Oslo</param_value><param_key>days</param_key><param_value>1</param_value></tool_call>\n<tool_call>get_time</tool_call>",
        Call("get_time", {}),
        Call("get_weather", {"city": "Oslo", "days": 1}),
        Call("get_time", {}),
    ),
    case(
        "I'll check.\n\n<tool_call>get_weather<param_key>city</param_key><param_value>Paris</param_value></tool_call>",
        "I'll check.\n\n",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<tool_call>get_time</tool_call>\n\nOne moment, please.",
        Call("get_time", {}),
        "\n\nOne moment, please.",
    ),
    case("\n\n<tool_call>get_time</tool_call>\n", Call("get_time", {})),
    case(
        "a <b> < [c] <tool_cal <tool_call>get_time</tool_call>",
        "a <b> < [c] <tool_cal ",
        Call("get_time", {}),
    ),
    # Missing or repeated closing words, and stray brackets.
    case(
        "<tool_call>get_weather<param_key>city</param_key><param_value>Paris</param_value></tool_call></tool_call>",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<tool_call><tool_call>get_weather<param_key>city</param_key><param_value>Paris</param_value></tool_call>",
        Call("get_weather", {"city": "Paris"}),
    ),
    # Text.
    plain("The capital of France is Paris."),
    plain('{"name": "get_time", "arguments": {}}'),
    case(
        "<tool_call>rm_rf<param_key>path</param_key><param_value>/</param_value></tool_call>",
        "rm_rfpath/",
    ),
    case("<tool_call></tool_call>"),
    case("Calls stand behind <tool_call> here.", "Calls stand behind  here."),
    case("<tool_call>get_time(", "get_time("),
    # Cut off.
    plain("<tool_call"),
    case("<tool_call>"),
    case("<tool_call>get_wea", "get_wea"),
    case(
        "<tool_call>get_weather<param_key>city</param_key><param_value>Par",
        Cut("get_weather", '{"city": "Par'),
    ),
    case(
        "<tool_call>get_weather<param_key>city</param_key><param_value>Paris</param_value><param_key>days</param_key><param_value>1",
        Cut("get_weather", '{"city": "Paris", "days": 1'),
    ),
    # Broken.
    case(
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<tool_call>get_weather{"city": "Paris"}</tool_call>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<tool_call>get_weather\n<param_key>city</param_key>\n<param_value>Paris</param_value>\n</tool_call>",
        Call("get_weather", {"city": "Paris"}),
    ),
    case("<tool_call>get_weather<param_key>city</param_key></tool_call>", "get_weathercity"),
    case("<tool_call>get_weather Paris</tool_call>", "get_weather Paris"),
    case(
        "<tool_call>get_weather<param_key>city</param_key><param_value>Paris</param_value>",
        Cut("get_weather", '{"city": "Paris"'),
    ),
]
