"""What the tests of millpress share, and the tests of torchmill that need wheels."""
