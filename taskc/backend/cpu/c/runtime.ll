; Made of runtime.c by native_text.py.

%struct.anon = type { i64, [56 x i8], ptr, i64, i32, i32, i32, i32, ptr, i64, ptr }
%struct.call = type { ptr, ptr, i64, i64, ptr, ptr, i64, i64 }
%struct.anon.0 = type { i32, ptr }
%struct.anon.1 = type { ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr }
%struct.part = type { i64, i64, [48 x i8] }
%struct.tensor = type { ptr, i32, i32, i32, i32, ptr, ptr, i64 }

@exception = internal global [3 x ptr] zeroinitializer, align 16
@.str = private constant [3 x i8] c"LL\00", align 1
@raised = internal global i32 0, align 4
@due = global i8 0, align 1
@pool = global %struct.anon zeroinitializer, align 64
@avoided = global i32 -1, align 4
@taken = global i64 0, align 8
@stamp_nothing.empty = internal global %struct.call { ptr @nothing, ptr null, i64 0, i64 0, ptr null, ptr null, i64 0, i64 0 }, align 8
@_Py_NoneStruct = external global i8, align 1
@samples = global [32 x %struct.anon.0] zeroinitializer, align 16
@torch = global %struct.anon.1 zeroinitializer, align 8
@_Py_FalseStruct = external global i8, align 1
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
  br i1 %4, label %111, label %8

5:
  %6 = load ptr, ptr %9, align 8
  %7 = icmp eq ptr %6, null
  br i1 %7, label %111, label %8

8:
  %9 = phi ptr [ %6, %5 ], [ %3, %2 ]
  %10 = getelementptr inbounds nuw i8, ptr %9, i64 8
  %11 = load i64, ptr %10, align 8
  %12 = icmp slt i64 %11, 1
  br i1 %12, label %28, label %13

13:
  %14 = getelementptr inbounds nuw i8, ptr %9, i64 16
  %15 = load ptr, ptr %14, align 8
  br label %19

16:
  %17 = add nuw nsw i64 %20, 1
  %18 = icmp eq i64 %17, %11
  br i1 %18, label %28, label %19

19:
  %20 = phi i64 [ 0, %13 ], [ %17, %16 ]
  %21 = getelementptr inbounds nuw [2 x i64], ptr %15, i64 %20
  %22 = load i64, ptr %21, align 8
  %23 = getelementptr inbounds i64, ptr %1, i64 %22
  %24 = load i64, ptr %23, align 8
  %25 = getelementptr inbounds nuw i8, ptr %21, i64 8
  %26 = load i64, ptr %25, align 8
  %27 = icmp eq i64 %24, %26
  br i1 %27, label %16, label %5

28:
  %29 = getelementptr inbounds nuw i8, ptr %9, i64 32
  %30 = load ptr, ptr %29, align 8
  %31 = icmp eq ptr %30, null
  br i1 %31, label %111, label %32

32:
  %33 = phi ptr [ %38, %37 ], [ %30, %28 ]
  %34 = getelementptr inbounds nuw i8, ptr %33, i64 8
  %35 = cmpxchg ptr %34, i64 0, i64 1 acquire monotonic, align 8
  %36 = extractvalue { i64, i1 } %35, 1
  br i1 %36, label %40, label %37

37:
  %38 = load ptr, ptr %33, align 8
  %39 = icmp eq ptr %38, null
  br i1 %39, label %111, label %32

40:
  %41 = getelementptr inbounds nuw i8, ptr %0, i64 8
  %42 = load ptr, ptr %41, align 8
  %43 = getelementptr inbounds nuw i8, ptr %9, i64 24
  %44 = load i64, ptr %43, align 8
  %45 = icmp eq ptr %42, null
  br i1 %45, label %65, label %46

46:
  %47 = phi ptr [ %63, %62 ], [ %42, %40 ]
  %48 = getelementptr inbounds nuw i8, ptr %47, i64 16
  %49 = load i64, ptr %48, align 8
  %50 = icmp ult i64 %49, %44
  br i1 %50, label %62, label %51

51:
  %52 = getelementptr inbounds nuw i8, ptr %47, i64 8
  %53 = cmpxchg ptr %52, i64 0, i64 1 acquire monotonic, align 8
  %54 = extractvalue { i64, i1 } %53, 1
  br i1 %54, label %55, label %62

