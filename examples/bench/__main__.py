"""``python -m examples.bench``."""

if __name__ == "__main__":  # Worker processes import this module, too.
    from examples.bench.cli import main

    raise SystemExit(main())
