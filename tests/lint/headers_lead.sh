#!/bin/sh
# Prints every public function that its header does not lead to; silent and 0 when there is none.
# A function that is declared in room/x.h is defined in room/x.c (or x.cu), or room/x.h names the file
# that defines it.  Declarations and definitions are told by the layout of .clang-format.
# usage: headers_lead.sh [ROOT]
set -eu
cd "${1:-$(dirname "$0")/../..}"
LC_ALL=C
export LC_ALL

sources=$(find base models schedule profiles planner simulator executor cli \
    -name '*.[ch]' -o -name '*.cu' 2>/dev/null | sort)
[ -n "$sources" ] || exit 0
# shellcheck disable=SC2086
found=$(awk '
FNR == 1 {
    is_header = FILENAME ~ "[.]h$"
    is_static = 0
}
is_header { text[FILENAME] = text[FILENAME] "\n" $0 }
# A declaration: "type name(..." from the first column on, not static, no definition.
is_header && /^[A-Za-z].*[ *][a-z_0-9]+\(/ && !/^static/ && !/^typedef/ && !/^#/ && !/^extern const/ {
    name = $0
    sub("\\(.*", "", name)
    sub(".*[ *]", "", name)
    if (name ~ "^[a-z]" && name !~ "^(defined|if)$")
        declared[name] = FILENAME
}
# A definition: the name stands in the first column, its type on the line before.
!is_header && /^[a-z][a-z_0-9]*\(/ && !is_static {
    name = $0
    sub("\\(.*", "", name)
    defined[name] = defined[name] " " FILENAME
}
!is_header { is_static = $0 ~ "^(static|extern \"C\" static|__global__|template)" }
END {
    for (name in declared) {
        if (!(name in defined))
            continue
        header = declared[name]
        stem = header
        sub("[.]h$", "", stem)
        n = split(defined[name], files, " ")
        leads = 0
        for (i = 1; i <= n; i++) {
            file = files[i]
            base = file
            sub(".*/", "", base)
            if (file == stem ".c" || file == stem ".cu" || index(text[header], base))
                leads = 1
        }
        if (!leads)
            print header ": " name "() is defined in" defined[name] "; the header does not say so"
    }
}' $sources | sort)
[ -z "$found" ] && exit 0
printf '%s\n' "$found"
exit 1
