# From the matrix of a runner to lines for $GITHUB_OUTPUT: of each variant the first Python, the rest, and the numbers
# of the shares.

def shares: if $shards | test("^([1-9]|[1-9][0-9]|1[0-9][0-9]|2[0-4][0-9]|25[0-6])$")
  then [range(1; ($shards | tonumber) + 1)]
  else error("\($shards) shards: GitHub runs 1 to 256 jobs side by side")
  end;

group_by(.variant)
| "first=\(map(.[0]) | tojson)", "rest=\(map(.[1:]) | add // [] | tojson)", "shares=\(shares | tojson)"
