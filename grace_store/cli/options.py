"""Build commands and options, each in a line or two, and read the given values, also from a --config file."""

import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, Literal, NamedTuple, Protocol, TypeGuard, TypeVar, get_args, get_origin

import click
from annotated_types import Ge
from click.core import ParameterSource
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from grace_store.base import files
from grace_store.base.settings import Settings, Spec

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
SettingsT = TypeVar("SettingsT", bound=Settings)


class Decorator(Protocol):
    """A decorator that adds options to a command's function."""

    def __call__(self, function: FunctionT, /) -> FunctionT: ...


class LocalPath(click.Path):
    """A path on this machine, where all results but stores go; its name may say no other format than those."""

    def __init__(self, *formats: str) -> None:
        is_folder = files.FOLDER in formats
        super().__init__(file_okay=not is_folder, dir_okay=is_folder or not formats, path_type=Path)
        self.formats = formats

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if "://" in str(value):
            self.fail(f"{value} is in a bucket, and only stores can be there. Give a local path.", param, ctx)
        path: Any = super().convert(value, param, ctx)
        if self.formats:
            files.check_name(path, *self.formats)
        return path


class StorePlace(click.Path):
    """The place of a store, a path or a bucket's URL; a file there is refused with the order of the arguments."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        place: Any = super().convert(value, param, ctx)
        if ctx is not None and "://" not in str(place) and Path(place).is_file():
            options, *arguments = ctx.command.collect_usage_pieces(ctx)
            order = " ".join(["grace-store", str(ctx.info_name), *arguments, options])
            raise click.UsageError(f"{place} is a file, and the first argument is a store, a folder: {order}", ctx)
        return place


TEXT = click.STRING
COUNT = click.IntRange(1)
NATURAL = click.IntRange(0)
PLACE = click.Path()
"""A path or a bucket's URL."""
STORE = StorePlace()
PATH = click.Path(path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
OUT_PATH = LocalPath()
"""A file or a folder; other options say which, and of which format."""
OUT_FOLDER = LocalPath(files.FOLDER)
OUT_PARQUET = LocalPath(files.PARQUET)
OUT_RECORDS = LocalPath(files.JSON_LINES, files.JSON)
OUT_JSON = LocalPath(files.JSON)
OUT_HTML = LocalPath(files.HTML)


# ---------------------------------------------------------------- making commands and options


def command(*examples: str, about: str = "") -> Callable[[Callable[..., None]], click.Command]:
    """Return a decorator that makes a command: examples stand below its help, and --json is its last option."""
    title = "Examples" if len(examples) > 1 else "Example"
    epilog = "\n".join([about + f"\b\n{title}:", *(f"  {each}" for each in examples)])

    def make(function: Callable[..., None]) -> click.Command:
        made = click.command(epilog=epilog)(function)
        made.params.append(
            click.Option(["--json", "as_json"], is_flag=True, help="Print the result as JSON on stdout.")
        )
        return made

    return make


def option(name: str, kind: Any, help: str, field: str | None = None, *, many: bool = False, **rest: Any) -> Decorator:
    """Return an option whose help says its default and whether it may be repeated.

    kind is a type of click, or what stands for a text in the help. field is the parameter's name, if it is not the
    option's.
    """
    if isinstance(kind, str):
        kind, rest["metavar"] = TEXT, kind
    names = (name,) if field is None else (name, field)
    shown = rest.get("default") is not None
    if many and "callback" not in rest:
        does, dot, default = help.partition(". [default")
        help = f"{does.removesuffix('.')}; may be repeated{dot or '.'}{default}"
    return click.option(*names, type=kind, multiple=many, show_default=shown, help=help, **rest)


def flag(name: str, help: str, field: str | None = None) -> Decorator:
    """Return an option that takes no value."""
    return click.option(*((name,) if field is None else (name, field)), is_flag=True, help=help)


def stacked(*options: Decorator) -> Decorator:
    """Return one decorator for several options, shown in the order given."""

    def apply(function: FunctionT) -> FunctionT:
        for each in reversed(options):
            function = each(function)
        return function

    return apply


def choice(literal: Any) -> click.Choice[str]:
    """Return the values of a Literal type of the library as a choice."""
    return click.Choice(get_args(literal))


# ---------------------------------------------------------------- options from models


class As(NamedTuple):
    """Differences between an option and the field that it is made from."""

    name: str | None = None
    help: str | None = None
    default: str | None = None
    kind: Any = None
    is_flag: bool = False
    """It has no --no- to undo it."""


def options_of(
    *models: type[BaseModel],
    only: Collection[str] | None = None,
    but: Collection[str] = (),
    has_defaults: bool = False,
    differing: Mapping[str, As] = MappingProxyType({}),
) -> Decorator:
    """Return an option for each field of the first model, in its order; only those, or all but those.

    Help, type and default are those of the first model that has them. An option that is not given is None and the
    library decides, by the default that the help names; with has_defaults it is that default.
    """
    made = []
    for name in _settings_of(models[0]):
        if name in but or (only is not None and name not in only):
            continue
        fields = [model.model_fields[name] for model in models if name in model.model_fields]
        if is_settings(kind := fields[0].annotation):
            made.append(options_of(kind, but=("method",), differing=differing))
            continue
        made.append(_option_of(name, fields, differing.get(name, As()), has_defaults=has_defaults))
    return stacked(*made)


def _settings_of(model: type[BaseModel]) -> Collection[str]:
    return model.can_give() if issubclass(model, Spec) else model.model_fields


def is_settings(kind: Any) -> TypeGuard[type[Settings]]:
    """Return whether a field holds settings of its own, whose options stand beside those of the others."""
    return isinstance(kind, type) and issubclass(kind, Settings)


def parsed(model: type[SettingsT], values: dict[str, Any]) -> SettingsT:
    """Return settings as a command's parameters say them, taking these out; what was not given keeps its default."""
    nested = {name: each.annotation for name, each in model.model_fields.items() if is_settings(each.annotation)}
    given = {name: parsed(kind, values) for name, kind in nested.items()}
    given |= said({name: values.pop(name) for name in model.model_fields if name in values})
    return model.parse(**given)


def _option_of(name: str, fields: list[FieldInfo], differing: As, *, has_defaults: bool) -> Decorator:
    texts = (field.description for field in fields if field.description)
    help = differing.help or " ".join(next(texts).split())
    default = next((field.default for field in fields if field.default not in (None, PydanticUndefined)), None)
    plain = differing.name or f"--{name.replace('_', '-')}"
    kind = differing.kind or _type(fields)
    if get_origin(fields[0].annotation) is tuple and differing.kind is None:
        return option(plain, kind, help, name, many=True)
    if differing.is_flag:
        return click.option(plain, name, is_flag=True, default=None, help=help)
    both = f"{plain}/--no-{plain.removeprefix('--')}" if kind is bool else plain
    if has_defaults and default is not None:
        return click.option(both, name, type=kind, default=default, show_default=True, help=help)
    shown = "" if "[default: " in help else f" [default: {differing.default or _shown(plain, default)}]"
    return click.option(both, name, type=kind, default=None, help=f"{help}{shown}")


def _shown(option: str, default: Any) -> str:
    if isinstance(default, bool):
        return option.removeprefix("--") if default else f"no-{option.removeprefix('--')}"
    return f"{default:g}" if isinstance(default, float) else str(default)


def _type(fields: list[FieldInfo]) -> Any:
    kind: Any = fields[0].annotation
    if NoneType in get_args(kind):
        kind = next(each for each in get_args(kind) if each is not NoneType)
    if get_origin(kind) is tuple:
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        return choice(kind)
    bounds = (each.ge for field in fields for each in field.metadata if isinstance(each, Ge))
    return click.IntRange(next((int(str(each)) for each in bounds), None)) if kind is int else kind


# ---------------------------------------------------------------- reading what was given


def as_table(context: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str] | None:
    """Return the pairs NAME=VALUE of an option as a table; None if there are none."""
    table: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not (name and equals and value):
            raise click.UsageError(f"{parameter.opts[0]} {pair!r}: {parameter.metavar} is wanted.", context)
        if name in table:
            raise click.UsageError(f"{parameter.opts[0]} is given twice for {name}.", context)
        table[name] = value
    return table or None


def any_given(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the values of an option that may be repeated; None if there are none."""
    return values or None


def given_once(context: click.Context, parameter: click.Parameter, values: tuple[Any, ...]) -> Any:
    """Return the only value of an option declared as multiple; of one that is not, click silently takes the last."""
    if len(values) > 1:
        raise click.UsageError(f"{parameter.opts[0]} is given {len(values)} times and takes one value.", context)
    return values[0] if values else None


def given(*, but: Collection[str] = ()) -> list[str]:
    """Return the arguments and options that the user gave to the command under way, as written in its help."""
    context = click.get_current_context()
    unsaid = (ParameterSource.DEFAULT, None)
    return [
        parameter.human_readable_name if isinstance(parameter, click.Argument) else parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in but and context.get_parameter_source(str(parameter.name)) not in unsaid
    ]


def said(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that were given; None, False and () stand for those that were not."""
    return {name: value for name, value in settings.items() if value is not None and value is not False and value != ()}


def pick(values: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Return the part of a command's parameters that belongs to one model and was given."""
    return {name: value for name in _settings_of(model) if (value := values.get(name)) is not None}


# ---------------------------------------------------------------- --config: options from a file


def _read_config(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise click.BadParameter(f"{path} is not TOML: {error}", ctx, param) from None
    known = _settable(ctx.command)
    unknown = sorted(key for key in content if key.replace("_", "-") not in known)
    if unknown:
        knows = f"It knows: {', '.join(sorted(known))}."
        text = f"{path} has {', '.join(unknown)}, which {ctx.command.name} does not know. {knows}"
        raise click.BadParameter(text, ctx, param)
    chosen = {}
    for key, value in content.items():
        option = known[key.replace("_", "-")]
        if option.name in chosen:
            raise click.BadParameter(f"{path} has {key} twice.", ctx, param)
        chosen[str(option.name)] = _as_written(option, value, f"{path}: {key}", ctx, param)
    ctx.default_map = chosen | dict(ctx.default_map or {})


def _as_written(option: click.Parameter, value: Any, where: str, ctx: click.Context, param: click.Parameter) -> Any:
    """Return a value as the command line would have given it, so that both are checked in the same way."""
    if isinstance(option, click.Option) and option.is_flag:
        if not isinstance(value, bool):
            raise click.BadParameter(f"{where} is {value!r}; true or false is wanted.", ctx, param)
        return value
    if isinstance(value, dict) and option.callback is as_table:
        value = [f"{name}={each}" if isinstance(each, str) else each for name, each in value.items()]
    values = value if option.multiple and isinstance(value, list) else [value]
    if wrong := [each for each in values if isinstance(each, bool) or not isinstance(each, str | int | float)]:
        raise click.BadParameter(f"{where} is {str(wrong[0])[:80]!r}; a text or a number is wanted.", ctx, param)
    texts = [str(each) for each in values]
    return texts if option.multiple else texts[0]


def _settable(command: click.Command) -> dict[str, click.Parameter]:
    """Return {name as it is written: parameter} for all that a file may set: options, and an argument of one value."""
    return {
        name.removeprefix("--"): parameter
        for parameter in command.params
        if parameter.name not in (None, "config", "help") and parameter.nargs != -1
        for name in parameter.opts
        if name.startswith("--") or isinstance(parameter, click.Argument)
    }


config_option = click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    callback=_read_config,
    is_eager=True,
    expose_value=False,
    help="TOML file with options, named as here without the dashes, and with `store` if STORE is left out; the command "
    "line wins over it. [default: none]",
)
