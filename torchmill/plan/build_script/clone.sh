    git clone --quiet --recursive --branch @tag@ @repository@ "$source"
    found=$(git -C "$source" rev-parse HEAD) want=@commit@
    if [ -n "$want" ] && [ "$found" != "$want" ]; then
      echo "error: the tag is commit $found, expected $want" >&2
      exit 5
    fi