55:
  %56 = getelementptr inbounds nuw i8, ptr %9, i64 40
  %57 = load i64, ptr %56, align 8
  %58 = icmp sgt i64 %57, 0
  br i1 %58, label %59, label %66

59:
  %60 = getelementptr inbounds nuw i8, ptr %9, i64 48
  %61 = getelementptr inbounds nuw i8, ptr %33, i64 24
  br label %73

62:
  %63 = load ptr, ptr %47, align 8
  %64 = icmp eq ptr %63, null
  br i1 %64, label %65, label %46

65:
  store atomic i64 0, ptr %34 release, align 8
  br label %111

66:
  %67 = getelementptr inbounds nuw i8, ptr %33, i64 64
  store ptr %47, ptr %67, align 8
  %68 = getelementptr inbounds nuw i8, ptr %33, i64 72
  %69 = load i64, ptr %68, align 8
  %70 = getelementptr inbounds nuw i8, ptr %47, i64 24
  %71 = load i64, ptr %70, align 8
  %72 = icmp eq i64 %69, %71
  br i1 %72, label %111, label %90

73:
  %74 = phi i64 [ 0, %59 ], [ %87, %73 ]
  %75 = load ptr, ptr %60, align 8
  %76 = getelementptr inbounds nuw [3 x i64], ptr %75, i64 %74
  %77 = getelementptr inbounds nuw i8, ptr %76, i64 8
  %78 = load i64, ptr %77, align 8
  %79 = getelementptr inbounds i64, ptr %1, i64 %78
  %80 = load i64, ptr %79, align 8
  %81 = getelementptr inbounds nuw i8, ptr %76, i64 16
  %82 = load i64, ptr %81, align 8
  %83 = add nsw i64 %82, %80
  %84 = load ptr, ptr %61, align 8
  %85 = load i64, ptr %76, align 8
  %86 = getelementptr inbounds i64, ptr %84, i64 %85
  store i64 %83, ptr %86, align 8
  %87 = add nuw nsw i64 %74, 1
  %88 = load i64, ptr %56, align 8
  %89 = icmp slt i64 %87, %88
  br i1 %89, label %73, label %66

90:
  store i64 %71, ptr %68, align 8
  %91 = getelementptr inbounds nuw i8, ptr %9, i64 56
  %92 = load i64, ptr %91, align 8
  %93 = icmp sgt i64 %92, 0
  br i1 %93, label %94, label %111

94:
  %95 = getelementptr inbounds nuw i8, ptr %9, i64 64
  %96 = getelementptr inbounds nuw i8, ptr %33, i64 24
  br label %97

97:
  %98 = phi i64 [ 0, %94 ], [ %108, %97 ]
  %99 = load i64, ptr %70, align 8
  %100 = load ptr, ptr %95, align 8
  %101 = getelementptr inbounds nuw [2 x i64], ptr %100, i64 %98
  %102 = getelementptr inbounds nuw i8, ptr %101, i64 8
  %103 = load i64, ptr %102, align 8
  %104 = add nsw i64 %103, %99
  %105 = load ptr, ptr %96, align 8
  %106 = load i64, ptr %101, align 8
  %107 = getelementptr inbounds i64, ptr %105, i64 %106
  store i64 %104, ptr %107, align 8
  %108 = add nuw nsw i64 %98, 1
  %109 = load i64, ptr %91, align 8
  %110 = icmp slt i64 %108, %109
  br i1 %110, label %97, label %111

111:
  %112 = phi ptr [ null, %65 ], [ %33, %66 ], [ null, %28 ], [ %33, %90 ], [ null, %2 ], [ %33, %97 ], [ null, %37 ], [ null, %5 ]
  ret ptr %112
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

