; 0, or what isn't greater. Where a number is compared and a wider one chosen LLVM 22.1 makes the cast come last, and asks
; whether it is greater or equal: of -0 it has 0.
; Expected: -0 for -0, as the select says.
;
;     opt -passes=instcombine negative_zero.ll -S

target triple = "x86_64-unknown-linux-gnu"

define double @no_more_than_zero(float %x) {
  %wide = fpext float %x to double
  %greater = fcmp ogt float %x, 0.0
  %result = select i1 %greater, double 0.0, double %wide
  ret double %result
}
