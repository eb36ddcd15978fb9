"""Where files are kept that all processes of a user share."""

from __future__ import annotations

from pathlib import Path

from overlap import settings


def cache_folder() -> Path:
    """The setting ``cache_dir``, else ``overlap`` in the user's cache folder."""
    chosen = settings.get("cache_dir")
    if chosen is not None:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("overlap"))
