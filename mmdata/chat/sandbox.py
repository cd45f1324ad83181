"""The Jinja sandbox chat templates run in, with the names Hugging Face transformers gives them.

Immutable sandbox, trim_blocks and lstrip_blocks, loop controls, `{% generation %}`, `tojson` (plain `json.dumps`,
`ensure_ascii` off), `raise_exception`, `strftime_now`. Over traced values every way of making a string is either
followed or marked as the record's; an ordinary run costs what Jinja costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, optimizeconst
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace

from mmdata.chat.segments import Mark
from mmdata.chat.traced import TracedStr, find_tracer, pin, plain, segments_of, untraceable
from mmdata.chat.traced_json import to_json
from mmdata.errors import ChatTemplateError

# Filters that pass on what they are given, or use only operations that traced values follow themselves.
_FOLLOWED = frozenset(
    [
        "attr",
        "batch",
        "capitalize",
        "count",
        "d",
        "default",
        "dictsort",
        "first",
        "groupby",
        "items",
        "join",
        "last",
        "length",
        "list",
        "lower",
        "map",
        "max",
        "min",
        "reject",
        "rejectattr",
        "reverse",
        "select",
        "selectattr",
        "slice",
        "sort",
        "string",
        "sum",
        "trim",
        "unique",
        "upper",
    ]
)


class _Generator(CodeGenerator):
    """Compiles `a ~ b` to the environment's own joining, which keeps authorship."""

    @optimizeconst
    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat((")
        for item in node.nodes:
            self.write("environment.finalize(")
            self.visit(item, frame)
            self.write("), ")
        self.write("))")


class _Generation(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}`: the text inside is what the model is to produce."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Callable[[], str]) -> str:
        text = caller()
        environment = self.environment
        assert isinstance(environment, ChatEnvironment)
        tracer = find_tracer(text) or environment.tracer
        if tracer is None:
            return text
        return TracedStr.make(tracer, (Mark(1), *segments_of(text), Mark(-1)))


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """One sandbox for one renderer; not for use by two threads at once."""

    code_generator_class = _Generator
    intercepted_binops = frozenset(["%"])

    def __init__(self, today: date | None = None) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=text_of,
            extensions=[_Generation, jinja2.ext.loopcontrols],
        )
        self.tracer: Any = None
        self.filters = {name: self._filter(name, function) for name, function in self.filters.items()}
        self.filters.update(tojson=_tojson, join=_join, replace=_replace, trim=_trim)
        self.filters.update(string=text_of, safe=text_of)
        self.globals.update(
            raise_exception=_raise_exception,
            strftime_now=_clock(today),
            namespace=_ChatNamespace,
            dict=_make_dict,
            range=lambda *bounds: safe_range(*pin(bounds)),
        )

    def concat(self, parts: Iterable[str]) -> str:
        """Join what the template yields; traced when any part is."""
        pieces = list(parts)
        tracer = find_tracer(pieces)
        if tracer is None:
            return "".join(pieces)
        return TracedStr.make(tracer, tuple(segment for piece in pieces for segment in segments_of(piece)))

    def _filter(self, name: str, function: Any) -> Any:
        if name in _FOLLOWED:
            return function

        def opaque(*args: Any, **options: Any) -> Any:
            tracer = find_tracer([args, options])
            if tracer is None:
                return function(*args, **options)
            done = function(*pin(args), **pin(options))
            return untraceable(tracer, f"|{name}", done, (list(args), list(options.values())))

        for attribute in ("jinja_pass_arg", "jinja_async_variant"):
            if hasattr(function, attribute):
                setattr(opaque, attribute, getattr(function, attribute))
        return opaque

    def call(self, context: Context, function: Any, /, *args: Any, **options: Any) -> Any:
        """Methods of the template's own strings given the record's texts keep authorship too."""
        owner = getattr(function, "__self__", None)
        if type(owner) is str and (tracer := find_tracer([args, options])) is not None:
            function = getattr(TracedStr.make(tracer, segments_of(owner)), function.__name__)
        return super().call(context, function, *args, **options)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """What Jinja asks for `left % right`: on traced text the whole result is the record's.

        Raises ChatTemplateError where the template's own part of a text holds a control token.
        """
        tracer = find_tracer([left, right])
        if tracer is None or not isinstance(left, str):
            return super().call_binop(context, operator, pin(left), pin(right))
        return untraceable(tracer, operator, plain(left) % pin(right), (left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Jinja's safe `str.format` and `format_map`, whose result is the record's where a traced text goes in; None
        for any other value. Calling it raises ChatTemplateError as `call_binop` does."""
        safe = super().wrap_str_format(value)
        if safe is None:
            return None
        owner = value.__self__
        name = value.__name__

        def wrapper(*args: Any, **options: Any) -> str:
            tracer = find_tracer([owner, args, options])
            if tracer is None:
                return safe(*args, **options)
            inner = super(ChatEnvironment, self).wrap_str_format(getattr(plain(owner), name))
            assert inner is not None
            done: str = untraceable(
                tracer, name, inner(*pin(args), **pin(options)), (owner, list(args), list(options.values()))
            )
            return done

        return wrapper


class _ChatNamespace(Namespace):
    """Jinja's namespace, refusing underscore names (a way out of the sandbox)."""

    def __init__(*args: Any, **attributes: Any) -> None:
        merged = dict(*args[1:], **attributes)
        for name in merged:
            _refuse_private(name)
        Namespace.__init__(args[0], merged)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        Namespace.__setitem__(self, name, value)


def _refuse_private(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a chat template stores the private name {name!r}")


def _make_dict(*args: Any, **options: Any) -> dict[Any, Any]:
    return dict(*args, **options)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> Any:
    return to_json(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def text_of(value: Any) -> str:
    """What a template prints for a value; inside lists and dicts too, the record's texts stay the record's.

    Raises ChatTemplateError for objects whose text cannot be followed.
    """
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, jinja2.Undefined)):
        return str(value)
    if isinstance(value, (list, tuple, dict)):
        tracer = find_tracer(value)
        if tracer is not None:
            return str(untraceable(tracer, "print", str(pin(value)), (value,)))
        return str(value)
    raise ChatTemplateError(f"the template prints a {type(value).__name__}; print its items instead")


def _trim(value: Any, chars: str | None = None) -> Any:
    return text_of(value).strip(chars)


def _replace(value: Any, old: str, new: str, count: int | None = None) -> Any:
    text, times = text_of(value), -1 if count is None else count
    tracer = find_tracer([text, old, new])
    if tracer is None:
        return text.replace(old, new, times)
    return TracedStr.make(tracer, segments_of(text)).replace(old, new, times)


@jinja2.pass_environment
def _join(environment: Any, values: Any, d: str = "", attribute: Any = None) -> Any:
    if attribute is not None:
        values = [environment.getattr(value, attribute) for value in values]
    parts: list[Any] = []
    for number, value in enumerate(values):
        parts += [d, text_of(value)] if number else [text_of(value)]
    return environment.concat(parts)


def _raise_exception(message: Any) -> NoReturn:
    raise jinja2.exceptions.TemplateError(plain(str(message)))


def _clock(today: date | None) -> Callable[[str], str]:
    def strftime_now(pattern: str) -> str:
        if today is None:
            raise ChatTemplateError(
                "the template writes today's date, so the same data would give other tokens tomorrow; fix the date "
                "(ChatOptions(date='2026-01-31')) or use a template without it"
            )
        return today.strftime(pattern)

    return strftime_now
