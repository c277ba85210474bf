"""``python -m tapegrad``: the settings in use; ``python -m tapegrad ops``: the functions there are."""

import argparse
import signal

import tapegrad
from tapegrad.diagnostics import table


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tapegrad", description="Automatic differentiation.")
    parser.add_argument("what", nargs="?", choices=("config", "ops"), default="config")
    print(table() if parser.parse_args().what == "ops" else tapegrad.show_config())


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):  # a reader that has enough ends this as it ends other tools
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    main()
