#!/bin/sh
# degas serve: the page asks the planner and gets what degas plan says; other hosts, other sites and
# other methods are refused; what is no question is told so; SIGTERM ends it.
. tests/cli/tap.sh

fails 2 'global-batch' "without a batch" serve llama3-8b dgx-h100
"$DEGAS" serve llama3-8b dgx-h100 --gpus 8 --global-batch 16 --port 0 >"$W/address" 2>"$W/err" &
server=$!
trap 'kill "$server" 2>/dev/null; rm -rf "$W"' EXIT INT TERM
until [ -s "$W/address" ] || ! kill -0 "$server" 2>/dev/null; do sleep 0.02; done
if [ ! -s "$W/address" ]; then
    wait "$server"
    [ $? = 6 ] && grep -q 'install libmicrohttpd12' "$W/err"
    report $? "without libmicrohttpd the status is 6, and the line says what to install"
    skip "the server" "libmicrohttpd is not installed"
    finish
fi
grep -q '^http://127\.0\.0\.1:[0-9]*/$' "$W/address"
report $? "it prints its address" "$(cat "$W/address")"
if ! command -v python3 >/dev/null 2>&1; then
    skip "requests" "python3 is not installed"
    finish
fi
runs 0 "the same question by command" plan llama3-8b dgx-h100 --gpus 16 --global-batch 32 --set network=100Gbps,price=2.5
iteration=$(sed -n 's/^iteration \([^,]*\),.*/\1/p' "$W/out")
cat >"$W/ask.py" <<'P'
import http.client, json, re, statistics, subprocess, sys, time
port, iteration = int(sys.argv[1].split(':')[2].strip('/\n')), sys.argv[2]
n = 0
def ask(path, headers={}, method='GET', body=None, host=None):
    c = http.client.HTTPConnection('127.0.0.1', port)
    c.putrequest(method, path, skip_host=True)
    c.putheader('Host', host or f'127.0.0.1:{port}')
    for k, v in headers.items():
        c.putheader(k, v)
    if body is not None:
        c.putheader('Content-Length', str(len(body)))
    c.endheaders(body)
    r = c.getresponse()
    return r.status, r.read().decode(), r.headers
def report(right, name, what=''):
    global n
    n += 1
    print('ok' if right else 'not ok', name + ('' if right else f'\n# {what}'))
status, page, headers = ask('/')
report(status == 200 and "connect-src 'self'" in page and headers['Cache-Control'] == 'no-store' and
       headers['Content-Security-Policy'] == "frame-ancestors 'none'", 'the page', (status, dict(headers)))
asks = {a['key']: a for a in json.loads(re.search(r'id="asks">(.*?)</script>', page, re.S).group(1))}
report({k: asks[k]['values'][asks[k]['at']] for k in asks} ==
       {'gpus': '8', 'batch': '16', 'seq': '8192', 'network': '', 'price': ''},
       'its sliders begin at the job', asks)
status, answer, _ = ask('/plan?gpus=8&batch=16&seq=8192&near=1')
report(status == 200 and 'degas plan llama3-8b dgx-h100' in answer, 'before the first answer there is no split to be near', answer[:200])
status, answer, _ = ask('/plan?gpus=16&batch=32&seq=8192&network=100&price=2.5&page=a')
report(status == 200 and f'<b>{iteration}</b><span class="faint">iteration<' in answer and
       'USD per billion tokens' in answer, 'the answer is that of degas plan', (status, answer[:400]))
report('degas plan llama3-8b dgx-h100 --gpus 16 --global-batch 32 --set network=100Gbps,price=2.5 --seq-len 8192'
       in answer or 'network=100Gbps,price=2.5' in answer, 'and says its command', answer[-300:])
# A first answer, with the split of the one before: what degas plan says when that is given.
first = '<p class="faint">With the split of the answer before'
tp, pp, vpp, cp, ep, schedule = re.search(r'>best[^<]*<td>\d+' + r'<td>(\d+)' * 5 + r'<td>\d+<td class="left[^>]*>([a-z0-9-]+)', answer).groups()
split = ['--tp', tp, '--pp', pp, '--vpp', vpp, '--cp', cp, '--ep', ep, '--schedule', schedule]
def seconds(path):
    begin = time.monotonic()
    got = ask(path)
    return time.monotonic() - begin, got
