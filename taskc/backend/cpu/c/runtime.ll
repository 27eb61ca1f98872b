; Made of runtime.c by native_text.py.

%struct.anon = type { i64, [56 x i8], ptr, i64, i32, i32, i32, i32, ptr, i64, ptr }
%struct.call = type { ptr, ptr, i64, i64, ptr, ptr, i64, i64 }
%struct.anon.0 = type { ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr }
%struct.anon.1 = type { i32, ptr }
%struct.part = type { i64, i64, [48 x i8] }
%struct.unpacking = type { ptr, ptr, ptr, i64, ptr, i64, i8 }
%struct.memory = type { %struct.buffer, ptr }
%struct.buffer = type { ptr, ptr, i64, i64, i32, i32, ptr, ptr, ptr, ptr, ptr }
%struct.tensor = type { ptr, i32, i32, i32, i32, ptr, ptr, i64 }

@exception = internal global [3 x ptr] zeroinitializer, align 16
@.str = private constant [3 x i8] c"LL\00", align 1
@raised = internal global i32 0, align 4
@due = global i8 0, align 1
@pool = global %struct.anon zeroinitializer, align 64
@avoided = global i32 -1, align 4
@taken = global i64 0, align 8
@stamp_nothing.empty = internal global %struct.call { ptr @nothing, ptr null, i64 0, i64 0, ptr null, ptr null, i64 0, i64 0 }, align 8
@main_thread = global i64 0, align 8
@inside = global i32 0, align 4
@watching = global i8 0, align 1
@sig_block = global i32 0, align 4
@system_call = global ptr null, align 8
@futex = global i64 0, align 8
@current_processor = global ptr null, align 8
@keep_on = global ptr null, align 8
@masks = global ptr null, align 8
@processors = global i32 0, align 4
@handles = global ptr null, align 8
@handled = global i64 0, align 8
@monotonic_clock = global i32 0, align 4
@stamps = global ptr null, align 8
@torch = global %struct.anon.0 zeroinitializer, align 8
@samples = global [32 x %struct.anon.1] zeroinitializer, align 16
@buffers_class = global ptr null, align 8
@_Py_TrueStruct = external global i8, align 1
@PyBool_Type = external global i8, align 1
@PyLong_Type = external global i8, align 1
@PyFloat_Type = external global i8, align 1
@_Py_FalseStruct = external global i8, align 1
@_Py_NoneStruct = external global i8, align 1

define void @raise() {
  %1 = load ptr, ptr @exception, align 16
  %2 = load ptr, ptr getelementptr inbounds nuw (i8, ptr @exception, i64 8), align 8
  %3 = load ptr, ptr getelementptr inbounds nuw (i8, ptr @exception, i64 16), align 16
  tail call void @PyErr_Restore(ptr %1, ptr %2, ptr %3)
  ret void
}

declare void @PyErr_Restore(ptr, ptr, ptr)

define void @print(ptr %0, i64 %1, ptr %2) noinline cold {
  %4 = tail call i32 @PyGILState_Ensure()
  %5 = ptrtoint ptr %2 to i64
  %6 = tail call ptr (ptr, ptr, ...) @PyObject_CallFunction(ptr %0, ptr @.str, i64 %1, i64 %5)
  %7 = icmp eq ptr %6, null
  br i1 %7, label %9, label %8

8:
  tail call void @Py_DecRef(ptr %6)
  br label %16

9:
  %10 = tail call i64 @pthread_self()
  %11 = load i64, ptr @main_thread, align 8
  %12 = icmp eq i64 %10, %11
  br i1 %12, label %13, label %15

13:
  tail call void @PyErr_Fetch(ptr @exception, ptr getelementptr inbounds nuw (i8, ptr @exception, i64 8), ptr getelementptr inbounds nuw (i8, ptr @exception, i64 16))
  %14 = load volatile i32, ptr @inside, align 4
  store volatile i32 %14, ptr @raised, align 4
  store volatile i8 1, ptr @due, align 1
  br label %16

15:
  tail call void @PyErr_WriteUnraisable(ptr %0)
  br label %16

16:
  tail call void @PyGILState_Release(i32 %4)
  ret void
}

declare i32 @PyGILState_Ensure()

declare ptr @PyObject_CallFunction(ptr, ptr, ...)

declare void @Py_DecRef(ptr)

declare void @PyErr_WriteUnraisable(ptr)

declare void @PyGILState_Release(i32)

define i1 @look(ptr %0) noinline cold {
  %2 = load volatile i32, ptr @raised, align 4
  %3 = tail call i64 @pthread_self()
  %4 = load i64, ptr @main_thread, align 8
  %5 = icmp eq i64 %3, %4
  br i1 %5, label %6, label %15

6:
  %7 = icmp eq i32 %2, 0
  br i1 %7, label %8, label %32

8:
  store volatile i8 0, ptr @due, align 1
  %9 = tail call i32 @PyGILState_Ensure()
  %10 = tail call i32 @PyErr_CheckSignals()
  %11 = icmp ne i32 %10, 0
  br i1 %11, label %12, label %14

12:
  tail call void @PyErr_Fetch(ptr @exception, ptr getelementptr inbounds nuw (i8, ptr @exception, i64 8), ptr getelementptr inbounds nuw (i8, ptr @exception, i64 16))
  %13 = load volatile i32, ptr @inside, align 4
  store volatile i32 %13, ptr @raised, align 4
  store volatile i8 1, ptr @due, align 1
  br label %14

14:
  tail call void @PyGILState_Release(i32 %9)
  br label %32

15:
  %16 = icmp eq i32 %2, 2
  br i1 %16, label %17, label %32

17:
  %18 = load i32, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 88), align 8
  %19 = icmp slt i32 %18, 0
  br i1 %19, label %32, label %20

20:
  %21 = load ptr, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 96), align 32
  %22 = add nuw i32 %18, 1
  %23 = zext i32 %22 to i64
  br label %24

24:
  %25 = phi i64 [ 0, %20 ], [ %29, %24 ]
  %26 = getelementptr inbounds nuw ptr, ptr %21, i64 %25
  %27 = load ptr, ptr %26, align 8
  %28 = icmp eq ptr %27, %0
  %29 = add nuw nsw i64 %25, 1
  %30 = icmp eq i64 %29, %23
  %31 = select i1 %28, i1 true, i1 %30
  br i1 %31, label %32, label %24

32:
  %33 = phi i1 [ %11, %14 ], [ true, %6 ], [ false, %15 ], [ false, %17 ], [ %28, %24 ]
  ret i1 %33
}

declare i32 @PyErr_CheckSignals()

define void @go_on(i64 %0, i64 %1, ptr %2, ptr %3, ptr %4) noinline cold {
  %6 = tail call i1 @look(ptr %3)
  br i1 %6, label %8, label %7

7:
  tail call void %4(i64 %0, i64 %1, ptr %2, ptr %3)
  br label %8

8:
  ret void
}

define ptr @helper(ptr %0) {
  %2 = ptrtoint ptr %0 to i64
  br label %3

3:
  %4 = phi i64 [ 0, %1 ], [ %9, %22 ]
  br label %5

5:
  %6 = phi i64 [ 0, %3 ], [ %40, %39 ]
  br label %7

7:
  %8 = load atomic i64, ptr @pool acquire, align 64
  %9 = lshr i64 %8, 32
  %10 = icmp ne i64 %9, %4
  %11 = and i64 %8, 2147483648
  %12 = icmp ne i64 %11, 0
  %13 = and i1 %10, %12
  br i1 %13, label %14, label %24

14:
  %15 = load atomic i32, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 88) monotonic, align 8
  %16 = sext i32 %15 to i64
  %17 = icmp sgt i64 %2, %16
  br i1 %17, label %24, label %18

18:
  %19 = add nsw i64 %8, 1
  %20 = cmpxchg ptr @pool, i64 %8, i64 %19 acq_rel monotonic, align 64
  %21 = extractvalue { i64, i1 } %20, 1
  br i1 %21, label %22, label %7

22:
  tail call fastcc void @work(i64 %2)
  %23 = atomicrmw add ptr @pool, i64 -1 release, align 64
  br label %3

24:
  %25 = icmp sgt i64 %6, 3000
  br i1 %25, label %26, label %41

26:
  %27 = atomicrmw add ptr getelementptr inbounds nuw (i8, ptr @pool, i64 84), i32 1 seq_cst, align 4
  %28 = load i64, ptr @futex, align 8
  %29 = icmp eq i64 %28, 0
  br i1 %29, label %34, label %30

30:
  %31 = trunc nuw i64 %9 to i32
  %32 = load ptr, ptr @system_call, align 8
  %33 = tail call i64 (i64, ...) %32(i64 %28, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 4), i32 128, i32 %31, ptr null, ptr null, i32 0)
  br label %36

34:
  %35 = tail call i32 @usleep(i32 500)
  br label %36

36:
  %37 = phi i64 [ 0, %30 ], [ 1000000, %34 ]
  %38 = atomicrmw add ptr getelementptr inbounds nuw (i8, ptr @pool, i64 84), i32 -1 seq_cst, align 4
  br label %39

39:
  %40 = phi i64 [ %42, %41 ], [ %37, %36 ]
  br label %5

41:
  tail call void asm sideeffect "pause", ""()
  %42 = add nsw i64 %6, 1
  br label %39
}

define internal fastcc void @work(i64 %0) {
  %2 = load ptr, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 64), align 64
  %3 = load ptr, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 112), align 16
  %4 = load i64, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 72), align 8
  %5 = load i32, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 88), align 8
  %6 = zext i32 %5 to i64
  %7 = load ptr, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 96), align 32
  %8 = getelementptr inbounds ptr, ptr %7, i64 %0
  %9 = load ptr, ptr %8, align 8
  %10 = icmp sgt i64 %4, 0
  br label %11

11:
  %12 = phi i64 [ %0, %1 ], [ %55, %52 ]
  %13 = getelementptr inbounds %struct.part, ptr %3, i64 %12
  %14 = getelementptr inbounds nuw i8, ptr %13, i64 8
  %15 = load i64, ptr %14, align 8
  br label %18

16:
  %17 = phi ptr [ %19, %30 ], [ %37, %42 ]
  br label %18

18:
  %19 = phi ptr [ %2, %11 ], [ %17, %16 ]
  %20 = load volatile i8, ptr @due, align 1
  %21 = icmp eq i8 %20, 0
  br i1 %21, label %24, label %22

22:
  %23 = tail call i1 @look(ptr %9)
  br i1 %23, label %57, label %24

24:
  %25 = load atomic i64, ptr %13 monotonic, align 8
  %26 = icmp slt i64 %25, %15
  br i1 %26, label %27, label %52

27:
  %28 = atomicrmw add ptr %13, i64 %4 monotonic, align 8
  %29 = icmp slt i64 %28, %15
  br i1 %29, label %30, label %52

30:
  %31 = add nsw i64 %28, %4
  %32 = tail call i64 @llvm.smin.i64(i64 %31, i64 %15)
  br i1 %10, label %33, label %16

33:
  %34 = phi ptr [ %37, %42 ], [ %19, %30 ]
  %35 = phi i64 [ %43, %42 ], [ %28, %30 ]
  br label %36

36:
  %37 = phi ptr [ %41, %36 ], [ %34, %33 ]
  %38 = getelementptr inbounds nuw i8, ptr %37, i64 24
  %39 = load i64, ptr %38, align 8
  %40 = icmp slt i64 %35, %39
  %41 = getelementptr inbounds nuw i8, ptr %37, i64 64
  br i1 %40, label %42, label %36

42:
  %43 = tail call i64 @llvm.smin.i64(i64 %32, i64 %39)
  %44 = load ptr, ptr %37, align 8
  %45 = getelementptr inbounds nuw i8, ptr %37, i64 16
  %46 = load i64, ptr %45, align 8
  %47 = sub nsw i64 %35, %46
  %48 = sub nsw i64 %43, %46
  %49 = getelementptr inbounds nuw i8, ptr %37, i64 8
  %50 = load ptr, ptr %49, align 8
  tail call void %44(i64 %47, i64 %48, ptr %50, ptr %9)
  %51 = icmp slt i64 %39, %32
  br i1 %51, label %33, label %16

