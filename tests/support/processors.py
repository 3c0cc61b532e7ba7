"""Features of processors, in the words of /proc/cpuinfo."""

PROCESSORS = {  # arch -> features of a server
    "x86_64": ("sse4_1", "sse4_2", "avx", "f16c", "fma", "avx2", "bmi1", "bmi2", "avx512f"),
    "aarch64": (
        "asimd", "aes", "pmull", "crc32", "atomics", "fphp", "asimdhp", "asimdrdm", "lrcpc",
        "asimddp", "sve",
    ),
}  # fmt: skip
CORTEX_A72 = ("fp", "asimd", "evtstrm", "crc32", "cpuid")  # of a Raspberry Pi 4
