"""Llama 3.2 and 4: `[f(a=1, b="x"), g()]`."""

from tests.tool_calls.outputs.notation import Call, Cut, case, plain

CASES = [
    # One call.
    case('[get_weather(city="Paris")]', Call("get_weather", {"city": "Paris"})),
    case("[get_weather(city='Paris', days=3)]", Call("get_weather", {"city": "Paris", "days": 3})),
    case("[get_time()]", Call("get_time", {})),
    case("[ get_time( ) ]", Call("get_time", {})),
    case(
        '<|python_start|>[get_weather(city="Paris")]<|python_end|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case('<|python_tag|>[get_weather(city="Oslo")]', Call("get_weather", {"city": "Oslo"})),
    case(
        '\n[get_weather(\n    city="Oslo",\n    days=1,\n)]\n',
        Call("get_weather", {"city": "Oslo", "days": 1}),
    ),
    case("[math.add(a=1, b=2)]", Call("math.add", {"a": 1, "b": 2})),
    case('[get-quote(symbol="NVDA")]', Call("get-quote", {"symbol": "NVDA"})),
    case('[get_weather(city = "Oslo")]', Call("get_weather", {"city": "Oslo"})),
    # Values.
    case(
        "[set_light(on=True, level=0.5, color=None)]",
        Call("set_light", {"on": True, "level": 0.5, "color": None}),
    ),
    case(
        "[set_light(on=false, level=-1e-3, color=null)]",
        Call("set_light", {"on": False, "level": -0.001, "color": None}),
    ),
    case("[math.add(a=.5, b=1.)]", Call("math.add", {"a": 0.5, "b": 1.0})),
    case("[math.add(a=+7, b=1_000)]", Call("math.add", {"a": 7, "b": 1000})),
    case(
        "[search(query='x', tags=['a', \"b\"], filters={'lang': ['en'], \"n\": {'m': None}})]",
        Call(
            "search",
            {"query": "x", "tags": ["a", "b"], "filters": {"lang": ["en"], "n": {"m": None}}},
        ),
    ),
    case(
        "[search(tags=[], filters={}, query='')]",
        Call("search", {"tags": [], "filters": {}, "query": ""}),
    ),
    case("[search(tags=('a', 'b',))]", Call("search", {"tags": ["a", "b"]})),
    case(
        "[search(tags=['a', ], filters={'a': 1, })]",
        Call("search", {"tags": ["a"], "filters": {"a": 1}}),
    ),
    case(
        "[search(query=\"it's\", tags=['say \"hi\"', 'a\\'b'])]",
        Call("search", {"query": "it's", "tags": ['say "hi"', "a'b"]}),
    ),
    case(
        '[search(query="a), b] c=1, [d(e=2)]")]',
        Call("search", {"query": "a), b] c=1, [d(e=2)]"}),
    ),
    case(
        '[search(query="東京 \\u00e9 \\U0001F600 \\x41 \\101")]',
        Call("search", {"query": "東京 é 😀 A A"}),
    ),
    case(
        '[search(query="\\ud83d\\ude00")]',
        Call("search", {"query": "😀"}),
    ),
    case(
        '[write_file(path="C:\\\\a", content="line 1\\n\\tline 2\\r")]',
        Call("write_file", {"path": "C:\\a", "content": "line 1\n\tline 2\r"}),
    ),
    case(
        '[write_file(path="re", content="\\d+\\.")]',
        Call("write_file", {"path": "re", "content": "\\d+\\."}),
    ),
    case(
        '[write_file(path="a", content="""def f():\n    return "x" + \'y\'\n""")]',
        Call("write_file", {"path": "a", "content": "def f():\n    return \"x\" + 'y'\n"}),
    ),
    case(
        "[write_file(path='a', content='''''')]", Call("write_file", {"path": "a", "content": ""})
    ),
    case(
        '[write_file(path="a", content="two\nlines")]',
        Call("write_file", {"path": "a", "content": "two\nlines"}),
    ),
    # Several calls, and text around them.
    case(
        '[get_weather(city="Paris"), get_time()]',
        Call("get_weather", {"city": "Paris"}),
        Call("get_time", {}),
    ),
    case(
        "[get_time(), get_time(),\n get_time()]",
        Call("get_time", {}),
        Call("get_time", {}),
        Call("get_time", {}),
    ),
    case(
        'Let me check:\n[get_weather(city="Paris")]',
        "Let me check:\n",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "[get_time()]\nThat is all [1].",
        Call("get_time", {}),
        "\nThat is all [1].",
    ),
    case(
        "[get_time()]\n[get_time()]",
        Call("get_time", {}),
        Call("get_time", {}),
    ),
    # Text.
    plain("Paris [the capital] is in France."),
    plain("[1, 2, 3]"),
    plain("[link](https://example.org/a(b)=c)"),
    plain("[]"),
    plain("[[get_time()]]"),
    plain("x[get_time()]"),
    plain("Call [get_time()] for that."),
    plain("get_time()"),
    plain('[rm_rf(path="/")]'),
    plain('[get_weather("Paris")]'),
    plain("[get_weather(city=Paris)]"),
    plain("[get_weather(city)]"),
    plain("[get_weather(city:'Paris')]"),
    plain("[get_weather]"),
    plain("[get_weather(, )]"),
    plain('[{"name": "get_time", "parameters": {}}]'),
    case("<|python_start|>get_time()<|python_end|>", Call("get_time", {})),
    # Cut off.
    plain("["),
    plain("[get_wea"),
    plain("[get_weather("),
    plain("[get_weather(city="),
    case('[get_weather(city="Par', Cut("get_weather", '{"city": "Par')),
    case('[get_weather(city="Paris", da', Cut("get_weather", '{"city": "Paris"')),
    case('[search(tags=["a", ', Cut("search", '{"tags": ["a"')),
    case("[set_light(on=True, level=0", Cut("set_light", '{"on": true, "level": 0')),
    case("[get_time()", Call("get_time", {})),
    case(
        "[get_time(), get_weather(ci",
        Call("get_time", {}),
        ", get_weather(ci",
    ),
    case(
        '[get_weather(city="Paris", days=two)]',
        Cut("get_weather", '{"city": "Paris", "days": two)]'),
    ),
    case("[search(filters={1: 2})]", Cut("search", '{"filters": {1: 2})]')),
]
