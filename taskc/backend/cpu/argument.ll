; The memory of an argument as a buffer describes it: 0 for an array of NumPy's or JAX's, 1 for a tensor of PyTorch's, -1
; for what has to be looked at otherwise. Unless it is -1, the buffer has to be released.
;
; class     that of arrays that fit: another one where they are packed
; named     of elements that buffers can't name, their type; and integers as wide, in which they are passed on
; format    how buffers name the elements, in one of two ways
; type      how DLPack does
; written   whether autograd is told that a tensor is written
;
; @context is what unpacking.py says: 1 ndarray, 5 "dtype", 6 ndarray.view, 7 the functions of torch_tensors.ll, then the class
; of JAX's arrays, or null.
define internal i32 @read(ptr %value, ptr %buffer, ptr %class, ptr %named, ptr %integers, i32 %flags, i8 %format,
                          i8 %other, i64 %bytes, i32 %type, i1 %written) noinline {
  %operands = alloca [4 x ptr]                     ; the function may use the place before the first
  %ndarray = load ptr, ptr getelementptr (ptr, ptr @context, i64 1)
  %kind_place = getelementptr i8, ptr %value, i64 8
  %kind = load ptr, ptr %kind_place
  %is_array = icmp eq ptr %kind, %class
  br i1 %is_array, label %array, label %tensor
tensor:                                            ; it has no layout of ours
  %is_plain = icmp eq ptr %class, %ndarray
  br i1 %is_plain, label %functions, label %no
functions:                                         ; they are there when a call had a tensor
  %table = load ptr, ptr getelementptr (ptr, ptr @context, i64 7)
  %buffered_place = getelementptr ptr, ptr %table, i64 2
  %buffered = load ptr, ptr %buffered_place
  %has_it = icmp eq ptr %kind, %buffered
  br i1 %has_it, label %buffers, label %look_for_reader
buffers:                                           ; whose buffers name all elements that they have
  %is_named = icmp eq ptr %named, null
  br i1 %is_named, label %get, label %no
look_for_reader:
  %reader = load ptr, ptr %table
  %is_there = icmp ne ptr %reader, null
  br i1 %is_there, label %ask, label %no
ask:
  %status = call i32 %reader(ptr %value, ptr %buffer, i32 %type, i64 %bytes, i1 %written)
  %is_read = icmp eq i32 %status, 0
  %answer = select i1 %is_read, i32 1, i32 -1
  ret i32 %answer
array:
  %can_be_named = icmp eq ptr %named, null
  br i1 %can_be_named, label %get, label %bits
bits:
  %name = load ptr, ptr getelementptr (ptr, ptr @context, i64 5)
  %dtype = call ptr @PyObject_GetAttr(ptr %value, ptr %name)
  call void @Py_DecRef(ptr %dtype)                 ; the array has another reference
  %is_same = icmp eq ptr %dtype, %named
  br i1 %is_same, label %view, label %no
view:
  %first = getelementptr ptr, ptr %operands, i64 1
  store ptr %value, ptr %first
  %second = getelementptr ptr, ptr %operands, i64 2
  store ptr %integers, ptr %second
  %third = getelementptr ptr, ptr %operands, i64 3
  store ptr %ndarray, ptr %third
  %function = load ptr, ptr getelementptr (ptr, ptr @context, i64 6)
  %made = call ptr @PyObject_VectorcallDict(ptr %function, ptr %first, i64 -9223372036854775805, ptr null)
  %is_made = icmp ne ptr %made, null
  br i1 %is_made, label %get, label %no
get:
  %source = phi ptr [ %value, %array ], [ %value, %buffers ], [ %made, %view ]
  %fresh = phi ptr [ null, %array ], [ null, %buffers ], [ %made, %view ]
  %got = call i32 @PyObject_GetBuffer(ptr %source, ptr %buffer, i32 %flags)
  call void @Py_DecRef(ptr %fresh)                 ; the buffer has another reference
  %has_buffer = icmp eq i32 %got, 0
  br i1 %has_buffer, label %look, label %no
look:
  %text_place = getelementptr %buffer, ptr %buffer, i32 0, i32 6
  %whole_text = load ptr, ptr %text_place          ; "f", "=f" and "<f": what is of this processor's order
  %begin = load i8, ptr %whole_text
  %is_standard = icmp eq i8 %begin, 61
  %is_little = icmp eq i8 %begin, 60
  %is_prefixed = or i1 %is_standard, %is_little
  %prefix = zext i1 %is_prefixed to i64
  %text = getelementptr i8, ptr %whole_text, i64 %prefix
  %code = load i8, ptr %text
  %is_one = icmp eq i8 %code, %format
  %is_other = icmp eq i8 %code, %other
  %is_either = or i1 %is_one, %is_other
  br i1 %is_either, label %rest, label %wrong
rest:
  %end_place = getelementptr i8, ptr %text, i64 1
  %end = load i8, ptr %end_place
  %is_end = icmp eq i8 %end, 0
  %size_place = getelementptr %buffer, ptr %buffer, i32 0, i32 3
  %size = load i64, ptr %size_place
  %is_as_wide = icmp eq i64 %size, %bytes
  %fits = and i1 %is_end, %is_as_wide
  br i1 %fits, label %yes, label %wrong
wrong:
  call void @PyBuffer_Release(ptr %buffer)
  br label %no
yes:
  ret i32 0
no:
  ret i32 -1
}
