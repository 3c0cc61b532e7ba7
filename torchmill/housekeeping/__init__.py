"""Look after what builds leave behind: what is stored where, what can go, and whether the next build fits."""
