/* Calls found and made again without a line of Python, where all that they depend on is as it was (`overlap.runtime.repeat.front`).

   operands -> layouts by DLPack -> an entry of the same layouts, settings and head -> results made -> the graph enqueued

   Whatever is not as it was, or cannot be told, is left to the way through Python, which says what is wrong: nothing is enqueued then. */

/* DLPack 1.3, `dlpack.h`: what a tensor's type offers to C. */
typedef struct {
  void *data;
  struct { int32_t type, id; } device;
  int32_t ndim;
  struct { uint8_t code, bits; uint16_t lanes; } dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} dl_tensor;
typedef struct {
  struct { uint32_t major, minor; } version;
  void *previous;
  void *allocate, *from_object, *to_object;
  int (*look)(void *object, dl_tensor *found);
  void *stream;
} dl_exchange;

#define MOST_WORDS 128
#define MOST_TENSORS 16
#define MOST_ENTRIES 256

typedef struct {
  PyObject *make, *arguments, *named; /* what makes a result, and what it is given */
  int32_t type, id;                   /* the device that it must be on */
} making;

/* A call that was made a graph. What is borrowed lives as long as the launch does. */
typedef struct {
  int references;
  uint64_t hash;
  int words;
  int64_t layout[MOST_WORDS];
  PyObject *head, *texts, *launch; /* what is called and with what; the settings; a weak reference to the ReadyLaunch */
  PyObject *told, *said, *forced;
  recorded *graph;
  PyObject *workspace, *memory, *instance, *runtime, *event; /* borrowed */
  void *event_handle;
  const int64_t *fault; /* the first word of a fault's record */
  int operands, outs, makings;
  int64_t reach[MOST_TENSORS]; /* bytes of each operand, then of each result */
  making made[MOST_TENSORS];
} entry;

typedef struct {
  PyObject_HEAD
  const dl_exchange *dlpack;
  PyTypeObject *tensor, *parameter;
  PyObject *grad_enabled, *raw_stream, *called_last, *texts, *os, *hooks, *filter_of, *device;
  PyObject *environ, *words_of; /* that was asked last, and what it said of every setting */
  uint64_t version;
  int count;
  entry *entries[MOST_ENTRIES];
} front;

static PyObject *s_environ, *s_data, *s_is_neg, *s_requires_grad, *s_enter, *s_exit, *s_calls, *s_filter, *s_memory, *s_error,
    *s_kept, *s_last, *s_recorded_on;

/* Whether a dictionary is as it was: by its version, or since Python 3.12 by being told of changes. */
#if PY_VERSION_HEX >= 0x030C0000
static uint64_t changes = 1;
static int watcher = -1;
static int on_change(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value) {
  changes += 1;
  return 0;
}
static uint64_t version_of(PyObject *dict) {
  if (watcher < 0) watcher = PyDict_AddWatcher(on_change);
  if (watcher >= 0 && !PyDict_Watch(watcher, dict)) return changes;
  return PyErr_Clear(), 0; /* which it never is */
}
static int same_version(PyObject *dict, uint64_t version) { return version == changes; }
#else
static uint64_t version_of(PyObject *dict) { return ((PyDictObject *)dict)->ma_version_tag; }
static int same_version(PyObject *dict, uint64_t version) { return ((PyDictObject *)dict)->ma_version_tag == version; }
#endif

/* What the environment says of every setting (`settings.texts`), a borrowed reference, asked again only if it has changed. */
static PyObject *texts_now(front *self) {
  PyObject *environ = PyObject_GetAttr(self->os, s_environ);
  if (!environ) return NULL;
  PyObject *data = PyObject_GetAttr(environ, s_data);
  if (!data) PyErr_Clear();
  const int plain = data && PyDict_CheckExact(data);
  if (!plain || environ != self->environ || !self->words_of || !same_version(data, self->version)) {
    if (plain) self->version = version_of(data);
    Py_XSETREF(self->words_of, PyObject_CallNoArgs(self->texts));
    Py_XSETREF(self->environ, plain ? Py_NewRef(environ) : NULL);
  }
  Py_XDECREF(data);
  Py_DECREF(environ);
  return self->words_of;
}