52:
  %53 = icmp eq i64 %12, %6
  %54 = add nsw i64 %12, 1
  %55 = select i1 %53, i64 0, i64 %54
  %56 = icmp eq i64 %55, %0
  br i1 %56, label %57, label %11

57:
  ret void
}

define i1 @try() {
  %1 = cmpxchg ptr getelementptr inbounds nuw (i8, ptr @pool, i64 80), i32 0, i32 1 acquire monotonic, align 16
  %2 = extractvalue { i32, i1 } %1, 1
  ret i1 %2
}

define void @claim() {
  %1 = cmpxchg ptr getelementptr inbounds nuw (i8, ptr @pool, i64 80), i32 0, i32 1 acquire monotonic, align 16
  %2 = extractvalue { i32, i1 } %1, 1
  br i1 %2, label %7, label %3

3:
  %4 = tail call i32 @sched_yield()
  %5 = cmpxchg ptr getelementptr inbounds nuw (i8, ptr @pool, i64 80), i32 0, i32 1 acquire monotonic, align 16
  %6 = extractvalue { i32, i1 } %5, 1
  br i1 %6, label %7, label %3

7:
  ret void
}

declare i32 @sched_yield()

define void @release() {
  store atomic i32 0, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 80) release, align 16
  ret void
}

define void @step(ptr %0, i64 %1, ptr %2, i1 %3) {
  %5 = and i64 %1, -4611686018427387905
  %6 = icmp sgt i64 %5, 1
  br i1 %6, label %7, label %15

7:
  %8 = load i32, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 88), align 8
  %9 = icmp ne i32 %8, 0
  %10 = select i1 %3, i1 %9, i1 false
  br i1 %10, label %11, label %15

11:
  %12 = sext i32 %8 to i64
  %13 = add nsw i64 %12, 1
  %14 = icmp ne i64 %5, %1
  tail call fastcc void @fork(ptr %0, i64 %5, i64 %13, i1 %14)
  br label %19

15:
  %16 = load ptr, ptr %0, align 8
  %17 = getelementptr inbounds nuw i8, ptr %0, i64 8
  %18 = load ptr, ptr %17, align 8
  tail call void %16(i64 0, i64 %5, ptr %18, ptr %2)
  br label %19

19:
  ret void
}

define internal fastcc void @fork(ptr %0, i64 %1, i64 %2, i1 %3) noinline {
  store ptr %0, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 64), align 64
  %5 = shl nsw i64 %2, 3
  %6 = sdiv i64 %1, %5
  %7 = icmp eq i64 %6, 0
  %8 = or i1 %3, %7
  %9 = select i1 %8, i64 1, i64 %6
  store i64 %9, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 72), align 8
  %10 = icmp sgt i64 %2, 0
  br i1 %10, label %20, label %11

11:
  %12 = load atomic i64, ptr @pool monotonic, align 64
  %13 = and i64 %12, -4294967296
  %14 = add i64 %13, 6442450944
  store atomic i64 %14, ptr @pool seq_cst, align 64
  %15 = load atomic i32, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 84) seq_cst, align 4
  %16 = icmp eq i32 %15, 0
  %17 = load i64, ptr @futex, align 8
  %18 = icmp eq i64 %17, 0
  %19 = select i1 %16, i1 true, i1 %18
  br i1 %19, label %63, label %34

20:
  %21 = phi i64 [ %28, %27 ], [ 0, %4 ]
  %22 = phi i64 [ %23, %27 ], [ 0, %4 ]
  %23 = add nuw nsw i64 %22, 1
  br i1 %3, label %27, label %24

24:
  %25 = mul nuw nsw i64 %23, %1
  %26 = udiv i64 %25, %2
  br label %27

27:
  %28 = phi i64 [ %26, %24 ], [ %1, %20 ]
  %29 = load ptr, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 112), align 16
  %30 = getelementptr inbounds nuw %struct.part, ptr %29, i64 %22
  store atomic i64 %21, ptr %30 monotonic, align 8
  %31 = load ptr, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 112), align 16
  %32 = getelementptr inbounds nuw %struct.part, ptr %31, i64 %22, i32 1
  store i64 %28, ptr %32, align 8
  %33 = icmp eq i64 %23, %2
  br i1 %33, label %11, label %20

34:
  %35 = load ptr, ptr @current_processor, align 8
  %36 = tail call i32 %35()
  %37 = load i32, ptr @processors, align 4
  %38 = icmp uge i32 %36, %37
  %39 = load i32, ptr @avoided, align 4
  %40 = icmp eq i32 %36, %39
  %41 = select i1 %38, i1 true, i1 %40
  br i1 %41, label %59, label %42

42:
  store i32 %36, ptr @avoided, align 4
  %43 = load i64, ptr @handled, align 8
  %44 = icmp sgt i64 %43, 0
  br i1 %44, label %45, label %59

45:
  %46 = sext i32 %36 to i64
  br label %47

47:
  %48 = phi i64 [ 0, %45 ], [ %56, %47 ]
  %49 = load ptr, ptr @keep_on, align 8
  %50 = load ptr, ptr @handles, align 8
  %51 = getelementptr inbounds nuw i64, ptr %50, i64 %48
  %52 = load i64, ptr %51, align 8
  %53 = load ptr, ptr @masks, align 8
  %54 = getelementptr inbounds [128 x i8], ptr %53, i64 %46
  %55 = tail call i32 %49(i64 %52, i64 128, ptr %54)
  %56 = add nuw nsw i64 %48, 1
  %57 = load i64, ptr @handled, align 8
  %58 = icmp slt i64 %56, %57
  br i1 %58, label %47, label %59

59:
  %60 = load ptr, ptr @system_call, align 8
  %61 = load i64, ptr @futex, align 8
  %62 = tail call i64 (i64, ...) %60(i64 %61, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 4), i32 129, i32 2147483647, ptr null, ptr null, i32 0)
  br label %63

63:
  tail call fastcc void @work(i64 0)
  %64 = atomicrmw and ptr @pool, i64 -2147483649 acq_rel, align 64
  %65 = load atomic i64, ptr @pool acquire, align 64
  %66 = and i64 %65, 2147483647
  %67 = icmp eq i64 %66, 0
  br i1 %67, label %68, label %69

68:
  ret void

69:
  %70 = phi i64 [ %81, %80 ], [ 0, %63 ]
  %71 = icmp slt i64 %70, 3001
  br i1 %71, label %72, label %74

72:
  tail call void asm sideeffect "pause", ""()
  %73 = add nsw i64 %70, 1
  br label %80

74:
  %75 = tail call i32 @sched_yield()
  %76 = load volatile i8, ptr @due, align 1
  %77 = icmp eq i8 %76, 0
  br i1 %77, label %80, label %78

78:
  %79 = tail call i1 @look(ptr null)
  br label %80

80:
  %81 = phi i64 [ %73, %72 ], [ %70, %78 ], [ %70, %74 ]
  %82 = load atomic i64, ptr @pool acquire, align 64
  %83 = and i64 %82, 2147483647
  %84 = icmp eq i64 %83, 0
  br i1 %84, label %68, label %69
}

define i32 @run(ptr %0, i64 %1, ptr %2, i64 %3, i1 %4) {
  %6 = alloca %struct.call, align 8
  %7 = tail call fastcc i32 @enter()
  store ptr %0, ptr %6, align 8
  %8 = getelementptr inbounds nuw i8, ptr %6, i64 8
  store ptr %2, ptr %8, align 8
  %9 = getelementptr inbounds nuw i8, ptr %6, i64 16
  store i64 0, ptr %9, align 8
  %10 = and i64 %1, -4611686018427387905
  %11 = getelementptr inbounds nuw i8, ptr %6, i64 24
  store i64 %10, ptr %11, align 8
  %12 = icmp ne i64 %3, 0
  %13 = icmp sgt i64 %10, 1
  %14 = and i1 %13, %4
  %15 = or i1 %12, %14
  br i1 %15, label %17, label %16

16:
  tail call void %0(i64 0, i64 %10, ptr %2, ptr null)
  br label %43

17:
  %18 = cmpxchg ptr getelementptr inbounds nuw (i8, ptr @pool, i64 80), i32 0, i32 1 acquire monotonic, align 16
  %19 = extractvalue { i32, i1 } %18, 1
  br i1 %19, label %29, label %20

20:
  %21 = and i64 %3, -64
  %22 = add nsw i64 %21, 64
  %23 = tail call ptr @aligned_alloc(i64 64, i64 %22)
  %24 = icmp eq ptr %23, null
  br i1 %24, label %43, label %25

25:
  %26 = load ptr, ptr %6, align 8
  %27 = load i64, ptr %11, align 8
  %28 = load ptr, ptr %8, align 8
  tail call void %26(i64 0, i64 %27, ptr %28, ptr %23)
  tail call void @free(ptr %23)
  br label %43

29:
  %30 = load i32, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 92), align 4
  %31 = icmp ne i32 %30, 0
  %32 = load i64, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 104), align 8
  %33 = icmp ule i64 %3, %32
  %34 = select i1 %31, i1 %33, i1 false
  br i1 %34, label %35, label %41

35:
  %36 = icmp sgt i32 %7, -1
  br i1 %36, label %37, label %38

37:
  store volatile i32 2, ptr @inside, align 4
  br label %38

38:
  %39 = load ptr, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 96), align 32
  %40 = load ptr, ptr %39, align 8
  call void @step(ptr %6, i64 %1, ptr %40, i1 %4)
  br label %41

41:
  %42 = phi i32 [ 0, %38 ], [ 1, %29 ]
  store atomic i32 0, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 80) release, align 16
  br label %43

43:
  %44 = phi i32 [ %42, %41 ], [ 0, %16 ], [ 0, %25 ], [ 2, %20 ]
  %45 = icmp slt i32 %7, 0
  br i1 %45, label %50, label %46

46:
  store volatile i32 %7, ptr @inside, align 4
  %47 = load volatile i32, ptr @raised, align 4
  %48 = icmp eq i32 %47, 0
  br i1 %48, label %50, label %49

49:
  store volatile i32 0, ptr @raised, align 4
  store volatile i8 0, ptr @due, align 1
  br label %50

50:
  %51 = phi i32 [ 3, %49 ], [ %44, %43 ], [ %44, %46 ]
  ret i32 %51
}

define internal fastcc i32 @enter() {
  %1 = tail call i64 @pthread_self()
  %2 = load i64, ptr @main_thread, align 8
  %3 = icmp eq i64 %1, %2
  br i1 %3, label %4, label %9

4:
  %5 = load volatile i32, ptr @inside, align 4
  store volatile i32 1, ptr @inside, align 4
  %6 = load atomic i8, ptr @watching monotonic, align 1
  %7 = icmp eq i8 %6, 0
  br i1 %7, label %8, label %9

8:
  tail call fastcc void @begin_to_watch()
  br label %9

9:
  %10 = phi i32 [ -1, %0 ], [ %5, %8 ], [ %5, %4 ]
  ret i32 %10
}

define void @checksum(ptr %0, i64 %1, ptr %2) {
  %4 = icmp sgt i64 %1, 0
  br i1 %4, label %7, label %5

5:
  %6 = phi <32 x i64> [ zeroinitializer, %3 ], [ %14, %7 ]
  store <32 x i64> %6, ptr %2, align 1
  ret void

7:
  %8 = phi i64 [ %15, %7 ], [ 0, %3 ]
  %9 = phi <32 x i64> [ %14, %7 ], [ zeroinitializer, %3 ]
  %10 = getelementptr inbounds nuw <32 x i64>, ptr %0, i64 %8
  %11 = load <32 x i64>, ptr %10, align 1
  %12 = xor <32 x i64> %11, %9
  %13 = tail call <32 x i64> @llvm.fshl.v32i64(<32 x i64> %12, <32 x i64> %12, <32 x i64> splat (i64 29))
  %14 = mul <32 x i64> %13, splat (i64 -7046029254386353131)
  %15 = add nuw nsw i64 %8, 1
  %16 = icmp eq i64 %15, %1
  br i1 %16, label %5, label %7
}

