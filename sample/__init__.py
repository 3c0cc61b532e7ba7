"""The upstream in miniature that the demo and the tests build."""
