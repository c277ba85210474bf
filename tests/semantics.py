"""What tapegrad does in each case, beside torch: ``python -m tests.semantics`` prints docs/SEMANTICS.md.

A case is a line of `CASES`; its tests are those named after its number (A-3: ``test_A3_...``), and the
programs of the same name that run in tapegrad and in torch.
"""

import ast
import functools
import re
from pathlib import Path

__all__ = ["CASES", "TOPICS", "UNTESTED", "page", "programs", "tests"]

SECTIONS = {
    "A": "Roots and their gradients",
    "B": "What a sweep releases",
    "C": "Inputs",
    "D": "Accumulation and `.grad`",
    "E": "Leaves, dtypes, writes, versions, conversions",
    "F": "Hooks, order and the graph",
    "F2": "Modes",
    "G": "`Function`",
    "H": "The interface of torch 0.2 and 0.3, `gradcheck`, the profiler",
    "I": "`functional`, forward mode, checkpoints",
}

# case | when | tapegrad | torch, if it does something else
CASES = """
A-1 | no gradient given for a root of no or several elements | RuntimeError; one element of any shape
    counts as a scalar
A-2 | no gradient given for a complex root | RuntimeError
A-3 | a gradient of another shape than its root | RuntimeError and ValueError, naming the position;
    nothing is broadcast
A-4 | gradients are not as many as roots | RuntimeError for too few and too many | RuntimeError for too
    few; surplus ones are ignored
A-5 | what a gradient may be | a Tensor, an ndarray, a number, None; else TypeError | a Tensor or None;
    else TypeError
A-6 | None as a gradient | ones for a scalar, RuntimeError for several elements
A-7 | a root that does not require grad | RuntimeError with its position, before anything runs
A-8 | a leaf as root | its gradient is the one given
A-9 | a root twice, or one computed from another | contributions are added
A-10 | a list of one gradient; a root that is no Tensor | taken; TypeError | taken; TypeError or
    AttributeError
A-11 | no roots | `backward` does nothing; `grad` finds its inputs unused
A-12 | dtype of a gradient given | cast to the root's; complex for a real root is RuntimeError and
    TypeError
A-13 | `grad_variables` | FutureWarning; RuntimeError together with `grad_tensors`
A-14 | a gradient given that requires grad, with `create_graph` | the result can be differentiated by it
A-15 | `is_grads_batched` | one sweep for the batch, also with `create_graph`; batches that do not fit are
    RuntimeError
B-1 | a second sweep through operations that saved values; reading what was released | RuntimeError
B-2 | a second sweep through operations that saved nothing | runs
B-3 | a sweep that executes a part of the graph | releases that part
B-4 | a released part in another graph | RuntimeError
B-5 | `retain_graph` left out | is what `create_graph` is
B-6 | `create_graph` with `retain_graph=False` | the derivative can be used, what it came from is released
B-7 | a call that raises for its arguments | has run and released nothing | has run and released the graph
    if an input is unused
C-1 | `inputs` is empty | RuntimeError
C-2 | one Tensor or a dict as inputs | taken; other leaves are left alone; other mappings are TypeError
C-3 | a result as input of `backward` | gets `.grad` as if it retained it
C-4 | an unused input | RuntimeError in `grad`, nothing in `backward`
C-5 | `allow_unused`, `materialize_grads` | None; zeros; ValueError where they contradict each other
C-6 | an input that does not require grad | RuntimeError
C-7 | an input twice | the same gradient twice in `grad`, added once in `backward`
C-8 | an input that is no Tensor | RuntimeError
C-9 | results and leaves together | gradients come in the order of the inputs
C-10 | gradient by a result that was written to | that by its new value; a view off the way is unused | the
    same; uses before a write under `no_grad` count, too
C-11 | `requires_grad` changed after the graph was made | off: no `.grad`; on: earlier uses stay constant
D-1 | a second `backward` | adds in place, to the same object
D-2 | `backward` with `create_graph` | adds out of place; the first gradient is a copy; no warning | the
    same, with a warning once
D-3 | plain `backward` onto a gradient with a history | adds in place and keeps the history
D-4 | memory of gradients | never shared with what was given or with each other | can be that of the
    gradient given, through a view
D-5 | dtype of gradients | that of each leaf
D-6 | layout of gradients | that of a dense leaf, else contiguous; repeated values are written out
D-7 | assigning `.grad` | TypeError for what is no Tensor, RuntimeError for another shape, dtype or the
    Tensor itself
D-8 | `.grad` of a result | None with a UserWarning
D-9 | `retain_grad` | nothing on a leaf, RuntimeError on a constant; adds out of place; that of a value
    written later; `backward` alone adds to it | the same; `grad`, and uses before a write under `no_grad`,
    add to it, too
D-10 | broadcast operands | gradients are summed back
D-11 | complex numbers | the gradient is dL/dx + i dL/dy; a real leaf has a real one
D-12 | a backward that returns None | adds nothing; `.grad` stays None; `grad` raises RuntimeError
D-13 | one element unpacked | the others have zeros
E-1 | integers or booleans that require grad | RuntimeError, which offers a dtype; `requires_grad` takes
    booleans only
E-2 | `requires_grad` of a result | cannot be turned off: RuntimeError; turning it on does nothing
E-3 | what is a leaf | whatever has no history
E-4 | writing to a leaf | RuntimeError, through views too; allowed under `no_grad`; operators bind the name
    of a scalar anew, but for a leaf under `no_grad`; writes through `.data` count as versions | the same;
    scalars share memory, and writes through `.data` do not count
E-5 | writing to what a derivative needs | the derivative is that at the old value, or RuntimeError where
    others wrote | RuntimeError, or wrong where `.data` or NumPy wrote
E-6 | writing to what no derivative needs | allowed
E-7 | writing to a constant; writing over a value; an index twice | a history; gradient zero; the last
    write has it | the same; an index twice counts each write
E-8 | writing to a view | the whole has it in its history, and its other views
E-9 | one of several views; a view made under `no_grad` | cannot be written to: RuntimeError; rows that an
    iteration gave, and views of a constant, can, with exact derivatives | RuntimeError for those too
E-10 | growth by broadcasting, floats into integers, `out=` with gradients | RuntimeError
E-11 | `detach`, `detach_` | share memory; in place a leaf, RuntimeError for a view; a scalar shares
    nothing | the same; scalars share memory
E-12 | NumPy's functions and conversions | `np.sin(x)` and arrays record; `float(x)`, `np.asarray(x)`
    raise while they would lose a derivative | `float(x)` warns, arrays and NumPy's functions raise
E-13 | text and errors | `requires_grad=True`, `grad_fn=<MulBackward>`; IndexError; RuntimeError for
    shapes | `grad_fn=<MulBackward0>`
E-14 | results without derivative | do not require grad
E-15 | copying and pickling | leaves keep `requires_grad`; a result raises RuntimeError, pickled too | a
    deep copy of a result raises; pickling makes it a leaf
E-16 | chains of 100,000 operations | no recursion, in the sweep or at the end
E-17 | assigning `.data` | TypeError for what is no Tensor
F-1 | hooks of a Tensor | in order, each sees what the one before returned; called once, with the sum
F-2 | what they return; removal | None or a Tensor, else TypeError; another shape or dtype is
    RuntimeError; may be removed twice
F-3 | `retain_grad` and hooks | sees the value after all of them
F-4 | a hook and a write | stays with the history it was registered on; a leaf's is called for all its
    values | the same; a result's is, too, for writes under `no_grad`
F-5 | order at a node | Tensor's hooks, pre-hooks, retained gradient, the rule, hooks; a leaf's own after
    accumulation
F-6 | hooks of nodes | replace what comes or leaves; another number is RuntimeError
F-7 | hooks after accumulation | leaves only; called with the leaf by `backward` only; must return None
F-8 | hooks of several Tensors | all gradients, None if unused; or the first
F-9 | where hooks run | on executed ways; grad mode is `create_graph`
F-10 | order of nodes | newest first; all of `.grad` is there before a hook after accumulation runs |
    newest first; a leaf is complete alone
F-11 | nodes | `name()` as `MulBackward`; `next_functions`, `metadata`, saved values | `MulBackward0`
F-12 | `GradientEdge` | an input or output; RuntimeError for a constant
F-13 | `saved_tensors_hooks` | each value saved is packed, the innermost pair is asked; TypeError for no
    Tensor, RuntimeError for a write
F-14 | `backward` within a backward | works, to any depth
F2-1 | `no_grad`, `enable_grad`, `set_grad_enabled` | per thread and task, nested, as decorators and for
    generators
F2-2 | sweeps under `no_grad` | work; `create_graph` records
F2-3 | `inference_mode` | results never get a history; saving them, writing outside and versions are
    RuntimeError
F2-4 | anomaly mode | UserWarning, then RuntimeError with the line; `check_nan=False` leaves NaN alone
G-1 | `apply` | a node `EBackward`; an instance is deprecated and cannot be called
G-2 | what is missing | NotImplementedError; both `backward` and `vjp` is RuntimeError
G-3 | what backward returns | one for each argument, trailing None allowed; else RuntimeError
G-4 | shape and dtype of it | a larger one is summed, another dtype cast; else RuntimeError
G-5 | `needs_input_grad` | a bool for each argument, whatever the inputs of the sweep
G-6 | `save_for_backward` | Tensors and None, the last call counts; the value is that when saved, whatever
    is written later | RuntimeError if written to later
G-7 | `mark_dirty` | the result is the argument; RuntimeError if not returned or a leaf
G-8 | `mark_non_differentiable` | no gradient for it, backward gets zeros; integers are marked by
    themselves
G-9 | results that no gradient came to | zeros, None after `set_materialize_grads(False)`
G-10 | an argument returned, what is no Tensor | another Tensor with the history; arrays and floats get one,
    other objects are passed on; RuntimeError for lists and dicts with Tensors or floats in them | arrays,
    floats and lists are passed on, their derivative lost
G-11 | `setup_context` | forward without ctx; defaults and keywords are bound
G-12 | `jvp` | the tangents; NotImplementedError without it; at several levels, and with reverse mode,
    exact or RuntimeError | one level; what forward computed counts as constant in reverse mode
G-13 | `vmap` left out | RuntimeError where it is asked for
G-14 | a second derivative through what forward computed or took out, or `once_differentiable` |
    RuntimeError on every way | wrong where gradients are implicit, or intermediates were saved
G-15 | `mark_shared_storage` | FutureWarning
G-16 | a backward that computes of saved arguments | can be differentiated to any order
H-1 | `Variable`, `volatile` | what a volatile Tensor goes into has no history; RuntimeError as root | a
    warning, no effect
H-2 | a gradient that is a `Variable` | `create_graph` follows from it, if it is not volatile |
    `create_graph` is False
H-3 | `retain_variables` | deprecated; ValueError together with `retain_graph` | TypeError
H-4 | `only_inputs=False` | other leaves accumulate | a warning, no effect
H-5 | errors of `grad` then | RuntimeError; TypeError for what is no gradient
H-6 | Functions of instances, `InplaceFunction` | called once, plain Tensors in both directions, not
    differentiable twice | RuntimeError
H-7 | `NestedIOFunction` | nested arguments and results; ValueError for other objects | AttributeError
H-8 | `gradcheck`, `gradgradcheck`, `zero_gradients` | torch's parameters, and `order` for higher
    derivatives | no `order`
H-9 | what `gradcheck` finds | GradcheckError, also for arrays and floats among the results; ValueError
    without inputs; UserWarning for float32 | results that are no Tensors are not looked at
H-10 | the profiler | events, averages, tables, Chrome traces; profiles do not nest
H-11 | `StochasticFunction` | is not offered
H-12 | `autograd.variable()` | RuntimeError
I-1 | `vjp` and `jvp` without a vector | for one element only; RuntimeError for another size or number
I-2 | `jacobian` | shape of the result, then of the input; zeros, or RuntimeError if strict; TypeError for
    lists
I-3 | `hessian`, `hvp`, `vhp` | RuntimeError for more than one element or result; zeros, or RuntimeError
    if strict
I-4 | transforms of functions | of any function, in `tg.func`; `vmap` is a loop over slices | in
    `torch.func`; `vmap` batches operations
I-5 | roots of several elements, integers, unused inputs | as in A-1, E-1, C-4; JAX and HIPS autograd
    raise TypeError and give zeros
I-6 | `forward_ad` | nests to any depth, mixes with reverse mode; RuntimeError outside a level or for
    another shape | one level
I-7 | `checkpoint` | runs forward again in the sweep; second derivatives, `grad` and `inputs` work; never
    reentrant | reentrant too
"""

