"""LFM2: a list of calls as in Python."""

# ruff: noqa: E501 - outputs as models write them

from tests.tool_calls.outputs.notation import Call, Cut, case, plain

CASES = [
    # One call.
    case(
        "<|tool_call_start|>[get_weather(city='Paris')]<|tool_call_end|>",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<|tool_call_start|>[get_weather(city='Oslo', days=3)]<|tool_call_end|>",
        Call("get_weather", {"city": "Oslo", "days": 3}),
    ),
    case(
        "<|tool_call_start|>[get_weather(city='Rome', unit='celsius', days=10)]<|tool_call_end|>",
        Call("get_weather", {"city": "Rome", "unit": "celsius", "days": 10}),
    ),
    case("<|tool_call_start|>[get_time()]<|tool_call_end|>", Call("get_time", {})),
    case(
        "<|tool_call_start|>[math.add(a=1, b=-2.5)]<|tool_call_end|>",
        Call("math.add", {"a": 1, "b": -2.5}),
    ),
    case(
        "<|tool_call_start|>[get-quote(symbol='NVDA')]<|tool_call_end|>",
        Call("get-quote", {"symbol": "NVDA"}),
    ),
    # Values.
    case(
        "<|tool_call_start|>[search(query='x', limit=None, exact=True, filters={'lang': ['en', 'de'], 'deep': {'a': None}}, tags=['a', 'b, c'])]<|tool_call_end|>",
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
        "<|tool_call_start|>[set_light(on=False, level=-0.0015)]<|tool_call_end|>",
        Call("set_light", {"on": False, "level": -0.0015}),
    ),
    case(
        "<|tool_call_start|>[get_weather(city='75001')]<|tool_call_end|>",
        Call("get_weather", {"city": "75001"}),
    ),
    case(
        "<|tool_call_start|>[search(query='日本の天気 ☀️ in Zürich 😀')]<|tool_call_end|>",
        Call("search", {"query": "日本の天気 ☀️ in Zürich 😀"}),
    ),
    case(
        "<|tool_call_start|>[write_file(path='C:\\\\tmp\\\\a.txt', content='line 1\\n\\tline \"2\"\\r\\nit\\'s')]<|tool_call_end|>",
        Call("write_file", {"path": "C:\\tmp\\a.txt", "content": 'line 1\n\tline "2"\r\nit\'s'}),
    ),
    case(
        "<|tool_call_start|>[write_file(path='a.py', content='def f(x):\\n    if x < 3:\\n        return {\\'a\\': \"b\"}[0]\\n')]<|tool_call_end|>",
        Call(
            "write_file",
            {
                "path": "a.py",
                "content": "def f(x):\n    if x < 3:\n        return {'a': \"b\"}[0]\n",
            },
        ),
    ),
    case(
        "<|tool_call_start|>[write_file(path='a.html', content='<p>a &amp; b</p>\\n<think>')]<|tool_call_end|>",
        Call("write_file", {"path": "a.html", "content": "<p>a &amp; b</p>\n<think>"}),
    ),
    case(
        "<|tool_call_start|>[write_file(content='Write <|tool_call_start|> to call.')]<|tool_call_end|>",
        Call("write_file", {"content": "Write <|tool_call_start|> to call."}),
    ),
    case(
        "<|tool_call_start|>[search(query='', tags=[], filters={})]<|tool_call_end|>",
        Call("search", {"query": "", "tags": [], "filters": {}}),
    ),
    case(
        "<|tool_call_start|>[send_mail(to=['a@b.c'], subject='', body=' Hi ')]<|tool_call_end|>",
        Call("send_mail", {"to": ["a@b.c"], "subject": "", "body": " Hi "}),
    ),
    # Several calls, and text around them.
    case(
        "<|tool_call_start|>[get_weather(city='Paris'), get_time()]<|tool_call_end|>",
        Call("get_weather", {"city": "Paris"}),
        Call("get_time", {}),
    ),
    case(
        "<|tool_call_start|>[get_time(), get_weather(city='Oslo', days=1), get_time()]<|tool_call_end|>",
        Call("get_time", {}),
        Call("get_weather", {"city": "Oslo", "days": 1}),
        Call("get_time", {}),
    ),
    case(
        "I'll check.\n\n<|tool_call_start|>[get_weather(city='Paris')]<|tool_call_end|>",
        "I'll check.\n\n",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<|tool_call_start|>[get_time()]<|tool_call_end|>\n\nOne moment, please.",
        Call("get_time", {}),
        "\n\nOne moment, please.",
    ),
    case("\n\n<|tool_call_start|>[get_time()]<|tool_call_end|>\n", Call("get_time", {})),
    case(
        "a <b> < [c] <|tool_call_start <|tool_call_start|>[get_time()]<|tool_call_end|>",
        "a <b> < [c] <|tool_call_start ",
        Call("get_time", {}),
    ),
    # Missing or repeated closing words, and stray brackets.
    case(
        "<|tool_call_start|>[get_weather(city='Paris')]<|tool_call_end|><|tool_call_end|>",
        Call("get_weather", {"city": "Paris"}),
    ),
    case("<|tool_call_start|>[get_weather(city='Paris')]", Call("get_weather", {"city": "Paris"})),
    case(
        "<|tool_call_start|><|tool_call_start|>[get_weather(city='Paris')]<|tool_call_end|>",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<|tool_call_start|>[get_weather(city='Paris')<|tool_call_end|>",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<|tool_call_start|>[get_weather(city='Paris')}]<|tool_call_end|>",
        Call("get_weather", {"city": "Paris"}),
    ),
    # Text.
    plain("The capital of France is Paris."),
    plain('{"name": "get_time", "arguments": {}}'),
    case("<|tool_call_start|>[rm_rf(path='/')]<|tool_call_end|>", "[rm_rf(path='/')]"),
    case("<|tool_call_start|><|tool_call_end|>"),
    case("Calls stand behind <|tool_call_start|> here.", "Calls stand behind  here."),
    case("<|tool_call_start|>get_time(", "get_time("),
    # Cut off.
    plain("<|tool_call_start|"),
    case("<|tool_call_start|>"),
    case("<|tool_call_start|>[get_wea", "[get_wea"),
    case("<|tool_call_start|>[get_weather(city='Par", Cut("get_weather", '{"city": "Par')),
    case(
        "<|tool_call_start|>[get_weather(city='Paris', days=1",
        Cut("get_weather", '{"city": "Paris", "days": 1'),
    ),
    # Broken.
    case(
        '<|tool_call_start|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]<|tool_call_end|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|tool_call_start|>{"name": "get_time", "arguments": {}}<|tool_call_end|>',
        Call("get_time", {}),
    ),
    case("<|tool_call_start|>get_time()<|tool_call_end|>", Call("get_time", {})),
    case(
        '<|tool_call_start|>[get_weather(city="Paris"]<|tool_call_end|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<|tool_call_start|>[get_weather(city=Paris)]<|tool_call_end|>", "[get_weather(city=Paris)]"
    ),
    case('<|tool_call_start|>[get_weather("Paris")]<|tool_call_end|>', '[get_weather("Paris")]'),
    case(
        '<|tool_call_start|>[search(tags=["a", "b")]<|tool_call_end|>',
        Call("search", {"tags": ["a", "b"]}),
    ),
]
