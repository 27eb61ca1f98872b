; What LLVM calls to convert f16 on an x86 processor without F16C, and expects of a library that a process
; need not have. Both round, and keep the payload of a NaN, as F16C does.

define float @__extendhfsf2(half %x) {
  %bits = bitcast half %x to i16
  %wide = zext i16 %bits to i32
  %sign = and i32 %wide, 32768
  %sign32 = shl i32 %sign, 16
  %magnitude = and i32 %wide, 32767
  %shifted = shl i32 %magnitude, 13
  %unscaled = bitcast i32 %shifted to float
  %scaled = fmul float %unscaled, 0x46F0000000000000  ; 2**112, the difference of the biases
  %finite = bitcast float %scaled to i32
  %is_nan = icmp ugt i32 %magnitude, 31744
  %quiet = select i1 %is_nan, i32 2143289344, i32 2139095040
  %special = or i32 %shifted, %quiet
  %is_finite = icmp ult i32 %magnitude, 31744
  %unsigned = select i1 %is_finite, i32 %finite, i32 %special
  %signed = or i32 %unsigned, %sign32
  %result = bitcast i32 %signed to float
  ret float %result
}

define half @__truncsfhf2(float %x) {
  %bits = bitcast float %x to i32
  %top = lshr i32 %bits, 16
  %sign = and i32 %top, 32768
  %magnitude = and i32 %bits, 2147483647

  ; A normal number: add half a unit, but one less where the result would be odd.
  %last = lshr i32 %magnitude, 13
  %odd = and i32 %last, 1
  %rebased = add i32 %magnitude, -939520001  ; (15 - 127) << 23, + 0xFFF
  %rounded = add i32 %rebased, %odd
  %normal = lshr i32 %rounded, 13

  ; A subnormal one: a unit of it is the last bit of 0.5.
  %absolute = bitcast i32 %magnitude to float
  %sum = fadd float %absolute, 0.5
  %sum_bits = bitcast float %sum to i32
  %subnormal = sub i32 %sum_bits, 1056964608

  %payload = and i32 %last, 1023
  %quiet = or i32 %payload, 32256
  %is_nan = icmp ugt i32 %magnitude, 2139095040
  %special = select i1 %is_nan, i32 %quiet, i32 31744

  %is_small = icmp ult i32 %magnitude, 947912704    ; 2**-14
  %is_large = icmp uge i32 %magnitude, 1199566848   ; 65520, and all that is infinite or no number
  %small = select i1 %is_small, i32 %subnormal, i32 %normal
  %unsigned = select i1 %is_large, i32 %special, i32 %small
  %signed = or i32 %unsigned, %sign
  %narrow = trunc i32 %signed to i16
  %result = bitcast i16 %narrow to half
  ret half %result
}
