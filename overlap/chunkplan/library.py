"""Plans by name: the templates that ship with the package, and files of the user's own."""

from __future__ import annotations

from pathlib import Path

from overlap.errors import PlanError

from .document import nearest

_PACKAGE = Path(__file__).resolve().parent.parent
_SUFFIXES = (".yaml", ".yml")
MIXED = "mixed/"
"""The folder of templates that name backends, which none can be carried out without."""


def template_folders() -> tuple[Path, ...]:
    """Where templates are looked for: inside an installed package, then beside it in a checkout."""
    places = (_PACKAGE / "templates" / "plans", _PACKAGE.parent / "templates" / "plans")
    return tuple(place for place in places if place.is_dir())


def list_templates() -> tuple[str, ...]:
    """The names `find_template` knows, sorted."""
    return tuple(sorted({path.stem for folder in template_folders() for path in folder.glob("*.yaml")}))


def list_mixed() -> tuple[str, ...]:
    """The names of templates whose operations are carried out by several backends, sorted: ``mixed/all_gather_1d``."""
    return tuple(
        sorted({f"{MIXED}{path.stem}" for folder in template_folders() for path in folder.glob(f"{MIXED}*.yaml")})
    )


def find_template(name: str) -> tuple[str, str]:
    """Path and text of a plan.

    Args:
        name: a template's name (``all_gather_1d``, ``mixed/all_gather_1d``), or the path of a ``.yaml`` file.

    Raises:
        PlanError: there is no such plan (the nearest name is given), or its file cannot be read.
    """
    if name.endswith(_SUFFIXES) or "/" in name.removeprefix(MIXED) or "\\" in name:
        return name, read_text(Path(name), name)
    for folder in template_folders():
        path = folder / f"{name}.yaml"
        if name and path.is_file():
            return str(path), read_text(path, name)
    known = list_mixed() if name.startswith(MIXED) else list_templates()
    raise PlanError(f"unknown plan `{name}`", help=f"{nearest(name, known)}, or the path of a .yaml file")


def read_text(path: Path, name: str, what: str = "plan") -> str:
    """The text of a file, which ``name`` and ``what`` name in errors.

    Raises:
        PlanError: it cannot be read; the nearest YAML file beside it is named.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        beside = [p.name for p in path.parent.iterdir() if p.suffix in _SUFFIXES] if path.parent.is_dir() else []
        close = nearest(path.name, beside) if beside else ""
        if what == "plan" and path.stem in list_templates():
            close = f"`{path.stem}` is the template of that name"
        raise PlanError(f"there is no {what} file {name}", help=close or "write the path of a .yaml file") from None
    except UnicodeDecodeError:
        raise PlanError(f"the {what} file {name} is not UTF-8 text", help="save it as UTF-8") from None
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise PlanError(
            f"the {what} file {name} cannot be read: {reason}", help="write the path of a .yaml file"
        ) from None
