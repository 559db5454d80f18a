"""A Jinja sandbox for chat templates, which come with a model and are untrusted programs.

Jinja's own sandbox admits every attribute without an underscore, has been escaped more than once
(CVE-2024-56326, CVE-2025-27516), and limits neither time nor memory. Here a template can use only
listed names: attributes by type, filters, tests and functions (`text.template_values`), within
limits (`text.template_limits`). It can call no class, and load no other template.

Jinja generates Python code (3.1.6, `compiler.py`) in which comparisons, slices and `~` are Python's
own. In the syntax tree, `_Guards` replaces them with filters whose names no template can write.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

from jinja2 import TemplateSyntaxError, Undefined, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import (
    ImmutableSandboxedEnvironment,
    SandboxedEscapeFormatter,
    SandboxedFormatter,
)
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

from trtllm_truss.text.template_limits import (
    COMPILE_LIMIT_S,
    MAX_SOURCE_CHARACTERS,
    RENDER_LIMIT_S,
    Namespace,
    TemplateLimitError,
    rendering,
    require_width,
)
from trtllm_truss.text.template_values import (
    FILTERS,
    FUNCTIONS,
    LOOP,
    MAPPING,
    SEQUENCE,
    STR,
    TESTS,
    Function,
    add,
    bounded,
    concat,
    concatenated,
    modulo,
    multiply,
    power,
    sliced,
)
from trtllm_truss.text.time_limit import TimeIsUp, run_limited


class _Formatter(SandboxedFormatter):
    """`str.format` with the sandbox's attributes and limits."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        for number in re.findall(r"\d+", format_spec):
            require_width(number)
        return rendering.made(super().format_field(bounded(value), format_spec))

    def convert_field(self, value: Any, conversion: Any) -> Any:
        return super().convert_field(bounded(value), conversion)


class _EscapeFormatter(_Formatter, SandboxedEscapeFormatter):
    pass


def _format_map(text: str, named: Mapping[str, Any], values: Sequence[Any] = ()) -> str:
    formatter = (
        _EscapeFormatter(_ENVIRONMENT, escape=text.escape)
        if isinstance(text, Markup)
        else _Formatter(_ENVIRONMENT)
    )
    return type(text)(rendering.made(formatter.vformat(text, values, named)))


def _format(text: str, *values: Any, **named: Any) -> str:
    return _format_map(text, named, values)


_Attributes = Mapping[str, Function | None]
_ATTRIBUTES: tuple[tuple[type, _Attributes], ...] = (
    (str, {**STR, "format": _format, "format_map": _format_map}),
    (Namespace, {}),
    (Mapping, MAPPING),
    (list, SEQUENCE),
    (tuple, SEQUENCE),
    (LoopContext, LOOP),
    (Macro, dict.fromkeys(("arguments", "caller", "catch_kwargs", "catch_varargs", "name"))),
    (BlockReference, {"super": None}),
)
"""Attributes by type, each with a function that limits it; None if no limit is needed."""

