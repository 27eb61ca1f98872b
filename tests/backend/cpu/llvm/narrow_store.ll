; A truncation whose one use is a masked store with a constant mask of one lane. With AVX-512 LLVM 22.1 emits
;
;     movl    12(%rdi), %eax
;     movl    %eax, 3(%rsi)
;
; which writes four bytes where one may be written: y[4..6] are lost. Expected: movb %al, 3(%rsi).
;
; The two become a masked store that truncates; then the X86 combine for masks of one true lane makes a scalar
; store of the operand, in the type that it had before the truncation.
;
;     llc -mcpu=x86-64-v4 narrow_store.ll -o -

target triple = "x86_64-unknown-linux-gnu"

define void @store(ptr %x, ptr %y) {
  %wide = load <8 x i32>, ptr %x, align 4
  %narrow = trunc <8 x i32> %wide to <8 x i8>
  call void @llvm.masked.store.v8i8.p0(<8 x i8> %narrow, ptr align 1 %y,
    <8 x i1> <i1 false, i1 false, i1 false, i1 true, i1 false, i1 false, i1 false, i1 false>)
  ret void
}

declare void @llvm.masked.store.v8i8.p0(<8 x i8>, ptr, <8 x i1>)
