/* The module, of what graph.c and calls.c make; the three are one source. */
PyDoc_STRVAR(times_doc, "times(): nanoseconds in the driver since the last time, by kind of call; it keeps them from now on.");
static PyObject *times(PyObject *module, PyObject *none) {
  unsigned long long was[TIMES];
  memcpy(was, spent, sizeof was);
  memset(spent, 0, sizeof spent);
  timing = 1;
  return Py_BuildValue("{sKsKsKsK}", "addresses given to nodes", was[T_GIVE], "cuStreamWaitEvent", was[T_WAIT], "cuGraphLaunch",
                       was[T_LAUNCH], "cuEventRecord", was[T_RECORD]);
}

static PyMethodDef functions[] = {{"times", times, METH_NOARGS, times_doc}, {NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "overlap_native", NULL, -1, functions};

static int add_type(PyObject *module, const char *name, PyType_Spec *spec) {
  PyObject *type = PyType_FromSpec(spec);
  if (type && !PyModule_AddObject(module, name, type)) return 0;
  Py_XDECREF(type);
  return -1;
}

PyMODINIT_FUNC PyInit_overlap_native(void) {
#ifdef Py_GIL_DISABLED
  return PyErr_SetString(PyExc_ImportError, "entries are guarded by Python's lock, which this Python has not got"), NULL;
#endif
  void *library = dlopen("libcuda.so.1", RTLD_LAZY);
  if (!library) return PyErr_Format(PyExc_ImportError, "no CUDA driver: %s", dlerror()), NULL;
  for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i += 1) {
    void *found = dlsym(library, FUNCTIONS[i].name);
    if (!found) return PyErr_Format(PyExc_ImportError, "the CUDA driver has no %s", FUNCTIONS[i].name), NULL;
    memcpy((char *)&cuda + FUNCTIONS[i].at, &found, sizeof found);
  }
  for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i += 1)
    if (!(*NAMES[i].name = PyUnicode_InternFromString(NAMES[i].text))) return NULL;
  PyObject *module = PyModule_Create(&definition);
  if (module && !add_type(module, "Recorded", &recorded_spec) && !add_type(module, "Front", &front_spec)) return module;
  Py_XDECREF(module);
  return NULL;
}
