#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The documentation as a site of plain files: scripts/site.sh FOLDER
#
# Pages are README.md, what it leads to, docs/ and the manual pages. A link to another file of the source
# tree becomes a link to a copy of it. The search needs no server.
set -eu -o pipefail
cd "$(dirname "$0")/.."
site=${1:?usage: scripts/site.sh FOLDER}
for tool in cmark-gfm mandoc; do
    command -v $tool >/dev/null || { echo "site: $tool is missing; scripts/deps.sh site installs it" >&2; exit 1; }
done
# Only a site is replaced: another folder given by mistake is not emptied.
if [ -e "$site" ] && { [ ! -d "$site" ] || [ -n "$(ls -A "$site")" ]; } && [ ! -f "$site/pages.js" ]; then
    echo "site: $site is there already, and is no site; name another folder" >&2
    exit 1
fi
rm -rf "$site"
mkdir -p "$site"
cp scripts/site/site.css scripts/site/search.js "$site"

# A page's address: README.md is index.html of its folder.
address() { # source file
    case $1 in
    *README.md) echo "${1%README.md}index.html" ;;
    *.md) echo "${1%.md}.html" ;;
    *.[13]) echo "$1.html" ;;
    *) echo "$1" ;;
    esac
}

# Headings get the names that links use: lower case, words joined by '-', no other signs.
name_headings() {
    awk 'match($0, /<h[1-6]>/) {
            text = $0; gsub(/<[^>]*>|&[a-z]+;/, "", text); text = tolower(text)
            gsub(/[^a-z0-9 _-]/, "", text); gsub(/ /, "-", text)
            if (seen[text]++) text = text "-" (seen[text] - 1)
            sub(/<h[1-6]>/, substr($0, RSTART, 3) " id=\"" text "\">")
        } { print }'
}

body_of() { # source file
    case $1 in
    *.md) cmark-gfm --unsafe -e table -e strikethrough "$1" | name_headings ;;
    *) mandoc -T html -O fragment,man=%N.%S.html "$1" ;;
    esac
}

# Each link to a file of the tree, and what it becomes: prints "link<TAB>new link<TAB>source file".
links_of() { # source file, its body
    local dir link path target
    dir=$(dirname "$1")
    { grep -o -E '(href|src)="[^"#:]+["#]' "$2" || true; } | sed 's/^[a-z]*="//; s/.$//' | sort -u | while read -r link; do
        case $1 in *.[13]) # mandoc's own links to pages: libfsdp has some of them
            [ -e "$dir/${link%.html}" ] && printf '%s\t%s\t%s\n' "$link" "$link" "$dir/${link%.html}"
            continue ;;
        esac
        path=$(realpath -m --relative-to=. "$dir/$link")
        [ -d "$path" ] && [ -e "$path/README.md" ] && path=$path/README.md
        [ -d "$path" ] && path=docs/README.md # which lists what there is
        [ -f "$path" ] || { echo "site: $1: '$link' leads nowhere" >&2; continue; }
        target=$(address "$path")
        printf '%s\t%s\t%s\n' "$link" "$(realpath -m --relative-to="$dir" "$target")" "$path"
    done
}

# HTML as the inside of a text in JavaScript.
as_text() {
    sed -e 's/<[^>]*>/ /g' -e 's/&quot;/"/g; s/&lt;/</g; s/&gt;/>/g; s/&amp;/\&/g' | tr -s '\n\t ' ' ' | sed -e 's/\\/\\\\/g; s/"/\\"/g; s/ $//'
}

page() { # source file
    local to root title body=$site/.body
    to=$(address "$1")
    mkdir -p "$site/$(dirname "$to")"
    body_of "$1" >"$body"
    links_of "$1" "$body" >"$site/.links"
    while IFS=$'\t' read -r link new path; do
        [ "$link" = "$new" ] || sed -i -E "s|(href\|src)=\"$link([\"#])|\1=\"$new\2|g" "$body"
        case $path in
        *.md | *.[13]) queue+=("$path") ;;
        *) mkdir -p "$site/$(dirname "$path")"; cp "$path" "$site/$path" ;;
        esac
    done <"$site/.links"
    # A manual page that is not ours is no link.
    case $1 in *.[13])
        for link in $({ grep -o -E 'href="[^"#:]+\.html' "$body" || true; } | sed 's/href="//' | sort -u); do
            [ -e "$(dirname "$1")/${link%.html}" ] || sed -i "s| href=\"$link\"||g" "$body"
        done ;;
    esac
    root=$(realpath -m --relative-to="$(dirname "$to")" .)/
    title=$(sed -n 's/.*<h1[^>]*>\(.*\)<\/h1>.*/\1/p' "$body" | sed 's/<[^>]*>//g' | head -n 1)
    case $1 in *.[13]) title="$(basename "${1%.?}")(${1##*.})" ;; esac
    {
        cat <<END
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>${title:-libfsdp}</title><link rel="stylesheet" href="${root}site.css"></head>
<body data-root="$root">
<header><b>libfsdp</b> <a href="${root}index.html">Start</a> <a href="${root}docs/index.html">Documentation</a>
<input type="search" placeholder="Search" aria-label="Search"></header>
<div id="found"></div>
<main>
END
        cat "$body"
        echo "</main><script src=\"${root}pages.js\"></script><script src=\"${root}search.js\"></script></body></html>"
    } >"$site/$to"
    # Its words, for the search.
    printf '{title: "%s", url: "%s", text: "%s"},\n' "$(as_text <<<"${title:-libfsdp}")" "$to" "$(as_text <"$body")" >>"$site/pages.js"
}

echo 'const pages = [' >"$site/pages.js"
queue=(README.md docs/README.md docs/*.md docs/man/*.[13])
declare -A done=()
for ((i = 0; i < ${#queue[@]}; i++)); do
    [ -n "${done[${queue[i]}]:-}" ] && continue
    done[${queue[i]}]=1
    page "${queue[i]}"
done
echo ']' >>"$site/pages.js"
rm "$site/.body" "$site/.links"
echo "site: ${#done[@]} pages in $site; open $site/index.html"
