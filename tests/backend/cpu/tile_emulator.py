"""Tile registers in software: a module's own instructions, with functions for LLVM's of AMX.

What is stored, loaded and multiplied is as Intel's manual says, of all registers set up to 16 lines of 64
bytes. As long as they aren't, nothing happens.
"""

from __future__ import annotations

import re

_STATE = """
@emulated.tiles = internal global [8 x [1024 x i8]] zeroinitializer, align 64
@emulated.ready = internal global i1 false
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define internal ptr @emulated.line(i8 %tile, i64 %line) {
  %number = zext i8 %tile to i64
  %at = getelementptr [1024 x i8], ptr @emulated.tiles, i64 %number
  %offset = mul i64 %line, 64
  %place = getelementptr i8, ptr %at, i64 %offset
  ret ptr %place
}
define internal void @emulated.ldtilecfg(ptr %given) {
  %content = load <64 x i8>, ptr %given, align 1
  %same = icmp eq <64 x i8> %content, <CONFIGURATION>
  %all = bitcast <64 x i1> %same to i64
  %ready = icmp eq i64 %all, -1
  store i1 %ready, ptr @emulated.ready
  ret void
}
define internal void @emulated.tilerelease() {
  store i1 false, ptr @emulated.ready
  ret void
}
"""

_CONFIGURATION = [1, *[0] * 15, *[64, 0] * 8, *[0] * 16, *[16] * 8, *[0] * 8]


def _loop(name: str, stop: int, body: str, after: str) -> str:
    """A loop over %name, which goes on `after`; the block before it is called `before_name`."""
    return f"""
  br label %head_{name}
head_{name}:
  %{name} = phi i64 [ 0, %before_{name} ], [ %next_{name}, %end_{name} ]
  %more_{name} = icmp slt i64 %{name}, {stop}
  br i1 %more_{name}, label %body_{name}, label %{after}
body_{name}:
{body}
  br label %end_{name}
end_{name}:
  %next_{name} = add i64 %{name}, 1
  br label %head_{name}
"""


def _function(name: str, parameters: str, inside: str) -> str:
    return f"""
define internal void @emulated.{name}({parameters}) {{
  %ready = load i1, ptr @emulated.ready
  br i1 %ready, label %before_m, label %done
before_m:{inside}
done:
  ret void
}}
"""


def _move(name: str, source: str, target: str) -> str:
    body = f"""
  %line = call ptr @emulated.line(i8 %t, i64 %m)
  %far = mul i64 %m, %stride
  %memory = getelementptr i8, ptr %p, i64 %far
  call void @llvm.memcpy.p0.p0.i64(ptr %{target}, ptr %{source}, i64 64, i1 false)"""
    return _function(name, "i8 %t, ptr %p, i64 %stride", _loop("m", 16, body, "done"))


def _product(name: str, left: str, right: str) -> str:
    """Pack by pack; `left` and `right` say how elements of 8 bits are widened, "bf16" of 16."""
    floats = left == "bf16"
    count, bits, total = (2, 16, "float") if floats else (4, 8, "i32")
    steps = [f"  %sum0 = load {total}, ptr %into"]
    for q in range(count):
        for side in "ab":
            steps += [
                f"  %at_{side}{q} = getelementptr i{bits}, ptr %pack_{side}, i64 {q}",
                f"  %raw_{side}{q} = load i{bits}, ptr %at_{side}{q}",
            ]
            if floats:
                steps += [
                    f"  %wide_{side}{q} = zext i16 %raw_{side}{q} to i32",
                    f"  %high_{side}{q} = shl i32 %wide_{side}{q}, 16",
                    f"  %number_{side}{q} = bitcast i32 %high_{side}{q} to float",
                ]
            else:
                widen = left if side == "a" else right
                steps.append(f"  %number_{side}{q} = {widen} i8 %raw_{side}{q} to i32")
        prefix = "f" if floats else ""
        steps += [
            f"  %product{q} = {prefix}mul {total} %number_a{q}, %number_b{q}",
            f"  %sum{q + 1} = {prefix}add {total} %sum{q}, %product{q}",
        ]
    inner = "\n".join(
        [
            "  %pack_a = getelementptr i32, ptr %line_a, i64 %k",
            "  %line_b = call ptr @emulated.line(i8 %b, i64 %k)",
            "  %pack_b = getelementptr i32, ptr %line_b, i64 %n",
            "  %into = getelementptr i32, ptr %line_c, i64 %n",
            *steps,
            f"  store {total} %sum{count}, ptr %into",
        ]
    )
    columns = "  br label %before_k\nbefore_k:" + _loop("k", 16, inner, "end_n").rstrip()
    lines = (
        "  %line_a = call ptr @emulated.line(i8 %a, i64 %m)\n"
        "  %line_c = call ptr @emulated.line(i8 %c, i64 %m)\n"
        "  br label %before_n\nbefore_n:" + _loop("n", 16, columns + "\n  unreachable_n", "end_m")
    )
    text = _function(name, "i8 %c, i8 %a, i8 %b", _loop("m", 16, lines + "  unreachable_m", "done"))
    # An inner loop has gone on by itself where the outer one's body ends.
    return re.sub(r"\n\s*unreachable_[mn]\n  br label %end_[mn]", "", text)


def emulated(text: str) -> str:
    """The module, without an instruction of AMX."""
    listed = ", ".join(f"i8 {byte}" for byte in _CONFIGURATION)
    names = "ldtilecfg|tilerelease|tileloadd64|tilestored64|tdpbf16ps|tdpbssd|tdpbusd"
    text = re.sub(rf"^declare void @llvm\.x86\.({names})\(.*$", "", text, flags=re.M)
    text = re.sub(rf"@llvm\.x86\.({names})\b", r"@emulated.\1", text)
    parts = [
        text,
        _STATE.replace("CONFIGURATION", listed),
        _move("tileloadd64", "memory", "line"),
        _move("tilestored64", "line", "memory"),
        _product("tdpbf16ps", "bf16", "bf16"),
        _product("tdpbssd", "sext", "sext"),
        _product("tdpbusd", "zext", "sext"),
    ]
    return "\n".join(parts)