static int truth(PyObject *owner, PyObject *name, int otherwise) {
  PyObject *found = PyObject_GetAttr(owner, name);
  if (!found) return PyErr_Clear(), otherwise;
  const int is = PyObject_IsTrue(found);
  Py_DECREF(found);
  return is;
}

/* Whether a hook of Triton's wants to see launches, as `launchers.watched` says. */
static int hooked(PyObject *hooks, PyObject *name) {
  PyObject *hook = PyObject_GetAttr(hooks, name);
  if (!hook) return PyErr_Clear(), 1;
  const int is = hook != Py_None && truth(hook, s_calls, 1);
  Py_DECREF(hook);
  return is;
}

static int is_value(PyObject *owner, PyObject *name, PyObject *value) {
  PyObject *found = PyObject_GetAttr(owner, name);
  if (!found) return PyErr_Clear(), 0;
  Py_DECREF(found);
  return found == value;
}

/* A call on its way: its tensors' addresses, and their layouts as words. */
typedef struct {
  int count, words;
  uint64_t hash, addresses[MOST_ADDRESSES];
  int64_t layout[MOST_WORDS];
} seen;

static int add_word(seen *call, int64_t word) {
  if (call->words == MOST_WORDS) return -1;
  call->layout[call->words++] = word;
  call->hash = (call->hash ^ (uint64_t)word) * 0x9E3779B97F4A7C15ull;
  call->hash ^= call->hash >> 29;
  return 0;
}

/* Takes a tensor in. -1 where it is none that a call could be known by, with or without an error. */
static int add_tensor(front *self, seen *call, PyObject *object, int grads) {
  dl_tensor tensor;
  if (object == Py_None) return add_word(call, -1);
  if ((Py_TYPE(object) != self->tensor && Py_TYPE(object) != self->parameter) || call->count == MOST_TENSORS) return -1;
  if (!grads && truth(object, s_requires_grad, 1)) {
    PyObject *enabled = PyObject_CallNoArgs(self->grad_enabled);
    Py_XDECREF(enabled);
    if (enabled != Py_False) return -1;
  }
  PyObject *negative = PyObject_CallMethodNoArgs(object, s_is_neg);
  Py_XDECREF(negative);
  if (negative != Py_False || self->dlpack->look(object, &tensor) || !tensor.data || !tensor.strides) return -1;
  const uint64_t address = (uint64_t)tensor.data + tensor.byte_offset;
  call->addresses[call->count++] = address;
  int full = add_word(call, (int64_t)tensor.ndim << 40 | (int64_t)(address % 16) << 32 | (int64_t)tensor.dtype.lanes << 16 |
                                tensor.dtype.bits << 8 | tensor.dtype.code);
  full |= add_word(call, (int64_t)tensor.device.type << 32 | (uint32_t)tensor.device.id);
  for (int i = 0; i < tensor.ndim; i += 1) full |= add_word(call, tensor.shape[i]) | add_word(call, tensor.strides[i]);
  return full;
}

static int add_tensors(front *self, seen *call, PyObject *operands, PyObject *outs, int grads, int *given) {
  call->count = call->words = 0, call->hash = 0;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(operands); i += 1)
    if (add_tensor(self, call, PyTuple_GET_ITEM(operands, i), grads)) return -1;
  *given = call->count;
  if (add_word(call, -2)) return -1;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outs); i += 1)
    if (add_tensor(self, call, PyTuple_GET_ITEM(outs, i), grads)) return -1;
  return 0;
}

