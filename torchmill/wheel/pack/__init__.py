"""From the raw wheel to the delivered one: repair, tags, metadata, zip.

- bundling: bundle the libraries that a wheel needs and that are neither in it nor on every system
- compressor: compress files into members, and keep compressed members in a cache
- elf: read ELF files and static libraries
- elf_edit: edit the names and run paths in ELF files
- licences: the packages that installed bundled libraries, and their licence files
- macos: repair wheels for macOS by delocate, and check Mach-O files against the platform tag
- metadata: edit, normalize and compare what a wheel declares in METADATA and WHEEL
- policy: what a Linux platform tag promises
- repair: bundle libraries and keep run paths inside the wheel
- staging: extract the files of a wheel that are edited; the others stay in the raw wheel
- wheel_writer: write RECORD and the zip archive
- zip_reader: extract members, and refuse members that must not be extracted
- zip_writer: read and digest files, deflate them in blocks, write members and the directory
"""
