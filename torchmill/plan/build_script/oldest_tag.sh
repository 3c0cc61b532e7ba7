"$work/tools/bin/pip" install --quiet auditwheel || true
shown=$(auditwheel show --json "$raw"/*.whl 2> /dev/null || auditwheel show "$raw"/*.whl 2> /dev/null | tr '\n' ' ' || true)
# what its symbols allow: of an extension, whose torch is not found, the whole is no more than linux_ARCH
found=$(grep -oE '("sym_tag": |platform tag: |the platform tag to )"manylinux_[a-z0-9_]+' <<< "$shown" | head -n 1 || true)
[ -z "$found" ] || tag=${found##*\"}
