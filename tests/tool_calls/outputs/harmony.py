"""gpt-oss: messages in channels."""

# ruff: noqa: E501 - outputs as models write them

from tests.tool_calls.outputs.notation import Call, Case, Cut, Think, case, plain


def called(name: str, arguments: str, *parts: Call | Cut | str) -> Case:
    """One call in the commentary channel."""
    header = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
    return case(f"{header}{arguments}<|call|>", *parts)


CASES = [
    # One call.
    called("get_weather", '{"city":"Paris"}', Call("get_weather", {"city": "Paris"})),
    called(
        "get_weather",
        '{"city": "Oslo", "days": 2}',
        Call("get_weather", {"city": "Oslo", "days": 2}),
    ),
    called("get_time", "{}", Call("get_time", {})),
    called("get_time", "\n{ }\n", Call("get_time", {})),
    called("math.add", '{"a": 0.1, "b": -3}', Call("math.add", {"a": 0.1, "b": -3})),
    called("get-quote", '{"symbol": "MSFT"}', Call("get-quote", {"symbol": "MSFT"})),
    case(
        "<|channel|>commentary to=functions.get_time<|constrain|>json<|message|>{}<|call|>",
        Call("get_time", {}),
    ),
    case(
        "<|channel|>commentary to=functions.get_time json<|message|>{}<|call|>",
        Call("get_time", {}),
    ),
    case("<|channel|>commentary to=functions.get_time<|message|>{}<|call|>", Call("get_time", {})),
    case("<|channel|>commentary to=get_time <|constrain|>json<|message|>{}", Call("get_time", {})),
    case(
        " to=functions.get_time<|channel|>commentary json<|message|>{}<|call|>",
        Call("get_time", {}),
    ),
    case(
        "<|start|>assistant to=functions.get_time<|channel|>commentary json<|message|>{}<|call|>",
        Call("get_time", {}),
    ),
    case(
        "<|channel|>analysis to=functions.get_time code<|message|>\n{}<|call|>",
        Call("get_time", {}),
    ),
    # Values.
    called(
        "search",
        '{"query": "naïve 🙂 \\u4e2d", "limit": null, "exact": false, "tags": ["a", "b"]}',
        Call("search", {"query": "naïve 🙂 中", "limit": None, "exact": False, "tags": ["a", "b"]}),
    ),
    called(
        "search",
        '{"filters": {"a": {"b": [{"c": 1e3}]}}, "query": "{\\"x\\": [}"}',
        Call("search", {"filters": {"a": {"b": [{"c": 1000.0}]}}, "query": '{"x": [}'}),
    ),
    called(
        "write_file",
        '{"path": "a", "content": "<|end|><|start|>assistant<|channel|>final<|message|>"}',
        Call(
            "write_file",
            {"path": "a", "content": "<|end|><|start|>assistant<|channel|>final<|message|>"},
        ),
    ),
    called(
        "write_file",
        '{"path": "a\\\\b", "content": "1\\n2\\t\\"3\\""}',
        Call("write_file", {"path": "a\\b", "content": '1\n2\t"3"'}),
    ),
    called("write_file", '{"content": "raw\nline"}', Call("write_file", {"content": "raw\nline"})),
    called(
        "set_light",
        '{\n  "on": true,\n  "level": 1,\n  "color": ""\n}',
        Call("set_light", {"on": True, "level": 1, "color": ""}),
    ),
    # Reasoning, text and calls.
    case(
        "<|channel|>analysis<|message|>Need to call.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.get_weather <|constrain|>json<|message|>{"city":"Paris"}<|call|>',
        Think("Need to call."),
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        '<|channel|>analysis<|message|>User asks: "What is 2 + 2?" Simple.<|end|><|start|>assistant'
        "<|channel|>final<|message|>2 + 2 = 4.<|return|>",
        Think('User asks: "What is 2 + 2?" Simple.'),
        "2 + 2 = 4.",
    ),
    case("<|channel|>final<|message|>Hello, <b>world</b> & more.", "Hello, <b>world</b> & more."),
    case(
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>Two."
        "<|end|><|start|>assistant<|channel|>final<|message|>Done.",
        Think("One.\nTwo."),
        "Done.",
    ),
    case(
        "<|channel|>analysis<|message|>Plan.<|end|><|start|>assistant<|channel|>commentary<|message|>"
        "**Action plan**:\n1. Look.<|end|><|start|>assistant<|channel|>commentary to=functions.get_time"
        "<|constrain|>json<|message|>{}<|call|>",
        Think("Plan."),
        "**Action plan**:\n1. Look.",
        Call("get_time", {}),
    ),
    case(
        "<|channel|>commentary<|message|>First.<|end|><|start|>assistant<|channel|>analysis<|message|>Hm."
        "<|end|><|start|>assistant<|channel|>final<|message|>Second.",
        "First.",
        Think("Hm."),
        "\nSecond.",
    ),
    case(
        "<|channel|>commentary to=functions.get_time json<|message|>{}<|call|><|start|>assistant"
        '<|channel|>commentary to=functions.get_weather json<|message|>{"city": "Rome"}<|call|>',
        Call("get_time", {}),
        Call("get_weather", {"city": "Rome"}),
    ),
    case(
        "<|channel|>commentary to=functions.get_time json<|message|>{}<|end|><|start|>assistant"
        "<|channel|>final<|message|>Wait.",
        Call("get_time", {}),
        "Wait.",
    ),
    case(
        "<|channel|>analysis<|message|>Unended.<|start|>assistant<|channel|>final<|message|>Answer.",
        Think("Unended."),
        "Answer.",
    ),
    case(
        "<|channel|>analysis<|message|>Unended.<|channel|>final<|message|>Answer.",
        Think("Unended."),
        "Answer.",
    ),
    case(
        "<|channel|>analysis to=python code<|message|>print(1)<|call|>",
        Think("print(1)"),
    ),
    case(
        "<|channel|>analysis<|message|><|end|><|start|>assistant<|channel|>final<|message|>Hi.",
        "Hi.",
    ),
    case("<|start|>assistant<|message|>No channel.<|end|>", "No channel."),
    case("<|channel|>analysis<|message|>Cut off in the mid", Think("Cut off in the mid")),
    case(
        "<|channel|>analysis<|message|>\n Spaces. \n\n<|end|>\n<|start|>assistant<|channel|>final"
        "<|message|>Yes.",
        Think("Spaces."),
        "Yes.",
    ),
    # Text.
    plain("No markers at all, to=functions.get_time."),
    plain("to be or not to be"),
    case(
        "<|channel|>commentary to=functions.rm_rf <|constrain|>json<|message|>{}<|call|>",
        "functions.rm_rf {}",
    ),
    case(
        "<|channel|>analysis to=functions.rm_rf <|constrain|>json<|message|>{}<|call|>", Think("{}")
    ),
    case("<|channel|>commentary to=browser.search<|message|>{}<|call|>", "browser.search {}"),
    case(
        '<|channel|>commentary to=functions.get_time json<|message|>"now"<|call|>',
        'functions.get_time "now"',
    ),
    case(
        "<|channel|>commentary to=functions.get_time json<|message|>get_time()<|call|>",
        "functions.get_time get_time()",
    ),
    case("<|channel|>commentary to=functions.get_time json<|call|>", Call("get_time", {})),
    case(
        "<|start|>functions.get_time to=assistant<|channel|>commentary<|message|>12:00<|end|>",
        "12:00",
    ),
    # Cut off and broken.
    plain("<|chan"),
    case("<|channel|>"),
    case("<|channel|>comm"),
    case("<|channel|>commentary to=functions.get_weather <|constrain|>json"),
    case(
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>",
        Call("get_weather", {}),
    ),
    case(
        '<|channel|>commentary to=functions.get_weather json<|message|>{"city": "Par',
        Cut("get_weather", '{"city": "Par'),
    ),
    case(
        '<|channel|>commentary to=functions.get_weather json<|message|>{"city": "Paris"<|call|>',
        Call("get_weather", {"city": "Paris"}),
    ),
    case(
        "<|channel|>commentary to=functions.get_time json<|message|>{} and so on<|end|><|start|>assistant"
        "<|channel|>final<|message|>Hm.",
        Call("get_time", {}),
        " and so on\nHm.",
    ),
]
