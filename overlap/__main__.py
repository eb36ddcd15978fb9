"""``python -m overlap``: the same program as the ``overlap`` command."""

from overlap.cli import main

if __name__ == "__main__":
    main()
