"""--config FILE: a command's options from a TOML file. What the command line says wins. "
"[default: none]
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import click


def _read(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise click.BadParameter(f"{path} is not TOML: {error}", ctx, param) from None
    known = _options(ctx.command)
    unknown = sorted(key for key in content if key.replace("_", "-") not in known)
    if unknown:
        raise click.BadParameter(
            f"{path} has {', '.join(unknown)}, which {ctx.command.name} does not know. "
            f"It knows: {', '.join(sorted(known))}.",
            ctx,
            param,
        )
    chosen = {}
    for key, value in content.items():
        option = known[key.replace("_", "-")]
        if option.name in chosen:
            raise click.BadParameter(f"{path} has {key} twice.", ctx, param)
        chosen[str(option.name)] = _as_written(option, value, f"{path}: {key}", ctx, param)
    ctx.default_map = chosen | dict(ctx.default_map or {})


def _as_written(option: click.Option, value: Any, where: str, ctx: click.Context, param: click.Parameter) -> Any:
    """Return a value as the command line would have given it, so that both are checked in the same way."""
    if option.is_flag:
        if not isinstance(value, bool):
            raise click.BadParameter(f"{where} is {value!r}; true or false is wanted.", ctx, param)
        return value
    values = value if option.multiple and isinstance(value, list) else [value]
    if wrong := [each for each in values if isinstance(each, bool) or not isinstance(each, str | int | float)]:
        raise click.BadParameter(f"{where} is {str(wrong[0])[:80]!r}; a text or a number is wanted.", ctx, param)
    texts = [str(each) for each in values]
    return texts if option.multiple else texts[0]


def _options(command: click.Command) -> dict[str, click.Option]:
    """Return {name as it is written: option} for all options that a file may set."""
    return {
        name.removeprefix("--"): parameter
        for parameter in command.params
        if isinstance(parameter, click.Option) and parameter.name not in (None, "config", "help")
        for name in parameter.opts
        if name.startswith("--") and parameter.name is not None
    }


config_option = click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    callback=_read,
    is_eager=True,
    expose_value=False,
    help="TOML file with options, named as here without the dashes; the command line wins over it. [default: none]",
)