_CALLABLE = (
    *(BuiltinMethodType, MethodType, FunctionType, partial),
    *(Macro, BlockReference, LoopContext, Undefined),
)
"""Types that may be called."""


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of all chat templates; see the module."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))
    concat = staticmethod(concat)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # otherwise constants would be computed during compilation
            finalize=bounded,
            extensions=[_GenerationBlock, loopcontrols],
        )
        self.filters = {**FILTERS, **_OPERATIONS}
        self.tests = dict(TESTS)
        self.globals = dict(FUNCTIONS)
        self.binop_table = {"+": add, "*": multiply, "**": power, "%": modulo}
        self._by_type: dict[type, _Attributes] = {}

    def _attributes(self, kind: type) -> _Attributes:
        known = self._by_type.get(kind)
        if known is None:
            known = next((names for base, names in _ATTRIBUTES if issubclass(kind, base)), {})
            self._by_type[kind] = known
        return known

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return `obj.attribute`: a listed attribute, otherwise an item."""
        names = self._attributes(type(obj))
        if attribute in names:
            limited = names[attribute]
            return getattr(obj, attribute) if limited is None else partial(limited, obj)
        try:
            return obj[attribute]
        except (TypeError, LookupError):
            return self._missing(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return `obj[argument]`: an item, otherwise a listed attribute."""
        try:
            return obj[argument if type(argument) is str else bounded(argument)]
        except (TypeError, LookupError):
            if not isinstance(argument, str):
                return self.undefined(obj=obj, name=argument)
        return self.attribute(obj, argument)

    def attribute(self, obj: Any, name: str) -> Any:
        """Return a listed attribute, never an item."""
        known = name in self._attributes(type(obj))
        return self.getattr(obj, name) if known else self._missing(obj, name)

    def _missing(self, obj: Any, name: str) -> Undefined:
        if hasattr(type(obj), name) and not isinstance(obj, Undefined):
            return self.unsafe_undefined(obj, name)
        return self.undefined(obj=obj, name=name)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr in self._attributes(type(obj))

    def is_safe_callable(self, obj: Any) -> bool:
        return isinstance(obj, _CALLABLE)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute an intercepted operation."""
        return add(left, right) if operator == "+" else self.binop_table[operator](left, right)

    def _generate(
        self, source: nodes.Template, name: Any, filename: Any, defer_init: bool = False
    ) -> str:
        guarded = _Guards().visit(source)
        guarded.set_environment(self)
        return super()._generate(guarded, name, filename, defer_init)


class _Guards(NodeTransformer):
    """Replaces Python operations with filters that limit them."""

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        sides = [node.expr, *(op.expr for op in node.ops)]
        if len(sides) == 2 and any(isinstance(side, nodes.Const) for side in sides):
            return node  # comparing with a text or number does not look inside
        node.expr = _operation(_BOUND, node.expr)
        for op in node.ops:
            op.expr = _operation(_BOUND, op.expr)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _operation(_CONCAT, *node.nodes)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = (node.arg.start, node.arg.stop, node.arg.step)
        none = nodes.Const(None, lineno=node.lineno)
        return _operation(_SLICE, node.node, *(bound or none for bound in bounds))

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.key, nodes.Const):
            node.key = _operation(_BOUND, node.key)
        return node


_BOUND, _CONCAT, _SLICE = "(bound)", "(~)", "(slice)"
_OPERATIONS: dict[str, Function] = {
    _BOUND: bounded,
    _CONCAT: concatenated,
    _SLICE: sliced,
}


def _operation(name: str, first: nodes.Expr, *others: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(first, name, [*others], [], None, None, lineno=first.lineno)


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}`: renders its content."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


_ENVIRONMENT = Sandbox()


class SandboxedTemplate:
    """A compiled template.

    Raises:
        jinja2.TemplateSyntaxError: the source is invalid, too long, or takes too long to compile.
    """

    def __init__(self, source: str) -> None:
        if len(source) > MAX_SOURCE_CHARACTERS:
            raise TemplateSyntaxError(
                f"it has {len(source):,} characters; at most {MAX_SOURCE_CHARACTERS:,} are allowed",
                1,
            )
        try:
            template = run_limited(lambda: _ENVIRONMENT.from_string(source), COMPILE_LIMIT_S)
        except TimeIsUp:
            reason = f"it takes more than {COMPILE_LIMIT_S:g} s to compile"
            raise TemplateSyntaxError(reason, 1) from None
        except (RecursionError, MemoryError, SyntaxError, ValueError, OverflowError) as error:
            # From Python's compiler, which compiles the template: too deep or too long.
            raise TemplateSyntaxError(str(error) or type(error).__name__, 1) from error
        # The generated code uses this class where a template sets an attribute.
        template.root_render_func.__globals__["Namespace"] = Namespace
        self._template = template

    def render(self, variables: Mapping[str, Any], limit_s: float = RENDER_LIMIT_S) -> str:
        """Render the template.

        Args:
            variables: JSON values.
            limit_s: CPU time.

        Raises:
            TemplateLimitError: it exceeds its time or the size of values.
            jinja2.TemplateError: it raises an error, or violates the sandbox.
            Exception: it fails in another way, such as TypeError, RecursionError or MemoryError.
        """
        template = self._template
        context = template.new_context(dict(variables))
        rendering.begin(variables)
        try:
            return run_limited(lambda: concat(template.root_render_func(context)), limit_s)
        except TimeIsUp:
            raise TemplateLimitError(f"it takes more than {limit_s:g} s") from None
        finally:
            rendering.end()
