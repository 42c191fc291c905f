"""The chat page of examples/serve in headless Chromium, driven through the DevTools protocol over a pipe."""

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
import unittest

import serve_support
from serve_support import PATIENCE, ServerTest, skip_all

CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser') or shutil.which('google-chrome')
if not CHROMIUM:
    skip_all('Chromium is not installed (Debian: chromium)')


class Chromium:
    """The process, of which every Browser is a context. Messages are JSON, each ended by a zero byte, on its descriptors 3 and 4."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self.output = os.pipe()
        self.input, from_browser = os.pipe()

        def connect():  # in the child; not onto a descriptor that is still needed
            high = [os.dup(to_browser), os.dup(from_browser)]
            while min(high) < 5:
                high = [os.dup(descriptor) for descriptor in high]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.process = subprocess.Popen(
            [CHROMIUM, '--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run',
             '--remote-debugging-pipe', '--user-data-dir=' + self.folder.name, 'about:blank'],
            preexec_fn=connect, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.numbers = itertools.count(1)
        self.received = b''

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.output)
        os.close(self.input)
        self.folder.cleanup()

    def read(self):
        while b'\0' not in self.received:
            block = os.read(self.input, 65536)
            if not block:
                raise AssertionError('the browser has ended')
            self.received += block
        message, self.received = self.received.split(b'\0', 1)
        return json.loads(message)

    def call(self, method, session=None, events=None, **parameters):
        """The result. What else is said until then is appended to `events`."""
        number = next(self.numbers)
        message = {'id': number, 'method': method, 'params': parameters}
        if session:
            message['sessionId'] = session
        os.write(self.output, json.dumps(message).encode() + b'\0')
        while True:
            answer = self.read()
            if answer.get('id') == number:
                if 'error' in answer:
                    raise AssertionError(answer['error'])
                return answer['result']
            if events is not None and answer.get('sessionId') == session:
                events.append(answer)


class Browser:
    """One page, with cookies and storage of its own."""
    chromium = None

    def __init__(self):
        if not Browser.chromium:
            Browser.chromium = Chromium()
        self.events = []
        self.context = self.chromium.call('Target.createBrowserContext')['browserContextId']
        target = self.chromium.call('Target.createTarget', url='about:blank', browserContextId=self.context)['targetId']
        self.session = self.chromium.call('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
        for domain in ('Page', 'Runtime', 'Log'):
            self.call(domain + '.enable')

    def close(self):
        self.chromium.call('Target.disposeBrowserContext', browserContextId=self.context)

    def call(self, method, **parameters):
        return self.chromium.call(method, self.session, self.events, **parameters)

    def run(self, script):
        """The value of an expression in the page."""
        result = self.call('Runtime.evaluate', expression=script, returnByValue=True, awaitPromise=True)
        if 'exceptionDetails' in result:
            raise AssertionError(result['exceptionDetails'])
        return result['result'].get('value')

    def problems(self):
        """What the page's console says: errors, and violations of the policy."""
        entries = [event['params']['entry'] for event in self.events if event.get('method') == 'Log.entryAdded']
        return [entry['text'] for entry in entries if entry['level'] == 'error']


