// PyTorch's tensors as arguments of a call, by the C functions that it offers to whoever passes memory on (DLPack's
// exchange API): they neither copy nor make an object. What they leave out is asked here: whether a gradient is wanted,
// and whether the values are those in memory.

// DLTensor.
typedef struct {
    void *data;
    i32 device, device_number, rank, type;
    const i64 *extents, *strides;
    i64 offset;
} tensor;

struct {
    i32 (*read)(void *object, tensor *made);
    void *tensor_class, *parameter_class, *requires_grad, *is_grad_enabled, *is_neg, *increment_version;
    void *new_empty_strided;  // of Tensor, which is quicker than new_empty
} torch;

// For each element type a tensor of it, whose type is that; after the last one none.
struct {
    i32 type;
    void *tensor;
} samples[32];

// Calls a function that returns True, False or None, which stay.
static void *answer_of(void *function, i64 count, void *object) {
    void *operands[] = {NULL, object, NULL, NULL};
    void *answer = ask(function, operands, count);
    Py_DecRef(answer);
    return answer;
}

// A new tensor of a shape and an element type on the CPU, or none.
INTERNAL void *new_tensor(void *shape, i32 type) {
    i64 number = 0;
    while (samples[number].tensor && samples[number].type != type)
        number++;
    if (!samples[number].tensor)
        return NULL;
    i64 stride = 1, rank = PyTuple_Size(shape);
    void *strides = PyTuple_New(rank);
    for (i64 axis = rank - 1; axis >= 0; axis--) {
        PyTuple_SetItem(strides, axis, PyLong_FromLongLong(stride));
        i64 extent = PyLong_AsLongLong(PyTuple_GetItem(shape, axis));
        stride *= extent > 1 ? extent : 1;
    }
    void *operands[] = {NULL, samples[number].tensor, shape, strides};
    void *made = ask(torch.new_empty_strided, operands, 3);
    Py_DecRef(strides);
    return made;
}

// Describes the memory of a contiguous tensor of the CPU as buffers are described, all but the format: 0, or -1 for
// what has to be looked at otherwise. The tensor has to stay.
INTERNAL i32 read_tensor(void *object, buffer *view, i32 type, i64 bytes, _Bool written) {
    void *kind = type_of(object);
    if (kind != torch.tensor_class && kind != torch.parameter_class)
        return -1;
    void *requires = PyObject_GetAttr(object, torch.requires_grad);
    Py_DecRef(requires);
    if (requires != &_Py_FalseStruct && answer_of(torch.is_grad_enabled, 0, NULL) != &_Py_FalseStruct)
        return -1;
    if (answer_of(torch.is_neg, 1, object) != &_Py_FalseStruct)
        return -1;
    tensor of;
    if (torch.read(object, &of) || of.device != 1 || of.type != type)
        return -1;
    i64 count = 1;
    _Bool is_dense = 1;
    for (i32 axis = of.rank - 1; axis >= 0; axis--) {
        is_dense &= of.extents[axis] == 1 || of.strides[axis] == count;
        count *= of.extents[axis];
    }
    if (count && !(is_dense && of.data))
        return -1;
    // Autograd refuses what it has kept, if it was written since.
    if (written && !answer_of(torch.increment_version, 1, object))
        return -1;
    view->data = (char *)of.data + of.offset;
    view->owner = NULL;  // nothing is to be given back
    view->size = count * bytes;
    view->item = bytes;
    view->rank = of.rank;
    view->shape = of.extents;
    return 0;
}
