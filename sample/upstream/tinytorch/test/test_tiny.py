import unittest

import tinytorch


class TestArithmetic(unittest.TestCase):
    def test_add(self):
        self.assertEqual(tinytorch.add(1.5, 2), 3.5)

    def test_scale(self):
        self.assertEqual(tinytorch.scale(3, 2), 6)

    def test_total(self):
        self.assertEqual(tinytorch.total([1, 2, 3.5]), 6.5)


class TestFit(unittest.TestCase):
    def test_line(self):
        constant, slope = tinytorch.fit([0, 1, 2], [1, 3, 5], 1)
        self.assertAlmostEqual(constant, 1)
        self.assertAlmostEqual(slope, 2)

    @unittest.skipUnless(tinytorch.config()["USE_TINY_FAST"], "tinytorch is compiled without its fast kernels")
    def test_fast(self):
        self.assertAlmostEqual(tinytorch.fit([0, 1, 2, 3], [0, 1, 4, 9], 2)[2], 1)
