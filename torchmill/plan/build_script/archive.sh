    rm -rf "$work/archive"
    "$python" -m pip download --quiet --no-deps --no-build-isolation --no-binary :all: \
      --dest "$work/archive" @archive@
    found=$(sha256sum "$work"/archive/* | cut -d ' ' -f 1) want=@sha256@
    if [ -n "$want" ] && [ "$found" != "$want" ]; then
      echo "error: the archive has the sha256 $found, expected $want" >&2
      exit 5
    fi
    mkdir "$source"
    tar --extract --strip-components 1 --directory "$source" --file "$work"/archive/*.tar.*
