"""OLMo 3: calls as in Python, one per line."""

# ruff: noqa: E501 - outputs as models write them

from tests.tool_calls.outputs.notation import Call, Cut, case, plain

CASES = [
    # One call.
    case(
        "<function_calls>\nget_weather(city='Paris')\n</function_calls>",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<function_calls>\nget_weather(city='Oslo', days=3)\n</function_calls>",
        Call("get_weather", {"city": "Oslo", "days": 3}),
    ),
    case(
        "<function_calls>\nget_weather(city='Rome', unit='celsius', days=10)\n</function_calls>",
        Call("get_weather", {"city": "Rome", "unit": "celsius", "days": 10}),
    ),
    case("<function_calls>\nget_time()\n</function_calls>", Call("get_time", {})),
    case(
        "<function_calls>\nmath.add(a=1, b=-2.5)\n</function_calls>",
        Call("math.add", {"a": 1, "b": -2.5}),
    ),
    case(
        "<function_calls>\nget-quote(symbol='NVDA')\n</function_calls>",
        Call("get-quote", {"symbol": "NVDA"}),
    ),
    # Values.
    case(
        "<function_calls>\nsearch(query='x', limit=None, exact=True, filters={'lang': ['en', 'de'], 'deep': {'a': None}}, tags=['a', 'b, c'])\n</function_calls>",
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
        "<function_calls>\nset_light(on=False, level=-0.0015)\n</function_calls>",
        Call("set_light", {"on": False, "level": -0.0015}),
    ),
    case(
        "<function_calls>\nget_weather(city='75001')\n</function_calls>",
        Call("get_weather", {"city": "75001"}),
    ),
    case(
        "<function_calls>\nsearch(query='日本の天気 ☀️ in Zürich 😀')\n</function_calls>",
        Call("search", {"query": "日本の天気 ☀️ in Zürich 😀"}),
    ),
    case(
        "<function_calls>\nwrite_file(path='C:\\\\tmp\\\\a.txt', content='line 1\\n\\tline \"2\"\\r\\nit\\'s')\n</function_calls>",
        Call("write_file", {"path": "C:\\tmp\\a.txt", "content": 'line 1\n\tline "2"\r\nit\'s'}),
    ),
    case(
        "<function_calls>\nwrite_file(path='a.py', content='def f(x):\\n    if x < 3:\\n        return {\\'a\\': \"b\"}[0]\\n')\n</function_calls>",
        Call(
            "write_file",
            {
                "path": "a.py",
                "content": "def f(x):\n    if x < 3:\n        return {'a': \"b\"}[0]\n",
            },
        ),
    ),
    case(
        "<function_calls>\nwrite_file(path='a.html', content='<p>a &amp; b</p>\\n<think>')\n</function_calls>",
        Call("write_file", {"path": "a.html", "content": "<p>a &amp; b</p>\n<think>"}),
    ),
    case(
        "<function_calls>\nwrite_file(content='Write <function_calls> to call.')\n</function_calls>",
        Call("write_file", {"content": "Write <function_calls> to call."}),
    ),
    case(
        "<function_calls>\nsearch(query='', tags=[], filters={})\n</function_calls>",
        Call("search", {"query": "", "tags": [], "filters": {}}),
    ),
    case(
        "<function_calls>\nsend_mail(to=['a@b.c'], subject='', body=' Hi ')\n</function_calls>",
        Call("send_mail", {"to": ["a@b.c"], "subject": "", "body": " Hi "}),
    ),
    # Several calls, and text around them.
    case(
        "<function_calls>\nget_weather(city='Paris')\nget_time()\n</function_calls>",
        Call("get_weather", {"city": "Paris"}),
        Call("get_time", {}),
    ),
    case(
        "<function_calls>\nget_time()\nget_weather(city='Oslo', days=1)\nget_time()\n</function_calls>",
        Call("get_time", {}),
        Call("get_weather", {"city": "Oslo", "days": 1}),
        Call("get_time", {}),
    ),
    case(
        "I'll check.\n\n<function_calls>\nget_weather(city='Paris')\n</function_calls>",
        "I'll check.\n\n",
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<function_calls>\nget_time()\n</function_calls>\n\nOne moment, please.",
        Call("get_time", {}),
        "\n\nOne moment, please.",
    ),
    case("\n\n<function_calls>\nget_time()\n</function_calls>\n", Call("get_time", {})),
    case(
        "a <b> < [c] <function_call <function_calls>\nget_time()\n</function_calls>",
        "a <b> < [c] <function_call ",
        Call("get_time", {}),
    ),
    # Missing or repeated closing words, and stray brackets.
    case(
        "<function_calls>\nget_weather(city='Paris')\n</function_calls></function_calls>",
        Call("get_weather", {"city": "Paris"}),
    ),
    case("<function_calls>\nget_weather(city='Paris')", Call("get_weather", {"city": "Paris"})),
    case(
        "<function_calls><function_calls>\nget_weather(city='Paris')\n</function_calls>",
        Call("get_weather", {"city": "Paris"}),
    ),
    # Text.
    plain("The capital of France is Paris."),
    plain('{"name": "get_time", "arguments": {}}'),
    case("<function_calls>\nrm_rf(path='/')\n</function_calls>", "\nrm_rf(path='/')\n"),
    case("<function_calls></function_calls>"),
    case("Calls stand behind <function_calls> here.", "Calls stand behind  here."),
    case("<function_calls>get_time(", "get_time("),
    # Cut off.
    plain("<function_calls"),
    case("<function_calls>"),
    case("<function_calls>\nget_wea", "\nget_wea"),
    case("<function_calls>\nget_weather(city='Par", Cut("get_weather", '{"city": "Par')),
    case(
        "<function_calls>\nget_weather(city='Paris', days=1",
        Cut("get_weather", '{"city": "Paris", "days": 1'),
    ),
    # Broken.
    case("<function_calls>get_time()</function_calls>", Call("get_time", {})),
    case(
        '<function_calls>\nget_weather(city="Paris"), get_time()\n</function_calls>',
        Call("get_weather", {"city": "Paris"}),
        Call("get_time", {}),
    ),
    case(
        '<function_calls>\n[get_weather(city="Paris")]\n</function_calls>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<function_calls>\nget_weather(city="Paris", days=two)\n</function_calls>',
        Cut("get_weather", '{"city": "Paris", "days": two)\n'),
    ),
    case(
        '<function_calls>\nget_time()\nrm_rf(path="/")\n</function_calls>',
        Call("get_time", {}),
        '\nrm_rf(path="/")\n',
    ),
    case('<function_calls>\nget_weather("Paris")\n</function_calls>', '\nget_weather("Paris")\n'),
    case(
        '<function_calls>\nget_weather(city="Paris"\n</function_calls>',
        Call("get_weather", {"city": "Paris"}),
    ),
]
