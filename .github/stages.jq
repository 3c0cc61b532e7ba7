# From the matrix of a runner to two of them, as lines for $GITHUB_OUTPUT: of each variant the first Python, and the rest.

group_by(.variant)
| "first=\(map(.[0]) | tojson)", "rest=\(map(.[1:]) | add // [] | tojson)"
