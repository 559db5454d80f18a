"""DeepSeek V3.2 and V4: tags of DSML, each argument with its kind."""

# ruff: noqa: E501 - outputs as models write them

from tests.tool_calls.outputs.notation import Call, Cut, case, plain

CASES = [
    # One call.
    case(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        Call("get_weather", {"city": "Oslo", "days": 3}),
    ),
    case(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter>\n<｜DSML｜parameter name="unit" string="true">celsius</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">10</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        Call("get_weather", {"city": "Rome", "unit": "celsius", "days": 10}),
    ),
    case(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_time">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        Call("get_time", {}),
    ),
    case(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="math.add">\n<｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter>\n<｜DSML｜parameter name="b" string="false">-2.5</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        Call("math.add", {"a": 1, "b": -2.5}),
    ),
    case(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get-quote">\n<｜DSML｜parameter name="symbol" string="true">NVDA</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        Call("get-quote", {"symbol": "NVDA"}),
    ),
    # Values.
    case(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="search">\n<｜DSML｜parameter name="query" string="true">x</｜DSML｜parameter>\n<｜DSML｜parameter name="limit" string="false">null</｜DSML｜parameter>\n<｜DSML｜parameter name="exact" string="false">true</｜DSML｜parameter>\n<｜DSML｜parameter name="filters" string="false">{"lang": ["en", "de"], "deep": {"a": null}}</｜DSML｜parameter>\n<｜DSML｜parameter name="tags" string="false">["a", "b, c"]</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
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
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="set_light">\n<｜DSML｜parameter name="on" string="false">false</｜DSML｜parameter>\n<｜DSML｜parameter name="level" string="false">-0.0015</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        Call("set_light", {"on": False, "level": -0.0015}),
    ),
    case(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">75001</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        Call("get_weather", {"city": "75001"}),
    ),
    case(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="search">\n<｜DSML｜parameter name="query" string="true">日本の天気 ☀️ in Zürich 😀</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        Call("search", {"query": "日本の天気 ☀️ in Zürich 😀"}),
    ),
    case(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="write_file">\n<｜DSML｜parameter name="path" string="true">C:\\tmp\\a.txt</｜DSML｜parameter>\n<｜DSML｜parameter name="content" string="true">line 1\n\tline "2"\r\nit\'s</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        Call("write_file", {"path": "C:\\tmp\\a.txt", "content": 'line 1\n\tline "2"\r\nit\'s'}),
    ),
    case(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="write_file">\n<｜DSML｜parameter name="path" string="true">a.py</｜DSML｜parameter>\n<｜DSML｜parameter name="content" string="true">def f(x):\n    if x < 3:\n        return {\'a\': "b"}[0]\n</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        Call(
            "write_file",
            {
                "path": "a.py",
                "content": "def f(x):\n    if x < 3:\n        return {'a': \"b\"}[0]\n",
            },
        ),
    ),
    case(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="write_file">\n<｜DSML｜parameter name="path" string="true">a.html</｜DSML｜parameter>\n<｜DSML｜parameter name="content" string="true"><p>a &amp; b</p>\n<think></｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        Call("write_file", {"path": "a.html", "content": "<p>a &amp; b</p>\n<think>"}),
    ),
    case(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="write_file">\n<｜DSML｜parameter name="content" string="true">Write <｜DSML｜function_calls> to call.</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        Call("write_file", {"content": "Write <｜DSML｜function_calls> to call."}),
    ),
    case(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="search">\n<｜DSML｜parameter name="query" string="true"></｜DSML｜parameter>\n<｜DSML｜parameter name="tags" string="false">[]</｜DSML｜parameter>\n<｜DSML｜parameter name="filters" string="false">{}</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        Call("search", {"query": "", "tags": [], "filters": {}}),
    ),
    case(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="send_mail">\n<｜DSML｜parameter name="to" string="false">["a@b.c"]</｜DSML｜parameter>\n<｜DSML｜parameter name="subject" string="true"></｜DSML｜parameter>\n<｜DSML｜parameter name="body" string="true"> Hi </｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        Call("send_mail", {"to": ["a@b.c"], "subject": "", "body": " Hi "}),
    ),
    # Several calls, and text around them.
    case(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name="get_time">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        Call("get_weather", {"city": "Paris"}),
        Call("get_time", {}),
    ),
    case(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_time">\n</｜DSML｜invoke>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name="get_time">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        Call("get_time", {}),
        Call("get_weather", {"city": "Oslo", "days": 1}),
        Call("get_time", {}),
    ),
    case(
        'I\'ll check.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        "I'll check.\n\n",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_time">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>\n\nOne moment, please.',
        Call("get_time", {}),
        "\n\nOne moment, please.",
    ),
    case(
        '\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_time">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>\n',
        Call("get_time", {}),
    ),
    case(
        'a <b> < [c] <｜DSML｜function_call <｜DSML｜function_calls>\n<｜DSML｜invoke name="get_time">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        "a <b> < [c] <function_call ",
        Call("get_time", {}),
    ),
    # Missing or repeated closing words, and stray brackets.
    case(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls></｜DSML｜function_calls>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n</｜DSML｜invoke>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<｜DSML｜function_calls><｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        Call("get_weather", {"city": "Paris"}),
    ),
    # Text.
    plain("The capital of France is Paris."),
    plain('{"name": "get_time", "arguments": {}}'),
    case(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="rm_rf">\n<｜DSML｜parameter name="path" string="true">/</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        '\n<invoke name="rm_rf">\n<parameter name="path" string="true">/</parameter>\n</invoke>\n',
    ),
    case("<｜DSML｜function_calls></｜DSML｜function_calls>"),
    case("Calls stand behind <｜DSML｜function_calls> here.", "Calls stand behind  here."),
    case("<｜DSML｜function_calls>get_time(", "get_time("),
    # Cut off.
    case("<｜DSML｜function_calls", "<function_calls"),
    case("<｜DSML｜function_calls>"),
    case('<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_wea', '\n<invoke name="get_wea'),
    case(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Par',
        Cut("get_weather", '{"city": "Par'),
    ),
    case(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">1',
        Cut("get_weather", '{"city": "Paris", "days": 1'),
    ),
    # Broken.
    case(
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<｜DSML｜ calls>\n<｜DSML｜ invoke name="get_weather">\n<｜DSML｜ parameter name="city" string="true">Paris</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n</｜DSML｜invoke>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city">Paris</｜DSML｜parameter>\n</｜DSML｜function_calls>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Paris\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather" x\n</｜DSML｜function_calls>',
        '\n<invoke name="get_weather" x\n',
    ),
]
