; The smaller of a number and one that is known not to be NaN. With AVX-512 LLVM 22.1 asks vfpclassss whether the first is
; a quiet NaN or a negative zero, $5, to choose the order of the operands of vminss: of a signaling NaN it has the second.
; Expected: NaN, as llvm.minimum says of any NaN; $133, which has signaling ones too, would do.
;
;     llc -mcpu=x86-64-v4 signaling_nan.ll -o -

target triple = "x86_64-unknown-linux-gnu"

define float @smaller(float %x, i32 %whole) {
  %number = sitofp i32 %whole to float
  %result = call float @llvm.minimum.f32(float %x, float %number)
  ret float %result
}
declare float @llvm.minimum.f32(float, float)
