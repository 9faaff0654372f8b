#!/bin/sh
# Pages in headless Chromium: scripts run under the page's own policy without a complaint, the timeline begins where boxes can be
# seen and its buttons are there, nothing is wider than a phone, and degas serve's page asks and shows the answer.
. tests/cli/tap.sh

browser=
for name in chromium chromium-browser google-chrome; do
    [ -n "$browser" ] || browser=$(command -v $name || true)
done
if [ -z "$browser" ]; then
    skip "pages in a browser" "Chromium is not installed"
    finish
fi
# dom URL WIDTH: the page as it is after its scripts, and what the console said
dom() {
    HOME=$W TMPDIR=$W "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$W/profile" \
        --window-size="$2,900" --virtual-time-budget=20000 --enable-logging=stderr --v=0 --dump-dom "$1" >"$W/dom" 2>"$W/log"
    grep 'CONSOLE' "$W/log" >"$W/console"
}
"$DEGAS" plan llama3-8b dgx-h100 --gpus 16 --pp 4 --global-batch 1024 --html "$W/plan.html" >/dev/null
dom "file://$W/plan.html" 1280
[ ! -s "$W/console" ]
report $? "a page's scripts run without a complaint" "$(cat "$W/console")"
grep -q 'id="where"[^>]*>0 to [0-9.]* [a-z]*s of [0-9.]* [a-z]*s are shown' "$W/dom" &&
    [ "$(grep -o '<button aria-label=' "$W/dom" | wc -l)" = 5 ]
report $? "many micro-batches: the beginning is shown, and there are buttons" "$(grep -o 'id="where".\{0,80\}' "$W/dom")"
# Of a window of 500 pixels, the narrowest there is without a screen, nothing but what scrolls by itself sticks out.
sed 's|</body>|<script>document.title = document.documentElement.scrollWidth + " of " + document.documentElement.clientWidth;</script></body>|' \
    "$W/plan.html" >"$W/narrow.html"
dom "file://$W/narrow.html" 500
grep -q '<title>\([0-9]*\) of \1</title>' "$W/dom"
report $? "a narrow page is not wider than its window" "$(grep -o '<title>.*</title>' "$W/dom")"

"$DEGAS" serve llama3-8b dgx-h100 --gpus 8 --global-batch 16 --port 0 >"$W/address" 2>"$W/err" &
server=$!
trap 'kill "$server" 2>/dev/null; rm -rf "$W"' EXIT INT TERM
until [ -s "$W/address" ] || ! kill -0 "$server" 2>/dev/null; do sleep 0.02; done
if [ ! -s "$W/address" ]; then
    skip "degas serve in a browser" "libmicrohttpd is not installed"
    finish
fi
runs 0 "what the command says" plan llama3-8b dgx-h100 --gpus 16 --global-batch 32 --seq-len 4096
iteration=$(sed -n 's/^iteration \([^,]*\),.*/\1/p' "$W/out")
dom "$(cat "$W/address")#gpus=16&batch=32&seq=4096" 1280
[ ! -s "$W/console" ] && grep -q "<b>$iteration</b><span class=\"faint\">iteration<" "$W/dom" &&
    grep -q '>degas plan llama3-8b dgx-h100 --gpus 16 --global-batch 32' "$W/dom"
report $? "the page of degas serve shows it for the sliders of its address" "$(cat "$W/console"; grep -o 'id="answer".\{0,400\}' "$W/dom")"
[ "$(grep -o 'type="range"' "$W/dom" | wc -l)" = 5 ] && grep -q 'id="buttons"><button' "$W/dom"
report $? "with five sliders and a timeline" "$(grep -o '<input[^>]*>' "$W/dom")"
# What a person does: keys, a dark screen, paper, sliders.
if command -v python3 >/dev/null 2>&1; then
    timeout 300 python3 tests/long/browser.py "$browser" "$W" "$W/plan.html" "$(cat "$W/address")" >"$W/told" 2>"$W/err"
    report $? "the browser is driven" "$(cat "$W/err" "$W/told")"
    while read -r word rest; do
        case $word in
        ok) report 0 "$rest" ;;
        not) report 1 "$rest" "$(cat "$W/told")" ;;
        esac
    done <<EOF
$(cat "$W/told")
EOF
else
    skip "the browser is driven" "python3 is not installed"
fi
kill -TERM "$server"
wait "$server"
finish