define ptr @begin(ptr %0, ptr %1) {
  %3 = load ptr, ptr %0, align 8
  %4 = icmp eq ptr %3, null
  br i1 %4, label %153, label %5

5:
  %6 = phi ptr [ %32, %31 ], [ %3, %2 ]
  %7 = getelementptr inbounds nuw i8, ptr %6, i64 8
  %8 = load i64, ptr %7, align 8
  %9 = icmp slt i64 %8, 1
  br i1 %9, label %34, label %10

10:
  %11 = getelementptr inbounds nuw i8, ptr %6, i64 16
  %12 = load ptr, ptr %11, align 8
  %13 = getelementptr inbounds nuw i8, ptr %6, i64 72
  %14 = load i64, ptr %13, align 8
  br label %15

15:
  %16 = phi i64 [ 0, %10 ], [ %29, %28 ]
  %17 = getelementptr inbounds nuw [2 x i64], ptr %12, i64 %16
  %18 = load i64, ptr %17, align 8
  %19 = getelementptr inbounds i64, ptr %1, i64 %18
  %20 = load i64, ptr %19, align 8
  %21 = getelementptr inbounds nuw i8, ptr %17, i64 8
  %22 = load i64, ptr %21, align 8
  %23 = icmp eq i64 %18, %14
  br i1 %23, label %24, label %26

24:
  %25 = icmp ugt i64 %20, %22
  br i1 %25, label %31, label %28

26:
  %27 = icmp eq i64 %20, %22
  br i1 %27, label %28, label %31

28:
  %29 = add nuw nsw i64 %16, 1
  %30 = icmp eq i64 %29, %8
  br i1 %30, label %34, label %15

31:
  %32 = load ptr, ptr %6, align 8
  %33 = icmp eq ptr %32, null
  br i1 %33, label %153, label %5

34:
  %35 = getelementptr inbounds nuw i8, ptr %6, i64 32
  %36 = load ptr, ptr %35, align 8
  %37 = icmp eq ptr %36, null
  br i1 %37, label %153, label %38

38:
  %39 = phi ptr [ %44, %43 ], [ %36, %34 ]
  %40 = getelementptr inbounds nuw i8, ptr %39, i64 8
  %41 = cmpxchg ptr %40, i64 0, i64 1 acquire monotonic, align 8
  %42 = extractvalue { i64, i1 } %41, 1
  br i1 %42, label %46, label %43

43:
  %44 = load ptr, ptr %39, align 8
  %45 = icmp eq ptr %44, null
  br i1 %45, label %153, label %38

46:
  %47 = getelementptr inbounds nuw i8, ptr %0, i64 8
  %48 = load ptr, ptr %47, align 8
  %49 = getelementptr inbounds nuw i8, ptr %6, i64 24
  %50 = load i64, ptr %49, align 8
  %51 = icmp eq ptr %48, null
  br i1 %51, label %71, label %52

52:
  %53 = phi ptr [ %69, %68 ], [ %48, %46 ]
  %54 = getelementptr inbounds nuw i8, ptr %53, i64 16
  %55 = load i64, ptr %54, align 8
  %56 = icmp ult i64 %55, %50
  br i1 %56, label %68, label %57

57:
  %58 = getelementptr inbounds nuw i8, ptr %53, i64 8
  %59 = cmpxchg ptr %58, i64 0, i64 1 acquire monotonic, align 8
  %60 = extractvalue { i64, i1 } %59, 1
  br i1 %60, label %61, label %68

61:
  %62 = getelementptr inbounds nuw i8, ptr %6, i64 40
  %63 = load i64, ptr %62, align 8
  %64 = icmp sgt i64 %63, 0
  br i1 %64, label %65, label %72

65:
  %66 = getelementptr inbounds nuw i8, ptr %6, i64 48
  %67 = getelementptr inbounds nuw i8, ptr %39, i64 24
  br label %76

68:
  %69 = load ptr, ptr %53, align 8
  %70 = icmp eq ptr %69, null
  br i1 %70, label %71, label %52

71:
  store atomic i64 0, ptr %40 release, align 8
  br label %153

72:
  %73 = getelementptr inbounds nuw i8, ptr %6, i64 72
  %74 = load i64, ptr %73, align 8
  %75 = icmp sgt i64 %74, -1
  br i1 %75, label %93, label %125

76:
  %77 = phi i64 [ 0, %65 ], [ %90, %76 ]
  %78 = load ptr, ptr %66, align 8
  %79 = getelementptr inbounds nuw [3 x i64], ptr %78, i64 %77
  %80 = getelementptr inbounds nuw i8, ptr %79, i64 8
  %81 = load i64, ptr %80, align 8
  %82 = getelementptr inbounds i64, ptr %1, i64 %81
  %83 = load i64, ptr %82, align 8
  %84 = getelementptr inbounds nuw i8, ptr %79, i64 16
  %85 = load i64, ptr %84, align 8
  %86 = add nsw i64 %85, %83
  %87 = load ptr, ptr %67, align 8
  %88 = load i64, ptr %79, align 8
  %89 = getelementptr inbounds i64, ptr %87, i64 %88
  store i64 %86, ptr %89, align 8
  %90 = add nuw nsw i64 %77, 1
  %91 = load i64, ptr %62, align 8
  %92 = icmp slt i64 %90, %91
  br i1 %92, label %76, label %72

93:
  %94 = getelementptr inbounds nuw i64, ptr %1, i64 %74
  %95 = load i64, ptr %94, align 8
  %96 = getelementptr inbounds nuw i8, ptr %39, i64 88
  %97 = load i64, ptr %96, align 8
  %98 = sub nsw i64 %95, %97
  %99 = getelementptr inbounds nuw i8, ptr %6, i64 80
  %100 = load i64, ptr %99, align 8
  %101 = icmp sgt i64 %100, 0
  br i1 %101, label %102, label %107

102:
  %103 = getelementptr inbounds nuw i8, ptr %6, i64 88
  %104 = getelementptr inbounds nuw i8, ptr %39, i64 24
  br label %110

105:
  %106 = load i64, ptr %96, align 8
  br label %107

107:
  %108 = phi i64 [ %106, %105 ], [ %97, %93 ]
  %109 = add nsw i64 %108, %98
  store i64 %109, ptr %96, align 8
  br label %125

110:
  %111 = phi i64 [ 0, %102 ], [ %122, %110 ]
  %112 = load ptr, ptr %103, align 8
  %113 = getelementptr inbounds nuw [2 x i64], ptr %112, i64 %111
  %114 = getelementptr inbounds nuw i8, ptr %113, i64 8
  %115 = load i64, ptr %114, align 8
  %116 = mul nsw i64 %115, %98
  %117 = load ptr, ptr %104, align 8
  %118 = load i64, ptr %113, align 8
  %119 = getelementptr inbounds i64, ptr %117, i64 %118
  %120 = load i64, ptr %119, align 8
  %121 = add nsw i64 %120, %116
  store i64 %121, ptr %119, align 8
  %122 = add nuw nsw i64 %111, 1
  %123 = load i64, ptr %99, align 8
  %124 = icmp slt i64 %122, %123
  br i1 %124, label %110, label %105

125:
  %126 = getelementptr inbounds nuw i8, ptr %39, i64 64
  store ptr %53, ptr %126, align 8
  %127 = getelementptr inbounds nuw i8, ptr %39, i64 72
  %128 = load i64, ptr %127, align 8
  %129 = getelementptr inbounds nuw i8, ptr %53, i64 24
  %130 = load i64, ptr %129, align 8
  %131 = icmp eq i64 %128, %130
  br i1 %131, label %153, label %132

132:
  store i64 %130, ptr %127, align 8
  %133 = getelementptr inbounds nuw i8, ptr %6, i64 56
  %134 = load i64, ptr %133, align 8
  %135 = icmp sgt i64 %134, 0
  br i1 %135, label %136, label %153

136:
  %137 = getelementptr inbounds nuw i8, ptr %6, i64 64
  %138 = getelementptr inbounds nuw i8, ptr %39, i64 24
  br label %139

139:
  %140 = phi i64 [ 0, %136 ], [ %150, %139 ]
  %141 = load i64, ptr %129, align 8
  %142 = load ptr, ptr %137, align 8
  %143 = getelementptr inbounds nuw [2 x i64], ptr %142, i64 %140
  %144 = getelementptr inbounds nuw i8, ptr %143, i64 8
  %145 = load i64, ptr %144, align 8
  %146 = add nsw i64 %145, %141
  %147 = load ptr, ptr %138, align 8
  %148 = load i64, ptr %143, align 8
  %149 = getelementptr inbounds i64, ptr %147, i64 %148
  store i64 %146, ptr %149, align 8
  %150 = add nuw nsw i64 %140, 1
  %151 = load i64, ptr %133, align 8
  %152 = icmp slt i64 %150, %151
  br i1 %152, label %139, label %153

153:
  %154 = phi ptr [ null, %71 ], [ %39, %125 ], [ null, %34 ], [ %39, %132 ], [ null, %2 ], [ %39, %139 ], [ null, %43 ], [ null, %31 ]
  ret ptr %154
}

define i64 @run_program(ptr %0) {
  %2 = tail call fastcc i32 @enter()
  %3 = cmpxchg ptr getelementptr inbounds nuw (i8, ptr @pool, i64 80), i32 0, i32 1 acquire monotonic, align 16
  %4 = extractvalue { i32, i1 } %3, 1
  %5 = getelementptr inbounds nuw i8, ptr %0, i64 48
  %6 = load i64, ptr %5, align 8
  br i1 %4, label %7, label %27

7:
  %8 = load i32, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 92), align 4
  %9 = icmp ne i32 %8, 0
  %10 = load i64, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 104), align 8
  %11 = icmp ule i64 %6, %10
  %12 = select i1 %9, i1 %11, i1 false
  br i1 %12, label %13, label %25

13:
  %14 = icmp sgt i32 %2, -1
  br i1 %14, label %15, label %16

15:
  store volatile i32 2, ptr @inside, align 4
  br label %16

16:
  %17 = load i32, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 88), align 8
  %18 = getelementptr inbounds nuw i8, ptr %0, i64 80
  %19 = load i64, ptr %18, align 8
  %20 = trunc i64 %19 to i32
  %21 = tail call i32 @llvm.umin.i32(i32 %17, i32 %20)
  store atomic i32 %21, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 88) monotonic, align 8
  %22 = load ptr, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 96), align 32
  %23 = load ptr, ptr %22, align 8
  %24 = tail call fastcc i64 @run_steps(ptr %0, ptr %23, i1 true)
  store atomic i32 %17, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 88) monotonic, align 8
  br label %25

25:
  %26 = phi i64 [ %24, %16 ], [ -1, %7 ]
  store atomic i32 0, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 80) release, align 16
  br label %43

27:
  %28 = icmp eq i64 %6, 0
  br i1 %28, label %37, label %29

29:
  %30 = and i64 %6, -64
  %31 = add nsw i64 %30, 64
  %32 = tail call ptr @aligned_alloc(i64 64, i64 %31)
  %33 = load i64, ptr %5, align 8
  %34 = icmp eq i64 %33, 0
  %35 = icmp ne ptr %32, null
  %36 = select i1 %34, i1 true, i1 %35
  br i1 %36, label %37, label %40

37:
  %38 = phi ptr [ %32, %29 ], [ null, %27 ]
  %39 = tail call fastcc i64 @run_steps(ptr %0, ptr %38, i1 false)
  br label %40

40:
  %41 = phi ptr [ %38, %37 ], [ null, %29 ]
  %42 = phi i64 [ %39, %37 ], [ -2, %29 ]
  tail call void @free(ptr %41)
  br label %43

43:
  %44 = phi i64 [ %26, %25 ], [ %42, %40 ]
  %45 = getelementptr inbounds nuw i8, ptr %0, i64 64
  %46 = load ptr, ptr %45, align 8
  %47 = getelementptr inbounds nuw i8, ptr %46, i64 8
  store atomic i64 0, ptr %47 release, align 8
  %48 = getelementptr inbounds nuw i8, ptr %0, i64 8
  store atomic i64 0, ptr %48 release, align 8
  %49 = icmp slt i32 %2, 0
  br i1 %49, label %54, label %50

50:
  store volatile i32 %2, ptr @inside, align 4
  %51 = load volatile i32, ptr @raised, align 4
  %52 = icmp eq i32 %51, 0
  br i1 %52, label %54, label %53