class Page(ServerTest):
    context = 65536

    def setUp(self):
        self.browser = Browser()
        self.addCleanup(self.browser.close)
        self.browser.call('Page.navigate', url=self.server.url + '/')
        self.wait_for_page("document.title.startsWith('tiny')")

    def wait_for_page(self, condition):
        end = time.monotonic() + PATIENCE
        while not self.browser.run(condition):
            if time.monotonic() > end:
                picture = os.path.join(tempfile.gettempdir(), 'serve_page_test.png')
                with open(picture, 'wb') as file:
                    file.write(base64.b64decode(self.browser.call('Page.captureScreenshot')['data']))
                self.fail(f'{condition}: not within {PATIENCE} s, see {picture}; {self.browser.problems()}')
            time.sleep(0.02)

    def set(self, name, value):
        self.browser.run(f'document.getElementById({json.dumps(name)}).value = {json.dumps(value)}')

    def send(self, text):
        self.set('input', text)
        self.browser.run("document.getElementById('send').click()")

    def texts(self, kind):
        return self.browser.run(f"[...document.querySelectorAll('.{kind}')].map(box => box.textContent)")

    def test_a_chat(self):
        self.set('max-tokens', '20')
        for turn in (1, 2):
            # A greedy answer of the random model may be empty; then the page forgets the message.
            self.send(f'hello {turn}')
            self.wait_for_page(f"!running && document.querySelectorAll('.note').length === {turn}")
        self.assertEqual(self.texts('user'), ['hello 1', 'hello 2'])
        self.assertRegex(self.texts('note')[0], r'\d+ tokens')
        self.assertEqual(self.texts('error'), [])
        self.assertEqual(self.browser.run('messages.filter(each => each.role === "assistant").length'), len(self.texts('assistant')))
        self.browser.run("document.getElementById('clear').click()")
        self.assertEqual(self.browser.run("document.getElementById('messages').children.length + messages.length"), 0)
        self.assertEqual(self.browser.problems(), [])

    def test_settings_are_sent(self):
        self.set('system', 'be kind')
        self.set('temperature', '0.3')
        self.set('max-tokens', '7')
        body = json.loads(self.browser.run("messages.push({role: 'user', content: 'x'}), requestBody()"))
        self.assertEqual(body, {'messages': [{'role': 'system', 'content': 'be kind'}, {'role': 'user', 'content': 'x'}], 'temperature': 0.3,
                                'stream': True, 'stream_options': {'include_usage': True}, 'max_completion_tokens': 7})

    def test_it_stops(self):
        # No flag of the page keeps the random model from ending its answer, so the request is made longer on its way.
        self.browser.run("""(() => {
          const original = window.fetch;
          window.fetch = (url, options) => original(url, {...options,
              body: options && options.body && JSON.stringify({...JSON.parse(options.body), ignore_eos: true, stop_token_ids: []})});
        })()""")
        name = 'prologue_finished_total{reason="cancelled"}'
        before = self.server.metrics()[name]
        stopped = False
        for _ in range(20):  # the end of turn ends an answer in spite of ignore_eos
            notes = len(self.texts('note'))
            self.send('hello')
            self.browser.run("document.getElementById('stop').click()")
            self.wait_for_page(f"!running && document.querySelectorAll('.note').length > {notes}")
            stopped = self.texts('note')[-1] == 'stopped'
            if stopped:
                break
        self.assertTrue(stopped)
        self.assertTrue(self.browser.run("document.getElementById('stop').hidden && !document.getElementById('send').hidden"))
        self.wait_for('the cancellation', lambda: self.server.metrics()[name] > before or self.server.metrics()['prologue_running'] == 0)

    def test_text_is_never_markup(self):
        evil = '<img src=x onerror="window.hacked = 1"><script>window.hacked = 1</script><b>bold</b>'
        self.set('max-tokens', '5')
        self.send(evil)
        self.wait_for_page("!running && document.querySelectorAll('.note').length === 1")
        self.browser.run(f"show('message assistant', {json.dumps(evil)})")
        self.assertEqual(self.texts('user'), [evil])
        self.assertEqual(self.browser.run("document.querySelectorAll('main img, main script, main b').length"), 0)
        # Should markup get in nevertheless, the policy keeps it from running.
        self.browser.run("""(() => {
          const script = document.createElement('script');
          script.textContent = 'window.hacked = 1';
          document.body.append(script);
          const image = document.createElement('img');
          image.setAttribute('onerror', 'window.hacked = 1');
          image.src = 'x:';
          document.body.append(image);
        })()""")
        time.sleep(0.2)
        self.assertIsNone(self.browser.run('window.hacked'))
        self.assertTrue(any('Content Security Policy' in text for text in self.browser.problems()), self.browser.problems())

    def test_errors_are_shown(self):
        self.set('temperature', '5')
        self.send('hello')
        self.wait_for_page("!running && document.querySelectorAll('.error').length === 1")
        self.assertIn("'temperature' is 5", self.texts('error')[0])
        self.assertEqual(self.browser.run('messages.length'), 0)


    def test_it_survives_a_reload(self):
        self.set('max-tokens', '20')
        self.set('system', 'be kind')
        self.set('key', 'not stored')
        self.browser.run("messages.push({role: 'user', content: 'hello'}, {role: 'assistant', content: '<b>hi</b>'}); store()")
        self.assertNotIn('not stored', self.browser.run('JSON.stringify(localStorage)'))
        self.reload()
        self.assertEqual(self.texts('user') + self.texts('assistant'), ['hello', '<b>hi</b>'])
        self.assertEqual(self.browser.run("[messages.length, element('system').value, element('max-tokens').value]"), [2, 'be kind', '20'])
        for bad in ('[', '{"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": 1}, null]}', '[]', 'null'):
            self.browser.run(f"localStorage.setItem(kStored, {json.dumps(bad)})")
            self.reload()
            self.assertEqual(self.browser.run('messages.length'), 0)
        self.browser.run("messages.push({role: 'user', content: 'hello'}); store(); element('clear').click()")
        self.reload()
        self.assertEqual(self.texts('user'), [])

    def reload(self):
        self.browser.run('window.before = true')
        self.browser.call('Page.reload')
        self.wait_for_page("!window.before && document.title.startsWith('tiny')")

    def test_fenced_code_is_code(self):
        self.browser.run("show('message assistant', 'so:\\n```html\\n<b>x</b>\\n  y\\n```\\nand ```inline``` that')")
        self.assertEqual(self.browser.run("[...document.querySelectorAll('pre')].map(each => each.textContent)"), ['<b>x</b>\n  y'])
        self.assertEqual(self.texts('assistant'), ['so:<b>x</b>\n  yand ```inline``` that'])
        self.assertEqual(self.browser.run("document.querySelectorAll('main b').length"), 0)
        self.browser.run("show('message assistant', '```\\nnot ended')")
        self.assertEqual(self.browser.run("[...document.querySelectorAll('pre')].pop().textContent"), 'not ended')

    def test_it_fits_a_telephone(self):
        self.browser.call('Emulation.setDeviceMetricsOverride', width=360, height=640, deviceScaleFactor=1, mobile=True)
        self.browser.run("document.querySelector('details').open = true")
        self.browser.run("show('message assistant', 'word '.repeat(50) + 'x'.repeat(200) + '\\n```\\n' + 'y'.repeat(200) + '\\n```')")
        self.browser.run("show('message user', 'x'.repeat(200))")
        self.assertEqual(self.browser.run('document.documentElement.scrollWidth'), 360)
        self.assertEqual(self.browser.run("element('messages').scrollWidth - element('messages').clientWidth"), 0)
        outside = '[...document.querySelectorAll("button, input, textarea, .message")].filter(e => e.offsetParent && ' \
                  '(e.getBoundingClientRect().right > 360 || e.getBoundingClientRect().left < 0)).length'
        self.assertEqual(self.browser.run(outside), 0)
        self.assertGreater(self.browser.run("element('messages').clientHeight"), 100)


