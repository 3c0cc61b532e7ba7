# From what `torchmill build --new-torch --dry-run --json` prints to lines for $GITHUB_OUTPUT: the tag of the new torch,
# the jobs, and the numbers of the shares.

def shares: if $shards | test("^([1-9]|[1-9][0-9]|1[0-9][0-9]|2[0-4][0-9]|25[0-6])$")
  then [range(1; ($shards | tonumber) + 1)]
  else error("\($shards) shards: GitHub runs 1 to 256 jobs side by side")
  end;

if (.jobs | length) > 256
  then error("\(.jobs | length) jobs and GitHub runs at most 256: name fewer packages, Pythons or variants")
  else .
  end
| "new=true", "tag=\(.tag)", "jobs=\(.jobs | tojson)", "shares=\(shares | tojson)"
