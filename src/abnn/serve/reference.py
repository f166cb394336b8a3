"""The page about the REST interface, from its OpenAPI description; FastAPI's own pages load scripts from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from abnn.files import templates


def reference(description: dict[str, Any]) -> str:
    """Return the HTML page: every route with its parameters, an example to copy, and the fields of its answer."""
    schemas = description["components"]["schemas"]

    def fields(schema: dict[str, Any]) -> dict[str, dict[str, str]]:
        """The fields of an answer, with their types in a word and what they mean."""
        own = schemas.get(name_of(schema), {})
        return {
            name: {"type": type_of(each), "about": each.get("description", "")}
            for name, each in own.get("properties", {}).items()
        }

    def name_of(schema: dict[str, Any]) -> str:
        return schema.get("$ref", "").rpartition("/")[2]

    def type_of(schema: dict[str, Any]) -> str:
        choices = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
        inner = choices[0]
        if inner.get("type") == "array":
            return f"list of {type_of(inner['items'])}"
        return name_of(inner) or inner.get("type", "object")

    routes = [
        {"method": method.upper(), "path": path, **what, "answer": what["responses"]["200"].get("content", {})}
        for path, methods in description["paths"].items()
        for method, what in methods.items()
    ]
    named = {each.__name__: each for each in (fields, name_of, type_of)}
    inner = {name for name in schemas if name.startswith(("Samples", "Place", "Thresholds", "Picture", "Calibration"))}
    template = templates(Path(__file__).parent).get_template("reference.html")
    return template.render(info=description["info"], routes=routes, inner=sorted(inner), **named)
