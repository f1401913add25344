"""Build commands and their options, and read the values that the user gives, also in a --config file."""

import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, Literal, NamedTuple, TypeGuard, TypeVar, get_args, get_origin

import click
from annotated_types import Ge
from click.core import ParameterSource
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from grace_store.base import files
from grace_store.base.settings import Settings, Spec

SettingsT = TypeVar("SettingsT", bound=Settings)
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
"""A decorator that adds options to a command's function."""


class LocalPath(click.Path):
    """A path on this machine. Only stores can be in a bucket. With formats, the ending of the path must fit one."""

    def __init__(self, *formats: str) -> None:
        is_folder = files.FOLDER in formats
        super().__init__(file_okay=not is_folder, dir_okay=is_folder or not formats, path_type=Path)
        self.formats = formats

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if "://" in str(value):
            self.fail(f"{value} is in a bucket, but only stores can be in a bucket. Give a local path.", param, ctx)
        path: Any = super().convert(value, param, ctx)
        if self.formats:
            files.check_name(path, *self.formats)
        return path


class StorePlace(click.Path):
    """A store's path or bucket URL. The path of a file is refused, with the order of the arguments in the message."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        place: Any = super().convert(value, param, ctx)
        if ctx is not None and "://" not in str(place) and Path(place).is_file():
            options, *arguments = ctx.command.collect_usage_pieces(ctx)
            order = " ".join(["grace-store", str(ctx.info_name), *arguments, options])
            raise click.UsageError(f"{place} is a file, but the first argument must be a store, a folder: {order}", ctx)
        return place


class ScoresFile(click.Path):
    """A table of scores. A folder or a bucket URL is refused with the command that scores a store."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if "://" in str(value) or Path(value).is_dir():
            first = f"If {value} is a store, score it first: `grace-store score {value} --out scores.parquet`."
            raise click.UsageError(f"{value} is not a table of scores. {first}", ctx)
        return super().convert(value, param, ctx)


