# Writes the entry of debian/changelog for `version` from CHANGELOG.md: what is unreleased, and the
# section of that version. The caller sets version, maintainer and date.
BEGIN {
    printf "towpath (%s-1) unstable; urgency=medium\n", version
    # Debian's tools expect lines of at most 80 characters.
    width = 78
}

# Writes the collected item as a paragraph with a hanging indent.
function flush(    words, count, i, line) {
    count = split(item, words, " ")
    line = "  *"
    for (i = 1; i <= count; i++) {
        if (length(line) + 1 + length(words[i]) > width) {
            print line
            line = "   "
        }
        line = line " " words[i]
    }
    if (count)
        print line
    item = ""
}

/^## / {
    flush()
    is_wanted = $2 == "[Unreleased]" || $2 == "[" version "]"
    next
}
!is_wanted { next }
/^### / {
    flush()
    heading = substr($0, 5)
    gsub(/`/, "", heading)
    printf "\n  [ %s ]\n", heading
    next
}
/^- / { flush(); item = substr($0, 3); next }
/^  / && item { item = item $0; next }
END {
    flush()
    printf "\n -- %s  %s\n", maintainer, date
}
