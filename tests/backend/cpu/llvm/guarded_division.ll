; Lanes of a count that shifts everything out divide by 1 instead: the shift gives poison there. With AVX-512
; LLVM 22.1 divides by what the instruction for shifts makes of it, 0, and selects among the quotients behind it,
; so that the processor traps. Expected: the select before the divisions.
;
; A binary operation with a select of its neutral element, x / (c ? 1 : y), becomes c ? x : x / y, where y is known
; not to be 0. An odd number shifted left is known not to be 0 only where it isn't poison, and where c holds it is:
; the division isn't safe there.
;
;     llc -mcpu=x86-64-v4 guarded_division.ll -o -

target triple = "x86_64-unknown-linux-gnu"

define void @divide(ptr %x, ptr %counts, ptr %y) {
  %a = load <8 x i64>, ptr %x, align 8
  %count = load <8 x i64>, ptr %counts, align 8
  %is_out = icmp ugt <8 x i64> %count, splat (i64 63)
  %by = shl <8 x i64> splat (i64 103), %count
  %divisor = select <8 x i1> %is_out, <8 x i64> splat (i64 1), <8 x i64> %by
  %quotient = udiv <8 x i64> %a, %divisor
  store <8 x i64> %quotient, ptr %y, align 8
  ret void
}
