"""Drives Chromium over the pipe of its remote debugging: what a person does on a page, and what the page then shows.

usage: browser.py BROWSER FOLDER PAGE.html ADDRESS    ADDRESS is degas serve's
Prints lines of "ok NAME" and "not ok NAME: why".
"""
import json
import os
import subprocess
import sys
import time

browser, folder, page, address = sys.argv[1:]


class Chromium:
    """One page of a browser: calls are answered in order, exceptions of scripts are kept."""

    def __init__(self):
        to_read, self.to = os.pipe()
        self.back, back_write = os.pipe()
        os.set_inheritable(to_read, True)
        os.set_inheritable(back_write, True)
        code = 'exec "$@" 3<&%d 4>&%d' % (to_read, back_write)
        self.process = subprocess.Popen(
            ['bash', '-c', code, 'bash', browser, '--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage',
             '--remote-debugging-pipe', '--user-data-dir=' + folder + '/driven'],
            close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, 'HOME': folder, 'TMPDIR': folder})
        os.close(to_read)
        os.close(back_write)
        self.got, self.n, self.trouble, self.session = b'', 0, [], None
        target = self.call('Target.createTarget', url='about:blank')['targetId']
        self.session = self.call('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
        for domain in 'Page', 'Runtime', 'Log':
            self.call(domain + '.enable')

    def message(self):
        while b'\0' not in self.got:
            more = os.read(self.back, 1 << 16)
            assert more, 'the browser ended'
            self.got += more
        text, self.got = self.got.split(b'\0', 1)
        return json.loads(text)

    def call(self, method, **params):
        self.n += 1
        asked = {'id': self.n, 'method': method, 'params': params}
        if self.session:
            asked['sessionId'] = self.session
        os.write(self.to, json.dumps(asked).encode() + b'\0')
        while True:
            m = self.message()
            if m.get('id') == self.n:
                assert 'error' not in m, (method, m['error'])
                return m['result']
            if m.get('method') in ('Runtime.exceptionThrown', 'Log.entryAdded'):
                self.trouble.append(m['params'])

    def value(self, expression):
        result = self.call('Runtime.evaluate', expression=expression, returnByValue=True, awaitPromise=True)
        assert 'exceptionDetails' not in result, result
        return result['result'].get('value')

    def wait(self, expression, seconds=60):
        end = time.monotonic() + seconds
        while not self.value(expression):
            if time.monotonic() > end:
                return False
            time.sleep(0.005)
        return True

    def go(self, url):
        self.call('Page.navigate', url=url)
        return self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def key(self, key):
        for kind in 'rawKeyDown', 'keyUp':
            self.call('Input.dispatchKeyEvent', type=kind, key=key, code=key,
                      windowsVirtualKeyCode={'ArrowLeft': 37, 'ArrowRight': 39, 'Tab': 9, 'Enter': 13}[key])


def report(right, name, why=''):
    print('ok ' + name if right else 'not ok %s: %s' % (name, str(why).replace('\n', ' ')[:300]))


c = Chromium()
# A page that was written: light, dark and on paper, and its timeline by keyboard.
c.go('file://' + page)
colors = {}
for scheme in 'light', 'dark':
    c.call('Emulation.setEmulatedMedia', features=[{'name': 'prefers-color-scheme', 'value': scheme}])
    colors[scheme] = c.value("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color].map("
                             "x => x.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0))")
report(colors['light'][0] > 700 > 250 > colors['light'][1] and colors['dark'][0] < 120 < 600 < colors['dark'][1],
       'dark letters on light paper, and the other way round where the reader wants it dark', colors)
c.call('Emulation.setEmulatedMedia', media='print', features=[{'name': 'prefers-color-scheme', 'value': 'dark'}])
printed = c.value("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.getElementById('buttons')).display]")
report(printed == ['rgb(255, 255, 255)', 'none'], 'paper is white and has no buttons', printed)
pdf = c.call('Page.printToPDF', paperWidth=8.27, paperHeight=11.7)['data']
report(len(pdf) > 10000, 'it prints', len(pdf))
c.call('Emulation.setEmulatedMedia', media='', features=[])
shown = c.value("document.getElementById('where').textContent")
found = c.wait("(() => { const b = [...document.querySelectorAll('#buttons button')]; b[0].focus(); return document.activeElement === b[0]; })()", 5)
c.call('Input.dispatchKeyEvent', type='keyDown', key='Enter', code='Enter', windowsVirtualKeyCode=13, text='\r')
c.call('Input.dispatchKeyEvent', type='keyUp', key='Enter', code='Enter', windowsVirtualKeyCode=13)
moved = c.wait("document.getElementById('where').textContent !== %s" % json.dumps(shown), 10)
report(found and moved, 'a button is reached and pressed by keyboard', (shown, c.value("document.getElementById('where').textContent")))

# degas serve: a slider is moved by keyboard; the answer is another at once, then the best, and steps back are known.
c.go(address + '#gpus=16&batch=1024&seq=8192')
ready = "!document.getElementById('answer').classList.contains('waits') && document.querySelector('#answer b') !== null"
asks = "/degas plan .*--gpus %d /.test(document.getElementById('answer').textContent)"
report(c.wait(ready + ' && ' + asks % 16), 'the answer for the sliders of the address', c.value("document.getElementById('answer').textContent"))
c.value("document.getElementById('gpus').focus()")
# Not a step that the page has asked for by itself: two at once.
first = "document.querySelector('#answer p.faint')?.textContent || ''"
began = time.monotonic()
c.key('ArrowRight')
c.key('ArrowRight')
seen = c.wait("%s.startsWith('With the split of the answer before') || (%s && %s)" % ('(' + first + ')', ready, asks % 64))
first_s = time.monotonic() - began
best = c.wait(ready + ' && ' + asks % 64)
best_s = time.monotonic() - began
report(seen and best, 'two steps by keyboard: the first answer after %d ms, the best after %d ms' % (1000 * first_s, 1000 * best_s))
label = c.value("document.getElementById('gpus').getAttribute('aria-valuetext') + ' ' + location.hash")
report(label.startswith('64 ') and 'gpus=64' in label, 'the slider and the address say so', label)
# Once the page has asked ahead, a step is shown without a question.
ahead = c.wait("performance.getEntriesByType('resource').filter(e => /gpus=32(&|$)/.test(e.name) && e.responseEnd > 0).length > 0"
               " && performance.getEntriesByType('resource').filter(e => /gpus=128(&|$)/.test(e.name) && e.responseEnd > 0).length > 0")
time.sleep(0.2)
c.key('ArrowRight')
step = c.value("new Promise(done => { const begin = performance.now(); (function look() { const a = document.getElementById('answer');"
               " if (!a.classList.contains('waits') && %s) done(performance.now() - begin);"
               " else if (performance.now() - begin > 30000) done(-1); else setTimeout(look, 1); })(); })" % (asks % 128))
report(ahead and 0 <= step < 1000, 'a step that was asked ahead is shown after %d ms' % step, step)
report(not c.trouble, 'no script fails and nothing is refused', c.trouble)
c.process.kill()