UNTESTED = {"H-11", "I-4", "I-5"}  # that there is nothing, or that others are different

TOPICS = {
    "accumulation": """
        test_D1_second_backward_accumulates_in_place test_D2_the_first_gradient_is_a_copy
        test_D3_derivatives_use_the_accumulated_value test_D4_one_result_assigned_as_grad_is_accumulated_alone
        test_D7_assigned_gradient_is_accumulated_onto test_D12_a_gradient_of_none_adds_nothing""",
    "retain": """
        test_D9_no_effect_on_a_leaf test_D9_accumulates_out_of_place
        test_F3_retain_grad_sees_the_value_after_all_hooks
        test_B5_retained_graph_runs_again test_B5_create_graph_implies_retain_graph
        test_B3_only_executed_records_are_freed""",
    "hooks": """
        test_F1_called_once_with_the_sum test_F2_an_exception_passes_and_leaves_everything_usable
        test_F5_order_at_a_node_and_a_leaf test_F7_may_step_and_clear
        test_F8_any_is_called_once_in_a_sweep test_F2_hooks_survive_the_death_of_tensor_and_handle""",
    "in-place": """
        test_E4_a_leaf_and_its_views_cannot_be_written_to test_E5_what_a_derivative_needs_is_kept
        test_E7_a_constant_gets_a_history test_E10_what_does_not_fit test_F4_a_leaf_written_to_keeps_its_hook
        test_C10_a_gradient_of_what_was_written_to""",
    "views": """
        test_E8_a_view_and_its_base test_E9_a_view_made_while_nothing_is_recorded
        test_E9_one_of_several_views_is_not_written_to test_E11_detach_shares_memory
        test_D3_views_of_the_gradient_see_what_is_added test_F2_3_views_are_as_their_bases""",
    "Function": """
        test_G1_apply_has_the_derivative_of_backward test_G3_number_and_kind_of_gradients
        test_G7_a_dirty_input_is_the_result test_G9_missing_gradients test_G11_setup_context_and_keywords
        test_G16_any_order""",
    "once_differentiable": """
        test_G14_once_differentiable_refuses test_G14_once_differentiable_refuses_for_the_gradient_too
        test_G14_implicit_gradients_of_once_differentiable_refuse test_G14_once_differentiable_sees_no_history
        test_G12_once_differentiable_refuses_tangents
        test_G14_other_parts_of_the_graph_stay_differentiable""",
    "saved tensors": """
        test_F13_a_value_saved_twice_is_packed_twice_and_unpacked_in_the_sweep
        test_F13_unpack_returns_a_tensor
        test_F13_the_innermost_pair_only test_F13_disabled_hooks_raise_the_message
        test_F13_tensors_a_function_saves_are_packed test_B1_saved_values_that_were_freed""",
    "modes": """
        test_F2_1_nesting_to_depth test_F2_1_generator_runs_each_step_in_the_mode
        test_F2_1_tasks_do_not_see_each_other test_F2_2_create_graph_records_inside_no_grad
        test_F2_3_saving_them_later_raises_and_adding_does_not test_F9_grad_mode_in_hooks_is_create_graph""",
    "anomaly": """
        test_F2_4_a_nan_names_the_line_of_the_forward test_F2_4_turning_it_on_warns
        test_F2_4_check_nan_false_suppresses test_F2_4_an_exception_warns_with_the_line_and_goes_on_unchanged
        test_the_first_value_that_is_not_finite_is_named""",
    "profiler": """
        test_H10_operations_and_records_are_events test_H10_averages_and_their_table
        test_H10_export_chrome_trace test_H10_profiles_do_not_nest test_record_function_names_a_part""",
    "forward AD": """
        test_I6_nested_to_any_depth test_I6_no_perturbation_confusion test_I6_reverse_over_forward
        test_G12_the_tangent_is_that_of_jvp test_G12_second_derivatives test_gradients_of_duals_are_duals""",
    "functional": """
        test_I1_without_v test_I1_products test_I2_shapes_and_structure test_I2_strict test_I3_hessian
        test_I3_products_with_a_hessian""",
    "threads": """
        test_F2_1_a_new_thread_starts_enabled test_F2_1_threads_do_not_see_each_other
        test_many_threads_differentiate_through_functions test_a_graph_may_be_swept_by_another_thread
        test_levels_belong_to_threads_and_tasks""",
    "checkpoint": """
        test_I7_derivatives_of_what_is_checkpointed_are_the_same
        test_I7_the_function_runs_once_more_in_each_sweep
        test_checkpoints_nest test_random_numbers_are_those_of_the_first_run
        test_a_checkpointed_loop_takes_the_fewest_steps_there_can_be""",
}

