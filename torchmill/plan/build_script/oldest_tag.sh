"$work/tools/bin/pip" install --quiet auditwheel || true
shown=$(auditwheel show "$raw"/*.whl 2> /dev/null | tr '\n' ' ' || true)
found=$(grep -oE 'following platform tag: "manylinux_[a-z0-9_]+"' <<< "$shown" || true)
[ -z "$found" ] || tag=$(cut -d '"' -f 2 <<< "$found")
