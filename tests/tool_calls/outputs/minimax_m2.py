"""MiniMax M2: `invoke` and `parameter`."""

# ruff: noqa: E501 - outputs as models write them

from tests.tool_calls.outputs.notation import Call, Cut, case, plain

CASES = [
    # One call.
    case(
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>\n</minimax:tool_call>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Oslo</parameter>\n<parameter name="days">3</parameter>\n</invoke>\n</minimax:tool_call>',
        Call("get_weather", {"city": "Oslo", "days": 3}),
    ),
    case(
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Rome</parameter>\n<parameter name="unit">celsius</parameter>\n<parameter name="days">10</parameter>\n</invoke>\n</minimax:tool_call>',
        Call("get_weather", {"city": "Rome", "unit": "celsius", "days": 10}),
    ),
    case(
        '<minimax:tool_call>\n<invoke name="get_time">\n</invoke>\n</minimax:tool_call>',
        Call("get_time", {}),
    ),
    case(
        '<minimax:tool_call>\n<invoke name="math.add">\n<parameter name="a">1</parameter>\n<parameter name="b">-2.5</parameter>\n</invoke>\n</minimax:tool_call>',
        Call("math.add", {"a": 1, "b": -2.5}),
    ),
    case(
        '<minimax:tool_call>\n<invoke name="get-quote">\n<parameter name="symbol">NVDA</parameter>\n</invoke>\n</minimax:tool_call>',
        Call("get-quote", {"symbol": "NVDA"}),
    ),
    # Values.
    case(
        '<minimax:tool_call>\n<invoke name="search">\n<parameter name="query">x</parameter>\n<parameter name="limit">null</parameter>\n<parameter name="exact">true</parameter>\n<parameter name="filters">{"lang": ["en", "de"], "deep": {"a": null}}</parameter>\n<parameter name="tags">["a", "b, c"]</parameter>\n</invoke>\n</minimax:tool_call>',
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
        '<minimax:tool_call>\n<invoke name="set_light">\n<parameter name="on">false</parameter>\n<parameter name="level">-0.0015</parameter>\n</invoke>\n</minimax:tool_call>',
        Call("set_light", {"on": False, "level": -0.0015}),
    ),
    case(
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">75001</parameter>\n</invoke>\n</minimax:tool_call>',
        Call("get_weather", {"city": "75001"}),
    ),
    case(
        '<minimax:tool_call>\n<invoke name="search">\n<parameter name="query">日本の天気 ☀️ in Zürich 😀</parameter>\n</invoke>\n</minimax:tool_call>',
        Call("search", {"query": "日本の天気 ☀️ in Zürich 😀"}),
    ),
    case(
        '<minimax:tool_call>\n<invoke name="write_file">\n<parameter name="path">C:\\tmp\\a.txt</parameter>\n<parameter name="content">line 1\n\tline "2"\r\nit\'s</parameter>\n</invoke>\n</minimax:tool_call>',
        Call("write_file", {"path": "C:\\tmp\\a.txt", "content": 'line 1\n\tline "2"\r\nit\'s'}),
    ),
    case(
        '<minimax:tool_call>\n<invoke name="write_file">\n<parameter name="path">a.py</parameter>\n<parameter name="content">def f(x):\n    if x < 3:\n        return {\'a\': "b"}[0]\n</parameter>\n</invoke>\n</minimax:tool_call>',
        Call(
            "write_file",
            {
                "path": "a.py",
                "content": "def f(x):\n    if x < 3:\n        return {'a': \"b\"}[0]\n",
            },
        ),
    ),
    case(
        '<minimax:tool_call>\n<invoke name="write_file">\n<parameter name="path">a.html</parameter>\n<parameter name="content"><p>a &amp; b</p>\n<think></parameter>\n</invoke>\n</minimax:tool_call>',
        Call("write_file", {"path": "a.html", "content": "<p>a &amp; b</p>\n<think>"}),
    ),
    case(
        '<minimax:tool_call>\n<invoke name="write_file">\n<parameter name="content">Write <minimax:tool_call> to call.</parameter>\n</invoke>\n</minimax:tool_call>',
        Call("write_file", {"content": "Write <minimax:tool_call> to call."}),
    ),
    case(
        '<minimax:tool_call>\n<invoke name="search">\n<parameter name="query"></parameter>\n<parameter name="tags">[]</parameter>\n<parameter name="filters">{}</parameter>\n</invoke>\n</minimax:tool_call>',
        Call("search", {"query": "", "tags": [], "filters": {}}),
    ),
    case(
        '<minimax:tool_call>\n<invoke name="send_mail">\n<parameter name="to">["a@b.c"]</parameter>\n<parameter name="subject"></parameter>\n<parameter name="body"> Hi </parameter>\n</invoke>\n</minimax:tool_call>',
        Call("send_mail", {"to": ["a@b.c"], "subject": "", "body": " Hi "}),
    ),
    # Several calls, and text around them.
    case(
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>\n<invoke name="get_time">\n</invoke>\n</minimax:tool_call>',
        Call("get_weather", {"city": "Paris"}),
        Call("get_time", {}),
    ),
    case(
        '<minimax:tool_call>\n<invoke name="get_time">\n</invoke>\n<invoke name="get_weather">\n<parameter name="city">Oslo</parameter>\n<parameter name="days">1</parameter>\n</invoke>\n<invoke name="get_time">\n</invoke>\n</minimax:tool_call>',
        Call("get_time", {}),
        Call("get_weather", {"city": "Oslo", "days": 1}),
        Call("get_time", {}),
    ),
    case(
        'I\'ll check.\n\n<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>\n</minimax:tool_call>',
        "I'll check.\n\n",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<minimax:tool_call>\n<invoke name="get_time">\n</invoke>\n</minimax:tool_call>\n\nOne moment, please.',
        Call("get_time", {}),
        "\n\nOne moment, please.",
    ),
    case(
        '\n\n<minimax:tool_call>\n<invoke name="get_time">\n</invoke>\n</minimax:tool_call>\n',
        Call("get_time", {}),
    ),
    case(
        'a <b> < [c] <minimax:tool_cal <minimax:tool_call>\n<invoke name="get_time">\n</invoke>\n</minimax:tool_call>',
        "a <b> < [c] <minimax:tool_cal ",
        Call("get_time", {}),
    ),
    # Missing or repeated closing words, and stray brackets.
    case(
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>\n</minimax:tool_call></minimax:tool_call>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<minimax:tool_call><minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>\n</minimax:tool_call>',
        Call("get_weather", {"city": "Paris"}),
    ),
    # Text.
    plain("The capital of France is Paris."),
    plain('{"name": "get_time", "arguments": {}}'),
    case(
        '<minimax:tool_call>\n<invoke name="rm_rf">\n<parameter name="path">/</parameter>\n</invoke>\n</minimax:tool_call>',
        '\n<invoke name="rm_rf">\n<parameter name="path">/</parameter>\n</invoke>\n',
    ),
    case("<minimax:tool_call></minimax:tool_call>"),
    case("Calls stand behind <minimax:tool_call> here.", "Calls stand behind  here."),
    case("<minimax:tool_call>get_time(", "get_time("),
    # Cut off.
    plain("<minimax:tool_call"),
    case("<minimax:tool_call>"),
    case('<minimax:tool_call>\n<invoke name="get_wea', '\n<invoke name="get_wea'),
    case(
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Par',
        Cut("get_weather", '{"city": "Par'),
    ),
    case(
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n<parameter name="days">1',
        Cut("get_weather", '{"city": "Paris", "days": 1'),
    ),
    # Broken.
    case(
        '<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris\n<parameter name="days">2</parameter>\n</invoke>\n</minimax:tool_call>',
        Call("get_weather", {"city": "Paris", "days": 2}),
    ),
    case(
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</minimax:tool_call>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<minimax:tool_call>\n<invoke name="get_weather">\nParis\n</invoke>\n</minimax:tool_call>',
        '\n<invoke name="get_weather">\nParis\n</invoke>\n',
    ),
    case(
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\nand so on\n</invoke>\n</minimax:tool_call>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<minimax:tool_call>\n<invoke name="get_weather"\n</minimax:tool_call>',
        '\n<invoke name="get_weather"\n',
    ),
]
