#include <Python.h>

#include <tiny/geometry.h>
#include <tiny/ops.h>

namespace {

PyObject* scale(PyObject*, PyObject* arguments) {
  double value = 0;
  double factor = 0;
  if (!PyArg_ParseTuple(arguments, "dd", &value, &factor)) {
    return nullptr;
  }
  return PyFloat_FromDouble(tiny::scale(value, factor));
}

PyObject* diagonal(PyObject*, PyObject* arguments) {
  double width = 0;
  double height = 0;
  if (!PyArg_ParseTuple(arguments, "dd", &width, &height)) {
    return nullptr;
  }
  return PyFloat_FromDouble(tiny::diagonal(width, height));
}

PyMethodDef methods[] = {
    {"scale", scale, METH_VARARGS, "Return a length after scaling."},
    {"diagonal", diagonal, METH_VARARGS, "Return the length of a picture's diagonal."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C", "tinyvision's part in C++.", -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&definition); }
