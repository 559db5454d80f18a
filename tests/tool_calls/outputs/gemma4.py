"""Gemma 4: its own notation of objects."""

# ruff: noqa: E501 - outputs as models write them

from tests.tool_calls.outputs.notation import Call, Cut, case, plain

CASES = [
    # One call.
    case(
        '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:3}<tool_call|>',
        Call("get_weather", {"city": "Oslo", "days": 3}),
    ),
    case(
        '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,unit:<|"|>celsius<|"|>,days:10}<tool_call|>',
        Call("get_weather", {"city": "Rome", "unit": "celsius", "days": 10}),
    ),
    case("<|tool_call>call:get_time{}<tool_call|>", Call("get_time", {})),
    case(
        "<|tool_call>call:math.add{a:1,b:-2.5}<tool_call|>", Call("math.add", {"a": 1, "b": -2.5})
    ),
    case(
        '<|tool_call>call:get-quote{symbol:<|"|>NVDA<|"|>}<tool_call|>',
        Call("get-quote", {"symbol": "NVDA"}),
    ),
    # Values.
    case(
        '<|tool_call>call:search{query:<|"|>x<|"|>,limit:null,exact:true,filters:{lang:[<|"|>en<|"|>,<|"|>de<|"|>],deep:{a:null}},tags:[<|"|>a<|"|>,<|"|>b, c<|"|>]}<tool_call|>',
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
        "<|tool_call>call:set_light{on:false,level:-0.0015}<tool_call|>",
        Call("set_light", {"on": False, "level": -0.0015}),
    ),
    case(
        '<|tool_call>call:get_weather{city:<|"|>75001<|"|>}<tool_call|>',
        Call("get_weather", {"city": "75001"}),
    ),
    case(
        '<|tool_call>call:search{query:<|"|>日本の天気 ☀️ in Zürich 😀<|"|>}<tool_call|>',
        Call("search", {"query": "日本の天気 ☀️ in Zürich 😀"}),
    ),
    case(
        '<|tool_call>call:write_file{path:<|"|>C:\\tmp\\a.txt<|"|>,content:<|"|>line 1\n\tline "2"\r\nit\'s<|"|>}<tool_call|>',
        Call("write_file", {"path": "C:\\tmp\\a.txt", "content": 'line 1\n\tline "2"\r\nit\'s'}),
    ),
    case(
        '<|tool_call>call:write_file{path:<|"|>a.py<|"|>,content:<|"|>def f(x):\n    if x < 3:\n        return {\'a\': "b"}[0]\n<|"|>}<tool_call|>',
        Call(
            "write_file",
            {
                "path": "a.py",
                "content": "def f(x):\n    if x < 3:\n        return {'a': \"b\"}[0]\n",
            },
        ),
    ),
    case(
        '<|tool_call>call:write_file{path:<|"|>a.html<|"|>,content:<|"|><p>a &amp; b</p>\n<think><|"|>}<tool_call|>',
        Call("write_file", {"path": "a.html", "content": "<p>a &amp; b</p>\n<think>"}),
    ),
    case(
        '<|tool_call>call:write_file{content:<|"|>Write <|tool_call> to call.<|"|>}<tool_call|>',
        Call("write_file", {"content": "Write <|tool_call> to call."}),
    ),
    case(
        '<|tool_call>call:search{query:<|"|><|"|>,tags:[],filters:{}}<tool_call|>',
        Call("search", {"query": "", "tags": [], "filters": {}}),
    ),
    case(
        '<|tool_call>call:send_mail{to:[<|"|>a@b.c<|"|>],subject:<|"|><|"|>,body:<|"|> Hi <|"|>}<tool_call|>',
        Call("send_mail", {"to": ["a@b.c"], "subject": "", "body": " Hi "}),
    ),
    # Several calls, and text around them.
    case(
        '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|><|tool_call>call:get_time{}<tool_call|>',
        Call("get_weather", {"city": "Paris"}),
        Call("get_time", {}),
    ),
    case(
        '<|tool_call>call:get_time{}<tool_call|><|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:1}<tool_call|><|tool_call>call:get_time{}<tool_call|>',
        Call("get_time", {}),
        Call("get_weather", {"city": "Oslo", "days": 1}),
        Call("get_time", {}),
    ),
    case(
        'I\'ll check.\n\n<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>',
        "I'll check.\n\n",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<|tool_call>call:get_time{}<tool_call|>\n\nOne moment, please.",
        Call("get_time", {}),
        "\n\nOne moment, please.",
    ),
    case("\n\n<|tool_call>call:get_time{}<tool_call|>\n", Call("get_time", {})),
    case(
        "a <b> < [c] <|tool_cal <|tool_call>call:get_time{}<tool_call|>",
        "a <b> < [c] <|tool_cal ",
        Call("get_time", {}),
    ),
    # Missing or repeated closing words, and stray brackets.
    case(
        '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|><tool_call|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}', Call("get_weather", {"city": "Paris"})
    ),
    case(
        '<|tool_call><|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    # Text.
    plain("The capital of France is Paris."),
    plain('{"name": "get_time", "arguments": {}}'),
    case('<|tool_call>call:rm_rf{path:<|"|>/<|"|>}<tool_call|>', "call:rm_rf{path:/}"),
    case("<|tool_call><tool_call|>"),
    case("Calls stand behind <|tool_call> here.", "Calls stand behind  here."),
    case("<|tool_call>get_time(", "get_time("),
    # Cut off.
    plain("<|tool_call"),
    case("<|tool_call>"),
    case("<|tool_call>call:get_wea", "call:get_wea"),
    case('<|tool_call>call:get_weather{city:<|"|>Par', Cut("get_weather", '{"city": "Par')),
    case(
        '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:1',
        Cut("get_weather", '{"city": "Paris", "days": 1'),
    ),
    # Broken.
    case(
        '<|tool_call>call:get_weather{city: "Paris", days: 3}<tool_call|>',
        Call("get_weather", {"city": "Paris", "days": 3}),
    ),
    case(
        "<|tool_call>call:get_weather{city:Paris,days:3}<tool_call|>",
        Call("get_weather", {"city": "Paris", "days": 3}),
    ),
    case(
        '<|tool_call>get_weather{city:<|"|>Paris<|"|>}<tool_call|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|tool_call>call:get_weather{city:<|"|>Paris<|"|><tool_call|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case("<|tool_call>call:get_time<tool_call|>", Call("get_time", {})),
    case(
        '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}}<tool_call|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case("<|tool_call>call:get_time{}<tool_call|><|tool_response>", Call("get_time", {})),
]
