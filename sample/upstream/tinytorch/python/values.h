#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <tiny/array.h>

// Returns false, with a Python exception set, unless `object` is a sequence of numbers.
bool read(PyObject* object, tiny::Values<double>& values);

// Returns the version of tinynum's headers; null where it was not installed.
const char* tinynum_version();