53:
  store volatile i32 0, ptr @raised, align 4
  store volatile i8 0, ptr @due, align 1
  br label %54

54:
  %55 = phi i64 [ 2147483647, %53 ], [ %44, %43 ], [ %44, %50 ]
  ret i64 %55
}

define internal fastcc i64 @run_steps(ptr %0, ptr %1, i1 %2) {
  %4 = getelementptr inbounds nuw i8, ptr %0, i64 40
  %5 = load ptr, ptr %4, align 8
  %6 = getelementptr inbounds nuw i8, ptr %0, i64 32
  %7 = load i64, ptr %6, align 8
  %8 = getelementptr inbounds %struct.call, ptr %5, i64 %7
  %9 = getelementptr inbounds nuw i8, ptr %0, i64 56
  %10 = load ptr, ptr %9, align 8
  %11 = icmp sgt i64 %7, 0
  br i1 %11, label %12, label %70

12:
  %13 = phi ptr [ %68, %67 ], [ %5, %3 ]
  %14 = load volatile i8, ptr @due, align 1
  %15 = icmp eq i8 %14, 0
  br i1 %15, label %18, label %16

16:
  %17 = tail call i1 @look(ptr %1)
  br i1 %17, label %70, label %18

18:
  %19 = getelementptr inbounds nuw i8, ptr %13, i64 56
  %20 = load i64, ptr %19, align 8
  %21 = icmp eq i64 %20, 0
  br i1 %21, label %22, label %44

22:
  %23 = getelementptr inbounds nuw i8, ptr %13, i64 32
  %24 = load ptr, ptr %23, align 8
  %25 = getelementptr inbounds nuw i8, ptr %13, i64 8
  %26 = load ptr, ptr %25, align 8
  %27 = tail call i64 %24(ptr %26)
  %28 = tail call i64 @llvm.abs.i64(i64 %27, i1 true)
  %29 = and i64 %28, 4611686018427387903
  %30 = getelementptr inbounds nuw i8, ptr %13, i64 24
  store i64 %29, ptr %30, align 8
  %31 = icmp sgt i64 %27, 0
  %32 = and i1 %2, %31
  tail call void %10(ptr %13, i64 %28, ptr %1, i1 %32)
  %33 = getelementptr inbounds nuw i8, ptr %13, i64 40
  %34 = load ptr, ptr %33, align 8
  %35 = load i64, ptr %34, align 8
  %36 = icmp eq i64 %35, 0
  br i1 %36, label %37, label %39

37:
  %38 = getelementptr inbounds nuw i8, ptr %13, i64 64
  br label %67

39:
  store i64 0, ptr %34, align 8
  %40 = getelementptr inbounds nuw i8, ptr %13, i64 48
  %41 = load i64, ptr %40, align 8
  %42 = shl i64 %41, 32
  %43 = or i64 %42, %35
  br label %70

44:
  %45 = icmp sgt i64 %20, 0
  br i1 %45, label %46, label %51

46:
  %47 = getelementptr inbounds nuw i8, ptr %13, i64 64
  %48 = getelementptr inbounds nuw %struct.call, ptr %47, i64 %20
  %49 = tail call fastcc i64 @run_together(ptr %13, ptr %48, ptr %10, ptr %1, i1 %2)
  %50 = icmp eq i64 %49, 0
  br i1 %50, label %67, label %70

51:
  %52 = getelementptr inbounds nuw i8, ptr %13, i64 48
  %53 = load i64, ptr %52, align 8
  %54 = icmp eq i64 %53, 0
  br i1 %54, label %63, label %55

55:
  %56 = getelementptr inbounds nuw i8, ptr %13, i64 8
  %57 = load ptr, ptr %56, align 8
  %58 = load ptr, ptr %57, align 8
  %59 = load i8, ptr %58, align 1
  %60 = icmp eq i8 %59, 0
  br i1 %60, label %63, label %61

61:
  %62 = getelementptr inbounds nuw i8, ptr %13, i64 64
  br label %67

63:
  %64 = getelementptr inbounds nuw i8, ptr %13, i64 16
  %65 = load i64, ptr %64, align 8
  %66 = getelementptr inbounds %struct.call, ptr %5, i64 %65
  br label %67

67:
  %68 = phi ptr [ %48, %46 ], [ %62, %61 ], [ %66, %63 ], [ %38, %37 ]
  %69 = icmp ult ptr %68, %8
  br i1 %69, label %12, label %70

70:
  %71 = phi i64 [ %43, %39 ], [ 0, %3 ], [ %49, %46 ], [ 0, %67 ], [ 0, %16 ]
  ret i64 %71
}

declare void @free(ptr)

define void @stamped(ptr %0, i64 %1, ptr %2, i1 %3) {
  %5 = alloca [2 x i64], align 16
  %6 = alloca [2 x i64], align 16
  %7 = load i64, ptr @taken, align 8
  %8 = icmp eq i64 %7, 0
  br i1 %8, label %9, label %21

9:
  %10 = load i32, ptr @monotonic_clock, align 4
  %11 = call i32 @clock_gettime(i32 %10, ptr %6)
  %12 = load i64, ptr %6, align 16
  %13 = mul nsw i64 %12, 1000000000
  %14 = getelementptr inbounds nuw i8, ptr %6, i64 8
  %15 = load i64, ptr %14, align 8
  %16 = add nsw i64 %13, %15
  %17 = load ptr, ptr @stamps, align 8
  %18 = load i64, ptr @taken, align 8
  %19 = add nsw i64 %18, 1
  store i64 %19, ptr @taken, align 8
  %20 = getelementptr inbounds i64, ptr %17, i64 %18
  store i64 %16, ptr %20, align 8
  br label %21

21:
  call void @step(ptr %0, i64 %1, ptr %2, i1 %3)
  %22 = load i32, ptr @monotonic_clock, align 4
  %23 = call i32 @clock_gettime(i32 %22, ptr %5)
  %24 = load i64, ptr %5, align 16
  %25 = mul nsw i64 %24, 1000000000
  %26 = getelementptr inbounds nuw i8, ptr %5, i64 8
  %27 = load i64, ptr %26, align 8
  %28 = add nsw i64 %25, %27
  %29 = load ptr, ptr @stamps, align 8
  %30 = load i64, ptr @taken, align 8
  %31 = add nsw i64 %30, 1
  store i64 %31, ptr @taken, align 8
  %32 = getelementptr inbounds i64, ptr %29, i64 %30
  store i64 %28, ptr %32, align 8
  ret void
}

define void @stamp_nothing(i64 %0) {
  %2 = icmp sgt i64 %0, 0
  br i1 %2, label %4, label %3

3:
  ret void

4:
  %5 = phi i64 [ %6, %4 ], [ 0, %1 ]
  tail call void @stamped(ptr @stamp_nothing.empty, i64 1, ptr null, i1 false)
  %6 = add nuw nsw i64 %5, 1
  %7 = icmp eq i64 %6, %0
  br i1 %7, label %3, label %4
}

define internal void @nothing(i64 %0, i64 %1, ptr %2, ptr %3) {
  ret void
}

define i64 @call_kernel(ptr %0, i64 %1, ptr %2) {
  %4 = getelementptr inbounds i64, ptr %0, i64 %1
  store i64 0, ptr %4, align 8
  %5 = getelementptr inbounds nuw i8, ptr %2, i64 16
  %6 = load ptr, ptr %5, align 8
  %7 = tail call i64 %6(ptr %0)
  %8 = tail call ptr @PyEval_SaveThread()
  %9 = load ptr, ptr %2, align 8
  %10 = getelementptr inbounds nuw i8, ptr %2, i64 8
  %11 = load ptr, ptr %10, align 8
  %12 = tail call i64 @llvm.abs.i64(i64 %7, i1 true)
  %13 = getelementptr inbounds nuw i8, ptr %2, i64 24
  %14 = load i64, ptr %13, align 8
  %15 = icmp sgt i64 %7, 0
  %16 = tail call i32 %9(ptr %11, i64 %12, ptr %0, i64 %14, i1 %15)
  tail call void @PyEval_RestoreThread(ptr %8)
  %17 = icmp eq i32 %16, 0
  br i1 %17, label %18, label %20

18:
  %19 = load i64, ptr %4, align 8
  br label %23

20:
  %21 = icmp eq i32 %16, 3
  %22 = select i1 %21, i64 2147483647, i64 -1
  br label %23

23:
  %24 = phi i64 [ %19, %18 ], [ %22, %20 ]
  ret i64 %24
}

declare ptr @PyEval_SaveThread()

declare void @PyEval_RestoreThread(ptr)

define i64 @call_program(ptr %0, i64 %1, ptr %2) {
  %4 = load ptr, ptr %2, align 8
  %5 = tail call ptr @begin(ptr %4, ptr %0)
  %6 = icmp eq ptr %5, null
  br i1 %6, label %10, label %7

7:
  %8 = tail call ptr @PyEval_SaveThread()
  %9 = tail call i64 @run_program(ptr %5)
  tail call void @PyEval_RestoreThread(ptr %8)
  br label %10

10:
  %11 = phi i64 [ %9, %7 ], [ -1, %3 ]
  ret i64 %11
}

