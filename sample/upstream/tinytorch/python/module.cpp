#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <tiny/ops.h>

#include "values.h"

namespace {

PyObject* add(PyObject*, PyObject* arguments) {
  double left = 0;
  double right = 0;
  if (!PyArg_ParseTuple(arguments, "dd", &left, &right)) {
    return nullptr;
  }
  return PyFloat_FromDouble(tiny::add(left, right));
}

PyObject* scale(PyObject*, PyObject* arguments) {
  double value = 0;
  double factor = 0;
  if (!PyArg_ParseTuple(arguments, "dd", &value, &factor)) {
    return nullptr;
  }
  return PyFloat_FromDouble(tiny::scale(value, factor));
}

PyObject* total(PyObject*, PyObject* object) {
  tiny::Values<double> values;
  return read(object, values) ? PyFloat_FromDouble(tiny::sum(values)) : nullptr;
}

PyObject* fit(PyObject*, PyObject* arguments) {
  PyObject* xs = nullptr;
  PyObject* ys = nullptr;
  unsigned int degree = 0;
  tiny::Values<double> x;
  tiny::Values<double> y;
  if (!PyArg_ParseTuple(arguments, "OOI", &xs, &ys, &degree) || !read(xs, x) || !read(ys, y)) {
    return nullptr;
  }
  try {
    const auto coefficients = tiny::fit(x, y, degree);
    PyObject* list = PyList_New(0);
    for (const double coefficient : coefficients) {
      PyObject* number = PyFloat_FromDouble(coefficient);
      PyList_Append(list, number);
      Py_DECREF(number);
    }
    return list;
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
    return nullptr;
  }
}

PyObject* config(PyObject*, PyObject*) {
  PyObject* switches = PyDict_New();
  for (const auto& [name, value] : tiny::switches()) {
    PyDict_SetItemString(switches, name.c_str(), value ? Py_True : Py_False);
  }
  return switches;
}

PyObject* built_with(PyObject*, PyObject*) {
  return Py_BuildValue("{s:s,s:z}", "python", PY_VERSION, "tinynum", tinynum_version());
}

PyMethodDef methods[] = {
    {"add", add, METH_VARARGS, "Return the sum of two numbers."},
    {"scale", scale, METH_VARARGS, "Return a number times a factor."},
    {"total", total, METH_O, "Return the sum of a sequence of numbers."},
    {"fit", fit, METH_VARARGS, "Return the polynomial of a degree nearest to points, constant first."},
    {"config", config, METH_NOARGS, "Return the switches that were compiled in."},
    {"built_with", built_with, METH_NOARGS, "Return whose headers were read, and of which version."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C", "tiny, for Python.", -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&definition); }
