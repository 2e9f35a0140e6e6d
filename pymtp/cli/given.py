"""The options that the user has given on the command line."""

from __future__ import annotations

from collections.abc import Collection

import typer


def given_option(context: typer.Context, allowed: Collection[str]) -> str | None:
    """Return the name of the first given option of the running command that is not in `allowed`; None without one.

    allowed: names of the command's parameters in Python.
    """
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name and option.name not in allowed and source is not None and source.name == "COMMANDLINE":
            # the names that turn an option off, such as --no-mmap, are in secondary_opts
            names = option.opts if context.params[option.name] else option.secondary_opts or option.opts
            return next(name for name in names if name[:2] == "--")
    return None