define ptr @entry(ptr %0, ptr %1, i64 %2, ptr %3) {
  %5 = alloca [3 x ptr], align 16
  %6 = alloca [4 x ptr], align 16
  %7 = alloca i64, align 8
  %8 = alloca [3 x ptr], align 16
  %9 = alloca %struct.unpacking, align 8
  %10 = alloca [2 x ptr], align 16
  %11 = getelementptr inbounds nuw i8, ptr %0, i64 16
  %12 = load ptr, ptr %11, align 8
  %13 = getelementptr inbounds nuw i8, ptr %12, i64 40
  %14 = load i64, ptr %13, align 8
  %15 = add nsw i64 %14, 1
  %16 = alloca i64, i64 %15, align 16
  %17 = getelementptr inbounds nuw i8, ptr %12, i64 48
  %18 = load i64, ptr %17, align 8
  %19 = getelementptr inbounds nuw i8, ptr %12, i64 56
  %20 = load i64, ptr %19, align 8
  %21 = add nsw i64 %20, %18
  %22 = alloca %struct.memory, i64 %21, align 16
  %23 = add nsw i64 %20, 1
  %24 = alloca ptr, i64 %23, align 16
  store ptr %12, ptr %9, align 8
  %25 = getelementptr inbounds nuw i8, ptr %9, i64 8
  store ptr %16, ptr %25, align 8
  %26 = getelementptr inbounds nuw i8, ptr %9, i64 16
  store ptr %22, ptr %26, align 8
  %27 = getelementptr inbounds nuw i8, ptr %9, i64 24
  store i64 0, ptr %27, align 8
  %28 = getelementptr inbounds nuw i8, ptr %9, i64 32
  store ptr %24, ptr %28, align 8
  %29 = getelementptr inbounds nuw i8, ptr %9, i64 40
  store i64 0, ptr %29, align 8
  %30 = getelementptr inbounds nuw i8, ptr %9, i64 48
  store i8 0, ptr %30, align 8
  %31 = getelementptr inbounds nuw i8, ptr %9, i64 49
  call void @llvm.memset.p0.i64(ptr align 1 %31, i8 0, i64 7, i1 false)
  %32 = icmp eq i64 %2, %18
  br i1 %32, label %33, label %271

33:
  %34 = icmp ne ptr %3, null
  br i1 %34, label %35, label %46

35:
  %36 = getelementptr inbounds nuw i8, ptr %12, i64 8
  %37 = load ptr, ptr %36, align 8
  %38 = icmp eq ptr %37, null
  br i1 %38, label %271, label %39

39:
  %40 = call i64 @PyTuple_Size(ptr %3)
  %41 = icmp eq i64 %40, 1
  br i1 %41, label %42, label %271

42:
  %43 = call ptr @PyTuple_GetItem(ptr %3, i64 0)
  %44 = load ptr, ptr %36, align 8
  %45 = icmp eq ptr %43, %44
  br i1 %45, label %46, label %271

46:
  %47 = getelementptr inbounds nuw i8, ptr %12, i64 64
  %48 = load ptr, ptr %47, align 8
  %49 = icmp sgt i64 %2, 0
  br i1 %49, label %50, label %108

50:
  %51 = phi i64 [ %103, %102 ], [ 0, %46 ]
  %52 = phi ptr [ %104, %102 ], [ %48, %46 ]
  %53 = getelementptr inbounds nuw ptr, ptr %1, i64 %51
  %54 = load ptr, ptr %53, align 8
  %55 = load i64, ptr %52, align 8
  %56 = icmp eq i64 %55, 4
  br i1 %56, label %57, label %62

57:
  %58 = getelementptr inbounds nuw i8, ptr %52, i64 88
  %59 = load i64, ptr %58, align 8
  %60 = icmp ne i64 %59, 0
  %61 = call fastcc i1 @read_array(ptr %9, ptr %52, ptr %54, i1 %60)
  br i1 %61, label %102, label %271

62:
  %63 = load ptr, ptr %25, align 8
  %64 = getelementptr inbounds nuw i8, ptr %52, i64 8
  %65 = load i64, ptr %64, align 8
  %66 = getelementptr inbounds i64, ptr %63, i64 %65
  %67 = getelementptr inbounds nuw i8, ptr %54, i64 8
  %68 = load ptr, ptr %67, align 8
  switch i64 %55, label %89 [
    i64 0, label %69
    i64 1, label %73
  ]

69:
  %70 = icmp eq ptr %54, @_Py_TrueStruct
  %71 = zext i1 %70 to i64
  store i64 %71, ptr %66, align 8
  %72 = icmp eq ptr %68, @PyBool_Type
  br i1 %72, label %102, label %271

73:
  %74 = icmp eq ptr %68, @PyLong_Type
  br i1 %74, label %75, label %271

75:
  %76 = call i64 @PyLong_AsLongLong(ptr %54)
  store i64 %76, ptr %66, align 8
  %77 = getelementptr inbounds nuw i8, ptr %52, i64 16
  %78 = load i64, ptr %77, align 8
  %79 = icmp sgt i64 %78, %76
  br i1 %79, label %271, label %80

80:
  %81 = getelementptr inbounds nuw i8, ptr %52, i64 24
  %82 = load i64, ptr %81, align 8
  %83 = icmp sgt i64 %76, %82
  br i1 %83, label %271, label %84

84:
  %85 = icmp eq i64 %76, -1
  br i1 %85, label %86, label %102

86:
  %87 = call ptr @PyErr_Occurred()
  %88 = icmp eq ptr %87, null
  br i1 %88, label %102, label %271

89:
  %90 = icmp eq ptr %68, @PyFloat_Type
  br i1 %90, label %91, label %271

91:
  %92 = call double @PyFloat_AsDouble(ptr %54)
  %93 = load i64, ptr %52, align 8
  %94 = icmp eq i64 %93, 3
  br i1 %94, label %95, label %96

95:
  store double %92, ptr %66, align 8
  br label %102

96:
  %97 = call double @llvm.fabs.f64(double %92)
  %98 = fptrunc double %92 to float
  store float %98, ptr %66, align 4
  %99 = fcmp ule double %97, 0x47EFFFFFE0000000
  %100 = fcmp oeq double %97, 0x7FF0000000000000
  %101 = or i1 %99, %100
  br i1 %101, label %102, label %271

102:
  %103 = add nuw nsw i64 %51, 1
  %104 = getelementptr inbounds nuw i8, ptr %52, i64 136
  %105 = icmp eq i64 %103, %2
  br i1 %105, label %106, label %50

106:
  %107 = load i64, ptr %27, align 8
  br label %108

108:
  %109 = phi i64 [ 0, %46 ], [ %107, %106 ]
  %110 = phi ptr [ %48, %46 ], [ %104, %106 ]
  %111 = load i64, ptr %19, align 8
  %112 = icmp sgt i64 %111, 0
  br i1 %112, label %113, label %228

113:
  %114 = getelementptr inbounds nuw i8, ptr %8, i64 8
  %115 = getelementptr inbounds nuw i8, ptr %8, i64 16
  %116 = getelementptr inbounds nuw i8, ptr %6, i64 8
  %117 = getelementptr inbounds nuw i8, ptr %6, i64 16
  %118 = getelementptr inbounds nuw i8, ptr %6, i64 24
  %119 = getelementptr inbounds ptr, ptr %1, i64 %2
  br label %120

120:
  %121 = phi i64 [ 0, %113 ], [ %222, %221 ]
  %122 = phi ptr [ %110, %113 ], [ %223, %221 ]
  br i1 %34, label %210, label %123

123:
  %124 = getelementptr inbounds nuw i8, ptr %122, i64 96
  %125 = load i64, ptr %124, align 8
  %126 = icmp eq i64 %125, 0
  br i1 %126, label %127, label %271

127:
  %128 = getelementptr inbounds nuw i8, ptr %122, i64 128
  %129 = load ptr, ptr %128, align 8
  %130 = getelementptr inbounds nuw i8, ptr %122, i64 120
  %131 = load i64, ptr %130, align 8
  %132 = call ptr @PyTuple_New(i64 %131)
  %133 = icmp eq ptr %132, null
  br i1 %133, label %271, label %134

134:
  %135 = load i64, ptr %130, align 8
  %136 = icmp sgt i64 %135, 0
  br i1 %136, label %137, label %139

137:
  %138 = load ptr, ptr %25, align 8
  br label %143

139:
  %140 = icmp eq ptr %129, null
  store ptr null, ptr %8, align 16
  store ptr %132, ptr %114, align 8
  %141 = getelementptr inbounds nuw i8, ptr %122, i64 112
  %142 = load ptr, ptr %141, align 8
  store ptr %142, ptr %115, align 16
  br i1 %140, label %206, label %161

143:
  %144 = phi i64 [ %152, %148 ], [ 0, %137 ]
  %145 = phi ptr [ %146, %148 ], [ %129, %137 ]
  %146 = call fastcc ptr @value_of(ptr %145, ptr %138, ptr %7)
  %147 = icmp eq ptr %146, null
  br i1 %147, label %158, label %148

148:
  %149 = load i64, ptr %7, align 8
  %150 = call ptr @PyLong_FromLongLong(i64 %149)
  %151 = call i32 @PyTuple_SetItem(ptr %132, i64 %144, ptr %150)
  %152 = add nuw nsw i64 %144, 1
  %153 = load i64, ptr %130, align 8
  %154 = icmp slt i64 %152, %153
  br i1 %154, label %143, label %155

155:
  store ptr null, ptr %8, align 16
  store ptr %132, ptr %114, align 8
  %156 = getelementptr inbounds nuw i8, ptr %122, i64 112
  %157 = load ptr, ptr %156, align 8
  store ptr %157, ptr %115, align 16
  br label %161

158:
  store ptr null, ptr %8, align 16
  store ptr %132, ptr %114, align 8
  %159 = getelementptr inbounds nuw i8, ptr %122, i64 112
  %160 = load ptr, ptr %159, align 8
  store ptr %160, ptr %115, align 16
  br label %206

161:
  %162 = load i8, ptr %30, align 8
  %163 = trunc nuw i8 %162 to i1
  br i1 %163, label %164, label %201

164:
  %165 = getelementptr inbounds nuw i8, ptr %122, i64 80
  %166 = load i64, ptr %165, align 8
  %167 = trunc i64 %166 to i32
  %168 = load ptr, ptr getelementptr inbounds nuw (i8, ptr @samples, i64 8), align 8
  %169 = icmp eq ptr %168, null
  br i1 %169, label %206, label %176

170:
  %171 = add nuw nsw i64 %178, 1
  %172 = getelementptr inbounds nuw [32 x %struct.anon.1], ptr @samples, i64 0, i64 %171
  %173 = getelementptr inbounds nuw i8, ptr %172, i64 8
  %174 = load ptr, ptr %173, align 8
  %175 = icmp eq ptr %174, null
  br i1 %175, label %206, label %176

176:
  %177 = phi ptr [ %172, %170 ], [ @samples, %164 ]
  %178 = phi i64 [ %171, %170 ], [ 0, %164 ]
  %179 = load i32, ptr %177, align 16
  %180 = icmp eq i32 %179, %167
  br i1 %180, label %181, label %170

181:
  %182 = getelementptr inbounds nuw i8, ptr %177, i64 8
  %183 = call i64 @PyTuple_Size(ptr %132)
  %184 = call ptr @PyTuple_New(i64 %183)
  %185 = icmp sgt i64 %183, 0
  br i1 %185, label %190, label %186

186:
  store ptr null, ptr %6, align 16
  %187 = load ptr, ptr %182, align 8
  store ptr %187, ptr %116, align 8
  store ptr %132, ptr %117, align 16
  store ptr %184, ptr %118, align 8
  %188 = load ptr, ptr getelementptr inbounds nuw (i8, ptr @torch, i64 56), align 8
  %189 = call ptr @PyObject_VectorcallDict(ptr %188, ptr %116, i64 -9223372036854775805, ptr null)
  call void @Py_DecRef(ptr %184)
  br label %207

190:
  %191 = phi i64 [ %193, %190 ], [ %183, %181 ]
  %192 = phi i64 [ %199, %190 ], [ 1, %181 ]
  %193 = add nsw i64 %191, -1
  %194 = call ptr @PyLong_FromLongLong(i64 %192)
  %195 = call i32 @PyTuple_SetItem(ptr %184, i64 %193, ptr %194)
  %196 = call ptr @PyTuple_GetItem(ptr %132, i64 %193)
  %197 = call i64 @PyLong_AsLongLong(ptr %196)
  %198 = call i64 @llvm.smax.i64(i64 %197, i64 1)
  %199 = mul nuw nsw i64 %198, %192
  %200 = icmp samesign ugt i64 %191, 1
  br i1 %200, label %190, label %186

201:
  %202 = load ptr, ptr %9, align 8
  %203 = getelementptr inbounds nuw i8, ptr %202, i64 24
  %204 = load ptr, ptr %203, align 8
  %205 = call ptr @PyObject_VectorcallDict(ptr %204, ptr %114, i64 -9223372036854775806, ptr null)
  br label %207

206:
  call void @Py_DecRef(ptr %132)
  br label %271

207:
  %208 = phi ptr [ %205, %201 ], [ %189, %186 ]
  call void @Py_DecRef(ptr %132)
  %209 = icmp eq ptr %208, null
  br i1 %209, label %271, label %214

210:
  %211 = load ptr, ptr %119, align 8
  %212 = icmp eq ptr %211, null
  br i1 %212, label %271, label %213

213:
  call void @Py_IncRef(ptr %211)
  br label %214

214:
  %215 = phi ptr [ %211, %213 ], [ %208, %207 ]
  %216 = load ptr, ptr %28, align 8
  %217 = load i64, ptr %29, align 8
  %218 = add nsw i64 %217, 1
  store i64 %218, ptr %29, align 8
  %219 = getelementptr inbounds ptr, ptr %216, i64 %217
  store ptr %215, ptr %219, align 8
  %220 = call fastcc i1 @read_array(ptr %9, ptr %122, ptr %215, i1 %34)
  br i1 %220, label %221, label %271

221:
  %222 = add nuw nsw i64 %121, 1
  %223 = getelementptr inbounds nuw i8, ptr %122, i64 136
  %224 = load i64, ptr %19, align 8
  %225 = icmp slt i64 %222, %224
  br i1 %225, label %120, label %226

226:
  %227 = load i64, ptr %27, align 8
  br label %228

228:
  %229 = phi i64 [ %227, %226 ], [ %109, %108 ]
  %230 = load ptr, ptr %26, align 8
  %231 = select i1 %34, i64 %229, i64 %109
  %232 = getelementptr inbounds %struct.memory, ptr %230, i64 %231
  %233 = icmp sgt i64 %231, 0
  br i1 %233, label %234, label %265

234:
  %235 = phi ptr [ %263, %262 ], [ %230, %228 ]
  %236 = getelementptr inbounds nuw i8, ptr %235, i64 80
  %237 = load ptr, ptr %236, align 8
  %238 = getelementptr inbounds nuw i8, ptr %237, i64 88
  %239 = load i64, ptr %238, align 8
  %240 = icmp eq i64 %239, 0
  br i1 %240, label %262, label %241

241:
  %242 = load ptr, ptr %235, align 8
  %243 = ptrtoint ptr %242 to i64
  %244 = getelementptr inbounds nuw i8, ptr %235, i64 16
  br label %245

245:
  %246 = phi ptr [ %230, %241 ], [ %260, %259 ]
  %247 = load ptr, ptr %246, align 8
  %248 = ptrtoint ptr %247 to i64
  %249 = icmp eq ptr %246, %235
  br i1 %249, label %259, label %250

250:
  %251 = load i64, ptr %244, align 8
  %252 = add i64 %251, %243
  %253 = icmp ugt i64 %252, %248
  br i1 %253, label %254, label %259

254:
  %255 = getelementptr inbounds nuw i8, ptr %246, i64 16
  %256 = load i64, ptr %255, align 8
  %257 = add i64 %256, %248
  %258 = icmp ugt i64 %257, %243
  br i1 %258, label %271, label %259

259:
  %260 = getelementptr inbounds nuw i8, ptr %246, i64 88
  %261 = icmp ult ptr %260, %232
  br i1 %261, label %245, label %262

262:
  %263 = getelementptr inbounds nuw i8, ptr %235, i64 88
  %264 = icmp ult ptr %263, %232
  br i1 %264, label %234, label %265

265:
  %266 = load ptr, ptr %12, align 8
  %267 = load ptr, ptr %25, align 8
  %268 = load i64, ptr %13, align 8
  %269 = getelementptr inbounds nuw i8, ptr %12, i64 72
  %270 = call i64 %266(ptr %267, i64 %268, ptr %269)
  br label %271

271:
  %272 = phi i64 [ -1, %4 ], [ -1, %42 ], [ -1, %39 ], [ -1, %35 ], [ %270, %265 ], [ -1, %206 ], [ -1, %254 ], [ -1, %214 ], [ -1, %210 ], [ -1, %207 ], [ -1, %127 ], [ -1, %123 ], [ -1, %96 ], [ -1, %89 ], [ -1, %86 ], [ -1, %80 ], [ -1, %75 ], [ -1, %73 ], [ -1, %69 ], [ -1, %57 ]
  %273 = load i64, ptr %27, align 8
  %274 = icmp sgt i64 %273, 0
  br i1 %274, label %280, label %275

275:
  %276 = icmp eq i64 %272, 0
  %277 = load i64, ptr %29, align 8
  br i1 %276, label %290, label %278

278:
  %279 = icmp sgt i64 %277, 0
  br i1 %279, label %309, label %307

280:
  %281 = phi i64 [ %288, %287 ], [ 0, %271 ]
  %282 = getelementptr inbounds nuw %struct.memory, ptr %22, i64 %281
  %283 = getelementptr inbounds nuw i8, ptr %282, i64 8
  %284 = load ptr, ptr %283, align 8
  %285 = icmp eq ptr %284, null
  br i1 %285, label %287, label %286

286:
  call void @PyBuffer_Release(ptr %282)
  br label %287

287:
  %288 = add nuw nsw i64 %281, 1
  %289 = icmp eq i64 %288, %273
  br i1 %289, label %275, label %280

290:
  switch i64 %277, label %295 [
    i64 1, label %291
    i64 0, label %294
  ]

291:
  %292 = load ptr, ptr %28, align 8
  %293 = load ptr, ptr %292, align 8
  br label %346

294:
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  br label %346

295:
  %296 = call ptr @PyTuple_New(i64 %277)
  %297 = icmp sgt i64 %277, 0
  br i1 %297, label %298, label %346

298:
  %299 = load ptr, ptr %28, align 8
  br label %300

300:
  %301 = phi i64 [ %305, %300 ], [ 0, %298 ]
  %302 = getelementptr inbounds nuw ptr, ptr %299, i64 %301
  %303 = load ptr, ptr %302, align 8
  %304 = call i32 @PyTuple_SetItem(ptr %296, i64 %301, ptr %303)
  %305 = add nuw nsw i64 %301, 1
  %306 = icmp eq i64 %305, %277
  br i1 %306, label %346, label %300

307:
  %308 = icmp slt i64 %272, 0
  br i1 %308, label %315, label %339

309:
  %310 = phi i64 [ %313, %309 ], [ 0, %278 ]
  %311 = getelementptr inbounds nuw ptr, ptr %24, i64 %310
  %312 = load ptr, ptr %311, align 8
  call void @Py_DecRef(ptr %312)
  %313 = add nuw nsw i64 %310, 1
  %314 = icmp eq i64 %313, %277
  br i1 %314, label %307, label %309

315:
  call void @PyErr_Clear()
  %316 = icmp eq ptr %3, null
  br i1 %316, label %319, label %317

317:
  %318 = call i64 @PyTuple_Size(ptr %3)
  br label %319

319:
  %320 = phi i64 [ %318, %317 ], [ 0, %315 ]
  %321 = add nsw i64 %320, %2
  %322 = call ptr @PyTuple_New(i64 %321)
  %323 = icmp eq ptr %322, null
  br i1 %323, label %346, label %324

324:
  %325 = icmp sgt i64 %321, 0
  br i1 %325, label %331, label %326

326:
  store ptr null, ptr %5, align 16
  %327 = getelementptr inbounds nuw i8, ptr %5, i64 8
  store ptr %322, ptr %327, align 8
  %328 = getelementptr inbounds nuw i8, ptr %5, i64 16
  %329 = select i1 %316, ptr @_Py_NoneStruct, ptr %3
  store ptr %329, ptr %328, align 16
  %330 = call ptr @PyObject_VectorcallDict(ptr %0, ptr %327, i64 -9223372036854775806, ptr null)
  call void @Py_DecRef(ptr %322)
  br label %346

331:
  %332 = phi i64 [ %337, %331 ], [ 0, %324 ]
  %333 = getelementptr inbounds nuw ptr, ptr %1, i64 %332
  %334 = load ptr, ptr %333, align 8
  call void @Py_IncRef(ptr %334)
  %335 = load ptr, ptr %333, align 8
  %336 = call i32 @PyTuple_SetItem(ptr %322, i64 %332, ptr %335)
  %337 = add nuw nsw i64 %332, 1
  %338 = icmp eq i64 %337, %321
  br i1 %338, label %326, label %331

339:
  store ptr null, ptr %10, align 16
  %340 = getelementptr inbounds nuw i8, ptr %10, i64 8
  %341 = call ptr @PyLong_FromLongLong(i64 %272)
  store ptr %341, ptr %340, align 8
  %342 = getelementptr inbounds nuw i8, ptr %12, i64 16
  %343 = load ptr, ptr %342, align 8
  %344 = call ptr @PyObject_VectorcallDict(ptr %343, ptr %340, i64 -9223372036854775807, ptr null)
  %345 = load ptr, ptr %340, align 8
  call void @Py_DecRef(ptr %345)
  br label %346

346:
  %347 = phi ptr [ null, %339 ], [ %293, %291 ], [ %296, %295 ], [ @_Py_NoneStruct, %294 ], [ %330, %326 ], [ null, %319 ], [ %296, %300 ]
  ret ptr %347
}