static void let_go(entry *each) {
  each->references -= 1;
  if (each->references) return;
  for (int i = 0; i < each->makings; i += 1) {
    Py_XDECREF(each->made[i].make);
    Py_XDECREF(each->made[i].arguments);
    Py_XDECREF(each->made[i].named);
  }
  Py_XDECREF(each->head);
  Py_XDECREF(each->texts);
  Py_XDECREF(each->launch);
  Py_XDECREF(each->told);
  Py_XDECREF(each->said);
  Py_XDECREF(each->forced);
  Py_XDECREF(each->graph);
  PyMem_Free(each);
}

static void remove_at(front *self, int at) {
  entry *gone = self->entries[at];
  self->count -= 1;
  memmove(self->entries + at, self->entries + at + 1, (self->count - at) * sizeof *self->entries);
  let_go(gone);
}

/* 1 or 0, or -1 with an error: whether an entry, of the same layouts, is of the same call under the same settings. */
static int same_call(entry *each, PyObject *head, PyObject *texts) {
  if (each->texts != texts) {
    const int same = PyObject_RichCompareBool(each->texts, texts, Py_EQ);
    if (same != 1) return same;
    Py_SETREF(each->texts, Py_NewRef(texts));
  }
  return PyObject_RichCompareBool(each->head, head, Py_EQ);
}

/* The entry of a call like this one, to be let go; NULL for none, with or without an error. */
static entry *find(front *self, const seen *call, PyObject *head, PyObject *texts) {
  for (int i = 0; i < self->count; i += 1) {
    entry *each = self->entries[i];
    if (each->hash != call->hash || each->words != call->words ||
        memcmp(each->layout, call->layout, call->words * sizeof *call->layout))
      continue;
    each->references += 1;
    const int same = same_call(each, head, texts);
    if (same == 1) return each;
    let_go(each);
    if (same < 0) return NULL;
  }
  return NULL;
}

static void remove_entry(front *self, const entry *gone) {
  for (int i = 0; i < self->count; i += 1)
    if (self->entries[i] == gone) {
      remove_at(self, i);
      return;
    }
}

/* Whether a result that the caller gave lies in the memory of an operand or of another result. */
static int shares(const entry *each, const uint64_t *addresses) {
  for (int out = each->operands; out < each->operands + each->outs; out += 1)
    for (int i = 0; i < out; i += 1) {
      const uint64_t begin = addresses[i] > addresses[out] ? addresses[i] : addresses[out];
      const uint64_t end = addresses[i] + each->reach[i], other = addresses[out] + each->reach[out];
      if (begin < (end < other ? end : other)) return 1;
    }
  return 0;
}

/* Makes the results that the caller gave none for, and takes in where they lie. -1: another way, with or without an error. */
static int make_results(front *self, const entry *each, PyObject *results, seen *call) {
  for (int i = 0; i < each->makings; i += 1) {
    const making *made = each->made + i;
    dl_tensor tensor;
    PyObject *result = PyObject_Call(made->make, made->arguments, made->named == Py_None ? NULL : made->named);
    if (!result) return -1;
    const int failed = PyList_Append(results, result) || self->dlpack->look(result, &tensor);
    Py_DECREF(result);
    if (failed || tensor.device.type != made->type || tensor.device.id != made->id) return -1;
    call->addresses[call->count++] = (uint64_t)tensor.data + tensor.byte_offset;
  }
  return 0;
}

static int last_stream(PyObject *event, void *stream) {
  PyObject *on = PyObject_GetAttr(event, s_recorded_on);
  const int behind = stream || !on || PyObject_IsTrue(on);
  Py_XDECREF(on);
  return PyErr_Occurred() ? -1 : behind;
}

/* One more call of a kind that is known, and its results. NULL: it must go another way and nothing was enqueued, with or without an
   error; or it was enqueued, and `*done` says so. */