_TEST = re.compile(r"^ *def (test_\w+)", re.MULTILINE)
_NUMBER = re.compile(r"(?:test_)?(F2_\d+|[A-I]\d+)(?=[_ ]|$)")


def case_of(name: str) -> str | None:
    """The case a test or program is named after: F-2 for ``test_F2_remove``, F2-1 for ``test_F2_1_x``."""
    found = _NUMBER.match(name)
    if found is None:
        return None
    number = found[1]
    return number.replace("_", "-") if "_" in number else f"{number[0]}-{number[1:]}"


@functools.cache
def _sources() -> list[tuple[str, str]]:
    paths = sorted(Path(__file__).parent.rglob("test_*.py"))
    return [(path.stem, path.read_text()) for path in paths]


@functools.cache
def tests() -> dict[str, list[str]]:
    """Files in which there are tests of a name."""
    found: dict[str, list[str]] = {}
    for stem, text in _sources():
        for name in _TEST.findall(text):
            found.setdefault(name, []).append(stem)
    return found


@functools.cache
def programs() -> list[str]:
    """Names of the programs that run in tapegrad and in torch."""
    names: list[str] = []
    for stem, text in _sources():
        if not stem.startswith("test_against_torch"):
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and any(
                isinstance(mark, ast.Name) and mark.id == "program" for mark in node.decorator_list
            ):
                names.append(node.name)
            elif isinstance(node, ast.Assign):
                target = node.targets[0]
                if isinstance(target, ast.Name) and target.id == "PROGRAMS":
                    names += [key.value for key in getattr(node.value, "keys", [])]
                elif isinstance(target, ast.Subscript):
                    names.append(target.slice.value)
    return names