declare void @llvm.memset.p0.i64(ptr, i8, i64, i1 immarg)

declare void @PyBuffer_Release(ptr)

declare ptr @PyLong_FromLongLong(i64)

declare i64 @pthread_self()

declare void @PyErr_Fetch(ptr, ptr, ptr)

declare i32 @usleep(i32)

define internal fastcc void @begin_to_watch() noinline cold {
  %1 = alloca i64, align 8
  store atomic i8 1, ptr @watching monotonic, align 1
  %2 = call i32 @pthread_create(ptr %1, ptr null, ptr @watch, ptr null)
  %3 = icmp eq i32 %2, 0
  br i1 %3, label %5, label %4

4:
  store atomic i8 0, ptr @watching monotonic, align 1
  br label %8

5:
  %6 = load i64, ptr %1, align 8
  %7 = call i32 @pthread_detach(i64 %6)
  br label %8

8:
  ret void
}

declare i32 @pthread_create(ptr, ptr, ptr, ptr)

define internal ptr @watch(ptr %0) {
  %2 = alloca [32 x i64], align 16
  %3 = call i32 @sigfillset(ptr %2)
  %4 = load i32, ptr @sig_block, align 4
  %5 = call i32 @pthread_sigmask(i32 %4, ptr %2, ptr null)
  br label %6

6:
  %7 = phi i32 [ 0, %1 ], [ %23, %22 ]
  %8 = call i32 @usleep(i32 250000)
  %9 = load volatile i32, ptr @inside, align 4
  %10 = icmp ne i32 %9, 0
  %11 = zext i1 %10 to i8
  store volatile i8 %11, ptr @due, align 1
  %12 = add nsw i32 %7, 1
  %13 = select i1 %10, i32 0, i32 %12
  %14 = icmp slt i32 %13, 40
  br i1 %14, label %22, label %15

15:
  store atomic i8 0, ptr @watching seq_cst, align 1
  %16 = call i32 @usleep(i32 1000)
  %17 = load volatile i32, ptr @inside, align 4
  %18 = icmp eq i32 %17, 0
  br i1 %18, label %24, label %19

19:
  %20 = cmpxchg ptr @watching, i8 0, i8 1 monotonic monotonic, align 1
  %21 = extractvalue { i8, i1 } %20, 1
  br i1 %21, label %22, label %24

22:
  %23 = phi i32 [ %13, %6 ], [ 0, %19 ]
  br label %6

24:
  ret ptr %0
}

declare i32 @pthread_detach(i64)

declare i32 @sigfillset(ptr)

declare i32 @pthread_sigmask(i32, ptr, ptr)

define internal fastcc i64 @run_together(ptr %0, ptr %1, ptr %2, ptr %3, i1 %4) noinline {
  %6 = icmp eq ptr %0, %1
  br i1 %6, label %42, label %14

7:
  %8 = load i32, ptr getelementptr inbounds nuw (i8, ptr @pool, i64 88), align 8
  %9 = icmp ne i32 %8, 0
  %10 = icmp samesign ugt i64 %27, 1
  %11 = select i1 %9, i1 %10, i1 false
  %12 = and i1 %4, %11
  %13 = select i1 %12, i1 %24, i1 false
  br i1 %13, label %31, label %33

14:
  %15 = phi i64 [ %27, %14 ], [ 0, %5 ]
  %16 = phi ptr [ %29, %14 ], [ %0, %5 ]
  %17 = phi i1 [ %24, %14 ], [ false, %5 ]
  %18 = getelementptr inbounds nuw i8, ptr %16, i64 32
  %19 = load ptr, ptr %18, align 8
  %20 = getelementptr inbounds nuw i8, ptr %16, i64 8
  %21 = load ptr, ptr %20, align 8
  %22 = tail call i64 %19(ptr %21)
  %23 = icmp sgt i64 %22, 0
  %24 = or i1 %17, %23
  %25 = getelementptr inbounds nuw i8, ptr %16, i64 16
  store i64 %15, ptr %25, align 8
  %26 = tail call i64 @llvm.abs.i64(i64 %22, i1 true)
  %27 = add nuw nsw i64 %26, %15
  %28 = getelementptr inbounds nuw i8, ptr %16, i64 24
  store i64 %27, ptr %28, align 8
  %29 = getelementptr inbounds nuw i8, ptr %16, i64 64
  %30 = icmp eq ptr %29, %1
  br i1 %30, label %7, label %14

31:
  tail call void %2(ptr %0, i64 %27, ptr %3, i1 true)
  br label %32

32:
  br label %44

33:
  %34 = phi ptr [ %40, %33 ], [ %0, %7 ]
  %35 = getelementptr inbounds nuw i8, ptr %34, i64 24
  %36 = load i64, ptr %35, align 8
  %37 = getelementptr inbounds nuw i8, ptr %34, i64 16
  %38 = load i64, ptr %37, align 8
  %39 = sub nsw i64 %36, %38
  tail call void %2(ptr %34, i64 %39, ptr %3, i1 false)
  %40 = getelementptr inbounds nuw i8, ptr %34, i64 64
  %41 = icmp eq ptr %40, %1
  br i1 %41, label %32, label %33

42:
  %43 = phi i64 [ 0, %5 ], [ %59, %56 ]
  ret i64 %43

44:
  %45 = phi ptr [ %60, %56 ], [ %0, %32 ]
  %46 = phi i64 [ %59, %56 ], [ 0, %32 ]
  %47 = getelementptr inbounds nuw i8, ptr %45, i64 40
  %48 = load ptr, ptr %47, align 8
  %49 = load i64, ptr %48, align 8
  %50 = icmp eq i64 %49, 0
  br i1 %50, label %56, label %51

51:
  store i64 0, ptr %48, align 8
  %52 = getelementptr inbounds nuw i8, ptr %45, i64 48
  %53 = load i64, ptr %52, align 8
  %54 = shl i64 %53, 32
  %55 = or i64 %54, %49
  br label %56

56:
  %57 = phi i64 [ %55, %51 ], [ 0, %44 ]
  %58 = icmp eq i64 %46, 0
  %59 = select i1 %58, i64 %57, i64 %46
  %60 = getelementptr inbounds nuw i8, ptr %45, i64 64
  %61 = icmp eq ptr %60, %1
  br i1 %61, label %42, label %44
}

