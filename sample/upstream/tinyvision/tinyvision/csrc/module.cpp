#include <Python.h>

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

PyMethodDef methods[] = {
    {"scale", scale, METH_VARARGS, "Return a length after scaling."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C", "tinyvision's part in C++.", -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&definition); }