static PyObject *make_again(front *self, entry *each, PyObject *outs, seen *call, int *done) {
  if (hooked(self->hooks, s_enter) || hooked(self->hooks, s_exit)) return NULL;
  if (PyDict_GetItemWithError(self->filter_of, s_filter) != Py_None) return NULL;
  if (!is_value(each->workspace, s_memory, each->memory) || !is_value(each->workspace, s_error, Py_None) ||
      truth(each->workspace, s_kept, 1) || *(volatile const int64_t *)each->fault)
    return NULL;
  if (each->outs && shares(each, call->addresses)) return NULL;
  PyObject *number = PyObject_CallOneArg(self->raw_stream, self->device), *results = NULL, *told = NULL;
  if (!number) return NULL;
  void *stream = PyLong_AsVoidPtr(number);
  int stopped = CAPTURED, status = 0, behind;
  if (cuda.capturing(stream, &status) || status) goto end;
  results = PySequence_List(outs);
  if (!results || make_results(self, each, results, call)) goto end;
  behind = last_stream(each->event, stream);
  if (behind < 0) goto end;
  if (!is_value(each->runtime, s_last, each->instance)) {
    told = PyObject_CallOneArg(self->called_last, each->instance);
    if (!told) goto end;
    Py_CLEAR(told);
  }
  Py_BEGIN_ALLOW_THREADS;
  PyThread_acquire_lock(each->graph->lock, WAIT_LOCK);
  enqueue(each->graph, call->addresses, stream, each->event_handle, behind, &stopped);
  PyThread_release_lock(each->graph->lock);
  Py_END_ALLOW_THREADS;
  if (stopped != ENQUEUED) goto end;
  *done = 1;
  if (!PyObject_SetAttr(each->event, s_recorded_on, number))
    told = PyObject_CallFunctionObjArgs(each->told, each->said, each->forced, NULL);
end:
  if (!told) Py_CLEAR(results);
  Py_XDECREF(told);
  Py_DECREF(number);
  return results;
}

/* As `front_again`; NULL as of `make_again`. */
static PyObject *look_up(front *self, PyObject *head, PyObject *operands, PyObject *outs, int grads, int *done) {
  seen call;
  int given;
  if (add_tensors(self, &call, operands, outs, grads, &given)) return NULL;
  PyObject *texts = Py_XNewRef(texts_now(self)), *results = NULL;
  entry *each = texts ? find(self, &call, head, texts) : NULL;
  Py_XDECREF(texts);
  if (!each) return NULL;
  /* While the launch is held, what is borrowed lives. */
  PyObject *launch = PyObject_CallNoArgs(each->launch);
  if (launch == Py_None)
    remove_entry(self, each);
  else if (launch)
    results = make_again(self, each, outs, &call, done);
  Py_XDECREF(launch);
  let_go(each);
  return results;
}

/* An answer in place of an error, unless somebody interrupts. */
static PyObject *instead(PyObject *answer) {
  if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
  PyErr_Clear();
  return Py_NewRef(answer);
}

PyDoc_STRVAR(again_doc, "again(head, operands, outs, grads): makes a call like one that was added once more, and gives its results "
                        "in a list. None: it must go another way, and nothing was enqueued.");
static PyObject *front_again(front *self, PyObject *const *given, Py_ssize_t count) {
  int done = 0;
  if (count != 4) return PyErr_SetString(PyExc_TypeError, "4 arguments"), NULL;
  PyObject *operands = PySequence_Tuple(given[1]), *outs = operands ? PySequence_Tuple(given[2]) : NULL;
  PyObject *results = outs ? look_up(self, given[0], operands, outs, given[3] == Py_True, &done) : NULL;
  Py_XDECREF(operands);
  Py_XDECREF(outs);
  if (results || done) return results;
  return instead(Py_None); /* the other way says what is wrong */
}

static int add_making(entry *each, PyObject *from) {
  making *made = each->made + each->makings;
  if (!PyArg_ParseTuple(from, "OO!Oii", &made->make, &PyTuple_Type, &made->arguments, &made->named, &made->type, &made->id))
    return -1;
  Py_INCREF(made->make);
  Py_INCREF(made->arguments);
  Py_INCREF(made->named);
  each->makings += 1;
  return 0;
}