declare ptr @aligned_alloc(i64, i64)

declare i32 @clock_gettime(i32, ptr)

declare i64 @PyTuple_Size(ptr)

declare ptr @PyTuple_GetItem(ptr, i64)

declare void @Py_IncRef(ptr)

define internal fastcc i1 @read_array(ptr %0, ptr %1, ptr %2, i1 %3) {
  %5 = alloca [4 x ptr], align 16
  %6 = alloca [4 x ptr], align 16
  %7 = alloca %struct.tensor, align 8
  %8 = alloca i64, align 8
  %9 = getelementptr inbounds nuw i8, ptr %0, i64 16
  %10 = load ptr, ptr %9, align 8
  %11 = getelementptr inbounds nuw i8, ptr %0, i64 24
  %12 = load i64, ptr %11, align 8
  %13 = getelementptr inbounds %struct.memory, ptr %10, i64 %12
  %14 = getelementptr inbounds nuw i8, ptr %13, i64 8
  store ptr null, ptr %14, align 8
  %15 = getelementptr inbounds nuw i8, ptr %2, i64 8
  %16 = load ptr, ptr %15, align 8
  %17 = getelementptr inbounds nuw i8, ptr %1, i64 32
  %18 = load ptr, ptr %17, align 8
  %19 = icmp eq ptr %16, %18
  br i1 %19, label %20, label %59

20:
  %21 = getelementptr inbounds nuw i8, ptr %1, i64 88
  %22 = load i64, ptr %21, align 8
  %23 = icmp eq i64 %22, 0
  %24 = select i1 %23, i32 1, i32 1025
  %25 = getelementptr inbounds nuw i8, ptr %2, i64 56
  %26 = load ptr, ptr %25, align 8
  %27 = getelementptr inbounds nuw i8, ptr %26, i64 28
  %28 = load i32, ptr %27, align 4
  %29 = sext i32 %28 to i64
  %30 = getelementptr inbounds nuw i8, ptr %2, i64 16
  %31 = load ptr, ptr %30, align 8
  store ptr %31, ptr %13, align 8
  %32 = getelementptr inbounds nuw i8, ptr %2, i64 24
  %33 = load i32, ptr %32, align 8
  %34 = getelementptr inbounds nuw i8, ptr %13, i64 36
  store i32 %33, ptr %34, align 4
  %35 = getelementptr inbounds nuw i8, ptr %2, i64 32
  %36 = load ptr, ptr %35, align 8
  %37 = getelementptr inbounds nuw i8, ptr %13, i64 48
  store ptr %36, ptr %37, align 8
  %38 = getelementptr inbounds nuw i8, ptr %2, i64 64
  %39 = load i32, ptr %38, align 8
  %40 = load i64, ptr %21, align 8
  %41 = icmp eq i64 %40, 0
  %42 = select i1 %41, i32 0, i32 -2147483648
  %43 = or disjoint i32 %42, %24
  %44 = and i32 %43, %39
  %45 = icmp eq i32 %44, %24
  br i1 %45, label %46, label %285

46:
  %47 = getelementptr inbounds nuw i8, ptr %1, i64 40
  %48 = load i64, ptr %47, align 8
  %49 = icmp eq i64 %48, %29
  br i1 %49, label %54, label %50

50:
  %51 = getelementptr inbounds nuw i8, ptr %1, i64 48
  %52 = load i64, ptr %51, align 8
  %53 = icmp eq i64 %52, %29
  br i1 %53, label %54, label %285

54:
  %55 = load ptr, ptr %25, align 8
  %56 = getelementptr inbounds nuw i8, ptr %55, i64 26
  %57 = load i8, ptr %56, align 2
  %58 = icmp eq i8 %57, 62
  br i1 %58, label %285, label %201

59:
  %60 = load ptr, ptr %0, align 8
  %61 = getelementptr inbounds nuw i8, ptr %60, i64 32
  %62 = load ptr, ptr %61, align 8
  %63 = icmp eq ptr %18, %62
  br i1 %63, label %64, label %285

64:
  %65 = load ptr, ptr @buffers_class, align 8
  %66 = icmp eq ptr %16, %65
  br i1 %66, label %149, label %67

67:
  %68 = getelementptr inbounds nuw i8, ptr %0, i64 48
  store i8 1, ptr %68, align 8
  %69 = getelementptr inbounds nuw i8, ptr %1, i64 80
  %70 = load i64, ptr %69, align 8
  %71 = trunc i64 %70 to i32
  %72 = getelementptr inbounds nuw i8, ptr %1, i64 72
  %73 = load i64, ptr %72, align 8
  %74 = load ptr, ptr %15, align 8
  %75 = load ptr, ptr getelementptr inbounds nuw (i8, ptr @torch, i64 8), align 8
  %76 = icmp eq ptr %74, %75
  %77 = load ptr, ptr getelementptr inbounds nuw (i8, ptr @torch, i64 16), align 8
  %78 = icmp eq ptr %74, %77
  %79 = select i1 %76, i1 true, i1 %78
  br i1 %79, label %80, label %285

80:
  %81 = load ptr, ptr getelementptr inbounds nuw (i8, ptr @torch, i64 24), align 8
  %82 = tail call ptr @PyObject_GetAttr(ptr %2, ptr %81)
  tail call void @Py_DecRef(ptr %82)
  %83 = icmp eq ptr %82, @_Py_FalseStruct
  br i1 %83, label %89, label %84

84:
  %85 = load ptr, ptr getelementptr inbounds nuw (i8, ptr @torch, i64 32), align 8
  %86 = getelementptr inbounds nuw i8, ptr %6, i64 8
  call void @llvm.memset.p0.i64(ptr align 16 %6, i8 0, i64 32, i1 false)
  %87 = call ptr @PyObject_VectorcallDict(ptr %85, ptr %86, i64 -9223372036854775808, ptr null)
  call void @Py_DecRef(ptr %87)
  %88 = icmp eq ptr %87, @_Py_FalseStruct
  br i1 %88, label %89, label %285

89:
  %90 = load ptr, ptr getelementptr inbounds nuw (i8, ptr @torch, i64 40), align 8
  call void @llvm.memset.p0.i64(ptr align 16 %5, i8 0, i64 32, i1 false)
  %91 = getelementptr inbounds nuw i8, ptr %5, i64 8
  store ptr %2, ptr %91, align 8
  %92 = call ptr @PyObject_VectorcallDict(ptr %90, ptr %91, i64 -9223372036854775807, ptr null)
  call void @Py_DecRef(ptr %92)
  %93 = icmp eq ptr %92, @_Py_FalseStruct
  br i1 %93, label %94, label %285

94:
  %95 = load ptr, ptr @torch, align 8
  %96 = call i32 %95(ptr %2, ptr %7)
  %97 = icmp eq i32 %96, 0
  %98 = getelementptr inbounds nuw i8, ptr %7, i64 8
  %99 = load i32, ptr %98, align 8
  %100 = icmp eq i32 %99, 1
  %101 = select i1 %97, i1 %100, i1 false
  %102 = getelementptr inbounds nuw i8, ptr %7, i64 20
  %103 = load i32, ptr %102, align 4
  %104 = icmp eq i32 %103, %71
  %105 = select i1 %101, i1 %104, i1 false
  br i1 %105, label %106, label %187

106:
  %107 = getelementptr inbounds nuw i8, ptr %7, i64 16
  %108 = load i32, ptr %107, align 8
  %109 = icmp sgt i32 %108, 0
  br i1 %109, label %110, label %135

110:
  %111 = getelementptr inbounds nuw i8, ptr %7, i64 24
  %112 = load ptr, ptr %111, align 8
  %113 = getelementptr inbounds nuw i8, ptr %7, i64 32
  %114 = load ptr, ptr %113, align 8
  %115 = zext nneg i32 %108 to i64
  br label %118

116:
  %117 = icmp eq i64 %133, 0
  br i1 %117, label %141, label %135

118:
  %119 = phi i64 [ %115, %110 ], [ %122, %130 ]
  %120 = phi i1 [ true, %110 ], [ %132, %130 ]
  %121 = phi i64 [ 1, %110 ], [ %133, %130 ]
  %122 = add nsw i64 %119, -1
  %123 = getelementptr inbounds nuw i64, ptr %112, i64 %122
  %124 = load i64, ptr %123, align 8
  %125 = icmp eq i64 %124, 1
  br i1 %125, label %130, label %126

126:
  %127 = getelementptr inbounds nuw i64, ptr %114, i64 %122
  %128 = load i64, ptr %127, align 8
  %129 = icmp eq i64 %128, %121
  br label %130

130:
  %131 = phi i1 [ true, %118 ], [ %129, %126 ]
  %132 = select i1 %120, i1 %131, i1 false
  %133 = mul nsw i64 %124, %121
  %134 = icmp samesign ugt i64 %119, 1
  br i1 %134, label %118, label %116

135:
  %136 = phi i1 [ %132, %116 ], [ true, %106 ]
  %137 = phi i64 [ %133, %116 ], [ 1, %106 ]
  %138 = load ptr, ptr %7, align 8
  %139 = icmp ne ptr %138, null
  %140 = select i1 %136, i1 %139, i1 false
  br i1 %140, label %141, label %187

141:
  %142 = phi i64 [ %137, %135 ], [ 0, %116 ]
  br i1 %3, label %143, label %188

143:
  %144 = load ptr, ptr getelementptr inbounds nuw (i8, ptr @torch, i64 48), align 8
  %145 = call fastcc ptr @answer_of(ptr %144, i64 1, ptr %2)
  %146 = icmp eq ptr %145, null
  br i1 %146, label %187, label %147

147:
  %148 = load i32, ptr %107, align 8
  br label %188

149:
  %150 = getelementptr inbounds nuw i8, ptr %1, i64 56
  %151 = load i64, ptr %150, align 8
  %152 = icmp eq i64 %151, 0
  br i1 %152, label %285, label %153

153:
  %154 = getelementptr inbounds nuw i8, ptr %1, i64 88
  %155 = load i64, ptr %154, align 8
  %156 = icmp eq i64 %155, 0
  br i1 %156, label %157, label %285

157:
  %158 = tail call i32 @PyObject_GetBuffer(ptr %2, ptr %13, i32 60)
  %159 = icmp eq i32 %158, 0
  br i1 %159, label %160, label %285

160:
  %161 = getelementptr inbounds nuw i8, ptr %13, i64 40
  %162 = load ptr, ptr %161, align 8
  %163 = load i8, ptr %162, align 1
  %164 = and i8 %163, -2
  %165 = icmp eq i8 %164, 60
  %166 = zext i1 %165 to i64
  %167 = getelementptr inbounds nuw i8, ptr %162, i64 %166
  %168 = load i8, ptr %167, align 1
  %169 = sext i8 %168 to i64
  %170 = load i64, ptr %150, align 8
  %171 = icmp eq i64 %170, %169
  br i1 %171, label %176, label %172

172:
  %173 = getelementptr inbounds nuw i8, ptr %1, i64 64
  %174 = load i64, ptr %173, align 8
  %175 = icmp eq i64 %174, %169
  br i1 %175, label %176, label %186

176:
  %177 = getelementptr inbounds nuw i8, ptr %167, i64 1
  %178 = load i8, ptr %177, align 1
  %179 = icmp eq i8 %178, 0
  br i1 %179, label %180, label %186

180:
  %181 = getelementptr inbounds nuw i8, ptr %13, i64 24
  %182 = load i64, ptr %181, align 8
  %183 = getelementptr inbounds nuw i8, ptr %1, i64 72
  %184 = load i64, ptr %183, align 8
  %185 = icmp eq i64 %182, %184
  br i1 %185, label %201, label %186

186:
  tail call void @PyBuffer_Release(ptr %13)
  br label %285

187:
  br label %285

188:
  %189 = phi i32 [ %148, %147 ], [ %108, %141 ]
  %190 = load ptr, ptr %7, align 8
  %191 = getelementptr inbounds nuw i8, ptr %7, i64 40
  %192 = load i64, ptr %191, align 8
  %193 = getelementptr inbounds i8, ptr %190, i64 %192
  store ptr %193, ptr %13, align 8
  store ptr null, ptr %14, align 8
  %194 = mul nsw i64 %142, %73
  %195 = getelementptr inbounds nuw i8, ptr %13, i64 16
  store i64 %194, ptr %195, align 8
  %196 = getelementptr inbounds nuw i8, ptr %13, i64 24
  store i64 %73, ptr %196, align 8
  %197 = getelementptr inbounds nuw i8, ptr %13, i64 36
  store i32 %189, ptr %197, align 4
  %198 = getelementptr inbounds nuw i8, ptr %7, i64 24
  %199 = load ptr, ptr %198, align 8
  %200 = getelementptr inbounds nuw i8, ptr %13, i64 48
  store ptr %199, ptr %200, align 8
  br label %201

201:
  %202 = getelementptr inbounds nuw i8, ptr %13, i64 80
  store ptr %1, ptr %202, align 8
  %203 = load i64, ptr %11, align 8
  %204 = add nsw i64 %203, 1
  store i64 %204, ptr %11, align 8
  %205 = getelementptr inbounds nuw i8, ptr %13, i64 36
  %206 = load i32, ptr %205, align 4
  %207 = sext i32 %206 to i64
  %208 = getelementptr inbounds nuw i8, ptr %1, i64 120
  %209 = load i64, ptr %208, align 8
  %210 = icmp eq i64 %209, %207
  br i1 %210, label %211, label %285

211:
  %212 = load ptr, ptr %13, align 8
  %213 = ptrtoint ptr %212 to i64
  %214 = getelementptr inbounds nuw i8, ptr %1, i64 72
  %215 = load i64, ptr %214, align 8
  %216 = add nsw i64 %215, -1
  %217 = and i64 %216, %213
  %218 = icmp eq i64 %217, 0
  br i1 %218, label %219, label %285

219:
  %220 = getelementptr inbounds nuw i8, ptr %0, i64 8
  %221 = load ptr, ptr %220, align 8
  %222 = icmp sgt i32 %206, 0
  br i1 %222, label %223, label %278

223:
  %224 = getelementptr inbounds nuw i8, ptr %1, i64 128
  %225 = load ptr, ptr %224, align 8
  %226 = getelementptr inbounds nuw i8, ptr %13, i64 48
  %227 = getelementptr inbounds nuw i8, ptr %1, i64 104
  br label %228

228:
  %229 = phi i64 [ %207, %223 ], [ %273, %270 ]
  %230 = phi i64 [ 0, %223 ], [ %272, %270 ]
  %231 = phi i64 [ %215, %223 ], [ %236, %270 ]
  %232 = phi ptr [ %225, %223 ], [ %271, %270 ]
  %233 = load ptr, ptr %226, align 8
  %234 = getelementptr inbounds nuw i64, ptr %233, i64 %230
  %235 = load i64, ptr %234, align 8
  %236 = mul nsw i64 %235, %231
  %237 = load i64, ptr %227, align 8
  %238 = icmp ne i64 %237, 0
  %239 = add nsw i64 %229, -1
  %240 = icmp eq i64 %230, %239
  %241 = select i1 %238, i1 %240, i1 false
  br i1 %241, label %242, label %247

242:
  %243 = shl nsw i64 %235, 3
  %244 = srem i64 %243, %237
  %245 = sdiv i64 %243, %237
  %246 = icmp eq i64 %244, 0
  br i1 %246, label %247, label %263

247:
  %248 = phi i64 [ %235, %228 ], [ %245, %242 ]
  %249 = load i64, ptr %232, align 8
  %250 = icmp eq i64 %249, 0
  br i1 %250, label %251, label %264

251:
  %252 = getelementptr inbounds nuw i8, ptr %232, i64 16
  %253 = load i64, ptr %252, align 8
  %254 = icmp sgt i64 %253, 1
  br i1 %254, label %255, label %258

255:
  %256 = srem i64 %248, %253
  %257 = icmp eq i64 %256, 0
  br i1 %257, label %258, label %263

258:
  %259 = getelementptr inbounds nuw i8, ptr %232, i64 8
  %260 = load i64, ptr %259, align 8
  %261 = getelementptr inbounds i64, ptr %221, i64 %260
  store i64 %248, ptr %261, align 8
  %262 = getelementptr inbounds nuw i8, ptr %232, i64 24
  br label %270

263:
  br label %285

264:
  %265 = call fastcc ptr @value_of(ptr %232, ptr %221, ptr %8)
  %266 = icmp ne ptr %265, null
  %267 = load i64, ptr %8, align 8
  %268 = icmp eq i64 %248, %267
  %269 = select i1 %266, i1 %268, i1 false
  br i1 %269, label %270, label %285

270:
  %271 = phi ptr [ %262, %258 ], [ %265, %264 ]
  %272 = add nuw nsw i64 %230, 1
  %273 = load i64, ptr %208, align 8
  %274 = icmp slt i64 %272, %273
  br i1 %274, label %228, label %275

275:
  %276 = load ptr, ptr %13, align 8
  %277 = ptrtoint ptr %276 to i64
  br label %278

278:
  %279 = phi i64 [ %277, %275 ], [ %213, %219 ]
  %280 = phi i64 [ %236, %275 ], [ %215, %219 ]
  %281 = getelementptr inbounds nuw i8, ptr %13, i64 16
  store i64 %280, ptr %281, align 8
  %282 = getelementptr inbounds nuw i8, ptr %1, i64 8
  %283 = load i64, ptr %282, align 8
  %284 = getelementptr inbounds i64, ptr %221, i64 %283
  store i64 %279, ptr %284, align 8
  br label %285

285:
  %286 = phi i1 [ false, %211 ], [ false, %201 ], [ true, %278 ], [ false, %54 ], [ false, %187 ], [ false, %50 ], [ false, %20 ], [ false, %59 ], [ false, %157 ], [ false, %153 ], [ false, %149 ], [ false, %186 ], [ false, %67 ], [ false, %84 ], [ false, %89 ], [ false, %263 ], [ false, %264 ]
  ret i1 %286
}

