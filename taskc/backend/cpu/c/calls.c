// What runs for a call from Python: `entry` unpacks and checks the arguments, then runs the kernel or program.
//
// It accepts contiguous NumPy arrays and PyTorch tensors that fit the parameters, JAX's arrays where they are only read,
// and Python's own numbers. Every other call goes to `slow`, its self, which copies, packs or reports the error: a Python
// callable that takes a tuple of all arguments, and None or the names of the last of them. Self is also an array of
// NumPy's, whose memory is the table that tells what fits; entry.py writes it.

// A kernel, as the last words of a table.
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
INTERNAL void *ask_slow(void *slow, void **arguments, i64 count, void *names) {
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

// A NumPy array (PyArrayObject_fields) and its element type (PyArray_Descr), as far as every version has them alike.
typedef struct {
    i64 head[3];
    char kind, letter, order, flags;
    i32 number;
} element_type;

typedef struct {
    i64 head[2];
    void *data;
    i32 rank;
    const i64 *extents, *strides;
    void *base;
    const element_type *element;
    i32 flags;
} array;

enum { DENSE = 1, WRITABLE = 0x400, WARNS_ON_WRITE = -2147483647 - 1 };
enum { DENSE_BUFFER = 0x20 | 0x10 | 0x08 | 0x04 };  // its format and shape, too

enum { TRUTH, INTEGER, SINGLE, DOUBLE, ARRAY };

// A parameter, in the order in which arguments are unpacked: the inputs, then the outputs.
typedef struct {
    i64 kind, place;  // the latter of its word
    i64 least, most;  // of an integer
    // Of an array: its class, and NumPy's numbers of its element type, which may have two; how buffers name that; an
    // element's bytes; how DLPack names it.
    void *class;
    i64 number, other, format, other_format, bytes, type;
    i64 is_written, needs_out;
    i64 bits;  // of elements that are packed in rows of bytes, or 0
    void *made_as;  // an output's dtype
    i64 rank;
    const i64 *extents;  // the terms of one after another
} parameter;

typedef struct {
    i64 (*call)(i64 *words, i64 status, const void *runs);
    void *out, *failed, *empty, *array_class;
    i64 words, inputs, outputs;
    const parameter *parameters;
    i64 runs[];
} table;

// The memory of an argument while it is in use.
typedef struct {
    buffer view;
    const parameter *as;
} memory;

// A call that is under way, and what it has to release.
typedef struct {
    const table *of;
    i64 *words;
    memory *memories;
    i64 read;  // so many of them
    void **made;
    i64 given;  // so many outputs
    _Bool any_tensor;
} unpacking;

void *buffers_class;  // the class of JAX's arrays, once a call has had one

// Terms of an extent in prefix order. NEW begins that of a dimension that is not known yet: its word, and what it is a
// multiple of.
enum { NEW, CONSTANT, WORD, PLUS, MINUS, TIMES, DIVIDE, MODULO };

// Evaluates the extent that `terms` begins with; NULL where it overflows, or is not known. Otherwise the next terms.
static const i64 *value_of(const i64 *terms, const i64 *words, i64 *value) {
    i64 left, right, kind = *terms++;
    if (kind == NEW)
        return NULL;
    if (kind <= WORD) {
        *value = kind == WORD ? words[*terms] : *terms;
        return terms + 1;
    }
    if (!(terms = value_of(terms, words, &left)) || !(terms = value_of(terms, words, &right)))
        return NULL;
    _Bool overflows = 0;
    if (kind == PLUS)
        overflows = __builtin_add_overflow(left, right, value);
    else if (kind == MINUS)
        overflows = __builtin_sub_overflow(left, right, value);
    else if (kind == TIMES)
        overflows = __builtin_mul_overflow(left, right, value);
    else {  // as Python does, by a positive number
        i64 modulo = left % right;
        modulo += modulo < 0 ? right : 0;
        *value = kind == MODULO ? modulo : (left - modulo) / right;
    }
    return overflows ? NULL : terms;
}

// Describes an argument's memory, but for its size. A view that has an owner is to be released.
static _Bool read_memory(unpacking *call, const parameter *as, void *value, buffer *view, _Bool is_written) {
    view->owner = NULL;
    void *class = type_of(value);
    if (class == as->class) {
        const array *given = value;
        i32 needed = as->is_written ? DENSE | WRITABLE : DENSE;
        i64 number = given->element->number;
        view->data = given->data;
        view->rank = given->rank;
        view->shape = given->extents;
        return (given->flags & (needed | (as->is_written ? WARNS_ON_WRITE : 0))) == needed
            && (number == as->number || number == as->other) && given->element->order != '>';
    }
    if (as->class != call->of->array_class)  // no other library's array has a layout of ours
        return 0;
    if (class != buffers_class) {
        call->any_tensor = 1;
        return !read_tensor(value, view, (i32)as->type, as->bytes, is_written);
    }
    if (!as->format || as->is_written || PyObject_GetBuffer(value, view, DENSE_BUFFER))
        return 0;
    const char *text = view->format;  // "f", "=f" and "<f": of this processor's order
    text += *text == '=' || *text == '<';
    if ((*text == as->format || *text == as->other_format) && !text[1] && view->item == as->bytes)
        return 1;
    PyBuffer_Release(view);
    return 0;
}

// Reads an array, and checks its shape. `is_written` tells whether to mark a PyTorch tensor as written.
static _Bool read_array(unpacking *call, const parameter *as, void *value, _Bool is_written) {
    memory *in = call->memories + call->read;
    buffer *view = &in->view;
    if (!read_memory(call, as, value, view, is_written))
        return 0;
    in->as = as;
    call->read++;
    if (view->rank != as->rank || (i64)view->data & (as->bytes - 1))
        return 0;
    const i64 *terms = as->extents;
    i64 *words = call->words, bytes = as->bytes;
    for (i64 axis = 0; axis < as->rank; axis++) {
        i64 size = view->shape[axis], expected;
        bytes *= size;
        if (as->bits && axis == as->rank - 1) {
            if (size * 8 % as->bits)
                return 0;
            size = size * 8 / as->bits;
        }
        if (*terms == NEW) {
            if (terms[2] > 1 && size % terms[2])
                return 0;
            words[terms[1]] = size;
            terms += 3;
        } else if (!(terms = value_of(terms, words, &expected)) || size != expected) {
            return 0;
        }
    }
    view->size = bytes;
    words[as->place] = (i64)view->data;
    return 1;
}

// Reads one of Python's numbers.
static _Bool read_number(i64 *word, const parameter *as, void *value) {
    void *class = type_of(value);
    if (as->kind == TRUTH) {
        *word = value == &_Py_TrueStruct;
        return class == &PyBool_Type;
    }
    if (as->kind == INTEGER) {
        if (class != &PyLong_Type)
            return 0;
        *word = PyLong_AsLongLong(value);
        return as->least <= *word && *word <= as->most && (*word != -1 || !PyErr_Occurred());
    }
    if (class != &PyFloat_Type)
        return 0;
    double number = PyFloat_AsDouble(value), size = __builtin_fabs(number);
    if (as->kind == DOUBLE) {
        *(double *)word = number;
        return 1;
    }
    *(float *)word = (float)number;
    return !(size > 0x1.fffffep127) || size == __builtin_inf();  // a number that overflows is refused
}

static _Bool read_argument(unpacking *call, const parameter *as, void *value, _Bool is_written) {
    return as->kind == ARRAY ? read_array(call, as, value, is_written)
                             : read_number(call->words + as->place, as, value);
}

// Allocates an output: an array, or a tensor if an argument is one. NULL where that isn't possible.
static void *new_output(unpacking *call, const parameter *as) {
    const i64 *terms = as->extents;
    void *shape = as->needs_out ? NULL : PyTuple_New(as->rank), *made = NULL;
    if (!shape)
        return NULL;
    for (i64 axis = 0; axis < as->rank; axis++) {
        i64 size;
        // A dimension of no input is known only from `out=`.
        if (!(terms = value_of(terms, call->words, &size)))
            break;
        PyTuple_SetItem(shape, axis, PyLong_FromLongLong(size));
    }
    void *operands[] = {NULL, shape, as->made_as};
    if (terms)
        made = call->any_tensor ? new_tensor(shape, (i32)as->type) : ask(call->of->empty, operands, 2);
    Py_DecRef(shape);
    return made;
}

// Whether an array that is written overlaps another one, among the first so many.
static _Bool overlap(const memory *memories, i64 count) {
    for (const memory *one = memories; one < memories + count; one++)
        for (const memory *other = memories; one->as->is_written && other < memories + count; other++) {
            u64 start = (u64)one->view.data, other_start = (u64)other->view.data;
            if (other != one && start + (u64)one->view.size > other_start
                && other_start + (u64)other->view.size > start)
                return 1;
        }
    return 0;
}

// Unpacks the arguments and runs: -1 for what `slow` has to take, otherwise the number of an assertion that failed.
static i64 unpack_and_run(unpacking *call, void **arguments, i64 count, void *names) {
    const table *of = call->of;
    if (count != of->inputs)
        return -1;
    if (names && !(of->out && PyTuple_Size(names) == 1 && PyTuple_GetItem(names, 0) == of->out))
        return -1;
    const parameter *as = of->parameters;
    for (i64 number = 0; number < count; number++, as++)
        if (!read_argument(call, as, arguments[number], as->is_written))
            return -1;
    i64 before = call->read;
    for (i64 number = 0; number < of->outputs; number++, as++) {
        void *made = names ? arguments[count] : new_output(call, as);
        if (!made)
            return -1;
        if (names)
            Py_IncRef(made);
        call->made[call->given++] = made;
        if (!read_array(call, as, made, names != NULL))
            return -1;
    }
    if (overlap(call->memories, names ? call->read : before))  // a new array overlaps no other
        return -1;
    return of->call(call->words, of->words, of->runs);
}

static void *result_of(unpacking *call) {
    if (call->given == 1)
        return *call->made;
    void *result = call->given ? PyTuple_New(call->given) : &_Py_NoneStruct;
    if (!call->given)
        Py_IncRef(result);
    for (i64 number = 0; number < call->given; number++)
        PyTuple_SetItem(result, number, call->made[number]);
    return result;
}

// The function that Python calls.
void *entry(void *slow, void **arguments, i64 count, void *names) {
    const table *of = ((const array *)slow)->data;
    i64 words[of->words + 1];
    memory memories[of->inputs + of->outputs];
    void *made[of->outputs + 1];
    unpacking call = {of, words, memories, 0, made, 0, 0};
    i64 code = unpack_and_run(&call, arguments, count, names);
    for (i64 number = 0; number < call.read; number++)
        if (memories[number].view.owner)
            PyBuffer_Release(&memories[number].view);
    if (!code)
        return result_of(&call);
    for (i64 number = 0; number < call.given; number++)
        Py_DecRef(made[number]);
    if (code < 0)
        return ask_slow(slow, arguments, count, names);
    void *operands[] = {NULL, PyLong_FromLongLong(code)};
    ask(of->failed, operands, 1);  // which raises
    Py_DecRef(operands[1]);
    return NULL;
}
