"""MiniMax M3: tags with a namespace in front, named after their arguments."""

# ruff: noqa: E501 - outputs as models write them

from tests.tool_calls.outputs.notation import Call, Cut, case, plain

CASES = [
    # One call.
    case(
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">\n]<]minimax[>[<city>Paris]<]minimax[>[</city>\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">\n]<]minimax[>[<city>Oslo]<]minimax[>[</city>\n]<]minimax[>[<days>3]<]minimax[>[</days>\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
        Call("get_weather", {"city": "Oslo", "days": 3}),
    ),
    case(
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">\n]<]minimax[>[<city>Rome]<]minimax[>[</city>\n]<]minimax[>[<unit>celsius]<]minimax[>[</unit>\n]<]minimax[>[<days>10]<]minimax[>[</days>\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
        Call("get_weather", {"city": "Rome", "unit": "celsius", "days": 10}),
    ),
    case(
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_time">\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
        Call("get_time", {}),
    ),
    case(
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="math.add">\n]<]minimax[>[<a>1]<]minimax[>[</a>\n]<]minimax[>[<b>-2.5]<]minimax[>[</b>\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
        Call("math.add", {"a": 1, "b": -2.5}),
    ),
    case(
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get-quote">\n]<]minimax[>[<symbol>NVDA]<]minimax[>[</symbol>\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
        Call("get-quote", {"symbol": "NVDA"}),
    ),
    # Values.
    case(
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="search">\n]<]minimax[>[<query>x]<]minimax[>[</query>\n]<]minimax[>[<limit>null]<]minimax[>[</limit>\n]<]minimax[>[<exact>true]<]minimax[>[</exact>\n]<]minimax[>[<filters>{"lang": ["en", "de"], "deep": {"a": null}}]<]minimax[>[</filters>\n]<]minimax[>[<tags>["a", "b, c"]]<]minimax[>[</tags>\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
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
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="set_light">\n]<]minimax[>[<on>false]<]minimax[>[</on>\n]<]minimax[>[<level>-0.0015]<]minimax[>[</level>\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
        Call("set_light", {"on": False, "level": -0.0015}),
    ),
    case(
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">\n]<]minimax[>[<city>75001]<]minimax[>[</city>\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
        Call("get_weather", {"city": "75001"}),
    ),
    case(
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="search">\n]<]minimax[>[<query>日本の天気 ☀️ in Zürich 😀]<]minimax[>[</query>\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
        Call("search", {"query": "日本の天気 ☀️ in Zürich 😀"}),
    ),
    case(
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="write_file">\n]<]minimax[>[<path>C:\\tmp\\a.txt]<]minimax[>[</path>\n]<]minimax[>[<content>line 1\n\tline "2"\r\nit\'s]<]minimax[>[</content>\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
        Call("write_file", {"path": "C:\\tmp\\a.txt", "content": 'line 1\n\tline "2"\r\nit\'s'}),
    ),
    case(
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="write_file">\n]<]minimax[>[<path>a.py]<]minimax[>[</path>\n]<]minimax[>[<content>def f(x):\n    if x < 3:\n        return {\'a\': "b"}[0]\n]<]minimax[>[</content>\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
        Call(
            "write_file",
            {
                "path": "a.py",
                "content": "def f(x):\n    if x < 3:\n        return {'a': \"b\"}[0]\n",
            },
        ),
    ),
    case(
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="write_file">\n]<]minimax[>[<path>a.html]<]minimax[>[</path>\n]<]minimax[>[<content><p>a &amp; b</p>\n<think>]<]minimax[>[</content>\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
        Call("write_file", {"path": "a.html", "content": "<p>a &amp; b</p>\n<think>"}),
    ),
    case(
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="write_file">\n]<]minimax[>[<content>Write ]<]minimax[>[<tool_call> to call.]<]minimax[>[</content>\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
        Call("write_file", {"content": "Write ]<]minimax[>[<tool_call> to call."}),
    ),
    case(
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="search">\n]<]minimax[>[<query>]<]minimax[>[</query>\n]<]minimax[>[<tags>[]]<]minimax[>[</tags>\n]<]minimax[>[<filters>{}]<]minimax[>[</filters>\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
        Call("search", {"query": "", "tags": [], "filters": {}}),
    ),
    case(
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="send_mail">\n]<]minimax[>[<to>["a@b.c"]]<]minimax[>[</to>\n]<]minimax[>[<subject>]<]minimax[>[</subject>\n]<]minimax[>[<body> Hi ]<]minimax[>[</body>\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
        Call("send_mail", {"to": ["a@b.c"], "subject": "", "body": " Hi "}),
    ),
    # Several calls, and text around them.
    case(
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">\n]<]minimax[>[<city>Paris]<]minimax[>[</city>\n]<]minimax[>[</invoke>\n]<]minimax[>[<invoke name="get_time">\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
        Call("get_weather", {"city": "Paris"}),
        Call("get_time", {}),
    ),
    case(
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_time">\n]<]minimax[>[</invoke>\n]<]minimax[>[<invoke name="get_weather">\n]<]minimax[>[<city>Oslo]<]minimax[>[</city>\n]<]minimax[>[<days>1]<]minimax[>[</days>\n]<]minimax[>[</invoke>\n]<]minimax[>[<invoke name="get_time">\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
        Call("get_time", {}),
        Call("get_weather", {"city": "Oslo", "days": 1}),
        Call("get_time", {}),
    ),
    case(
        'I\'ll check.\n\n]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">\n]<]minimax[>[<city>Paris]<]minimax[>[</city>\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
        "I'll check.\n\n",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_time">\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>\n\nOne moment, please.',
        Call("get_time", {}),
        "\n\nOne moment, please.",
    ),
    case(
        '\n\n]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_time">\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>\n',
        Call("get_time", {}),
    ),
    case(
        'a <b> < [c] ]<]minimax[>[<tool_cal ]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_time">\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
        "a <b> < [c] <tool_cal ",
        Call("get_time", {}),
    ),
    # Missing or repeated closing words, and stray brackets.
    case(
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">\n]<]minimax[>[<city>Paris]<]minimax[>[</city>\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>]<]minimax[>[</tool_call>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">\n]<]minimax[>[<city>Paris]<]minimax[>[</city>\n]<]minimax[>[</invoke>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        ']<]minimax[>[<tool_call>]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">\n]<]minimax[>[<city>Paris]<]minimax[>[</city>\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
        Call("get_weather", {"city": "Paris"}),
    ),
    # Text.
    plain("The capital of France is Paris."),
    plain('{"name": "get_time", "arguments": {}}'),
    case(
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="rm_rf">\n]<]minimax[>[<path>/]<]minimax[>[</path>\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
        '\n<invoke name="rm_rf">\n<path>/</path>\n</invoke>\n',
    ),
    case("]<]minimax[>[<tool_call>]<]minimax[>[</tool_call>"),
    case("Calls stand behind ]<]minimax[>[<tool_call> here.", "Calls stand behind  here."),
    case("]<]minimax[>[<tool_call>get_time(", "get_time("),
    # Cut off.
    case("]<]minimax[>[<tool_call", "<tool_call"),
    case("]<]minimax[>[<tool_call>"),
    case(']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_wea', '\n<invoke name="get_wea'),
    case(
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">\n]<]minimax[>[<city>Par',
        Cut("get_weather", '{"city": "Par'),
    ),
    case(
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">\n]<]minimax[>[<city>Paris]<]minimax[>[</city>\n]<]minimax[>[<days>1',
        Cut("get_weather", '{"city": "Paris", "days": 1'),
    ),
    # Broken.
    case(
        ']<]minimax[>[<invoke name="get_weather">]<]minimax[>[<city>Paris]<]minimax[>[</city>]<]minimax[>[</invoke>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="get_weather">]<]minimax[>[<city>Paris]<]minimax[>[</city>]<]minimax[>[<days>2]<]minimax[>[</days>]<]minimax[>[</invoke>]<]minimax[>[</tool_call>',
        Call("get_weather", {"city": "Paris", "days": 2}),
    ),
    case(
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">\n]<]minimax[>[<city>Paris]<]minimax[>[</city>\n]<]minimax[>[</tool_call>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">\nParis\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
        '\n<invoke name="get_weather">\nParis\n</invoke>\n',
    ),
    case(
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="search">\n]<]minimax[>[<filters>{"a": [1]}]<]minimax[>[</filters>\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
        Call("search", {"filters": {"a": [1]}}),
    ),
    case("Hello ]<]minimax[>[there.", "Hello there."),
]
