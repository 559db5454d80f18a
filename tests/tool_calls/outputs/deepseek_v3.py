r"""DeepSeek V3 and R1: type, separator, name, and the arguments in a fence."""

# ruff: noqa: E501 - outputs as models write them

from tests.tool_calls.outputs.notation import Call, Cut, case, plain

CASES = [
    # One call.
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Paris"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{\n  "city": "Hangzhou",\n  "days": 2\n}\n```<｜tool▁call▁end｜>\n<｜tool▁calls▁end｜>',
        Call("get_weather", {"city": "Hangzhou", "days": 2}),
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        Call("get_time", {}),
    ),
    case(
        "<｜tool▁calls▁begin｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{ }\n```\n"
        "<｜tool▁call▁end｜>\n<｜tool▁calls▁end｜>\n",
        Call("get_time", {}),
    ),
    case(
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n{"city": "Oslo"}'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        Call("get_weather", {"city": "Oslo"}),
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```\n"
        '{"city": "Oslo"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        Call("get_weather", {"city": "Oslo"}),
    ),
    case(
        '<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{"city": "Oslo"}\n```'
        "<｜tool▁call▁end｜>",
        Call("get_weather", {"city": "Oslo"}),
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get-quote\n```json\n"
        '{"symbol": "BABA"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        Call("get-quote", {"symbol": "BABA"}),
    ),
    case(
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Oslo"}'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        Call("get_weather", {"city": "Oslo"}),
    ),
    # Values.
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n```json\n"
        '{"query": "杭州 天气 🌧", "limit": null, "exact": false}\n```<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>",
        Call("search", {"query": "杭州 天气 🌧", "limit": None, "exact": False}),
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n```json\n"
        '{"query": "a", "filters": {"x": {"y": [{"z": []}]}}}\n```<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>",
        Call("search", {"query": "a", "filters": {"x": {"y": [{"z": []}]}}}),
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>write_file\n```json\n"
        '{"path": "a.md", "content": "```json\\n{\\"a\\": 1}\\n```\\n"}\n```<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>",
        Call("write_file", {"path": "a.md", "content": '```json\n{"a": 1}\n```\n'}),
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>write_file\n```json\n"
        '{"path": "b", "content": "<｜tool▁call▁end｜> } ] \\\\ \\u2028"}\n```<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>",
        Call("write_file", {"path": "b", "content": "<｜tool▁call▁end｜> } ] \\ \u2028"}),
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>set_light\n```json\n"
        '{"on": true, "level": 0.25, "color": "warm \\"white\\""}\n```<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>",
        Call("set_light", {"on": True, "level": 0.25, "color": 'warm "white"'}),
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>math.add\n```json\n"
        '{"a": -0, "b": 1e-7}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        Call("math.add", {"a": 0, "b": 1e-07}),
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>write_file\n```json\n"
        '{"path": "c", "content": "raw\nbreak"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        Call("write_file", {"path": "c", "content": "raw\nbreak"}),
    ),
    # Several calls, and text around them.
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Paris"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time'
        "\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        Call("get_weather", {"city": "Paris"}),
        Call("get_time", {}),
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```"
        "<｜tool▁call▁end｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```"
        "<｜tool▁call▁end｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        Call("get_time", {}),
        Call("get_time", {}),
        Call("get_time", {}),
    ),
    case(
        "我来查一下。<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n"
        "{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "我来查一下。",
        Call("get_time", {}),
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>请稍等。",
        Call("get_time", {}),
        "请稍等。",
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```"
        "<｜tool▁call▁end｜> and more",
        Call("get_time", {}),
        " and more",
    ),
    # Missing closing markers.
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```"
        "<｜tool▁call▁end｜>",
        Call("get_time", {}),
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```",
        Call("get_time", {}),
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}",
        Call("get_time", {}),
    ),
    # Text.
    plain("杭州是浙江省的省会。"),
    plain("```json\n{}\n```"),
    case("<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>"),
    case("<｜tool▁calls▁begin｜>get_time<｜tool▁calls▁end｜>", "get_time"),
    plain("<｜tool▁outputs▁begin｜>22<｜tool▁outputs▁end｜>"),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>rm_rf\n```json\n"
        '{"path": "/"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        'functionrm_rf\n```json\n{"path": "/"}\n```',
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function get_time\n```json\n{}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "function get_time\n```json\n{}\n```",
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '["Oslo"]\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        'functionget_weather\n```json\n["Oslo"]\n```',
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```python\n"
        "get_weather('Oslo')\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "functionget_weather\n```python\nget_weather('Oslo')\n```",
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>\n```json\n{}\n```",
        "function\n```json\n{}\n```",
    ),
    # Cut off and broken.
    plain("<｜tool▁calls▁be"),
    case("Text <｜tool▁calls▁begin｜>", "Text "),
    case("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>func", "func"),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_wea",
        "functionget_wea",
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```js",
        "functionget_weather\n```js",
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n",
        "functionget_weather\n```json\n",
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Par',
        Cut("get_weather", '{"city": "Par'),
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Paris"\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```"
        "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_wea",
        Call("get_time", {}),
        "\nfunctionget_wea",
    ),
    case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```"
        "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>rm_rf\n```json\n{}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        Call("get_time", {}),
        "\nfunctionrm_rf\n```json\n{}\n```",
    ),
]
