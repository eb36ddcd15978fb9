/* A recorded call enqueued by one call from Python (`overlap.runtime.cuda.call_graph`).

   addresses of the call -> parameters of the nodes that take them -> the driver is told of nodes whose addresses are new
                            behind the last call's event | the graph | the event of this one

   What stays from call to call lies here in few cache lines: a host that has done other work finds nothing of it in its caches, and
   waits some hundred nanoseconds for each line. The driver is called without Python's lock, since it may wait for the device. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#define MOST_ADDRESSES 64
#define NO_CONTEXT 201 /* of a thread that has not done anything yet */
enum { ENQUEUED, CAPTURED, IN_KERNEL, IN_MAP, IN_COPY, IN_WAIT, IN_LAUNCH, IN_RECORD };
enum { T_GIVE, T_WAIT, T_LAUNCH, T_RECORD, TIMES };

/* Functions of libcuda, by the types of the CUDA driver API; each gives 0 or what went wrong. */
static struct {
  int (*capturing)(void *stream, int *status);
  int (*give_kernel)(void *made, void *node, const void *parameters);
  int (*give_copy)(void *made, void *node, const void *parameters, void *context);
  int (*map_over)(void *map, void *address);
  int (*wait)(void *stream, void *event, unsigned flags);
  int (*launch)(void *made, void *stream);
  int (*record)(void *event, void *stream);
} cuda;

static const struct {
  const char *name;
  size_t at;
} FUNCTIONS[] = {
    {"cuStreamIsCapturing", offsetof(__typeof__(cuda), capturing)},
    {"cuGraphExecKernelNodeSetParams_v2", offsetof(__typeof__(cuda), give_kernel)},
    {"cuGraphExecMemcpyNodeSetParams", offsetof(__typeof__(cuda), give_copy)},
    {"cuTensorMapReplaceAddress", offsetof(__typeof__(cuda), map_over)},
    {"cuStreamWaitEvent", offsetof(__typeof__(cuda), wait)},
    {"cuGraphLaunch", offsetof(__typeof__(cuda), launch)},
    {"cuEventRecord", offsetof(__typeof__(cuda), record)},
};

/* Nanoseconds in the driver since they were asked for, by kind of call; kept while `timing`. */
static int timing;
static unsigned long long spent[TIMES];

/* One place in the parameters of a node, and the address that it has. */
typedef struct {
  int which; /* of the call's addresses */
  int is_map;
  uint64_t offset, has;
  void *slot; /* where the address stands, or the tensor map that is put over it */
} taken;

typedef struct {
  void *node, *parameters, *context; /* the last for a copy, which else is NULL */
  int from, to;                      /* of all places of the graph */
} node;

typedef struct {
  PyObject_HEAD
  void *made;
  int count, refused; /* nodes; whether a copy's took no address once, as of memory that was not allocated as the first was */
  node *nodes;
  taken *places;
  PyThread_type_lock lock;
  PyObject *kept; /* memory that parameters lie in */
} recorded;

static unsigned long long now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec * 1000000000ull + at.tv_nsec;
}

#define CALL(kind, call)                                                                                               \
  do {                                                                                                                 \
    unsigned long long begin = timing ? now() : 0;                                                                     \
    error = (call);                                                                                                    \
    if (timing) spent[kind] += now() - begin;                                                                          \
  } while (0)

/* Gives later launches of the graph the addresses of a call; nodes that have them are not told. */
static int give(recorded *self, const uint64_t *addresses, int *error_at) {
  for (node *each = self->nodes; each < self->nodes + self->count; each += 1) {
    taken *begin = self->places + each->from, *end = self->places + each->to;
    int fresh = 0, error = 0;
    for (taken *place = begin; place < end; place += 1) {
      const uint64_t address = addresses[place->which] + place->offset;
      if (address == place->has) continue;
      fresh = 1;
      place->has = 0; /* until the driver has taken it */
      if (place->is_map)
        CALL(T_GIVE, cuda.map_over(place->slot, (void *)address));
      else
        *(uint64_t *)place->slot = address;
      if (error) return *error_at = IN_MAP, error;
    }
    if (!fresh) continue;
    if (each->context)
      CALL(T_GIVE, cuda.give_copy(self->made, each->node, each->parameters, each->context));
    else
      CALL(T_GIVE, cuda.give_kernel(self->made, each->node, each->parameters));
    self->refused = error && each->context && error != NO_CONTEXT;
    if (error) return *error_at = each->context ? IN_COPY : IN_KERNEL, error;
    for (taken *place = begin; place < end; place += 1) place->has = addresses[place->which] + place->offset;
  }
  return 0;
}

static int enqueue(recorded *self, const uint64_t *addresses, void *stream, void *event, int behind, int *error_at) {
  int status = 0, error = 0;
  if (self->refused) return *error_at = IN_COPY, 0;
  error = cuda.capturing(stream, &status);
  /* Any other error the way by steps meets as well, and says so. */
  if (error || status) return *error_at = CAPTURED, error == NO_CONTEXT ? error : 0;
  error = give(self, addresses, error_at);
  if (error) return error;
  if (behind) CALL(T_WAIT, cuda.wait(stream, event, 0));
  if (error) return *error_at = IN_WAIT, error;
  CALL(T_LAUNCH, cuda.launch(self->made, stream));
  if (error) return *error_at = IN_LAUNCH, error;
  CALL(T_RECORD, cuda.record(event, stream));
  return *error_at = error ? IN_RECORD : ENQUEUED, error;
}