define ptr @ask_slow(ptr %0, ptr %1, i64 %2, ptr %3) {
  %5 = alloca [3 x ptr], align 16
  tail call void @PyErr_Clear()
  %6 = icmp eq ptr %3, null
  br i1 %6, label %9, label %7

7:
  %8 = tail call i64 @PyTuple_Size(ptr %3)
  br label %9

9:
  %10 = phi i64 [ %8, %7 ], [ 0, %4 ]
  %11 = add nsw i64 %10, %2
  %12 = tail call ptr @PyTuple_New(i64 %11)
  %13 = icmp eq ptr %12, null
  br i1 %13, label %29, label %14

14:
  %15 = icmp sgt i64 %11, 0
  br i1 %15, label %21, label %16

16:
  store ptr null, ptr %5, align 16
  %17 = getelementptr inbounds nuw i8, ptr %5, i64 8
  store ptr %12, ptr %17, align 8
  %18 = getelementptr inbounds nuw i8, ptr %5, i64 16
  %19 = select i1 %6, ptr @_Py_NoneStruct, ptr %3
  store ptr %19, ptr %18, align 16
  %20 = call ptr @PyObject_VectorcallDict(ptr %0, ptr %17, i64 -9223372036854775806, ptr null)
  call void @Py_DecRef(ptr %12)
  br label %29

21:
  %22 = phi i64 [ %27, %21 ], [ 0, %14 ]
  %23 = getelementptr inbounds nuw ptr, ptr %1, i64 %22
  %24 = load ptr, ptr %23, align 8
  tail call void @Py_IncRef(ptr %24)
  %25 = load ptr, ptr %23, align 8
  %26 = tail call i32 @PyTuple_SetItem(ptr %12, i64 %22, ptr %25)
  %27 = add nuw nsw i64 %22, 1
  %28 = icmp eq i64 %27, %11
  br i1 %28, label %16, label %21

29:
  %30 = phi ptr [ %20, %16 ], [ null, %9 ]
  ret ptr %30
}

declare void @PyErr_Clear()

declare i64 @PyTuple_Size(ptr)

declare ptr @PyTuple_New(i64)

declare void @Py_IncRef(ptr)

declare i32 @PyTuple_SetItem(ptr, i64, ptr)

define i32 @read_argument(ptr %0, ptr %1, ptr %2, ptr %3, ptr %4, ptr %5, i32 %6, i8 %7, i8 %8, i64 %9, i32 %10, i1 %11) {
  %13 = alloca [4 x ptr], align 16
  %14 = getelementptr inbounds nuw i8, ptr %1, i64 8
  %15 = load ptr, ptr %14, align 8
  %16 = icmp eq ptr %15, %3
  br i1 %16, label %36, label %17

17:
  %18 = getelementptr inbounds nuw i8, ptr %0, i64 24
  %19 = load ptr, ptr %18, align 8
  %20 = icmp eq ptr %3, %19
  br i1 %20, label %21, label %80

21:
  %22 = getelementptr inbounds nuw i8, ptr %0, i64 72
  %23 = load ptr, ptr %22, align 8
  %24 = getelementptr inbounds nuw i8, ptr %23, i64 16
  %25 = load ptr, ptr %24, align 8
  %26 = icmp eq ptr %15, %25
  br i1 %26, label %27, label %29

27:
  %28 = icmp eq ptr %4, null
  br i1 %28, label %53, label %80

29:
  %30 = load ptr, ptr %23, align 8
  %31 = icmp eq ptr %30, null
  br i1 %31, label %80, label %32

32:
  %33 = tail call i32 %30(ptr %1, ptr %2, i32 %10, i64 %9, i1 %11)
  %34 = icmp eq i32 %33, 0
  %35 = select i1 %34, i32 1, i32 -1
  br label %80

36:
  %37 = icmp eq ptr %4, null
  br i1 %37, label %53, label %38

38:
  %39 = getelementptr inbounds nuw i8, ptr %0, i64 56
  %40 = load ptr, ptr %39, align 8
  %41 = tail call ptr @PyObject_GetAttr(ptr %1, ptr %40)
  tail call void @Py_DecRef(ptr %41)
  %42 = icmp eq ptr %41, %4
  br i1 %42, label %43, label %80

43:
  store ptr null, ptr %13, align 16
  %44 = getelementptr inbounds nuw i8, ptr %13, i64 8
  store ptr %1, ptr %44, align 8
  %45 = getelementptr inbounds nuw i8, ptr %13, i64 16
  store ptr %5, ptr %45, align 16
  %46 = getelementptr inbounds nuw i8, ptr %13, i64 24
  %47 = getelementptr inbounds nuw i8, ptr %0, i64 24
  %48 = load ptr, ptr %47, align 8
  store ptr %48, ptr %46, align 8
  %49 = getelementptr inbounds nuw i8, ptr %0, i64 64
  %50 = load ptr, ptr %49, align 8
  %51 = call ptr @PyObject_VectorcallDict(ptr %50, ptr %44, i64 -9223372036854775805, ptr null)
  %52 = icmp eq ptr %51, null
  br i1 %52, label %80, label %53

53:
  %54 = phi ptr [ null, %27 ], [ %51, %43 ], [ null, %36 ]
  %55 = icmp eq ptr %54, null
  %56 = select i1 %55, ptr %1, ptr %54
  %57 = call i32 @PyObject_GetBuffer(ptr %56, ptr %2, i32 %6)
  call void @Py_DecRef(ptr %54)
  %58 = icmp eq i32 %57, 0
  br i1 %58, label %59, label %80

59:
  %60 = getelementptr inbounds nuw i8, ptr %2, i64 40
  %61 = load ptr, ptr %60, align 8
  %62 = load i8, ptr %61, align 1
  %63 = and i8 %62, -2
  %64 = icmp eq i8 %63, 60
  %65 = zext i1 %64 to i64
  %66 = getelementptr inbounds nuw i8, ptr %61, i64 %65
  %67 = load i8, ptr %66, align 1
  %68 = icmp eq i8 %67, %7
  %69 = icmp eq i8 %67, %8
  %70 = or i1 %68, %69
  br i1 %70, label %71, label %79

71:
  %72 = getelementptr inbounds nuw i8, ptr %66, i64 1
  %73 = load i8, ptr %72, align 1
  %74 = icmp eq i8 %73, 0
  br i1 %74, label %75, label %79

75:
  %76 = getelementptr inbounds nuw i8, ptr %2, i64 24
  %77 = load i64, ptr %76, align 8
  %78 = icmp eq i64 %77, %9
  br i1 %78, label %80, label %79

79:
  call void @PyBuffer_Release(ptr %2)
  br label %80

80:
  %81 = phi i32 [ -1, %43 ], [ -1, %17 ], [ -1, %27 ], [ -1, %29 ], [ %35, %32 ], [ -1, %53 ], [ -1, %79 ], [ 0, %75 ], [ -1, %38 ]
  ret i32 %81
}

