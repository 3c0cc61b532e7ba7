#include "values.h"

// As numpy, a Python package that brings headers.
#if __has_include(<tinynum/version.h>)
#include <tinynum/version.h>
#else
#define TINYNUM_VERSION nullptr
#endif

bool read(PyObject* object, tiny::Values<double>& values) {
  PyObject* items = PySequence_Fast(object, "expected a sequence of numbers");
  if (items == nullptr) {
    return false;
  }
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items); ++i) {
    values.push_back(PyFloat_AsDouble(PySequence_Fast_GET_ITEM(items, i)));
  }
  Py_DECREF(items);
  return PyErr_Occurred() == nullptr;
}

const char* tinynum_version() { return TINYNUM_VERSION; }