static int addresses_of(PyObject *list, uint64_t *addresses) {
  const Py_ssize_t count = PyList_Size(list);
  if (count < 0 || count > MOST_ADDRESSES) return PyErr_Format(PyExc_ValueError, "%zd addresses", count), -1;
  for (Py_ssize_t i = 0; i < count; i += 1) addresses[i] = PyLong_AsUnsignedLongLong(PyList_GET_ITEM(list, i));
  return PyErr_Occurred() ? -1 : 0;
}

PyDoc_STRVAR(launch_doc, "launch(stream, event, behind, addresses): enqueues a call; gives where it stopped, 0 if nowhere, and "
                         "the driver's error.");
static PyObject *recorded_launch(recorded *self, PyObject *const *given, Py_ssize_t count) {
  uint64_t addresses[MOST_ADDRESSES];
  int stopped = ENQUEUED, error;
  if (count != 4) return PyErr_Format(PyExc_TypeError, "4 arguments"), NULL;
  void *stream = PyLong_AsVoidPtr(given[0]), *event = PyLong_AsVoidPtr(given[1]);
  const int behind = PyObject_IsTrue(given[2]);
  if (PyErr_Occurred() || addresses_of(given[3], addresses)) return NULL;
  Py_BEGIN_ALLOW_THREADS;
  PyThread_acquire_lock(self->lock, WAIT_LOCK);
  error = enqueue(self, addresses, stream, event, behind, &stopped);
  PyThread_release_lock(self->lock);
  Py_END_ALLOW_THREADS;
  if (stopped == ENQUEUED) Py_RETURN_NONE;
  return Py_BuildValue("ii", stopped, error);
}

static int add_place(recorded *self, PyObject *from, int number) {
  taken *place = self->places + number;
  unsigned long long offset, has, slot;
  if (!PyArg_ParseTuple(from, "iKKKp", &place->which, &offset, &has, &slot, &place->is_map)) return -1;
  place->offset = offset, place->has = has, place->slot = (void *)(uintptr_t)slot;
  return place->which < 0 || place->which >= MOST_ADDRESSES ? (PyErr_SetString(PyExc_ValueError, "an address"), -1) : 0;
}

PyDoc_STRVAR(recorded_doc,
             "Recorded(made, nodes, kept): a graph made ready to be launched, which belongs to the caller.\n\n"
             "nodes: of each that takes addresses its handle, its parameters, a context (0 for kernels) and its places: which of "
             "the call's addresses, what is added to it, what it has, where it stands, whether that is a tensor map.\n"
             "kept: what holds the memory of all that.");
static PyObject *recorded_new(PyTypeObject *type, PyObject *arguments, PyObject *named) {
  unsigned long long made;
  PyObject *nodes, *kept;
  if (!PyArg_ParseTuple(arguments, "KO!O", &made, &PyList_Type, &nodes, &kept)) return NULL;
  recorded *self = (recorded *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->made = (void *)(uintptr_t)made;
  self->kept = Py_NewRef(kept);
  self->count = (int)PyList_GET_SIZE(nodes);
  self->nodes = PyMem_Calloc(self->count + 1, sizeof *self->nodes);
  self->lock = PyThread_allocate_lock();
  int places = 0;
  for (int i = 0; self->nodes && i < self->count; i += 1) {
    unsigned long long handle, parameters, context;
    PyObject *list;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(nodes, i), "KKKO!", &handle, &parameters, &context, &PyList_Type, &list)) goto bad;
    self->nodes[i] = (node){(void *)(uintptr_t)handle, (void *)(uintptr_t)parameters, (void *)(uintptr_t)context, places,
                            places + (int)PyList_GET_SIZE(list)};
    places = self->nodes[i].to;
  }
  self->places = PyMem_Calloc(places + 1, sizeof *self->places);
  if (!self->nodes || !self->places || !self->lock) {
    PyErr_NoMemory();
    goto bad;
  }
  for (int i = 0; i < self->count; i += 1) {
    PyObject *list = PyTuple_GET_ITEM(PyList_GET_ITEM(nodes, i), 3);
    for (int j = self->nodes[i].from; j < self->nodes[i].to; j += 1)
      if (add_place(self, PyList_GET_ITEM(list, j - self->nodes[i].from), j)) goto bad;
  }
  return (PyObject *)self;
bad:
  Py_DECREF(self);
  return NULL;
}

static void recorded_end(recorded *self) {
  PyTypeObject *type = Py_TYPE(self);
  PyMem_Free(self->nodes);
  PyMem_Free(self->places);
  if (self->lock) PyThread_free_lock(self->lock);
  Py_XDECREF(self->kept);
  type->tp_free(self);
  Py_DECREF(type);
}

static PyMethodDef recorded_methods[] = {
    {"launch", (PyCFunction)(void (*)(void))recorded_launch, METH_FASTCALL, launch_doc},
    {NULL},
};
static PyType_Slot recorded_slots[] = {
    {Py_tp_doc, (void *)recorded_doc},
    {Py_tp_new, recorded_new},
    {Py_tp_dealloc, recorded_end},
    {Py_tp_methods, recorded_methods},
    {0, NULL},
};
static PyType_Spec recorded_spec = {"overlap_native.Recorded", sizeof(recorded), 0, Py_TPFLAGS_DEFAULT, recorded_slots};