PyDoc_STRVAR(add_doc,
             "add(head, operands, outs, grads, reach, makings, launch, graph, (workspace, memory, instance, runtime, event), "
             "event handle, address of the fault, told, said, forced): keeps a call; False where it is none that can be kept.\n\n"
             "reach: bytes of each operand and result. makings: for each result that is made, a function, its arguments, its named "
             "ones or None, and type and number of the device as DLPack has them. launch: a weak reference to what keeps the five.");
static PyObject *front_add(front *self, PyObject *arguments) {
  PyObject *head, *operands, *outs, *reach, *makings, *launch, *graph, *told, *said, *forced;
  PyObject *workspace, *memory, *instance, *runtime, *event;
  unsigned long long handle, fault;
  int grads, given;
  seen call;
  if (!PyArg_ParseTuple(arguments, "OO!O!pO!O!OO(OOOOO)KKOOO", &head, &PyTuple_Type, &operands, &PyTuple_Type, &outs, &grads,
                        &PyTuple_Type, &reach, &PyTuple_Type, &makings, &launch, &graph, &workspace, &memory, &instance, &runtime,
                        &event, &handle, &fault, &told, &said, &forced))
    return NULL;
  if (add_tensors(self, &call, operands, outs, grads, &given) || PyTuple_GET_SIZE(makings) > MOST_TENSORS ||
      PyTuple_GET_SIZE(reach) != call.count)
    return instead(Py_False);
  PyObject *texts = Py_XNewRef(texts_now(self));
  if (!texts) return instead(Py_False);
  entry *before = find(self, &call, head, texts);
  if (before) {
    remove_entry(self, before);
    let_go(before);
  }
  entry *each = PyErr_Occurred() ? NULL : PyMem_Calloc(1, sizeof *each);
  if (!each) return Py_DECREF(texts), instead(Py_False);
  each->references = 1;
  each->hash = call.hash, each->words = call.words;
  memcpy(each->layout, call.layout, call.words * sizeof *call.layout);
  each->head = Py_NewRef(head), each->texts = texts, each->launch = Py_NewRef(launch);
  each->told = Py_NewRef(told), each->said = Py_NewRef(said), each->forced = Py_NewRef(forced);
  each->graph = (recorded *)Py_NewRef(graph);
  each->workspace = workspace, each->memory = memory, each->instance = instance, each->runtime = runtime, each->event = event;
  each->event_handle = (void *)(uintptr_t)handle, each->fault = (const int64_t *)(uintptr_t)fault;
  each->operands = given, each->outs = call.count - given;
  for (int i = 0; i < call.count; i += 1) each->reach[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(reach, i));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(makings) && !PyErr_Occurred(); i += 1)
    add_making(each, PyTuple_GET_ITEM(makings, i));
  if (PyErr_Occurred()) return let_go(each), NULL;
  /* What an entry that goes held may add others as it ends. */
  while (self->count == MOST_ENTRIES) remove_at(self, 0);
  self->entries[self->count++] = each;
  Py_RETURN_TRUE;
}

#define OBJECTS(self)                                                                                                  \
  {&(self)->grad_enabled, &(self)->raw_stream, &(self)->called_last, &(self)->texts,    &(self)->os,                   \
   &(self)->hooks,        &(self)->filter_of,  &(self)->device,      &(self)->environ, &(self)->words_of}

PyDoc_STRVAR(front_doc, "Front(DLPack's functions, Tensor, Parameter, is_grad_enabled, raw stream of a device, device, called_last, "
                        "texts of settings, os, Triton's hooks, dictionary of the launch layer): calls that were made graphs.");
