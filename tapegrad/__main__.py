"""``python -m tapegrad``: what is in use here; other commands are listed by ``--help``."""

import argparse
import signal
import time

import tapegrad
from tapegrad.batch import warm_up
from tapegrad.bench import bench
from tapegrad.diagnostics.functions import table
from tapegrad.kernels import cache


def main() -> None:
    """Do what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tapegrad", description="Automatic differentiation.")
    parser.set_defaults(run=lambda given: print(tapegrad.show_config()))
    commands = parser.add_subparsers(metavar="command")

    def command(name: str, what: str, run: object) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=what, description=what)
        added.set_defaults(run=run)
        return added

    command("info", "Print versions, settings and the cache in use.", parser.get_default("run"))
    command("ops", "Print a row for each of NumPy's functions.", lambda given: print(table()))
    bench_ = command("bench", "Time a few gradients beside NumPy, and torch if installed.", run_bench)
    bench_.add_argument("--rounds", type=int, default=5)
    warm = command("warmup", "Compile ahead what programs commonly use.", run_warm_up)
    warm.add_argument("dtypes", nargs="*", default=["float64"], metavar="dtype", help="float64 by default")
    cached = command("cache", "List the versions in the kernel cache, or remove them.", run_cache)
    cached.add_argument("what", nargs="?", choices=("list", "clear"), default="list")
    given = parser.parse_args()
    given.run(given)


def run_bench(given: argparse.Namespace) -> None:
    """Print times."""
    print(bench(max(given.rounds, 1)))


def run_warm_up(given: argparse.Namespace) -> None:
    """Compile ahead, with a bar."""
    begin = time.perf_counter()
    compiled = warm_up(given.dtypes, progress=True)
    print(f"compiled {compiled} in {time.perf_counter() - begin:.1f} s; kernel cache {cache.describe()}")


def run_cache(given: argparse.Namespace) -> None:
    """Print a line for each version in the cache, or remove all."""
    if given.what == "clear":
        print(f"removed {cache.clear() / 2**20:.1f} MiB")
        return
    for folder, mine, size, used in cache.versions():
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(used))
        print(f"{folder}  {size / 2**20:7.1f} MiB  last begun with {when}{'  in use' if mine else ''}")
    print(f"limit {cache.LIMIT_BYTES >> 20} MiB; TAPEGRAD_CACHE sets the place")


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):  # a reader that has enough ends this as it ends other tools
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    main()
