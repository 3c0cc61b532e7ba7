"""From the raw wheel to the delivered one: repair, tags, metadata, zip.

- bundling: carry along the libraries that a wheel needs and that are neither in it nor on every system
- compressor: compressed members, kept by what they hold, so that the next wheel with the same library
  copies its bytes
- elf: read ELF files: what they need, what they are called, where they look
- elf_edit: what is to change in an ELF file
- licences: which package of the system, or of PyPI, a library that came along belongs to
- macos: read Mach-O files: which machines they are for, which macOS they need
- metadata: METADATA in one spelling: all wheels of a version say the same, whatever Python and tools made
  them
- policy: what a wheel's files want from the system, read off their headers, for a platform's policy to
  judge
- repair: make a wheel carry what it needs: outside libraries come along, run paths stay inside
- staging: tell what of a raw wheel can stay in it until the wheel is packed
- wheel_writer: write a wheel: RECORD and the zip, the same bytes for the same files, whatever the number
  of threads
- zip_reader: take the members of a zip archive out, several at a time
- zip_writer: write a zip archive, member after member, into a file that can be sought in
"""
