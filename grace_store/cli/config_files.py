"""--config FILE: a command's options from a TOML file. What the command line says wins."""

from __future__ import annotations

import tomllib
from pathlib import Path

import click


def _read(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
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
    ctx.default_map = {known[key.replace("_", "-")]: value for key, value in content.items()} | dict(
        ctx.default_map or {}
    )


def _options(command: click.Command) -> dict[str, str]:
    """Return {option as it is written: parameter} for all options that a file may set."""
    return {
        name.removeprefix("--"): parameter.name
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
    help="Take options from a TOML file; the command line wins.",
)
