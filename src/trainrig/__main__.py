"""``python -m trainrig`` is the same command as ``trainrig``."""

from trainrig.cli.main import main

if __name__ == "__main__":
    main()