declare ptr @PyObject_GetAttr(ptr, ptr)

declare i32 @PyObject_GetBuffer(ptr, ptr, i32)

declare void @PyBuffer_Release(ptr)

define ptr @new_tensor(ptr %0, i32 %1) {
  %3 = alloca [4 x ptr], align 16
  %4 = load ptr, ptr getelementptr inbounds nuw (i8, ptr @samples, i64 8), align 8
  %5 = icmp eq ptr %4, null
  br i1 %5, label %40, label %12

6:
  %7 = add nuw nsw i64 %14, 1
  %8 = getelementptr inbounds nuw [32 x %struct.anon.0], ptr @samples, i64 0, i64 %7
  %9 = getelementptr inbounds nuw i8, ptr %8, i64 8
  %10 = load ptr, ptr %9, align 8
  %11 = icmp eq ptr %10, null
  br i1 %11, label %40, label %12

12:
  %13 = phi ptr [ %8, %6 ], [ @samples, %2 ]
  %14 = phi i64 [ %7, %6 ], [ 0, %2 ]
  %15 = load i32, ptr %13, align 16
  %16 = icmp eq i32 %15, %1
  br i1 %16, label %17, label %6

17:
  %18 = getelementptr inbounds nuw i8, ptr %13, i64 8
  %19 = tail call i64 @PyTuple_Size(ptr %0)
  %20 = tail call ptr @PyTuple_New(i64 %19)
  %21 = icmp sgt i64 %19, 0
  br i1 %21, label %29, label %22

22:
  store ptr null, ptr %3, align 16
  %23 = getelementptr inbounds nuw i8, ptr %3, i64 8
  %24 = load ptr, ptr %18, align 8
  store ptr %24, ptr %23, align 8
  %25 = getelementptr inbounds nuw i8, ptr %3, i64 16
  store ptr %0, ptr %25, align 16
  %26 = getelementptr inbounds nuw i8, ptr %3, i64 24
  store ptr %20, ptr %26, align 8
  %27 = load ptr, ptr getelementptr inbounds nuw (i8, ptr @torch, i64 56), align 8
  %28 = call ptr @PyObject_VectorcallDict(ptr %27, ptr %23, i64 -9223372036854775805, ptr null)
  call void @Py_DecRef(ptr %20)
  br label %40

29:
  %30 = phi i64 [ %32, %29 ], [ %19, %17 ]
  %31 = phi i64 [ %38, %29 ], [ 1, %17 ]
  %32 = add nsw i64 %30, -1
  %33 = tail call ptr @PyLong_FromLongLong(i64 %31)
  %34 = tail call i32 @PyTuple_SetItem(ptr %20, i64 %32, ptr %33)
  %35 = tail call ptr @PyTuple_GetItem(ptr %0, i64 %32)
  %36 = tail call i64 @PyLong_AsLongLong(ptr %35)
  %37 = tail call i64 @llvm.smax.i64(i64 %36, i64 1)
  %38 = mul nuw nsw i64 %37, %31
  %39 = icmp samesign ugt i64 %30, 1
  br i1 %39, label %29, label %22

40:
  %41 = phi ptr [ %28, %22 ], [ null, %2 ], [ null, %6 ]
  ret ptr %41
}

