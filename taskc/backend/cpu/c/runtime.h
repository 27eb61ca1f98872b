// The native part of the CPU target, compiled while taskc is developed: runtime.c includes all of it.
//
// No system header is included, so that one text of LLVM's serves all systems and processors: int has 32 bits, and i64
// is what pointers, sizes and times have.

typedef long long i64;
typedef unsigned long long u64;
typedef int i32;
typedef unsigned u32;
typedef unsigned char u8;

#define INTERNAL static __attribute__((unused))
#define RARE __attribute__((noinline, cold))
#define APART __attribute__((noinline))
#define NULL ((void *)0)

// Relaxed, acquire and so on, as C11 names them.
#define LOAD(place, order) __atomic_load_n(place, __ATOMIC_##order)
#define STORE(place, value, order) __atomic_store_n(place, value, __ATOMIC_##order)
#define ADD(place, value, order) __atomic_fetch_add(place, value, __ATOMIC_##order)
#define CHANGE(place, from, to, order) \
    __atomic_compare_exchange_n(place, from, to, 0, __ATOMIC_##order, __ATOMIC_RELAXED)

typedef void job_function(i64 first, i64 last, void *arguments, void *scratch);
typedef i64 count_function(void *words);

// A call of a kernel: where its blocks begin among those of a piece of work, and end. The rest is for a program's.
typedef struct {
    job_function *job;
    void *arguments;
    i64 begin, end;
    count_function *count;
    i64 *status;  // of a failed assertion the number
    i64 kernel;
    i64 others;  // how many of the next ones run at the same time
} call;

typedef void step_function(call *calls, i64 blocks, void *scratch, _Bool share);

// Memory that an object of Python's describes (Py_buffer).
typedef struct {
    void *data, *owner;
    i64 size, item;
    i32 read_only, rank;
    const char *format;
    const i64 *shape, *strides, *suboffsets;
    void *internal;
} buffer;

// Of the system.
u64 pthread_self(void);
i32 pthread_create(u64 *thread, void *attributes, void *(*run)(void *), void *argument);
i32 pthread_detach(u64 thread);
i32 pthread_sigmask(i32 how, const void *set, void *old);
i32 sigfillset(void *set);
i32 usleep(u32 microseconds);
i32 sched_yield(void);
i32 clock_gettime(i32 clock, i64 *time);
void *aligned_alloc(i64 alignment, i64 size);
void free(void *memory);

// Of Python.
extern u8 _Py_FalseStruct, _Py_TrueStruct, _Py_NoneStruct, PyBool_Type, PyLong_Type, PyFloat_Type;
void Py_IncRef(void *object);
void Py_DecRef(void *object);
i32 PyGILState_Ensure(void);
void PyGILState_Release(i32 state);
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *state);
i32 PyErr_CheckSignals(void);
void PyErr_Clear(void);
void *PyErr_Occurred(void);
void PyErr_Fetch(void **type, void **value, void **trace);
void PyErr_Restore(void *type, void *value, void *trace);
void PyErr_WriteUnraisable(void *object);
void *PyObject_CallFunction(void *function, const char *format, ...);
void *PyObject_GetAttr(void *object, void *name);
void *PyObject_VectorcallDict(void *function, void **operands, i64 count, void *keywords);
i32 PyObject_GetBuffer(void *object, buffer *view, i32 flags);
void PyBuffer_Release(buffer *view);
void *PyTuple_New(i64 size);
i64 PyTuple_Size(void *tuple);
void *PyTuple_GetItem(void *tuple, i64 index);
i32 PyTuple_SetItem(void *tuple, i64 index, void *item);
void *PyLong_FromLongLong(i64 value);
i64 PyLong_AsLongLong(void *number);
double PyFloat_AsDouble(void *number);

INTERNAL void *type_of(void *object) {
    return ((void **)object)[1];
}

// Calls a function with operands that follow a free place, which it may use.
INTERNAL void *ask(void *function, void **place_before, i64 count) {
    return PyObject_VectorcallDict(function, place_before + 1, count | (i64)(1ull << 63), NULL);
}