declare i64 @PyLong_AsLongLong(ptr)

declare ptr @PyErr_Occurred()

declare double @PyFloat_AsDouble(ptr)

declare double @llvm.fabs.f64(double)

declare ptr @PyTuple_New(i64)

define internal fastcc ptr @value_of(ptr %0, ptr %1, ptr %2) {
  %4 = alloca i64, align 8
  %5 = alloca i64, align 8
  %6 = getelementptr inbounds nuw i8, ptr %0, i64 8
  %7 = load i64, ptr %0, align 8
  %8 = icmp eq i64 %7, 0
  br i1 %8, label %56, label %9

9:
  %10 = icmp slt i64 %7, 3
  br i1 %10, label %11, label %20

11:
  %12 = icmp eq i64 %7, 2
  br i1 %12, label %13, label %16

13:
  %14 = load i64, ptr %6, align 8
  %15 = getelementptr inbounds i64, ptr %1, i64 %14
  br label %16

16:
  %17 = phi ptr [ %15, %13 ], [ %6, %11 ]
  %18 = load i64, ptr %17, align 8
  store i64 %18, ptr %2, align 8
  %19 = getelementptr inbounds nuw i8, ptr %0, i64 16
  br label %56

20:
  %21 = call fastcc ptr @value_of(ptr %6, ptr %1, ptr %4)
  %22 = icmp eq ptr %21, null
  br i1 %22, label %56, label %23

23:
  %24 = call fastcc ptr @value_of(ptr %21, ptr %1, ptr %5)
  %25 = icmp eq ptr %24, null
  br i1 %25, label %56, label %26

26:
  %27 = load i64, ptr %4, align 8
  %28 = load i64, ptr %5, align 8
  switch i64 %7, label %39 [
    i64 3, label %29
    i64 4, label %34
    i64 5, label %50
  ]

29:
  %30 = tail call { i64, i1 } @llvm.sadd.with.overflow.i64(i64 %27, i64 %28)
  %31 = freeze { i64, i1 } %30
  %32 = extractvalue { i64, i1 } %31, 1
  %33 = extractvalue { i64, i1 } %31, 0
  store i64 %33, ptr %2, align 8
  br i1 %32, label %55, label %56

34:
  %35 = tail call { i64, i1 } @llvm.ssub.with.overflow.i64(i64 %27, i64 %28)
  %36 = freeze { i64, i1 } %35
  %37 = extractvalue { i64, i1 } %36, 1
  %38 = extractvalue { i64, i1 } %36, 0
  store i64 %38, ptr %2, align 8
  br i1 %37, label %55, label %56

39:
  %40 = srem i64 %27, %28
  %41 = icmp slt i64 %40, 0
  %42 = select i1 %41, i64 %28, i64 0
  %43 = add nsw i64 %42, %40
  %44 = icmp eq i64 %7, 7
  br i1 %44, label %48, label %45

45:
  %46 = sub nsw i64 %27, %43
  %47 = sdiv i64 %46, %28
  br label %48

48:
  %49 = phi i64 [ %47, %45 ], [ %43, %39 ]
  store i64 %49, ptr %2, align 8
  br label %56

50:
  %51 = tail call { i64, i1 } @llvm.smul.with.overflow.i64(i64 %27, i64 %28)
  %52 = freeze { i64, i1 } %51
  %53 = extractvalue { i64, i1 } %52, 1
  %54 = extractvalue { i64, i1 } %52, 0
  store i64 %54, ptr %2, align 8
  br i1 %53, label %55, label %56

55:
  br label %56

56:
  %57 = phi ptr [ %19, %16 ], [ null, %3 ], [ null, %23 ], [ null, %20 ], [ null, %55 ], [ %24, %50 ], [ %24, %48 ], [ %24, %29 ], [ %24, %34 ]
  ret ptr %57
}

declare i32 @PyTuple_SetItem(ptr, i64, ptr)

declare { i64, i1 } @llvm.sadd.with.overflow.i64(i64, i64)

declare { i64, i1 } @llvm.ssub.with.overflow.i64(i64, i64)

declare { i64, i1 } @llvm.smul.with.overflow.i64(i64, i64)

declare i32 @PyObject_GetBuffer(ptr, ptr, i32)

declare ptr @PyObject_GetAttr(ptr, ptr)

define internal fastcc ptr @answer_of(ptr %0, i64 %1, ptr %2) {
  %4 = alloca [4 x ptr], align 16
  call void @llvm.memset.p0.i64(ptr align 16 %4, i8 0, i64 32, i1 false)
  %5 = getelementptr inbounds nuw i8, ptr %4, i64 8
  store ptr %2, ptr %5, align 8
  %6 = or disjoint i64 %1, -9223372036854775808
  %7 = call ptr @PyObject_VectorcallDict(ptr %0, ptr %5, i64 %6, ptr null)
  call void @Py_DecRef(ptr %7)
  ret ptr %7
}

declare void @PyErr_Clear()

declare ptr @PyObject_VectorcallDict(ptr, ptr, i64, ptr)

declare i64 @llvm.smin.i64(i64, i64)

declare <32 x i64> @llvm.fshl.v32i64(<32 x i64>, <32 x i64>, <32 x i64>)

declare i32 @llvm.umin.i32(i32, i32)

declare i64 @llvm.abs.i64(i64, i1 immarg)

declare i64 @llvm.smax.i64(i64, i64)