times = {0: [], 1: []}
for gpus in 32, 64, 128, 256, 512:
    question = f'/plan?gpus={gpus}&batch=1024&seq=8192'
    took, (status, near, _) = seconds(question + '&near=1')
    times[1].append(took)
    if gpus == 32:
        told = subprocess.run([sys.argv[3], 'plan', 'llama3-8b', 'dgx-h100', '--gpus', '32', '--global-batch', '1024', *split, '--top', '0'],
                              capture_output=True, text=True).stdout
        want = re.search(r'^iteration ([^,]*),', told, re.M)[1]
        report(status == 200 and near.startswith(first) and f'<b>{want}</b>' in near and 'degas plan' not in near,
               'a first answer is the best with that split', (status, near[:300], split, want))
    took, (status, whole, _) = seconds(question)
    times[0].append(took)
    report(status == 200 and not whole.startswith(first), f'the answer is the best of all for {gpus} devices', whole[:200])
status, never, _ = ask('/plan?gpus=1&batch=1&seq=1048576&near=1')
report(status == 200 and never.startswith(first) and '<svg' not in never, 'a split that does not do is told', (status, never[:300]))
status, again, _ = ask('/plan?gpus=512&batch=1024&seq=8192&near=1')
report(again == whole, 'an answer that is known is not looked for again', again[:200])
report(statistics.median(times[1]) < statistics.median(times[0]) / 3, 'the first answer comes much earlier', times)
status, answer, _ = ask('/plan?gpus=5&batch=16&seq=8192')
report(status in (200, 400) and answer, 'a job that does not divide is answered', (status, answer))
sockets = [l.split() for l in open('/proc/net/tcp')] + [l.split() for l in open('/proc/net/tcp6')]
places = {s[1].split(':')[0] for s in sockets if s[3] == '0A' and s[1].endswith(f':{port:04X}')}
report(places == {'0100007F'}, 'it listens on the loopback device alone', places)
for name, kind, want, more in (
        ('another host', '/', 403, {'host': 'example.org'}),
        ('another name of this address', '/plan?gpus=8', 403, {'host': f'rebound.example:{port}'}),
        ('localhost', '/', 200, {'host': f'localhost:{port}'}),
        ('another origin', '/plan?gpus=8', 403, {'headers': {'Origin': 'https://example.org'}}),
        ('another port', '/plan?gpus=8', 403, {'headers': {'Origin': 'http://127.0.0.1:1'}}),
        ('a page of another site', '/plan?gpus=8', 403, {'headers': {'Sec-Fetch-Site': 'cross-site'}}),
        ('a page of ours', '/', 200, {'headers': {'Sec-Fetch-Site': 'same-origin'}}),
        ('POST', '/plan', 405, {'method': 'POST', 'body': b'gpus=8'}),
        ('another path', '/etc/passwd', 404, {}),
        ('no number', '/plan?gpus=8;rm', 400, {}),
        ('more of --set', '/plan?network=1,price=3', 400, {}),
        ('too large', '/plan?gpus=99999999999', 400, {}),
        ('nothing', '/plan?gpus=', 400, {})):
    status, answer, _ = ask(kind, **more)
    report(status == want and '<script>' not in answer[:200] or want == 200 and status == 200, name, (status, answer[:200]))
P
python3 "$W/ask.py" "$(cat "$W/address")" "$iteration" "$DEGAS" >"$W/told" 2>&1
report $? "all are answered" "$(cat "$W/told")"
# shellcheck disable=SC2094
while read -r word rest; do
    case $word in
    ok) report 0 "$rest" ;;
    not) report 1 "$rest" "$(cat "$W/told")" ;;
    esac
done <"$W/told"
[ ! -s "$W/err" ]
report $? "nothing on stderr" "$(cat "$W/err")"
fails 4 'port' "a port that is taken" serve llama3-8b dgx-h100 --gpus 8 --global-batch 16 \
    --port "$(sed 's/.*:\([0-9]*\).*/\1/' "$W/address")"
kill -TERM "$server"
wait "$server"
report $? "SIGTERM ends it" "$?"
finish
