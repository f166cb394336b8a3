"""The page of every command, from the command line itself."""

from __future__ import annotations

import re
from typing import Any

import typer.main

from abnn.cli import app


def command_names() -> list[str]:
    return list(_group().commands)


def command_page(name: str) -> str:
    """Return the page of one command: what it does, its arguments, its options with their defaults."""
    command = _group().commands[name]
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [
        each for each in command.params if each.param_type_name == "option" and not getattr(each, "hidden", False)
    ]
    usage = " ".join(["abnn", name, *(_metavar(each) for each in arguments), "[OPTIONS]"])
    page = [f"# abnn {name}", _prose(command.help or ""), f"```text\n{usage}\n```"]
    if arguments:
        page.append(_table("argument", [(_metavar(each), each) for each in arguments]))
    page.append(_table("option", [(_flags(each), each) for each in options]))
    return "\n\n".join(page) + "\n"


def commands_page(start: str) -> str:
    """Return the page that lists all commands; ``start`` is its first paragraph."""
    rows = [
        f"| [`abnn {name}`](commands/{name}.md) | {_prose(command.help or '').split(chr(10))[0]} |"
        for name, command in _group().commands.items()
    ]
    return "\n".join(["# Commands", "", start, "", "| command | what it does |", "|---|---|", *rows, ""])


def _group() -> Any:
    return typer.main.get_command(app)


def _prose(text: str) -> str:
    """Return a help text, with the names of options as code."""
    return re.sub(r"(?<![\w`-])(--[a-z][a-z-]*)", r"`\1`", re.sub(r" *\n +", "\n", text.strip().replace("\b", "")))


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _flags(parameter: Any) -> str:
    return ", ".join([*parameter.opts, *parameter.secondary_opts])


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required:
        return "required"
    if value is None or value is False or callable(value) or type(value).__name__ == "Sentinel":
        return ""
    if value is True:
        return f"`{parameter.opts[0]}`"
    return "" if value in ((), []) else f"`{value}`"


def _table(title: str, rows: list[tuple[str, Any]]) -> str:
    lines = [f"| {title} | meaning | default |", "|---|---|---|"]
    for name, parameter in rows:
        meaning = _prose(parameter.help or "").replace("\n", " ").replace("|", "\\|")
        lines.append(f"| `{name}` | {meaning} | {_default(parameter)} |")
    return "\n".join(lines)
