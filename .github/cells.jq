# From what `nox --list --json` prints to the matrix of build.yml: one cell per Python and variant.
# The tags of a session begin with its first word, its package and its variant. A session of another architecture
# (run in a container) has that in its name and is left to the runner that builds it natively. The fifth tag is "untried" if
# nobody is known to have built such a wheel: hours of a runner are spent on it only if its variant is named.

def words: split(" ") - [""];
# uv, which brings the Pythons, has none before 3.8, and hosted runners have none either.
def brought: (split(".")[1] | rtrimstr("t") | tonumber) >= 8;
def wanted($list): . as $value | ($list | words) as $words | $words == [] or any($words[]; . == $value);

map({session, python, word: .tags[0], variant: .tags[2], untried: (.tags[4] == "untried")})
| map(select(.session == "\(.word)-\(.python)-\(.variant)"))
| map(select((.python | wanted($pythons)) and (.variant | wanted($variants))))
| map(select($pythons != "" or (.python | brought)))
| map(select($variants != "" or (.untried | not)))
| if any(.[]; .python | brought | not)
  then error("no hosted runner has a Python before 3.8: leave out \(map(.python) | unique | map(select(brought | not)) | join(" "))")
  else .
  end
| group_by([.python, .variant])
| map({python: .[0].python, variant: .[0].variant, sessions: (map(.session) | join(" "))})
| if length > 256
  then error("\(length) cells match and GitHub runs at most 256: name fewer Pythons or variants")
  else .
  end
