; PyTorch's tensors as arguments of a call, by the C functions that it offers to whoever passes memory on (DLPack's
; exchange API): they neither copy nor make an object. What they leave out is asked here: whether a gradient is
; wanted, and whether the values are those in memory.

%buffer = type { ptr, ptr, i64, i64, i32, i32, ptr, ptr, ptr, ptr, ptr }
%tensor = type { ptr, i32, i32, i32, i32, ptr, ptr, i64 }
  ; DLTensor: data, kind and number of the device, rank, element type, extents, strides, what is added to data

declare ptr @PyObject_GetAttr(ptr, ptr)
declare ptr @PyObject_VectorcallDict(ptr, ptr, i64, ptr)
declare void @Py_DecRef(ptr)
declare ptr @PyTuple_New(i64)
declare i64 @PyTuple_Size(ptr)
declare ptr @PyTuple_GetItem(ptr, i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare ptr @PyLong_FromLongLong(i64)
declare i64 @PyLong_AsLongLong(ptr)
declare i64 @llvm.smax.i64(i64, i64)
@_Py_FalseStruct = external global i8

; 0 reads one; 1 Tensor, 2 Parameter; 3 "requires_grad"; 4 is_grad_enabled; 5 Tensor.is_neg; 6 increment_version;
; 7 Tensor.new_empty_strided, which is quicker than new_empty
@torch = global [8 x ptr] zeroinitializer
; For each element type a tensor of it, whose type is that; behind the last one none.
@samples = global [32 x { i32, ptr }] zeroinitializer

define internal ptr @known(i64 %number) alwaysinline {
  %place = getelementptr ptr, ptr @torch, i64 %number
  %value = load ptr, ptr %place
  ret ptr %value
}

; What a function returns for so many arguments, three at most.
define internal ptr @ask(i64 %number, i64 %count, ptr %a, ptr %b, ptr %c) {
  %operands = alloca [4 x ptr]                     ; the function may use the place before the first
  %first = getelementptr ptr, ptr %operands, i64 1
  store ptr %a, ptr %first
  %second = getelementptr ptr, ptr %operands, i64 2
  store ptr %b, ptr %second
  %third = getelementptr ptr, ptr %operands, i64 3
  store ptr %c, ptr %third
  %function = call ptr @known(i64 %number)
  %flags = or i64 %count, -9223372036854775808
  %answer = call ptr @PyObject_VectorcallDict(ptr %function, ptr %first, i64 %flags, ptr null)
  ret ptr %answer
}

; The same where the answer is True, False or None, which stay.
define internal ptr @answer(i64 %number, i64 %count, ptr %object) {
  %answer = call ptr @ask(i64 %number, i64 %count, ptr %object, ptr null, ptr null)
  call void @Py_DecRef(ptr %answer)
  ret ptr %answer
}

; The strides of what is contiguous, as a tuple like the shape's.
define internal ptr @row_major(ptr %shape) {
  %rank = call i64 @PyTuple_Size(ptr %shape)
  %strides = call ptr @PyTuple_New(i64 %rank)
  br label %axis
axis:
  %left = phi i64 [ %rank, %0 ], [ %number, %next ]
  %count = phi i64 [ 1, %0 ], [ %more, %next ]
  %is_left = icmp ne i64 %left, 0
  br i1 %is_left, label %next, label %end
next:
  %number = sub i64 %left, 1
  %stride = call ptr @PyLong_FromLongLong(i64 %count)
  %status = call i32 @PyTuple_SetItem(ptr %strides, i64 %number, ptr %stride)
  %object = call ptr @PyTuple_GetItem(ptr %shape, i64 %number)
  %extent = call i64 @PyLong_AsLongLong(ptr %object)
  %size = call i64 @llvm.smax.i64(i64 %extent, i64 1)
  %more = mul i64 %count, %size
  br label %axis
end:
  ret ptr %strides
}

; A new tensor of a shape and an element type on the CPU, or none.
define ptr @new_tensor(ptr %shape, i32 %type) {
  br label %look
look:
  %number = phi i64 [ 0, %0 ], [ %following, %other ]
  %sample_place = getelementptr { i32, ptr }, ptr @samples, i64 %number, i32 1
  %sample = load ptr, ptr %sample_place
  %is_there = icmp ne ptr %sample, null
  br i1 %is_there, label %compare, label %none
compare:
  %type_place = getelementptr { i32, ptr }, ptr @samples, i64 %number, i32 0
  %its_type = load i32, ptr %type_place
  %is_it = icmp eq i32 %its_type, %type
  br i1 %is_it, label %make, label %other
other:
  %following = add i64 %number, 1
  br label %look
make:
  %strides = call ptr @row_major(ptr %shape)
  %made = call ptr @ask(i64 7, i64 3, ptr %sample, ptr %shape, ptr %strides)
  call void @Py_DecRef(ptr %strides)
  ret ptr %made
none:
  ret ptr null
}

; Describes the memory of a contiguous tensor of the CPU as buffers are described, all but the format: 0, or -1 for
; what has to be looked at otherwise. The tensor has to stay.
define i32 @read_tensor(ptr %object, ptr %buffer, i32 %type, i64 %bytes, i1 %written) {
  %tensor = alloca %tensor
  %kind_place = getelementptr i8, ptr %object, i64 8
  %kind = load ptr, ptr %kind_place
  %class = call ptr @known(i64 1)
  %subclass = call ptr @known(i64 2)
  %is_tensor = icmp eq ptr %kind, %class
  %is_parameter = icmp eq ptr %kind, %subclass
  %is_known = or i1 %is_tensor, %is_parameter
  br i1 %is_known, label %gradient, label %no
gradient:
  %name = call ptr @known(i64 3)
  %requires = call ptr @PyObject_GetAttr(ptr %object, ptr %name)
  call void @Py_DecRef(ptr %requires)
  %is_free = icmp eq ptr %requires, @_Py_FalseStruct
  br i1 %is_free, label %bits, label %mode
mode:
  %enabled = call ptr @answer(i64 4, i64 0, ptr null)
  %is_off = icmp eq ptr %enabled, @_Py_FalseStruct
  br i1 %is_off, label %bits, label %no
bits:
  %negative = call ptr @answer(i64 5, i64 1, ptr %object)
  %is_plain = icmp eq ptr %negative, @_Py_FalseStruct
  br i1 %is_plain, label %read, label %no
read:
  %reader = call ptr @known(i64 0)
  %status = call i32 %reader(ptr %object, ptr %tensor)
  %is_read = icmp eq i32 %status, 0
  br i1 %is_read, label %look, label %no
look:
  %device_place = getelementptr %tensor, ptr %tensor, i32 0, i32 1
  %device = load i32, ptr %device_place
  %on_cpu = icmp eq i32 %device, 1
  %type_place = getelementptr %tensor, ptr %tensor, i32 0, i32 4
  %type_there = load i32, ptr %type_place
  %same_type = icmp eq i32 %type_there, %type
  %fits = and i1 %on_cpu, %same_type
  br i1 %fits, label %axes, label %no
axes:
  %rank_place = getelementptr %tensor, ptr %tensor, i32 0, i32 3
  %rank = load i32, ptr %rank_place
  %extents_place = getelementptr %tensor, ptr %tensor, i32 0, i32 5
  %extents = load ptr, ptr %extents_place
  %strides_place = getelementptr %tensor, ptr %tensor, i32 0, i32 6
  %strides = load ptr, ptr %strides_place
  br label %axis
axis:                                              ; from the last one on: each strides over all behind it
  %left = phi i32 [ %rank, %axes ], [ %number, %next ]
  %count = phi i64 [ 1, %axes ], [ %more, %next ]
  %dense = phi i1 [ true, %axes ], [ %still, %next ]
  %is_left = icmp ne i32 %left, 0
  br i1 %is_left, label %next, label %end
next:
  %number = sub i32 %left, 1
  %extent_place = getelementptr i64, ptr %extents, i32 %number
  %extent = load i64, ptr %extent_place
  %stride_place = getelementptr i64, ptr %strides, i32 %number
  %stride = load i64, ptr %stride_place
  %is_one = icmp eq i64 %extent, 1
  %is_next = icmp eq i64 %stride, %count
  %either = or i1 %is_one, %is_next
  %still = and i1 %dense, %either
  %more = mul i64 %count, %extent
  br label %axis
end:
  %data = load ptr, ptr %tensor
  %offset_place = getelementptr %tensor, ptr %tensor, i32 0, i32 7
  %offset = load i64, ptr %offset_place
  %address = getelementptr i8, ptr %data, i64 %offset
  %is_empty = icmp eq i64 %count, 0
  %is_there = icmp ne ptr %data, null
  %is_memory = and i1 %dense, %is_there
  %is_good = or i1 %is_empty, %is_memory
  br i1 %is_good, label %version, label %no
version:                                           ; autograd refuses what it has kept, if it was written since
  br i1 %written, label %write, label %describe
write:
  %noted = call ptr @answer(i64 6, i64 1, ptr %object)
  %is_noted = icmp ne ptr %noted, null
  br i1 %is_noted, label %describe, label %no
describe:
  %size = mul i64 %count, %bytes
  store ptr %address, ptr %buffer
  %owner_place = getelementptr %buffer, ptr %buffer, i32 0, i32 1
  store ptr null, ptr %owner_place                 ; nothing is to be given back
  %size_place = getelementptr %buffer, ptr %buffer, i32 0, i32 2
  store i64 %size, ptr %size_place
  %item_place = getelementptr %buffer, ptr %buffer, i32 0, i32 3
  store i64 %bytes, ptr %item_place
  %axes_place = getelementptr %buffer, ptr %buffer, i32 0, i32 5
  store i32 %rank, ptr %axes_place
  %shape_place = getelementptr %buffer, ptr %buffer, i32 0, i32 7
  store ptr %extents, ptr %shape_place
  ret i32 0
no:
  ret i32 -1
}