static PyObject *front_new(PyTypeObject *type, PyObject *arguments, PyObject *named) {
  PyObject *capsule, *tensor, *parameter, *enabled, *raw, *device, *last, *texts, *os, *hooks, *filter;
  if (!PyArg_ParseTuple(arguments, "OO!O!OOOOOOOO!", &capsule, &PyType_Type, &tensor, &PyType_Type, &parameter, &enabled, &raw,
                        &device, &last, &texts, &os, &hooks, &PyDict_Type, &filter))
    return NULL;
  const dl_exchange *dlpack = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  if (!dlpack) return NULL;
  if (dlpack->version.major != 1 || !dlpack->look) return PyErr_SetString(PyExc_ValueError, "another DLPack"), NULL;
  front *self = (front *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->dlpack = dlpack;
  /* Types of torch's live as long as the process. */
  self->tensor = (PyTypeObject *)tensor, self->parameter = (PyTypeObject *)parameter;
  self->grad_enabled = Py_NewRef(enabled), self->raw_stream = Py_NewRef(raw), self->device = Py_NewRef(device);
  self->called_last = Py_NewRef(last), self->texts = Py_NewRef(texts), self->os = Py_NewRef(os);
  self->hooks = Py_NewRef(hooks), self->filter_of = Py_NewRef(filter);
  return (PyObject *)self;
}

static int front_traverse(front *self, visitproc visit, void *arg) {
  PyObject **objects[] = OBJECTS(self);
  Py_VISIT(Py_TYPE(self));
  for (size_t i = 0; i < sizeof objects / sizeof *objects; i += 1) Py_VISIT(*objects[i]);
  for (int i = 0; i < self->count; i += 1) {
    entry *each = self->entries[i];
    if (each->references > 1) continue; /* somebody calls it, and keeps all of it */
    PyObject *held[] = {each->head, each->texts, each->launch, each->told, each->said, each->forced, (PyObject *)each->graph};
    for (size_t j = 0; j < sizeof held / sizeof *held; j += 1) Py_VISIT(held[j]);
    for (int j = 0; j < each->makings; j += 1) {
      Py_VISIT(each->made[j].make);
      Py_VISIT(each->made[j].arguments);
      Py_VISIT(each->made[j].named);
    }
  }
  return 0;
}

static int front_clear(front *self) {
  PyObject **objects[] = OBJECTS(self);
  while (self->count) remove_at(self, self->count - 1);
  for (size_t i = 0; i < sizeof objects / sizeof *objects; i += 1) Py_CLEAR(*objects[i]);
  return 0;
}

static void front_end(front *self) {
  PyTypeObject *type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  front_clear(self);
  type->tp_free(self);
  Py_DECREF(type);
}

static PyMethodDef front_methods[] = {
    {"again", (PyCFunction)(void (*)(void))front_again, METH_FASTCALL, again_doc},
    {"add", (PyCFunction)front_add, METH_VARARGS, add_doc},
    {NULL},
};
static PyType_Slot front_slots[] = {
    {Py_tp_doc, (void *)front_doc},   {Py_tp_new, front_new},     {Py_tp_dealloc, front_end}, {Py_tp_traverse, front_traverse},
    {Py_tp_clear, front_clear},       {Py_tp_methods, front_methods}, {0, NULL},
};
static PyType_Spec front_spec = {"overlap_native.Front", sizeof(front), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, front_slots};

static const struct {
  PyObject **name;
  const char *text;
} NAMES[] = {
    {&s_environ, "environ"},         {&s_data, "_data"},    {&s_is_neg, "is_neg"},           {&s_requires_grad, "requires_grad"},
    {&s_enter, "launch_enter_hook"}, {&s_exit, "launch_exit_hook"}, {&s_calls, "calls"},     {&s_filter, "STEP_FILTER"},
    {&s_memory, "memory"},           {&s_error, "error"},   {&s_kept, "kept"},               {&s_last, "overlap_last"},
    {&s_recorded_on, "recorded_on"},
};
