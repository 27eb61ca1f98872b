// What the entries of kernels and programs, which Python calls, have in common; entry.py writes the rest of each.

// What an entry knows: CONTEXT of unpacking.py, which goes on with what is its own.
typedef struct {
    void *call, *read, *ask, *array_class;  // ndarray
    void *empty, *out, *failed, *dtype, *view;
    void **tensors;  // read_tensor, new_tensor, and the class of JAX's arrays: null as long as they aren't there
} context;

// A kernel, as the last words of an entry's context.
typedef struct {
    i32 (*run)(job_function *job, i64 number, void *arguments, i64 bytes, _Bool share);
    job_function *job;
    count_function *count;
    i64 scratch;
} kernel_code;

// Runs a kernel on these words, the last one for the number of an assertion that fails: that; 2147483647 where it was
// given up; -1 where it hasn't run.
i64 call_kernel(i64 *words, i64 status, const kernel_code *of) {
    words[status] = 0;
    i64 signed_count = of->count(words);
    void *state = PyEval_SaveThread();
    i32 result = of->run(of->job, magnitude(signed_count), words, of->scratch, signed_count > 0);
    PyEval_RestoreThread(state);
    return result == RAN ? words[status] : result == GIVEN_UP ? PROGRAM_GIVEN_UP : -1;
}

// The same of a program; its frame is taken while Python's lock is held.
i64 call_program(i64 *words, i64 status, program *const *of) {
    (void)status;
    frame *made = begin(*of, words);
    if (!made)
        return -1;
    void *state = PyEval_SaveThread();
    i64 code = run_program(made);
    PyEval_RestoreThread(state);
    return code;
}

// Asks `slow` with a tuple of all arguments, and None or the names of the last of them. (PyObject_Vectorcall would pass
// names on, but no library has it before Python 3.11.)
void *ask_slow(void *slow, void **arguments, i64 count, void *names) {
    PyErr_Clear();
    i64 total = count + (names ? PyTuple_Size(names) : 0);
    void *values = PyTuple_New(total);
    if (!values)
        return NULL;
    for (i64 k = 0; k < total; k++) {
        Py_IncRef(arguments[k]);
        PyTuple_SetItem(values, k, arguments[k]);
    }
    void *operands[] = {NULL, values, names ? names : &_Py_NoneStruct};
    void *answer = ask(slow, operands, 2);
    Py_DecRef(values);
    return answer;
}

typedef i32 tensor_reader(void *object, buffer *view, i32 type, i64 bytes, _Bool written);

// The memory of an argument as a buffer describes it: 0 for an array of NumPy's or JAX's, 1 for a tensor of PyTorch's,
// -1 for what has to be looked at otherwise. Unless it is -1, the buffer has to be released.
//
// fitting   the class of arrays that fit: another one where they are packed
// named     of elements that buffers can't name, their type; and integers as wide, in which they are passed on
// format    how buffers name the elements, in one of two ways
// type      how DLPack does
// written   whether autograd is told that a tensor is written
i32 read_argument(const context *of, void *value, buffer *view, void *fitting, void *named, void *integers, i32 flags,
                  u8 format, u8 other, i64 bytes, i32 type, _Bool written) {
    void *fresh = NULL;
    if (type_of(value) != fitting) {
        if (fitting != of->array_class)  // a tensor has no layout of ours
            return -1;
        if (type_of(value) == of->tensors[2]) {  // whose buffers name all elements that they have
            if (named)
                return -1;
        } else {
            tensor_reader *reader = (tensor_reader *)of->tensors[0];
            return reader && !reader(value, view, type, bytes, written) ? 1 : -1;
        }
    } else if (named) {
        void *dtype = PyObject_GetAttr(value, of->dtype);
        Py_DecRef(dtype);  // the array has another reference
        if (dtype != named)
            return -1;
        void *operands[] = {NULL, value, integers, of->array_class};
        fresh = ask(of->view, operands, 3);
        if (!fresh)
            return -1;
    }
    i32 error = PyObject_GetBuffer(fresh ? fresh : value, view, flags);
    Py_DecRef(fresh);  // the buffer has another reference
    if (error)
        return -1;
    const u8 *text = (const u8 *)view->format;  // "f", "=f" and "<f": of this processor's order
    text += *text == '=' || *text == '<';
    if ((*text == format || *text == other) && !text[1] && view->item == bytes)
        return 0;
    PyBuffer_Release(view);
    return -1;
}
