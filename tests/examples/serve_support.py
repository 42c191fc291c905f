"""What the tests of examples/serve share: a server process, and plain HTTP."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEMO_MODEL = os.path.join(ROOT, 'models', 'SmolLM2-135M-Instruct.Q4_1.gguf')
SKIPPED = 77  # as ctest knows it
# How long a test waits for what must happen, in seconds: many times what it takes, so that a busy machine is not taken for a server that hangs.
PATIENCE = 120


def program(name):
    """The path of a program that ctest names in the environment."""
    return os.environ['PROLOGUE_' + name.upper()]


def skip_all(reason):
    print('skipped: ' + reason)
    sys.exit(SKIPPED)


def make_tiny_model(folder, context=512, *more):
    path = os.path.join(folder, f'tiny-{context}.gguf')
    subprocess.run([program('write_tiny_model'), path, str(context), *more], check=True)
    return path


def is_sanitized():
    """Times and memory of such a server say nothing."""
    with open(program('serve'), 'rb') as file:
        content = file.read()
    return b'__asan_init' in content or b'__tsan_init' in content


class Server:
    """A server process. Its standard error is kept in a file, for the message of a test that fails."""

    def __init__(self, model, *arguments, errors=None, port=0, **process):
        self.errors = errors or tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [program('serve'), '--device', 'cpu', '--model', model, '--port', str(port), *arguments],
            stdout=subprocess.PIPE, stderr=self.errors, text=True, **process)
        self.started = self.process.stdout.readline()  # the model and the address
        address = re.search(r'http://(.*):(\d+)/', self.started)
        if not address:
            self.process.wait()
            raise AssertionError('the server did not start: ' + self.stderr())
        self.host, self.port = address[1].strip('[]'), int(address[2])
        self.url = f'http://{address[1]}:{self.port}'

    def stderr(self):
        if not self.errors.closed:
            self.errors.seek(0)
            self.error_text = self.errors.read().decode(errors='replace')
        return self.error_text

    def stop(self, how=signal.SIGTERM):
        """Ends the server; its exit code."""
        self.process.send_signal(how)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f'the server did not end within {PATIENCE} s')
        finally:
            self.process.stdout.close()
            self.stderr()
            self.errors.close()
        return self.process.returncode

    def num_threads(self):
        with open(f'/proc/{self.process.pid}/status') as file:
            return int(re.search(r'Threads:\s*(\d+)', file.read())[1])

    def connect(self):
        return socket.create_connection((self.host, self.port), PATIENCE)

    def request(self, method, path, body=None, headers=None):
        """The status, the headers and the body as JSON if it is JSON, else as bytes."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE)
        try:
            if body is not None and not isinstance(body, (bytes, str)):
                body = json.dumps(body)
            connection.request(method, path, body, {'Content-Type': 'application/json', **(headers or {})})
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        if response.getheader('Content-Type') == 'application/json' and content:
            content = json.loads(content)
        return response.status, response.headers, content

    def post(self, path, body, **more):
        status, _, content = self.request('POST', path, body, **more)
        return status, content

    def open_stream(self, path, body):
        """Starts a streamed request; returns the connection and the response, of which nothing has been read."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE)
        connection.request('POST', path, json.dumps({**body, 'stream': True}), {'Content-Type': 'application/json'})
        return connection, connection.getresponse()

    def events(self, path, body):
        """All events of a streamed answer: objects, and at the end the text [DONE]."""
        connection, response = self.open_stream(path, body)
        with response:
            content = response.read().decode()
        connection.close()
        assert response.status == 200, content
        blocks = content.split('\n\n')
        assert blocks.pop() == '', content
        assert all(block.startswith('data: ') for block in blocks), content
        return [block[6:] if block == 'data: [DONE]' else json.loads(block[6:]) for block in blocks]

    def exchange(self, data, end=False):
        """Sends bytes as they are; all that comes back until the server closes. `end`: nothing more will be sent."""
        with self.connect() as connection:
            try:
                connection.sendall(data)
                if end:
                    connection.shutdown(socket.SHUT_WR)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the server has seen enough
            received = b''
            try:
                while block := connection.recv(65536):
                    received += block
            except ConnectionResetError:
                pass
            return received

    def metrics(self):
        """The values by name, with their labels."""
        status, _, text = self.request('GET', '/metrics')
        assert status == 200
        lines = [line for line in text.decode().splitlines() if not line.startswith('#')]
        return {name: float(value) for name, value in (line.rsplit(' ', 1) for line in lines)}


class ServerTest(unittest.TestCase):
    """One server for all tests of a class."""
    arguments = ()
    context = 512
    parallel = 8
    recommended_top_k = ()  # of the model's file

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.server = Server(make_tiny_model(cls.folder.name, cls.context, *cls.recommended_top_k), '--kv-memory', '128M',
                            '--parallel', str(cls.parallel), '--threads', '2', *cls.arguments)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        errors = cls.server.stderr()
        cls.folder.cleanup()
        assert code == 0, f'exit code {code}: {errors}'

    def assert_alive(self):
        self.assertEqual(self.server.request('GET', '/health')[2], {'status': 'ok'}, self.server.stderr())

    def assert_error(self, answer, status, param=None, code=None):
        got, content = answer
        self.assertEqual(got, status, content)
        self.assertEqual(set(content), {'error'})
        error = content['error']
        self.assertEqual(set(error), {'message', 'type', 'param', 'code'})
        self.assertTrue(error['message'])
        if param is not None:
            self.assertEqual(error['param'], param, error)
        if code is not None:
            self.assertEqual(error['code'], code, error)
        return error

    def wait_for(self, what, condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), end, what + ' did not happen')
            time.sleep(0.01)
