"""write_in_place: a call whose result replaces what it reads writes it there itself.

    temporary t: f32[64]
    moved(p, g, out=t)          moved: out[i] = p[i] - g[i]
    copied(t, out=p)
->
    moved(g, p)                 kernel moved(g: f32[64], p: inout f32[64])

The call is of a computation, or of a kernel that one was fused into. Every read of the memory has to stand in the
store of the element that it reads: since each element is stored exactly once, none is read after that. The races of the
new kernel are proved as a user's are. Where there is no proof, the temporary stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from taskc.ir import nodes as ir
from taskc.ir.nodes import Kernel, Tensor
from taskc.ir.rewrite import replace_tensors, rewritten, walk
from taskc.ir.signature import is_output
from taskc.passes.prove import problem
from taskc.programs.blocks import BlockLimits
from taskc.programs.calls import Calls, computation_of, is_free_computation, map_bodies
from taskc.programs.ir import Callee, Computation, Program
from taskc.programs.redundancy import drop_dead
from taskc.programs.schedule import kernel_of

Change = Callable[[Callee, int, int], "Kernel | None"]


def write_in_place(program: Program, machine: BlockLimits) -> Program:
    kernels: dict[tuple[int, int, int], tuple[Callee, Kernel | None]] = {}

    def changed(callee: Callee, place: int, output: int) -> Kernel | None:
        key = id(callee), place, output
        if key not in kernels:
            kernels[key] = callee, in_place(callee, place, output, machine)
        return kernels[key][1]

    def run(body: Program) -> Program:
        calls = Calls(body)
        for position, call in calls.each():
            for item in call.callee.parameters:
                if is_output(item):
                    _replace_copy(calls, position, item.name, changed)
        return calls.finished()

    made = run(map_bodies(program, run))
    return program if made is program else drop_dead(made)


def _replace_copy(calls: Calls, position: int, name: str, changed: Change) -> None:
    """Let a call write the memory that its output is copied to, if that is one of its inputs."""
    call = calls.call(position)
    assert call is not None
    output = [item.name for item in call.callee.parameters].index(name)
    result = call.arguments[output]
    assert isinstance(result, Tensor)
    readers = calls.readers.get(result, ())
    if result not in calls.temporaries or not calls.written_once(result) or len(readers) != 1:
        return
    (reader,) = readers
    copy = calls.call(reader)
    if call.apart or copy is None or not is_free_computation(copy) or reader < position:
        return
    target = copy.arguments[-1]
    if not _is_copy(computation_of(copy)) or copy.arguments[0] is not result:
        return
    assert isinstance(target, Tensor)
    # The copy moves to the call, so that others of its outputs stay where they are.
    shared = [
        place
        for place, given in enumerate(call.arguments)
        if isinstance(given, Tensor) and calls.may_overlap(given, target)
    ]
    if len(shared) != 1 or call.arguments[shared[0]] is not target:
        return
    (place,) = shared
    if is_output(call.callee.parameters[place]) or not calls.may_move(reader, position, result):
        return
    kernel = changed(call.callee, place, output)
    if kernel is not None:
        arguments = [*call.arguments]
        arguments[output] = target
        del arguments[place]
        calls.put(position, replace(call, callee=kernel, arguments=tuple(arguments)))
        calls.put(reader, None)


def _is_copy(computation: Computation) -> bool:
    value, output = computation.value, computation.output
    return (
        isinstance(value, ir.Read)
        and value.indices == computation.variables
        and value.tensor.shape == output.shape
        and value.tensor.layout == output.layout
    )


def in_place(callee: Callee, place: int, output: int, machine: BlockLimits) -> Kernel | None:
    """The kernel that writes its input number `place` as this output; None where that isn't proved to be the same."""
    kernel = callee
    if isinstance(callee, Computation):
        source = callee.parameters[place]
        reads = [node for node in walk(callee.value) if isinstance(node, ir.Read)]
        if any(node.tensor is source and node.indices != callee.variables for node in reads):
            return None
        kernel = kernel_of(callee, machine)
    assert isinstance(kernel, Kernel)
    old, new = kernel.parameters[place], kernel.parameters[output]
    assert isinstance(old, Tensor)
    assert isinstance(new, Tensor)
    if (old.shape, old.given, old.layout) != (new.shape, new.given, new.layout):
        return None
    own = replace(new, name=old.name, role="inout")
    parameters = [own if item is new else item for item in kernel.parameters if item is not old]
    body = replace_tensors(kernel.body, {new: own})
    if isinstance(callee, Computation):
        body = replace_tensors(body, {old: own})
    else:
        body = rewritten(body, lambda node: _with_own(node, old, own))
    changed = replace(kernel, parameters=tuple(parameters), body=body)
    if any(isinstance(node, ir.Read) and node.tensor is old for node in walk(body)):
        return None
    return None if problem(changed) else changed


def _with_own(node: object, old: Tensor, own: Tensor) -> object:
    """A store of an element with the reads of the same element replaced."""
    if not isinstance(node, ir.Store) or node.tensor is not own:
        return node

    def change(part: object) -> object:
        is_same = isinstance(part, ir.Read) and part.tensor is old and part.indices == node.indices
        return replace(part, tensor=own) if is_same else part  # type: ignore[type-var]

    return replace(node, value=rewritten(node.value, change))