class PageWithAKey(ServerTest):
    arguments = ('--api-key', 'secret')

    def test_it_asks_for_the_key(self):
        browser = Browser()
        self.addCleanup(browser.close)
        browser.call('Page.navigate', url=self.server.url + '/')
        for key, shown in (('', 'error'), ('secret', 'note')):
            # The page may still be loading when it is asked for the first time.
            end = time.monotonic() + PATIENCE
            while not browser.run("typeof answer === 'function'") and time.monotonic() < end:
                time.sleep(0.02)
            browser.run(f"element('key').value = {json.dumps(key)}; element('max-tokens').value = '3'; element('input').value = 'hi'; element('send').click()")
            while not browser.run(f"!running && document.querySelectorAll('.{shown}').length === 1"):
                self.assertLess(time.monotonic(), end, shown)
                time.sleep(0.02)
        self.assertIn('API key', browser.run("document.querySelector('.error').textContent"))


class PageWithoutAServer(ServerTest):
    def test_it_says_so(self):
        browser = Browser()
        self.addCleanup(browser.close)
        server = serve_support.Server(serve_support.make_tiny_model(self.folder.name))
        browser.call('Page.navigate', url=server.url + '/')
        self.wait_for('the page', lambda: browser.run("document.title.startsWith('tiny') && element('gone').hidden"))
        server.stop()
        browser.run("element('input').value = 'hi'; element('send').click()")
        self.wait_for('the note', lambda: browser.run("!running && !element('gone').hidden"))
        self.assertIn('server does not answer', browser.run("element('gone').innerText"))
        self.assertEqual(browser.run("document.querySelectorAll('.error').length"), 1)
        again = serve_support.Server(serve_support.make_tiny_model(self.folder.name), port=server.port)
        self.wait_for('its return', lambda: browser.run("element('gone').hidden"))
        again.stop()


def tearDownModule():
    if Browser.chromium:
        Browser.chromium.close()


if __name__ == '__main__':
    unittest.main()