declare ptr @PyLong_FromLongLong(i64)

declare i64 @PyLong_AsLongLong(ptr)

declare ptr @PyTuple_GetItem(ptr, i64)

define i32 @read_tensor(ptr %0, ptr %1, i32 %2, i64 %3, i1 %4) {
  %6 = alloca [4 x ptr], align 16
  %7 = alloca [4 x ptr], align 16
  %8 = alloca %struct.tensor, align 8
  %9 = getelementptr inbounds nuw i8, ptr %0, i64 8
  %10 = load ptr, ptr %9, align 8
  %11 = load ptr, ptr getelementptr inbounds nuw (i8, ptr @torch, i64 8), align 8
  %12 = icmp eq ptr %10, %11
  %13 = load ptr, ptr getelementptr inbounds nuw (i8, ptr @torch, i64 16), align 8
  %14 = icmp eq ptr %10, %13
  %15 = select i1 %12, i1 true, i1 %14
  br i1 %15, label %16, label %101

16:
  %17 = load ptr, ptr getelementptr inbounds nuw (i8, ptr @torch, i64 24), align 8
  %18 = tail call ptr @PyObject_GetAttr(ptr %0, ptr %17)
  tail call void @Py_DecRef(ptr %18)
  %19 = icmp eq ptr %18, @_Py_FalseStruct
  br i1 %19, label %25, label %20

20:
  %21 = load ptr, ptr getelementptr inbounds nuw (i8, ptr @torch, i64 32), align 8
  %22 = getelementptr inbounds nuw i8, ptr %7, i64 8
  call void @llvm.memset.p0.i64(ptr align 16 %7, i8 0, i64 32, i1 false)
  %23 = call ptr @PyObject_VectorcallDict(ptr %21, ptr %22, i64 -9223372036854775808, ptr null)
  call void @Py_DecRef(ptr %23)
  %24 = icmp eq ptr %23, @_Py_FalseStruct
  br i1 %24, label %25, label %101

25:
  %26 = load ptr, ptr getelementptr inbounds nuw (i8, ptr @torch, i64 40), align 8
  call void @llvm.memset.p0.i64(ptr align 16 %6, i8 0, i64 32, i1 false)
  %27 = getelementptr inbounds nuw i8, ptr %6, i64 8
  store ptr %0, ptr %27, align 8
  %28 = call ptr @PyObject_VectorcallDict(ptr %26, ptr %27, i64 -9223372036854775807, ptr null)
  call void @Py_DecRef(ptr %28)
  %29 = icmp eq ptr %28, @_Py_FalseStruct
  br i1 %29, label %30, label %101

30:
  %31 = load ptr, ptr @torch, align 8
  %32 = call i32 %31(ptr %0, ptr %8)
  %33 = icmp eq i32 %32, 0
  %34 = getelementptr inbounds nuw i8, ptr %8, i64 8
  %35 = load i32, ptr %34, align 8
  %36 = icmp eq i32 %35, 1
  %37 = select i1 %33, i1 %36, i1 false
  %38 = getelementptr inbounds nuw i8, ptr %8, i64 20
  %39 = load i32, ptr %38, align 4
  %40 = icmp eq i32 %39, %2
  %41 = select i1 %37, i1 %40, i1 false
  br i1 %41, label %42, label %99

42:
  %43 = getelementptr inbounds nuw i8, ptr %8, i64 16
  %44 = load i32, ptr %43, align 8
  %45 = icmp sgt i32 %44, 0
  br i1 %45, label %46, label %71

46:
  %47 = getelementptr inbounds nuw i8, ptr %8, i64 24
  %48 = load ptr, ptr %47, align 8
  %49 = getelementptr inbounds nuw i8, ptr %8, i64 32
  %50 = load ptr, ptr %49, align 8
  %51 = zext nneg i32 %44 to i64
  br label %54

52:
  %53 = icmp eq i64 %69, 0
  br i1 %53, label %77, label %71

54:
  %55 = phi i64 [ %51, %46 ], [ %58, %66 ]
  %56 = phi i1 [ true, %46 ], [ %68, %66 ]
  %57 = phi i64 [ 1, %46 ], [ %69, %66 ]
  %58 = add nsw i64 %55, -1
  %59 = getelementptr inbounds nuw i64, ptr %48, i64 %58
  %60 = load i64, ptr %59, align 8
  %61 = icmp eq i64 %60, 1
  br i1 %61, label %66, label %62

62:
  %63 = getelementptr inbounds nuw i64, ptr %50, i64 %58
  %64 = load i64, ptr %63, align 8
  %65 = icmp eq i64 %64, %57
  br label %66

66:
  %67 = phi i1 [ true, %54 ], [ %65, %62 ]
  %68 = select i1 %56, i1 %67, i1 false
  %69 = mul nsw i64 %60, %57
  %70 = icmp samesign ugt i64 %55, 1
  br i1 %70, label %54, label %52

71:
  %72 = phi i1 [ %68, %52 ], [ true, %42 ]
  %73 = phi i64 [ %69, %52 ], [ 1, %42 ]
  %74 = load ptr, ptr %8, align 8
  %75 = icmp ne ptr %74, null
  %76 = select i1 %72, i1 %75, i1 false
  br i1 %76, label %77, label %99

77:
  %78 = phi i64 [ %73, %71 ], [ 0, %52 ]
  br i1 %4, label %79, label %85

79:
  %80 = load ptr, ptr getelementptr inbounds nuw (i8, ptr @torch, i64 48), align 8
  %81 = call fastcc ptr @answer_of(ptr %80, i64 1, ptr %0)
  %82 = icmp eq ptr %81, null
  br i1 %82, label %99, label %83

83:
  %84 = load i32, ptr %43, align 8
  br label %85

85:
  %86 = phi i32 [ %84, %83 ], [ %44, %77 ]
  %87 = load ptr, ptr %8, align 8
  %88 = getelementptr inbounds nuw i8, ptr %8, i64 40
  %89 = load i64, ptr %88, align 8
  %90 = getelementptr inbounds i8, ptr %87, i64 %89
  store ptr %90, ptr %1, align 8
  %91 = getelementptr inbounds nuw i8, ptr %1, i64 8
  store ptr null, ptr %91, align 8
  %92 = mul nsw i64 %78, %3
  %93 = getelementptr inbounds nuw i8, ptr %1, i64 16
  store i64 %92, ptr %93, align 8
  %94 = getelementptr inbounds nuw i8, ptr %1, i64 24
  store i64 %3, ptr %94, align 8
  %95 = getelementptr inbounds nuw i8, ptr %1, i64 36
  store i32 %86, ptr %95, align 4
  %96 = getelementptr inbounds nuw i8, ptr %8, i64 24
  %97 = load ptr, ptr %96, align 8
  %98 = getelementptr inbounds nuw i8, ptr %1, i64 48
  store ptr %97, ptr %98, align 8
  br label %99

99:
  %100 = phi i32 [ -1, %30 ], [ 0, %85 ], [ -1, %71 ], [ -1, %79 ]
  br label %101

101:
  %102 = phi i32 [ -1, %5 ], [ %100, %99 ], [ -1, %20 ], [ -1, %25 ]
  ret i32 %102
}

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

declare ptr @PyObject_VectorcallDict(ptr, ptr, i64, ptr)

declare void @llvm.memset.p0.i64(ptr, i8, i64, i1 immarg)

declare i64 @llvm.smin.i64(i64, i64)

declare <32 x i64> @llvm.fshl.v32i64(<32 x i64>, <32 x i64>, <32 x i64>)

declare i32 @llvm.umin.i32(i32, i32)

declare i64 @llvm.abs.i64(i64, i1 immarg)

declare i64 @llvm.smax.i64(i64, i64)


