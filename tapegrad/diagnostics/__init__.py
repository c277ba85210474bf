"""Looking at what was recorded: listings, drawings, plots, a report; the settings in use."""

from tapegrad.autograd.profiler import profile
from tapegrad.autograd.profiler_util import EventList
from tapegrad.compilation.explanation import Explanation
from tapegrad.diagnostics.flame import flame_chart
from tapegrad.diagnostics.functions import show_config
from tapegrad.diagnostics.graph import Graph
from tapegrad.diagnostics.page import Picture
from tapegrad.diagnostics.plots import plot_gradient_flow, plot_sparsity
from tapegrad.diagnostics.records import Entry, Line
from tapegrad.diagnostics.reports import Run, report
from tapegrad.tensor import Tensor

__all__ = [
    "Entry",
    "Graph",
    "Line",
    "Picture",
    "Run",
    "flame_chart",
    "plot_gradient_flow",
    "plot_sparsity",
    "report",
    "show_config",
]


def _html_of_tensor(self: Tensor) -> str:
    """HTML for notebooks."""
    from tapegrad.diagnostics.tensors import of_tensor

    return of_tensor(self)


def _html_of_events(self: EventList | profile) -> str:
    """HTML for notebooks: a flame chart, and times by name."""
    from tapegrad.diagnostics.reports import of_events

    return of_events(self)


def _html_of_explanation(self: Explanation) -> str:
    """HTML for notebooks."""
    from tapegrad.diagnostics.programs import of_explanation

    return of_explanation(self)


def install() -> None:
    """Give what lies on lower floors its display in notebooks."""
    Explanation._repr_html_ = _html_of_explanation  # type: ignore[attr-defined]
    Tensor._repr_html_ = _html_of_tensor  # type: ignore[attr-defined]
    EventList._repr_html_ = profile._repr_html_ = _html_of_events  # type: ignore[attr-defined]


def __dir__() -> list[str]:
    """Show what is exported, not the modules that it comes from."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