def rows() -> list[list[str]]:
    """The parts of each line of `CASES`; torch's is empty where it does the same."""
    lines = re.sub(r"\n +", " ", CASES.strip()).splitlines()
    parts = [[part.strip() for part in line.split(" | ")] for line in lines]
    return [[*row, ""][:4] for row in parts]


def page() -> str:
    """The text of docs/SEMANTICS.md."""
    by_case: dict[str, list[str]] = {}
    for name in sorted(tests(), key=lambda name: (tests()[name], name)):
        by_case.setdefault(case_of(name) or "", []).append(name)
    compared: dict[str, int] = {}
    for name in programs():
        case = case_of(name) or ""
        compared[case] = compared.get(case, 0) + 1
    lines = [
        "# What tapegrad does in each case, beside torch",
        "",
        "Torch is 2.13 on a CPU. Where its column is empty it does the same: the class of an exception, the",
        "value of a result; the words of messages are always different. *Programs* says how many short",
        "programs of a case the tests run in both and compare. `python -m tests.semantics` prints this page.",
    ]
    section = None
    for case, what, ours, theirs in rows():
        if case.split("-")[0] != section:
            section = case.split("-")[0]
            lines += [
                "",
                f"## {section}. {SECTIONS[section]}",
                "",
                "| Case | When | tapegrad | torch | Different | Programs | Tests |",
                "| --- | --- | --- | --- | --- | --- | --- |",
            ]
        names = " ".join(f"`{name}`" for name in by_case.get(case, []))
        different = "yes" if theirs else "no"
        cells = [case, what, ours, theirs, different, str(compared.get(case, "")), names]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## Tests by topic", "", "| Topic | Tests |", "| --- | --- |"]
    for topic, names in TOPICS.items():
        lines.append(f"| {topic} | {' '.join(f'`{name}`' for name in names.split())} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
