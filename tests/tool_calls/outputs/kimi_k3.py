"""Kimi K3: tags between special tokens, each argument with its type."""

# ruff: noqa: E501 - outputs as models write them

from tests.tool_calls.outputs.notation import Call, Cut, case, plain

CASES = [
    # One call.
    case(
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>Oslo<|close|>argument<|sep|><|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        Call("get_weather", {"city": "Oslo", "days": 3}),
    ),
    case(
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>Rome<|close|>argument<|sep|><|open|>argument key="unit" type="string"<|sep|>celsius<|close|>argument<|sep|><|open|>argument key="days" type="number"<|sep|>10<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        Call("get_weather", {"city": "Rome", "unit": "celsius", "days": 10}),
    ),
    case(
        '<|open|>tools<|sep|><|open|>call tool="get_time" index="1"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        Call("get_time", {}),
    ),
    case(
        '<|open|>tools<|sep|><|open|>call tool="math.add" index="1"<|sep|><|open|>argument key="a" type="number"<|sep|>1<|close|>argument<|sep|><|open|>argument key="b" type="number"<|sep|>-2.5<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        Call("math.add", {"a": 1, "b": -2.5}),
    ),
    case(
        '<|open|>tools<|sep|><|open|>call tool="get-quote" index="1"<|sep|><|open|>argument key="symbol" type="string"<|sep|>NVDA<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        Call("get-quote", {"symbol": "NVDA"}),
    ),
    # Values.
    case(
        '<|open|>tools<|sep|><|open|>call tool="search" index="1"<|sep|><|open|>argument key="query" type="string"<|sep|>x<|close|>argument<|sep|><|open|>argument key="limit" type="null"<|sep|>null<|close|>argument<|sep|><|open|>argument key="exact" type="boolean"<|sep|>true<|close|>argument<|sep|><|open|>argument key="filters" type="object"<|sep|>{"lang": ["en", "de"], "deep": {"a": null}}<|close|>argument<|sep|><|open|>argument key="tags" type="array"<|sep|>["a", "b, c"]<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
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
        '<|open|>tools<|sep|><|open|>call tool="set_light" index="1"<|sep|><|open|>argument key="on" type="boolean"<|sep|>false<|close|>argument<|sep|><|open|>argument key="level" type="number"<|sep|>-0.0015<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        Call("set_light", {"on": False, "level": -0.0015}),
    ),
    case(
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>75001<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        Call("get_weather", {"city": "75001"}),
    ),
    case(
        '<|open|>tools<|sep|><|open|>call tool="search" index="1"<|sep|><|open|>argument key="query" type="string"<|sep|>日本の天気 ☀️ in Zürich 😀<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        Call("search", {"query": "日本の天気 ☀️ in Zürich 😀"}),
    ),
    case(
        '<|open|>tools<|sep|><|open|>call tool="write_file" index="1"<|sep|><|open|>argument key="path" type="string"<|sep|>C:\\tmp\\a.txt<|close|>argument<|sep|><|open|>argument key="content" type="string"<|sep|>line 1\n\tline "2"\r\nit\'s<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        Call("write_file", {"path": "C:\\tmp\\a.txt", "content": 'line 1\n\tline "2"\r\nit\'s'}),
    ),
    case(
        '<|open|>tools<|sep|><|open|>call tool="write_file" index="1"<|sep|><|open|>argument key="path" type="string"<|sep|>a.py<|close|>argument<|sep|><|open|>argument key="content" type="string"<|sep|>def f(x):\n    if x < 3:\n        return {\'a\': "b"}[0]\n<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        Call(
            "write_file",
            {
                "path": "a.py",
                "content": "def f(x):\n    if x < 3:\n        return {'a': \"b\"}[0]\n",
            },
        ),
    ),
    case(
        '<|open|>tools<|sep|><|open|>call tool="write_file" index="1"<|sep|><|open|>argument key="path" type="string"<|sep|>a.html<|close|>argument<|sep|><|open|>argument key="content" type="string"<|sep|><p>a &amp; b</p>\n<think><|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        Call("write_file", {"path": "a.html", "content": "<p>a &amp; b</p>\n<think>"}),
    ),
    case(
        '<|open|>tools<|sep|><|open|>call tool="write_file" index="1"<|sep|><|open|>argument key="content" type="string"<|sep|>Write <|open|>tools<|sep|> to call.<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        Call("write_file", {"content": "Write <|open|>tools<|sep|> to call."}),
    ),
    case(
        '<|open|>tools<|sep|><|open|>call tool="search" index="1"<|sep|><|open|>argument key="query" type="string"<|sep|><|close|>argument<|sep|><|open|>argument key="tags" type="array"<|sep|>[]<|close|>argument<|sep|><|open|>argument key="filters" type="object"<|sep|>{}<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        Call("search", {"query": "", "tags": [], "filters": {}}),
    ),
    case(
        '<|open|>tools<|sep|><|open|>call tool="send_mail" index="1"<|sep|><|open|>argument key="to" type="array"<|sep|>["a@b.c"]<|close|>argument<|sep|><|open|>argument key="subject" type="string"<|sep|><|close|>argument<|sep|><|open|>argument key="body" type="string"<|sep|> Hi <|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        Call("send_mail", {"to": ["a@b.c"], "subject": "", "body": " Hi "}),
    ),
    # Several calls, and text around them.
    case(
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="0"<|sep|><|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|><|close|>call<|sep|><|open|>call tool="get_time" index="1"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        Call("get_weather", {"city": "Paris"}),
        Call("get_time", {}),
    ),
    case(
        '<|open|>tools<|sep|><|open|>call tool="get_time" index="0"<|sep|><|close|>call<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>Oslo<|close|>argument<|sep|><|open|>argument key="days" type="number"<|sep|>1<|close|>argument<|sep|><|close|>call<|sep|><|open|>call tool="get_time" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        Call("get_time", {}),
        Call("get_weather", {"city": "Oslo", "days": 1}),
        Call("get_time", {}),
    ),
    case(
        'I\'ll check.\n\n<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        "I'll check.\n\n",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|open|>tools<|sep|><|open|>call tool="get_time" index="1"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>\n\nOne moment, please.',
        Call("get_time", {}),
        "\n\nOne moment, please.",
    ),
    case(
        '\n\n<|open|>tools<|sep|><|open|>call tool="get_time" index="1"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>\n',
        Call("get_time", {}),
    ),
    case(
        'a <b> < [c] <|open|>tools<|sep <|open|>tools<|sep|><|open|>call tool="get_time" index="1"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        "a <b> < [c] tools<|sep ",
        Call("get_time", {}),
    ),
    # Missing or repeated closing words, and stray brackets.
    case(
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>tools<|sep|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|><|close|>call<|sep|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|open|>tools<|sep|><|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    # Text.
    plain("The capital of France is Paris."),
    plain('{"name": "get_time", "arguments": {}}'),
    case(
        '<|open|>tools<|sep|><|open|>call tool="rm_rf" index="1"<|sep|><|open|>argument key="path" type="string"<|sep|>/<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        'call tool="rm_rf" index="1"argument key="path" type="string"/argumentcall',
    ),
    case("<|open|>tools<|sep|><|close|>tools<|sep|>"),
    case("Calls stand behind <|open|>tools<|sep|> here.", "Calls stand behind  here."),
    case("<|open|>tools<|sep|>get_time(", "get_time("),
    # Cut off.
    case("<|open|>tools<|sep|", "tools<|sep|"),
    case("<|open|>tools<|sep|>"),
    case('<|open|>tools<|sep|><|open|>call tool="get_wea', 'call tool="get_wea'),
    case(
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>Par',
        Cut("get_weather", '{"city": "Par'),
    ),
    case(
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|><|open|>argument key="days" type="number"<|sep|>1',
        Cut("get_weather", '{"city": "Paris", "days": 1'),
    ),
    # Broken.
    case(
        '<|open|>response<|sep|>Wait.<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="get_time" index="1"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>',
        "Wait.",
        Call("get_time", {}),
    ),
    case(
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>json type="object"<|sep|>{"city": "Paris"}<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|><|close|>tools<|sep|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|open|>tools<|sep|><|open|>call tool="get_weather"<|sep|><|open|>argument key="days" type="string"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        Call("get_weather", {"days": 3}),
    ),
    case('<|open|>call tool="get_time" index="1"<|sep|><|close|>call<|sep|>', Call("get_time", {})),
    case(
        '<|open|>tools<|sep|><|open|>call index="1"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        'call index="1"call',
    ),
]
