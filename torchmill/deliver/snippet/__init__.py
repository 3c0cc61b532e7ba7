"""What a project declares to use the wheels.

- decision: decide for each platform of a project which wheels it uses and where they come from
- lines: A decision as requirements (PEP 508), sources and TOML, which all package managers share
- stock: the wheels on offer for a snippet: in a folder, in an index, or official ones
- tools: snippets for uv, Poetry, PDM, pip and pixi
"""