TEXT = click.STRING
COUNT = click.IntRange(1)
NATURAL = click.IntRange(0)
PLACE = click.Path()
"""A path or a bucket URL."""
STORE = StorePlace()
PATH = click.Path(path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
SCORES = ScoresFile(path_type=Path)
OUT_PATH = LocalPath()
"""A file or a folder. Other options of the command set the format."""
OUT_FOLDER = LocalPath(files.FOLDER)
OUT_PARQUET = LocalPath(files.PARQUET)
OUT_JSON = LocalPath(files.JSON)
OUT_HTML = LocalPath(files.HTML)


ADD_UP = ("--where", "--by", "--labels", "--right", "--per-group", "--group-by", "--scores")
"""Options whose values a user may expect to add up, so a second value is refused. Of other options the last value
counts, as click has it: scripts append options to override those before."""


class OnceCommand(click.Command):
    """A command that refuses a second value of the options in ADD_UP, unless it takes several."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        order = self.make_parser(ctx).parse_args(list(args))[2]
        for each, num in Counter(order).items():
            if num > 1 and each.opts[0] in ADD_UP and not (each.multiple or ctx.resilient_parsing):
                raise click.UsageError(f"{each.opts[0]} is given {num} times: give it once.", ctx)
        return super().parse_args(ctx, args)


def command(*examples: str, about: str = "") -> Callable[[Callable[..., None]], click.Command]:
    """Return a decorator that makes a command, with examples below its help and --json as its last option."""
    title = "Examples" if len(examples) > 1 else "Example"
    epilog = "\n".join([about + f"\b\n{title}:", *(f"  {each}" for each in examples)])

    def make(function: Callable[..., None]) -> click.Command:
        made = click.command(cls=OnceCommand, epilog=epilog)(function)
        made.params.append(
            click.Option(["--json", "as_json"], is_flag=True, help="Print the result as JSON on stdout.")
        )
        return made

    return make


def option(name: str, kind: Any, help: str, field: str | None = None, *, many: bool = False, **rest: Any) -> Decorator:
    """Return an option whose help names its default and says if the option may be repeated.

    kind is a click type, or the placeholder of a text in the help. field is the name of the function's parameter, if
    the parameter is not named like the option.
    """
    if isinstance(kind, str):
        kind, rest["metavar"] = TEXT, kind
    names = (name,) if field is None else (name, field)
    shown = rest.get("default") is not None
    if many and rest.get("callback") is None:
        does, dot, default = help.partition(". [default")
        help = f"{does.removesuffix('.')}. You can give this option several times{dot or '.'}{default}"
    return click.option(*names, type=kind, multiple=many, show_default=shown, help=help, **rest)


def flag(name: str, help: str, field: str | None = None) -> Decorator:
    """Return an option that takes no value."""
    return click.option(*((name,) if field is None else (name, field)), is_flag=True, help=help)


def stacked(*options: Decorator) -> Decorator:
    """Return one decorator for several options. The help shows the options in the order given."""

    def apply(function: Callable[..., Any]) -> Callable[..., Any]:
        for each in reversed(options):
            function = each(function)
        return function

    return apply


def choice(literal: Any) -> click.Choice[str]:
    """Return a choice of the values of a Literal type."""
    return click.Choice(get_args(literal))


class As(NamedTuple):
    """Differences between an option and the field that the option is made from."""

    name: str | None = None
    help: str | None = None
    default: str | None = None
    kind: Any = None
    callback: Any = None
    is_flag: bool = False
    """The option has no --no- form."""


def options_of(
    *models: type[BaseModel],
    only: Collection[str] | None = None,
    but: Collection[str] = (),
    has_defaults: bool = False,
    differing: Mapping[str, As] = MappingProxyType({}),
) -> Decorator:
    """Return an option for each field of the first model, in the model's order.

    only and but are names of fields to use or to leave out. Help, type and default come from the first model that has
    them. The value of an option that is not given is its default with has_defaults, else None; the library then uses
    the default that the help names.
    """
    made = []
    for name in _settings_of(models[0]):
        if name in but or (only is not None and name not in only):
            continue
        fields = [model.model_fields[name] for model in models if name in model.model_fields]
        if is_settings(kind := fields[0].annotation):
            made.append(options_of(kind, but=("method", "learn", *models[0].model_fields), differing=differing))
            continue
        made.append(_option_of(name, fields, differing.get(name, As()), has_defaults=has_defaults))
    return stacked(*made)


def _settings_of(model: type[BaseModel]) -> Collection[str]:
    return model.can_give() if issubclass(model, Spec) else model.model_fields


def is_settings(kind: Any) -> TypeGuard[type[Settings]]:
    """Return whether a field holds nested settings. Their fields become options of the same command."""
    return isinstance(kind, type) and issubclass(kind, Settings)


def parsed(model: type[SettingsT], values: dict[str, Any]) -> SettingsT:
    """Remove the parameters of a settings model from a command's values, and return the settings.

    A parameter that was not given keeps its default. One that nested settings have, too, is the outer model's.
    """
    nested = {name: each.annotation for name, each in model.model_fields.items() if is_settings(each.annotation)}
    given = only_given({name: values.pop(name) for name in model.model_fields if name in values})
    return model.parse(**given, **{name: parsed(kind, values) for name, kind in nested.items()})


def _option_of(name: str, fields: list[FieldInfo], differing: As, *, has_defaults: bool) -> Decorator:
    texts = (field.description for field in fields if field.description)
    help = differing.help or " ".join(next(texts).split())
    default = next((field.default for field in fields if field.default not in (None, PydanticUndefined)), None)
    plain = differing.name or f"--{name.replace('_', '-')}"
    kind = differing.kind or _type(fields)
    if get_origin(fields[0].annotation) is tuple and differing.kind is None:
        return option(plain, kind, help, name, many=True, callback=differing.callback)
    if differing.is_flag:
        return click.option(plain, name, is_flag=True, default=None, help=help)
    both = f"{plain}/--no-{plain.removeprefix('--')}" if kind is bool else plain
    if has_defaults and default is not None:
        return click.option(both, name, type=kind, default=default, show_default=True, help=help)
    shown = f"{default:g}" if isinstance(default, float) else str(default)
    if isinstance(default, bool):
        shown = f"{'' if default else 'no-'}{plain.removeprefix('--')}"
    if "[default: " not in help:
        help = f"{help} [default: {differing.default or shown}]"
    return click.option(both, name, type=kind, default=None, help=help)


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


def as_table(context: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str] | None:
    """Return the pairs NAME=VALUE of an option as a table; None without any pair."""
    table: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not (name and equals and value):
            raise click.UsageError(f"{parameter.opts[0]} {pair!r}: write {parameter.metavar}.", context)
        if name in table:
            raise click.UsageError(f"{parameter.opts[0]} is given twice for {name}.", context)
        table[name] = value
    return table or None


def given(*, but: Collection[str] = ()) -> list[str]:
    """Return the arguments and options that the user gave to the current command, with their names in the help."""
    context = click.get_current_context()
    return [
        parameter.human_readable_name if isinstance(parameter, click.Argument) else parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in but
        and context.get_parameter_source(str(parameter.name)) not in (ParameterSource.DEFAULT, None)
    ]


def only_given(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that were given. The value of a setting that was not given is None, False or ()."""
    return {name: value for name, value in settings.items() if value is not None and value is not False and value != ()}


def pick(values: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Return the given values of a command's parameters that are fields of a model."""
    return {name: value for name in _settings_of(model) if (value := values.get(name)) not in (None, ())}


def _read_config(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise click.BadParameter(f"{path} is not TOML: {error}", ctx, param) from None
    # A file may set options, and arguments that take one value.
    known = {
        name.removeprefix("--"): parameter
        for parameter in ctx.command.params
        if parameter.name not in (None, "config", "help") and parameter.nargs != -1
        for name in parameter.opts
        if name.startswith("--") or isinstance(parameter, click.Argument)
    }
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
    """Return a value of a file in the form that the command line gives, so that click checks both in the same way."""
    if isinstance(option, click.Option) and option.is_flag:
        if not isinstance(value, bool):
            raise click.BadParameter(f"{where} is {value!r}; write true or false.", ctx, param)
        return value
    if isinstance(value, dict) and option.callback is as_table:
        value = [f"{name}={each}" if isinstance(each, str) else each for name, each in value.items()]
    values = value if option.multiple and isinstance(value, list) else [value]
    if wrong := [each for each in values if isinstance(each, bool) or not isinstance(each, str | int | float)]:
        raise click.BadParameter(f"{where} is {str(wrong[0])[:80]!r}; write a text or a number.", ctx, param)
    texts = [str(each) for each in values]
    return texts if option.multiple else texts[0]


config_option = click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    callback=_read_config,
    is_eager=True,
    expose_value=False,
    help="TOML file with values of these options. The keys are the names of the options without the leading dashes. "
    "The key `store` stands for STORE. Options on the command line override the file. [default: none]",
)
